"""Sums over groups of events, in the order in which the groups first appear."""

from __future__ import annotations

import numpy as np

from rankdiff.kernels._jit import jit
from rankdiff.kernels.intervals import I64, as_int64

_NOBODY = -1
_SMALLEST = 1024  # slots of the hash table; a power of two, as all sizes
_BITS = 31
_LOW = (1 << _BITS) - 1
_FACTOR = 1_640_531_527
_FOLD = 15


@jit
def _slot(keys: I64, row: int, slots: int) -> int:
    mixed = 0
    for k in range(keys.shape[0]):
        key = keys[k, row]
        # Factors below 2**31, so that nothing overflows.
        mixed = ((mixed ^ (key & _LOW) ^ ((key >> _BITS) & _LOW)) * _FACTOR) & _LOW
        mixed ^= mixed >> _FOLD
    return mixed & (slots - 1)


@jit
def _same(keys: I64, one: int, other: int) -> bool:
    same = True
    for k in range(keys.shape[0]):
        same &= keys[k, one] == keys[k, other]
    return same


@jit
def _grouped(keys: I64, group: I64, first: I64) -> int:
    slots = _SMALLEST
    table = np.full(slots, _NOBODY, np.int64)
    groups = 0
    for row in range(keys.shape[1]):
        # Events of one group often follow each other.
        if row > 0 and _same(keys, row, row - 1):
            group[row] = group[row - 1]
            continue
        if 2 * groups >= slots:
            slots *= 4
            table = np.full(slots, _NOBODY, np.int64)
            for old in range(groups):
                at = _slot(keys, first[old], slots)
                while table[at] != _NOBODY:
                    at = (at + 1) & (slots - 1)
                table[at] = old
        at = _slot(keys, row, slots)
        while table[at] != _NOBODY and not _same(keys, first[table[at]], row):
            at = (at + 1) & (slots - 1)
        if table[at] == _NOBODY:
            table[at] = groups
            first[groups] = row
            groups += 1
        group[row] = table[at]
    return groups


@jit
def _summed(group: I64, values: I64, totals: I64) -> None:
    for row in range(group.size):
        for k in range(values.shape[0]):
            totals[k, group[row]] += values[k, row]


def grouped(keys: I64) -> tuple[I64, I64]:
    """Number the different columns of a table.

    Parameters
    ----------
    keys : (k, n) int64
        One column per event.

    Returns
    -------
    group : (n,) int64
        Equal for equal columns, counted from 0 in the order in which they first appear.
    first : (g,) int64
        The first event of each group. Both empty for no events.
    """
    keys = as_int64(keys)
    group, first = np.empty(keys.shape[1], np.int64), np.empty(keys.shape[1], np.int64)
    groups = _grouped(keys, group, first)
    return group, first[:groups].copy()


def sums(group: I64, groups: int, values: I64) -> I64:
    """Add up values by group.

    Parameters
    ----------
    group : (n,) int64
        From 0 to ``groups - 1``.
    groups : int
    values : (v, n) int64

    Returns
    -------
    (v, groups) int64
        0 where a group has no event; sums wrap as int64 does.
    """
    values = as_int64(values)
    totals = np.zeros((values.shape[0], groups), np.int64)
    _summed(as_int64(group), values, totals)
    return totals
