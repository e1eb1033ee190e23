"""Naive twins of the matching kernels."""

from __future__ import annotations

import functools
import statistics


def same(a, b):
    """Tokens agree when equal, or when one of them is unknown."""
    return a == b or a < 0 or b < 0


def shift_scores(token_a, start_a, end_a, token_b, start_b, end_b, low, high):
    """All admissible shifts with score and offset, every overlapping element looked at."""
    out = []
    for k in range(low, high + 1):
        pairs = [(j + k, j) for j in range(len(token_b)) if 0 <= j + k < len(token_a)]
        if not pairs or any(not same(token_a[i], token_b[j]) for i, j in pairs):
            continue
        d = [end_b[j] - end_a[i] for i, j in pairs]
        offset = statistics.median(d)
        half = len(d) // 2
        drift = [0.0] * len(d)
        apart = (end_a[pairs[-1][0]] - end_a[pairs[0][0]]) / 2
        if half >= 8 and apart > 0:
            rate = (statistics.median(d[half:]) - statistics.median(d[:half])) / apart
            rate = min(max(rate, -100e-6), 100e-6)
            drift = [rate * (end_a[i] - end_a[pairs[half][0]]) for i, _ in pairs]
            offset = statistics.median(x - y for x, y in zip(d, drift, strict=True))
        dev = [abs(x - y - offset) for x, y in zip(d, drift, strict=True)]
        slack = max(50_000, 6 * statistics.median(dev))
        broken = sum(
            end_a[i] + offset + y + slack < start_b[j] or end_b[j] + slack < start_a[i] + offset + y
            for (i, j), y in zip(pairs, drift, strict=True)
        )
        if broken * 50 > len(pairs):
            continue
        out.append((k, sum(dev) / len(dev), offset))
    return out


def alignment_cost(token_a, end_a, token_b, end_b, gap_cost):
    """Least cost of aligning two whole sequences, by plain recursion without a band."""

    @functools.cache
    def cost(i, j):
        if i == 0:
            return j * gap_cost
        if j == 0:
            return i * gap_cost
        best = min(cost(i - 1, j), cost(i, j - 1)) + gap_cost
        if same(token_a[i - 1], token_b[j - 1]):
            best = min(best, cost(i - 1, j - 1) + abs(end_a[i - 1] - end_b[j - 1]))
        return best

    return cost(len(token_a), len(token_b))
