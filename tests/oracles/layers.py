"""Naive twin of the layers kernel: nanosecond by nanosecond."""

from __future__ import annotations


def uppermost(edge, layers):
    """For each layer, and last for none, the time in each window that is its."""
    out = [[0] * (len(edge) - 1) for _ in range(len(layers) + 1)]
    for i in range(len(edge) - 1):
        for t in range(edge[i], edge[i + 1]):
            over = [n for n, layer in enumerate(layers) if any(a <= t < b for a, b in layer)]
            out[over[0] if over else len(layers)][i] += 1
    return out
