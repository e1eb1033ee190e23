"""Naive twin of the replay: every arrival looked up by recursion, no order needed."""

from __future__ import annotations

import statistics


def replayed_ends(instances, transfer):
    """Ends of instances, each a list of (anchor instance or None, ns after its end)."""

    def end(i):
        return max((0 if a is None else end(a)) + ns for a, ns in instances[i]) + transfer[i]

    return [end(i) for i in range(len(instances))]


def segments(instances):
    """Anchor and segment of each element.

    instances: list of [(row, start, length, ...), ...].
    """
    out, before = [], []
    for i, members in enumerate(instances):
        for row, start, *_ in members:
            # The last of equal ends, as they were given.
            ended = [(end, n, at) for n, (r, end, at) in enumerate(before) if r == row and end <= start]
            end, _, at = max(ended, default=(0, 0, -1))
            out.append((at, start - end))
        before += [(row, start + length, i) for row, start, length, *_ in members]
    return out


def medians(instances):
    """Median value of the chosen elements of each instance; nan for none.

    instances: list of [(..., value, chosen), ...].
    """
    out = []
    for members in instances:
        chosen = [value for *_, value, on in members if on]
        out.append(statistics.median(chosen) if chosen else float("nan"))
    return out


def beyond(instances):
    """What each chosen element has beyond the median of the other chosen ones of its instance."""
    out = []
    for members in instances:
        for n, (*_, value, on) in enumerate(members):
            others = [v for k, (*_, v, also) in enumerate(members) if also and k != n]
            out.append(value - statistics.median(others) if on and others else float("nan"))
    return out
