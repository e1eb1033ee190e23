"""Naive twins of the clock kernels."""

from __future__ import annotations

import itertools
import statistics


def theil_sen_slope(t, d):
    """Median of all pairwise slopes."""
    slopes = [
        (d[j] - d[i]) / (t[j] - t[i]) for i, j in itertools.combinations(range(len(t)), 2) if t[i] != t[j]
    ]
    return statistics.median(slopes) if slopes else 0.0


def best_step(d, margin):
    """Place of the split with the least squared error about two means, and the difference of medians."""
    if len(d) < 2 * margin:
        return -1, 0.0

    def error(part):
        mean = sum(part) / len(part)
        return sum((x - mean) ** 2 for x in part)

    at = min(range(margin, len(d) - margin + 1), key=lambda i: error(d[:i]) + error(d[i:]))
    return at, statistics.median(d[at:]) - statistics.median(d[:at])
