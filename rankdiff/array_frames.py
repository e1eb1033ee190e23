"""The tables whose rows are elements of the comparison's arrays: delays, instances and waits.

Waits have a row per collective and rank, tens of millions in a large job: whole columns at a time, and in parts for who
cannot hold all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rankdiff.comparison import Comparison
from rankdiff.court import Island
from rankdiff.instances import Timed
from rankdiff.job_tables import DELAYS, INSTANCES, WAITS
from rankdiff.waits import Waits

I64 = NDArray[np.int64]

ROWS_AT_ONCE = 1 << 20  # of waits in one part


def delays(c: Comparison) -> pl.DataFrame:
    """The table DELAYS."""
    parts = [pl.DataFrame(schema=DELAYS)]
    for n, island in enumerate(c.islands):
        numbers = np.array([c.job.ranks[r].identity.rank for r in island.ranks], np.int64)
        k = island.steps.size
        table = {
            "island": np.full(k * numbers.size, n),
            "step": np.repeat(labels(island), numbers.size),
            "rank": np.tile(numbers, k),
            "delay_ns": island.delta.T.ravel(),
            "judged": np.repeat(island.included, numbers.size),
        }
        parts.append(pl.DataFrame(table, schema=DELAYS))
    return pl.concat(parts)


def instances(c: Comparison) -> pl.DataFrame:
    """The table INSTANCES."""
    parts = [pl.DataFrame(schema=INSTANCES)]
    for m in _meetings(c):
        t, w, size = m.t, m.w, m.w.last.size
        table = {
            "instance": m.first + np.arange(size),
            "communicator": pl.repeat(t.comm.id, size, dtype=pl.String, eager=True),
            "sequence": np.arange(size),
            "step": m.step,
            "op": m.op,
            "bytes": m.bytes,
            "ranks": np.full(size, m.numbers.size),
            "first_start_ns": t.start.min(axis=1),
            "last_start_ns": t.start.max(axis=1),
            "last_rank": m.numbers[w.last],
            "end_ns": np.median(t.end, axis=1).astype(np.int64),
            "wait_ns": w.wait.sum(axis=1),
            "transfer_ns": w.transfer,
            "judged": m.island.included[t.step],
        }
        parts.append(pl.DataFrame(table, schema=INSTANCES))
    return pl.concat(parts)


def waits(c: Comparison, rows: int = ROWS_AT_ONCE) -> Iterator[pl.DataFrame]:
    """The table WAITS in parts of about so many rows, each of one communicator."""
    for m in _meetings(c):
        t, w, n, lateness = m.t, m.w, m.numbers.size, m.w.lateness
        row = np.stack(
            [c.job.ranks[int(r)].row[t.comm.positions[:, j]] for j, r in enumerate(t.comm.members)], axis=1
        )
        some = max(1, rows // n)
        for a in range(0, w.last.size, some):
            part = slice(a, a + some)
            sequence = np.arange(w.last.size)[part]
            op, sizes = m.op[part], m.bytes[part]
            each = np.repeat(np.arange(sequence.size), n)
            table = {
                "instance": m.first + sequence[each],
                "communicator": pl.repeat(t.comm.id, each.size, dtype=pl.String, eager=True),
                "sequence": sequence[each],
                "step": m.step[part][each],
                "rank": np.tile(m.numbers, sequence.size),
                "op": op.gather(each),
                "bytes": sizes.gather(each),
                "start_ns": t.start[part].ravel(),
                "end_ns": t.end[part].ravel(),
                "wait_ns": w.wait[part].ravel(),
                "lateness_ns": lateness[part].ravel(),
                "transfer_ns": w.transfer[part][each],
                "collective": row[part].ravel(),
            }
            yield pl.DataFrame(table, schema=WAITS)


@dataclass(frozen=True)
class _Meeting:
    """The instances of one communicator."""

    island: Island
    t: Timed
    w: Waits
    first: int  # number of its first instance in the job
    numbers: I64  # (n,) rank numbers of the members
    step: I64  # (m,) number of the step
    op: pl.Series  # (m,)
    bytes: pl.Series  # (m,)


def _meetings(c: Comparison) -> Iterator[_Meeting]:
    first = 0
    for island, waited in zip(c.islands, c.waited, strict=True):
        steps = labels(island)
        for t, w in zip(island.timed, waited, strict=True):
            numbers = np.array([c.job.ranks[int(r)].identity.rank for r in t.comm.members], np.int64)
            op, sizes = _operations(c, t)
            yield _Meeting(island, t, w, first, numbers, steps[t.step], op, sizes)
            first += w.last.size


def _operations(c: Comparison, t: Timed) -> tuple[pl.Series, pl.Series]:
    """(m,) operation and message size of each instance, from the lowest member that knows it."""
    op = pl.Series("op", [None] * t.step.size, pl.String)
    sizes = pl.Series("bytes", [None] * t.step.size, pl.Int64)
    for j, r in enumerate(t.comm.members):
        rank = c.job.ranks[int(r)]
        # Without payloads no rank knows a size, and every digest would be opened for nothing.
        if j and (not sizes.null_count() or not rank.digest.info.has_payloads):
            continue
        table = rank.digest.collectives[rank.row[t.comm.positions[:, j]]]
        op = table["op"] if not j else op
        sizes = pl.select(pl.coalesce(sizes, table["bytes"]).alias("bytes")).to_series()
    return op, sizes


def labels(island: Island) -> I64:
    """(k,) numbers of an island's steps."""
    return np.array([int(label) for label in island.steps.labels], np.int64)
