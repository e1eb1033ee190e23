"""Naive twin of the track kernel: every interval is held against all before it."""

from __future__ import annotations


def agree(a, b):
    """Whether two intervals nest or do not touch; b does not start before a."""
    return b[0] >= a[1] or b[1] <= a[1]


def tracks(intervals):
    """First track for each interval on which it agrees with every interval so far."""
    out = []
    for i, interval in enumerate(intervals):
        track = 0
        while not all(agree(intervals[j], interval) for j in range(i) if out[j] == track):
            track += 1
        out.append(track)
    return out
