"""Exact twin of the permutation test: all permutations of every step."""

from __future__ import annotations

import itertools


def exact_p(delta, observed):
    """Share of all arrangements (rows permuted independently) whose largest column sum reaches `observed`."""
    reached = total = 0
    for rows in itertools.product(*(list(itertools.permutations(row)) for row in delta)):
        total += 1
        reached += max(map(sum, zip(*rows, strict=True))) >= observed - 1e-9
    return reached / total
