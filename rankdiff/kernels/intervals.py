"""Interval arithmetic on int64 nanoseconds.

Contract of the whole module: intervals are half-open ``[start, end)``; an interval with ``end <= start`` is
empty and counts for nothing; a *union* is a pair of arrays, sorted, disjoint and not even abutting. Union
before intersect: adding up pairwise overlaps would count covered time twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rankdiff.kernels._jit import jit

I64 = npt.NDArray[np.int64]


def as_int64(values: Any) -> I64:
    """Return `values` as contiguous, writable int64, copying only when they are not that already.

    Arrow and DuckDB hand out read-only buffers, which numba would treat as another type and compile again.
    """
    return np.require(values, dtype=np.int64, requirements=["C", "W"])


@jit
def _coalesce(starts: I64, ends: I64) -> tuple[I64, I64]:
    out_starts = np.empty(starts.size, np.int64)
    out_ends = np.empty(starts.size, np.int64)
    n = 0
    for i in range(starts.size):
        if ends[i] <= starts[i]:
            continue
        if n > 0 and starts[i] <= out_ends[n - 1]:
            if ends[i] > out_ends[n - 1]:
                out_ends[n - 1] = ends[i]
        else:
            out_starts[n] = starts[i]
            out_ends[n] = ends[i]
            n += 1
    return out_starts[:n].copy(), out_ends[:n].copy()


@jit
def _overlap_each(a_starts: I64, a_ends: I64, b_starts: I64, b_ends: I64) -> I64:
    out = np.zeros(a_starts.size, np.int64)
    j = 0
    for i in range(a_starts.size):
        while j < b_starts.size and b_ends[j] <= a_starts[i]:
            j += 1
        k = j
        while k < b_starts.size and b_starts[k] < a_ends[i]:
            low = max(a_starts[i], b_starts[k])
            high = min(a_ends[i], b_ends[k])
            if high > low:
                out[i] += high - low
            k += 1
        # The last interval of B that was touched may reach into the next one of A.
        j = max(j, k - 1)
    return out


def union(starts: npt.ArrayLike, ends: npt.ArrayLike) -> tuple[I64, I64]:
    """Union of intervals in any order.

    Parameters
    ----------
    starts, ends : (n,) int64, ns
        Overlapping, nested and abutting intervals are merged; empty ones are dropped.

    Returns
    -------
    starts, ends : (m,) int64, ns
        Sorted, with a gap of at least 1 ns between neighbours. Two empty arrays for no input.
    """
    first, last = as_int64(starts), as_int64(ends)
    if first.size > 1 and np.any(first[1:] < first[:-1]):
        order = np.argsort(first, kind="stable")
        first, last = first[order], last[order]
    return _coalesce(first, last)


def gaps(starts: npt.ArrayLike, ends: npt.ArrayLike) -> tuple[I64, I64]:
    """Gaps between the neighbours of a union; nothing before the first or after the last.

    Parameters
    ----------
    starts, ends : (m,) int64, ns
        A union.

    Returns
    -------
    starts, ends : (max(m - 1, 0),) int64, ns
        A union again.
    """
    return as_int64(ends)[:-1].copy(), as_int64(starts)[1:].copy()


def overlap_each(
    a_starts: npt.ArrayLike, a_ends: npt.ArrayLike, b_starts: npt.ArrayLike, b_ends: npt.ArrayLike
) -> I64:
    """Length that a union B covers of each interval of a sorted, disjoint sequence A.

    Parameters
    ----------
    a_starts, a_ends : (n,) int64, ns
        Sorted and disjoint; may abut.
    b_starts, b_ends : (m,) int64, ns
        Sorted and disjoint; may abut.

    Returns
    -------
    (n,) int64, ns
        Between 0 and the length of the interval of A; zeros when B is empty. Touching ends do not overlap.
    """
    return _overlap_each(as_int64(a_starts), as_int64(a_ends), as_int64(b_starts), as_int64(b_ends))


def overlap_ns(
    a_starts: npt.ArrayLike, a_ends: npt.ArrayLike, b_starts: npt.ArrayLike, b_ends: npt.ArrayLike
) -> int:
    """Length of the intersection of two unions, in ns; 0 when either is empty."""
    return int(overlap_each(a_starts, a_ends, b_starts, b_ends).sum())


def length_ns(starts: npt.ArrayLike, ends: npt.ArrayLike) -> int:
    """Summed length of disjoint intervals, in ns; 0 for none."""
    return int((as_int64(ends) - as_int64(starts)).sum())


def uncovered_ns(
    a_starts: npt.ArrayLike, a_ends: npt.ArrayLike, b_starts: npt.ArrayLike, b_ends: npt.ArrayLike
) -> int:
    """Length of A without B (both unions), in ns: what remains of A after B is taken out."""
    return length_ns(a_starts, a_ends) - overlap_ns(a_starts, a_ends, b_starts, b_ends)
