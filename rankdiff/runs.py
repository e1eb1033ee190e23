"""Captures that do not belong to the job: another run in the same folder."""

from __future__ import annotations

from collections import defaultdict

from rankdiff.job import Job, span

# Sessions of one job start within minutes of each other; NTP errs by far less.
_OTHER_RUN_NS = 60_000_000_000


def other_runs(job: Job) -> tuple[int, ...]:
    """Ranks whose capture belongs to another run: their window is minutes away from the others'.

    Ranks that share a communicator hash are of one run, whatever their clocks say.

    Returns
    -------
    tuple of int
        Job rank indices outside the largest set.
    """
    known = [r for r in job.ranks if r.digest.info.session_start_utc_ns is not None]
    if len(known) < len(job.ranks):
        return ()
    parent = {r.index: r.index for r in known}

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    by_start = sorted(known, key=lambda r: span(r)[0])
    reach = by_start[0] if by_start else None
    for r in by_start[1:]:
        if reach is not None and span(r)[0] - span(reach)[1] <= _OTHER_RUN_NS:
            parent[root(r.index)] = root(reach.index)
        if reach is None or span(r)[1] > span(reach)[1]:
            reach = r
    seen: dict[str, int] = {}
    for r in known:
        for comm in sorted(r.comms):
            first = seen.setdefault(comm, r.index)
            parent[root(r.index)] = root(first)
    sets: dict[int, list[int]] = defaultdict(list)
    for r in known:
        sets[root(r.index)].append(r.index)
    if len(sets) < 2:
        return ()
    largest = max(sets.values(), key=lambda s: (len(s), -min(s)))
    return tuple(sorted(i for s in sets.values() if s is not largest for i in s))
