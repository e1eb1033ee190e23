"""The matched instances as a rank met them: how long it waited, for whom, and how late it was itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rankdiff.comparison import Comparison
from rankdiff.court import Island
from rankdiff.instances import Timed
from rankdiff.kernels.intervals import I64
from rankdiff.units import duration
from rankdiff.verdict import Judgement
from rankdiff.waits import Waits
from rankdiff.windows import Window

Mask = NDArray[np.bool_]

_LATE_NS = 50_000.0  # worth a mark where nothing was judged
_MEMBERS_BITS = 20  # ranks of a communicator are fewer than 2 ** 20

# One row per matched collective of the rank that touches the window.
INSTANCES = pl.Schema(
    {
        "row": pl.Int64,  # in the rank's digest.collectives
        "instance": pl.Int64,  # number of the instance in the job; equal on all its members
        "communicator": pl.String,
        "track": pl.String,  # what its communicator is called
        "step_label": pl.String,
        "wait_ns": pl.Int64,  # as in Waits
        "transfer_ns": pl.Int64,
        "lateness_ns": pl.Int64,
        "last_rank": pl.Int64,  # number of the last rank to arrive
        "last_ns": pl.Int64,  # when it did, ns since the job's origin on the common clock
        "arrow": pl.Int64,  # arrow from the last rank to this one; null: none
    }
)
# One row per arrow from this rank, the last to arrive, to one that waited.
ARROWS = pl.Schema({"row": pl.Int64, "arrow": pl.Int64})
# Arrivals later than the median by the threshold of the verdict.
LATE = pl.Schema(
    {
        "at_ns": pl.Int64,  # since the window's start
        "name": pl.String,
        "lateness_ns": pl.Int64,
        "step": pl.String,
    }
)


@dataclass(frozen=True)
class Encounters:
    """The instances of one rank: INSTANCES, ARROWS and LATE."""

    instances: pl.DataFrame
    arrows: pl.DataFrame
    late: pl.DataFrame


@dataclass(frozen=True)
class _Meeting:
    """The instances of one communicator that touch the window."""

    island: Island
    judgement: Judgement
    t: Timed
    w: Waits
    numbers: I64  # (n,) rank numbers of the members
    at: I64  # (m,) which instances
    number: I64  # (m,) number of the instance in the job
    last_ns: I64  # (m,) when the last arrives
    arrows: Mask  # (m, n) whether an arrow leads from the last to arrive to this member


class Meetings:
    """The instances of a job in a window, rank by rank.

    Parameters
    ----------
    c : Comparison
    window : Window
        An arrow or a mark outside of it is left out.
    shown : frozenset of int
        Rank numbers; an arrow needs both of its ends.
    """

    def __init__(self, c: Comparison, window: Window, shown: frozenset[int]) -> None:
        self._window = window
        self._rows = {r.identity.rank: r.row for r in c.job.ranks}
        self._meetings: list[_Meeting] = []
        first = 0
        for island, judgement, waited in zip(c.islands, c.judgements, c.waited, strict=True):
            for t, w in zip(island.timed, waited, strict=True):
                touching = (t.end.max(axis=1) > window.start_ns) & (t.start.min(axis=1) < window.end_ns)
                at = np.flatnonzero(touching)
                numbers = np.array([c.job.ranks[int(r)].identity.rank for r in t.comm.members], np.int64)
                arrows = _arrows(t, w, at, window, np.isin(numbers, sorted(shown)))
                last_ns = t.start[at, w.last[at]]
                self._meetings.append(
                    _Meeting(island, judgement, t, w, numbers, at, first + at, last_ns, arrows)
                )
                first += w.last.size

    def of(self, rank: int) -> Encounters:
        """What a rank met; three empty tables when nothing of it was matched."""
        instances, arrows, late = [], [], []
        for m in self._meetings:
            for j in np.flatnonzero(m.numbers == rank).tolist():
                row = self._rows[rank][m.t.comm.positions[m.at, j]]
                instances.append(_instances(m, j, row))
                mine = np.flatnonzero(m.w.last[m.at] == j)
                at, to = np.nonzero(m.arrows[mine])
                table = {"row": row[mine[at]], "arrow": _name(m.number[mine[at]], to)}
                arrows.append(pl.DataFrame(table, schema=ARROWS))
                late.append(_late(m, j, self._window))
        return Encounters(
            pl.concat([pl.DataFrame(schema=INSTANCES), *instances]),
            pl.concat([pl.DataFrame(schema=ARROWS), *arrows]),
            pl.concat([pl.DataFrame(schema=LATE), *late]).sort("at_ns", maintain_order=True),
        )


def _arrows(t: Timed, w: Waits, at: I64, window: Window, shown: Mask) -> Mask:
    """(m, n) bool: whether an arrow leads from the last to arrive to each member.

    It leaves when the last arrives and comes in 1 ns later, for viewers want to hear of its beginning before its
    end; at both times the collectives must run.
    """
    last = w.last[at]
    leaves = t.start[at, last]
    there = (
        (leaves >= window.start_ns) & (leaves + 1 < window.end_ns) & shown[last] & (t.end[at, last] > leaves)
    )
    met = (w.wait[at] > 0) & (t.end[at] > leaves[:, None] + 1) & (t.start[at] < leaves[:, None])
    return np.asarray(there[:, None] & met & shown)


def _name(instance: I64, column: I64 | int) -> I64:
    """Number of an arrow: its instance and the member that it leads to."""
    return (instance << _MEMBERS_BITS) + column


def _instances(m: _Meeting, j: int, row: I64) -> pl.DataFrame:
    table = {
        "row": row,
        "instance": m.number,
        "communicator": [m.t.comm.id] * m.at.size,
        "track": [f"NCCL {m.t.comm.id}, {_listed(m.numbers.tolist())}"] * m.at.size,
        "step_label": [m.island.steps.labels[k] for k in m.t.step[m.at]],
        "wait_ns": m.w.wait[m.at, j],
        "transfer_ns": m.w.transfer[m.at],
        "lateness_ns": m.w.start[m.at, j] - m.w.middle[m.at],
        "last_rank": m.numbers[m.w.last[m.at]],
        "last_ns": m.last_ns,
        "arrow": np.where(m.arrows[:, j], _name(m.number, j), -1),
    }
    arrow = pl.col("arrow")
    return pl.DataFrame(table, schema=INSTANCES).with_columns(pl.when(arrow >= 0).then(arrow).alias("arrow"))


def _late(m: _Meeting, j: int, window: Window) -> pl.DataFrame:
    least = m.judgement.threshold_ns if m.judgement.threshold_ns is not None else _LATE_NS
    start = m.t.start[m.at, j]
    lateness = start - m.w.middle[m.at]
    keep = (lateness >= least) & (start >= window.start_ns) & (start < window.end_ns)
    table = {
        "at_ns": start[keep] - window.start_ns,
        "name": [f"late by {duration(ns)}" for ns in lateness[keep].tolist()],
        "lateness_ns": lateness[keep],
        "step": [m.island.steps.labels[k] for k in m.t.step[m.at][keep]],
    }
    return pl.DataFrame(table, schema=LATE)


def _listed(numbers: Sequence[int]) -> str:
    """Ranks in few words: ``ranks 0-3``, ``ranks 0, 2``."""
    runs = list(_runs(numbers))
    return f"ranks {', '.join(runs)}" if len(runs) <= 8 else f"{len(numbers)} ranks"


def _runs(numbers: Sequence[int]) -> Iterator[str]:
    at = 0
    while at < len(numbers):
        end = at
        while end + 1 < len(numbers) and numbers[end + 1] == numbers[end] + 1:
            end += 1
        yield str(numbers[at]) if at == end else f"{numbers[at]}-{numbers[end]}"
        at = end + 1
