"""Naive twin of the replay: every arrival looked up by recursion, no order needed."""

from __future__ import annotations


def replayed_ends(instances, transfer):
    """Ends of instances, each a list of (anchor instance or None, ns after its end)."""

    def end(i):
        return max((0 if a is None else end(a)) + ns for a, ns in instances[i]) + transfer[i]

    return [end(i) for i in range(len(instances))]
