"""What a step is made of on each rank, closing to the nanosecond.

compute + exposed wait + exposed transfer + copy + idle = step (METHOD: step identity), where *exposed* means
not hidden under the rank's own compute.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rankdiff.clocks import Clock
from rankdiff.instances import Steps, Timed
from rankdiff.job import Job
from rankdiff.kernels.intervals import overlap_each, union
from rankdiff.waits import Waits

I64 = NDArray[np.int64]

PARTS = ("compute", "exposed_wait", "exposed_transfer", "copy", "idle")


def make_up(
    job: Job, clock: Clock, rank: int, timed: Sequence[Timed], waited: Sequence[Waits], steps: Steps
) -> dict[str, I64]:
    """Split every step of one rank.

    Parameters
    ----------
    rank : int
        Job rank index.
    timed, waited : sequences of equal length
        The communicators of the rank's island and their waits.
    steps : Steps
        A step lasts from the last end of the step before to its own; the first step has no start and is 0.

    Returns
    -------
    dict of str to (k,) int64, ns
        One entry per part; in each step they sum to the step's length.
    """
    r = job.ranks[rank]
    begin, end = steps.last_end[:-1], steps.last_end[1:]

    def common(table: pl.DataFrame) -> tuple[I64, I64]:
        shift = r.origin_shift_ns
        a = clock.common(job, rank, table["start_ns"].to_numpy() + shift)
        b = clock.common(job, rank, table["end_ns"].to_numpy() + shift)
        return a, b

    work = r.digest.work
    compute = common(work.filter(pl.col("kind") == "compute"))
    copy = common(work.filter(pl.col("kind") == "copy"))
    nccl = common(r.digest.collectives)
    wait_from, wait_to = [], []
    for t, w in zip(timed, waited, strict=True):
        for j in np.flatnonzero(t.comm.members == rank):
            wait_from.append(t.start[:, j])
            wait_to.append(t.start[:, j] + w.wait[:, j])
    waiting = (
        np.concatenate([*wait_from, np.empty(0, np.int64)]),
        np.concatenate([*wait_to, np.empty(0, np.int64)]),
    )

    def covered(*sets: tuple[I64, I64]) -> I64:
        a, b = union(np.concatenate([s[0] for s in sets]), np.concatenate([s[1] for s in sets]))
        return np.concatenate([np.zeros(1, np.int64), overlap_each(begin, end, a, b)])

    u1 = covered(compute)
    u2 = covered(compute, waiting)
    u3 = covered(compute, waiting, nccl)
    u4 = covered(compute, waiting, nccl, copy)
    length = np.concatenate([np.zeros(1, np.int64), end - begin])
    return dict(zip(PARTS, (u1, u2 - u1, u3 - u2, u4 - u3, length - u4), strict=True))


def unmatched_spans(job: Job, clock: Clock, rank: int, timed: Sequence[Timed]) -> tuple[I64, I64]:
    """Union of a rank's NCCL kernels outside matched N x N instances: starts and ends on the common clock."""
    r = job.ranks[rank]
    matched = [r.row[t.comm.positions[:, j]] for t in timed for j in np.flatnonzero(t.comm.members == rank)]
    rest = np.ones(r.digest.collectives.height, np.bool_)
    for rows in matched:
        rest[rows] = False
    table = r.digest.collectives.filter(pl.Series(rest))
    a = clock.common(job, rank, table["start_ns"].to_numpy() + r.origin_shift_ns)
    b = clock.common(job, rank, table["end_ns"].to_numpy() + r.origin_shift_ns)
    return union(a, b)


def unmatched_nccl(job: Job, clock: Clock, rank: int, timed: Sequence[Timed], steps: Steps) -> I64:
    """Time of a rank's NCCL kernels outside matched N x N instances in every step.

    Returns
    -------
    (k,) int64, ns
        Union per step, by the steps' last ends; what ends before the first step's end counts for that step.
    """
    edge = np.concatenate([[np.iinfo(np.int64).min // 4], steps.last_end])
    return overlap_each(edge[:-1], edge[1:], *unmatched_spans(job, clock, rank, timed))
