"""What each capture carries and what it lacks: tables, times, windows, counts, clocks, payloads, lost events."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rankdiff.clocks import Clock
from rankdiff.court import Island
from rankdiff.digest import Digest
from rankdiff.instances import Timed
from rankdiff.job import Job, span
from rankdiff.matching import Matching
from rankdiff.reports.identity import Identity

Pair = tuple[Identity, Digest]
Window = tuple[int, int]

KERNELS, CALLS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
RANGES, OS_CALLS = "NVTX_EVENTS", "OSRT_API"
NEEDED_TABLES = (KERNELS, CALLS, RANGES, OS_CALLS)


@dataclass(frozen=True)
class Counts:
    """N x N collectives of one rank, over its communicators."""

    matched: int  # in instances with all members
    trimmed: int  # before or after the window that the members share
    missing: int  # inside it, that most members have and this rank lacks
    extra: int  # inside it, that only this rank and few others have
    unmatched: int  # in no instance, the trimmed ones and the rest


@dataclass(frozen=True)
class RankQuality:
    """What the capture of one rank carries. None: not known, or the question does not arise."""

    rank: int
    tables: Mapping[str, int | None]  # rows read of the tables that matter; None: not captured
    unusable_events: Mapping[str, int]  # left out for their times, per table
    lost_events: (
        tuple[str, ...] | None
    )  # the profiler's diagnostics by code; None: the export has none at all
    window_ns: Window | None  # first and last GPU activity, UTC or since the job's origin
    starts_late_ns: int | None  # against the median of the other ranks
    ends_early_ns: int | None  # the same
    open_ranges: int | None
    kernels: int
    kernels_without_launch: int | None
    payloads: bool | None
    counts: Counts | None = None
    residual_ns: float | None = None  # scatter of its ends on the common clock: 1.4826 MAD
    clock_residual_ns: float | None = None  # the same of all ranks on its clock
    steps_compared: int | None = None  # steps with a matched collective of this rank
    steps_captured: int | None = None  # steps in its own capture


@dataclass(frozen=True)
class JobQuality:
    """What the captures of a job carry."""

    ranks: tuple[RankQuality, ...]  # in the order of the captured ranks
    missing: tuple[int, ...]  # ranks of the job without a report
    apart: tuple[int, ...]  # captured, but comparable with nobody

    def of(self, rank: int) -> RankQuality:
        """Quality of one captured rank."""
        return self._by_rank[rank]

    @cached_property
    def _by_rank(self) -> dict[int, RankQuality]:
        return {q.rank: q for q in self.ranks}

    @property
    def common_ns(self) -> Window | None:
        """The window that all captured ranks share; None when there is none or one is not known."""
        known = [q.window_ns for q in self.ranks if q.window_ns is not None]
        if not known or len(known) < len(self.ranks):
            return None
        start, end = max(w[0] for w in known), min(w[1] for w in known)
        return (start, end) if end > start else None


def read_quality(pairs: Sequence[Pair], missing: Sequence[int]) -> JobQuality:
    """Quality of captures by themselves; their windows are on the session clocks, good to milliseconds.

    Parameters
    ----------
    pairs : sequence of (Identity, Digest)
    missing : sequence of int
        Ranks of the job without a report.
    """
    windows = {
        i.rank: (start + d.info.window_start_ns, start + d.info.window_end_ns)
        for i, d in pairs
        if (start := d.info.session_start_utc_ns) is not None
    }
    return JobQuality(tuple(_all(pairs, windows).values()), tuple(missing), ())


def compared_quality(
    pairs: Sequence[Pair],
    missing: Sequence[int],
    apart: Sequence[int],
    job: Job,
    matching: Matching,
    clock: Clock,
    islands: Sequence[Island],
) -> JobQuality:
    """Quality of captures that were compared; windows are on the common clock, ns since the job's origin.

    Parameters
    ----------
    pairs : sequence of (Identity, Digest)
        All captured ranks.
    missing, apart : sequences of int
        Ranks without a report, and captured ranks that share no matched collective with anybody.
    job, matching, clock, islands
        Of the ranks that could be compared.
    """
    windows = {}
    for r in job.ranks:
        start, end = clock.common(job, r.index, np.array(span(r), np.int64)).tolist()
        windows[r.identity.rank] = start, end
    found = _all(pairs, windows)
    for r in job.ranks:
        found[r.identity.rank] = replace(
            found[r.identity.rank],
            counts=_counts(job, matching, r.index),
            residual_ns=clock.rank_residual_ns[r.index] if clock.rank_residual_ns else None,
            clock_residual_ns=clock.nodes[int(job.clock_of[r.index])].residual_ns,
        )
    for island in islands:
        for index in island.ranks:
            rank = job.ranks[index].identity.rank
            compared, captured = _steps(job, island, index)
            found[rank] = replace(found[rank], steps_compared=compared, steps_captured=captured)
    return JobQuality(tuple(found.values()), tuple(missing), tuple(apart))


def _all(pairs: Sequence[Pair], windows: Mapping[int, Window]) -> dict[int, RankQuality]:
    """Quality of the captures by themselves, by rank."""
    starts, ends = (sorted(w[k] for w in windows.values()) for k in (0, 1))
    return {i.rank: _rank(i, d, windows.get(i.rank), starts, ends) for i, d in pairs}


def _rank(
    i: Identity, d: Digest, own: Window | None, starts: Sequence[int], ends: Sequence[int]
) -> RankQuality:
    info = d.info
    late = early = None
    if own is not None and len(starts) > 1:
        late = max(0, own[0] - _middle_of_others(starts, own[0]))
        early = max(0, _middle_of_others(ends, own[1]) - own[1])
    return RankQuality(
        rank=i.rank,
        tables={table: info.tables.get(table) for table in NEEDED_TABLES},
        unusable_events=dict(info.unusable_events),
        lost_events=info.lost_events if info.has_diagnostics else None,
        window_ns=own,
        starts_late_ns=late,
        ends_early_ns=early,
        open_ranges=info.open_ranges if RANGES in info.tables else None,
        kernels=info.kernels,
        kernels_without_launch=info.kernels_without_launch,
        payloads=info.has_payloads if info.nccl_kernels else None,
    )


def _middle_of_others(ordered: Sequence[int], own: int) -> int:
    """Median of sorted integers without one of them; of an even number the lower of the two in the middle.

    UTC ns do not fit a float, so there is no mean of two.
    """
    k = (len(ordered) - 2) // 2
    return ordered[k] if k < bisect_left(ordered, own) else ordered[k + 1]


def _counts(job: Job, matching: Matching, r: int) -> Counts:
    sums = np.zeros(4, np.int64)
    for c in matching.communicators:
        for j in np.flatnonzero(c.members == r):
            sums += [c.positions.shape[0], c.trimmed[j], c.missing[j], c.extra[j]]
    matched, trimmed, missing, extra = sums.tolist()
    return Counts(matched, trimmed, missing, extra, unmatched=int(job.ranks[r].kind.size) - matched)


def _steps(job: Job, island: Island, r: int) -> tuple[int, int]:
    """Steps in which a rank could be compared, and steps that its capture holds."""
    mine = [t for t in island.timed if (t.comm.members == r).any()]
    compared = np.unique(np.concatenate([t.step[t.step >= 0] for t in mine])).size if mine else 0
    known = job.ranks[r].step
    if island.steps.source.startswith("nvtx:") and (known >= 0).any():
        return compared, max(compared, np.unique(known[known >= 0]).size)
    # Without step ranges: as many more steps as it has more operations.
    matched = sum(t.step.size for t in mine)
    return compared, round(compared * _operations(mine, r) / matched) if matched else 0


def _operations(mine: Sequence[Timed], r: int) -> int:
    total = 0
    for t in mine:
        j = int(np.flatnonzero(t.comm.members == r)[0])
        total += t.step.size + int(t.comm.trimmed[j]) + int(t.comm.lost[j])
    return total
