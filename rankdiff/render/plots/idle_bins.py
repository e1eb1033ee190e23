"""Idle time of ranks in bins of the job's time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rankdiff.comparison import Comparison
from rankdiff.digest import Digest
from rankdiff.kernels.intervals import overlap_each, union
from rankdiff.schema import IDLE_CLASSES

I64 = NDArray[np.int64]

SHORT = "short"  # idle time in gaps beyond the longest that a digest keeps


@dataclass(frozen=True)
class Lane:
    """A rank's digest and what brings its session times to the time axis."""

    digest: Digest
    index: int | None  # in the job; None: it has no collectives, hence no fitted clock
    shift_ns: int

    def common(self, c: Comparison, t: I64) -> I64:
        """Times of the digest on the common clock, where there is one."""
        moved = t + self.shift_ns
        return moved if self.index is None else c.clock.common(c.job, self.index, moved)

    def window(self, c: Comparison) -> tuple[int, int]:
        """First start and last end of the GPU's work."""
        info = self.digest.info
        a, b = self.common(c, np.array([info.window_start_ns, info.window_end_ns], np.int64))
        return int(a), int(b)


def find_lanes(c: Comparison) -> dict[int, Lane]:
    """The ranks of the job; all that were captured when none of them could be compared."""
    if c.job.ranks:
        return {r.identity.rank: Lane(r.digest, r.index, r.origin_shift_ns) for r in c.job.ranks}
    begins = [d.info.session_start_utc_ns for d in c.digests]
    known = [b for b in begins if b is not None]
    return {
        i.rank: Lane(d, None, b - min(known) if b is not None else 0)
        for i, d, b in zip(c.identities, c.digests, begins, strict=True)
    }


def origin_utc_ns(c: Comparison) -> int | None:
    """What the times of `find_lanes` count from; None: no report knows when its session began."""
    if c.job.ranks:
        return c.job.origin_utc_ns
    begins = [d.info.session_start_utc_ns for d in c.digests]
    return min((b for b in begins if b is not None), default=None)


def idle_in_bins(c: Comparison, lanes: Sequence[Lane], edges: I64) -> tuple[I64, dict[str, I64]]:
    """Captured time, and idle time by cause, of each lane and bin.

    Parameters
    ----------
    edges : (b + 1,) int64, ns since the job's origin
        Ascending.

    Returns
    -------
    captured : (n, b) int64, ns
        Time between the rank's first and last GPU work.
    idle : dict of str to (n, b) int64, ns
        By class of IDLE_CLASSES, and SHORT. They sum to what no work of the GPU covers of the captured time.
    """
    begin, end = edges[:-1], edges[1:]
    captured = np.zeros((len(lanes), begin.size), np.int64)
    idle = {k: np.zeros_like(captured) for k in (*IDLE_CLASSES, SHORT)}
    for n, lane in enumerate(lanes):
        captured[n] = overlap_each(begin, end, *np.array(lane.window(c), np.int64)[:, None])
        tables = (lane.digest.work, lane.digest.collectives)
        busy = union(
            *(
                np.concatenate([lane.common(c, t[x].to_numpy()) for t in tables])
                for x in ("start_ns", "end_ns")
            )
        )
        rest = captured[n] - overlap_each(begin, end, *busy)
        for kind in IDLE_CLASSES:
            gaps = lane.digest.gaps.filter(pl.col("class") == kind).sort("start_ns")
            inside = [lane.common(c, gaps[x].to_numpy()) for x in ("start_ns", "end_ns")]
            # A clock's rounding may part a gap from the work beside it by a nanosecond.
            idle[kind][n] = np.minimum(overlap_each(begin, end, *inside), rest)
            rest = rest - idle[kind][n]
        idle[SHORT][n] = rest
    return captured, idle
