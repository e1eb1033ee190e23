"""Naive twins of the kernels that group events: dictionaries."""

from __future__ import annotations


def grouped(events):
    """Group of each event, and the first event of each group."""
    group, first = [], {}
    for row, key in enumerate(events):
        first.setdefault(key, row)
        group.append(list(first).index(key))
    return group, list(first.values())


def sums(group, groups, values):
    """Sum of the values of each group."""
    out = [0] * groups
    for where, value in zip(group, values, strict=True):
        out[where] += value
    return out
