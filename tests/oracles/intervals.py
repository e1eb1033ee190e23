"""Naive twins of the interval and nesting kernels: sets of nanoseconds and plain loops."""

from __future__ import annotations

from itertools import pairwise


def covered(intervals):
    """Every ns that some interval covers."""
    return {t for start, end in intervals for t in range(start, end)}


def union(intervals):
    """Runs of covered ns, as (start, end)."""
    runs = []
    for t in sorted(covered(intervals)):
        if runs and runs[-1][1] == t:
            runs[-1][1] = t + 1
        else:
            runs.append([t, t + 1])
    return [tuple(run) for run in runs]


def gaps(intervals):
    """Between the runs."""
    runs = union(intervals)
    return [(a[1], b[0]) for a, b in pairwise(runs)]


def overlap_each(a, b):
    """Covered ns of each interval of `a`."""
    ns = covered(b)
    return [len(ns & set(range(start, end))) for start, end in a]


def innermost(ranges, moments):
    """Index of the latest started, then shortest, then last given range that contains the moment, or -1."""
    out = []
    for track, t in moments:
        best = -1
        for i, (owner, start, end) in enumerate(ranges):
            if owner == track and start <= t < end:
                if best < 0:
                    best = i
                    continue
                _, best_start, best_end = ranges[best]
                if start > best_start or (start == best_start and end <= best_end):
                    best = i
        out.append(best)
    return out


def groups(events):
    """Group of each (track, kind, launches) event; kind 0 member, 1 open, 2 close."""
    out, count = [], -1
    depth, previous = 0, None
    for track, kind, launches in events:
        if track != previous:
            depth, previous = 0, track
        if kind == 1:
            count += depth == 0
            depth += 1
            out.append(-1)
        elif depth == 0:
            out.append(-1)
        else:
            out.append(count)
            if kind == 2:
                depth = 0 if launches else depth - 1
    return out
