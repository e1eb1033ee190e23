"""What a step is made of on each rank, closing to the nanosecond.

compute + exposed wait + exposed transfer + copy + idle = step (METHOD: step identity), where *exposed* means
not hidden under the rank's own compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rankdiff.clocks import Clock
from rankdiff.instances import Steps, Timed, seats
from rankdiff.job import Job, JobRank
from rankdiff.kernels.intervals import overlap_each, union
from rankdiff.kernels.layers import uppermost
from rankdiff.waits import Waits

I64 = NDArray[np.int64]

PARTS = ("compute", "exposed_wait", "exposed_transfer", "copy", "idle")


def make_up(
    job: Job,
    clock: Clock,
    ranks: Sequence[int],
    timed: Sequence[Timed],
    waited: Sequence[Waits],
    steps: Steps,
) -> Iterator[I64]:
    """Split every step of each rank.

    Parameters
    ----------
    ranks : sequence of int
        Job rank indices of an island.
    timed, waited : sequences of equal length
        Its communicators and their waits.
    steps : Steps
        A step lasts from the last end of the step before to its own; the first step has no start and is 0.

    Yields
    ------
    (len(PARTS), k) int64, ns
        For each rank; in each step the parts sum to the step's length.
    """
    of_comm = {id(t): w for t, w in zip(timed, waited, strict=True)}
    placed = seats(timed)
    for rank in ranks:
        r = job.ranks[rank]

        def common(start: pl.Series, end: pl.Series, r: JobRank = r) -> tuple[I64, I64]:
            shift = r.origin_shift_ns
            return (
                clock.common(job, r.index, start.to_numpy() + shift),
                clock.common(job, r.index, end.to_numpy() + shift),
            )

        work, nccl = r.digest.work, r.digest.columns("collectives", "start_ns", "end_ns")
        start, end = common(work["start_ns"], work["end_ns"])
        compute, copy = ((work["kind"] == kind).to_numpy() for kind in ("compute", "copy"))
        mine = [(t.start[:, j], of_comm[id(t)].wait[:, j]) for t, j in placed.get(rank, ())]
        waiting = np.concatenate([np.empty(0, np.int64), *(a for a, _ in mine)])
        until = waiting + np.concatenate([np.empty(0, np.int64), *(x for _, x in mine)])
        layers = [
            _in_order(start[compute], end[compute]),
            _in_order(waiting, until),
            _in_order(*common(nccl["start_ns"], nccl["end_ns"])),
            _in_order(start[copy], end[copy]),
        ]
        out = np.zeros((len(PARTS), steps.size), np.int64)
        out[:, 1:] = uppermost(
            steps.last_end,
            np.concatenate([a for a, _ in layers]),
            np.concatenate([b for _, b in layers]),
            np.cumsum([0, *(a.size for a, _ in layers)]),
        )
        yield out


def _in_order(start: I64, end: I64) -> tuple[I64, I64]:
    """Intervals sorted by start, as they mostly are."""
    if bool((start[1:] >= start[:-1]).all()):
        return start, end
    order = np.argsort(start, kind="stable")
    return start[order], end[order]


def all_unmatched_spans(
    job: Job, clock: Clock, ranks: Sequence[int], timed: Sequence[Timed]
) -> list[tuple[I64, I64]]:
    """Per rank the union of its NCCL kernels outside matched N x N instances: starts and ends on the common clock.

    Parameters
    ----------
    job : Job
    clock : Clock
    ranks : sequence of int
        Job rank indices of an island.
    timed : sequence of Timed
        Its communicators.
    """
    matched = seats(timed)
    out = []
    for rank in ranks:
        r = job.ranks[rank]
        rest = np.ones(r.height, np.bool_)
        for t, j in matched.get(rank, ()):
            at = t.comm.positions[:, j]
            rest[at if r.own_row is None else r.own_row[at]] = False
        if not rest.any():
            out.append((np.empty(0, np.int64), np.empty(0, np.int64)))
            continue
        table = r.digest.columns("collectives", "start_ns", "end_ns").filter(pl.Series(rest))
        a = clock.common(job, rank, table["start_ns"].to_numpy() + r.origin_shift_ns)
        b = clock.common(job, rank, table["end_ns"].to_numpy() + r.origin_shift_ns)
        out.append(union(a, b))
    return out


def unmatched_nccl(job: Job, clock: Clock, ranks: Sequence[int], timed: Sequence[Timed], steps: Steps) -> I64:
    """Time of every rank's NCCL kernels outside matched N x N instances in every step.

    Returns
    -------
    (n, k) int64, ns
        Union per step, by the steps' last ends; what ends before the first step's end counts for that step.
    """
    edge = np.concatenate([[np.iinfo(np.int64).min // 4], steps.last_end])
    out = np.zeros((len(ranks), steps.size), np.int64)
    for n, spans in enumerate(all_unmatched_spans(job, clock, ranks, timed)):
        if spans[0].size:
            out[n] = overlap_each(edge[:-1], edge[1:], *spans)
    return out
