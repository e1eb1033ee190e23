"""Kernels for clock fits: robust slope, and the best place for a single step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankdiff.kernels._jit import jit

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@jit
def median(ordered: F64) -> float:
    """Median of sorted values, at least one (numpy's own compiles slowly)."""
    n = ordered.size
    return float((ordered[(n - 1) // 2] + ordered[n // 2]) / 2.0)


@jit
def select(x: F64, k: int) -> float:
    """Value that would be at `k` if `x` were sorted (Hoare 1961); `x` is reordered: what is before `k` is not larger.

    Parameters
    ----------
    x : (n,) float64
        At least one, no nan.
    k : int
        0 <= k < n.
    """
    low, high = 0, x.size - 1
    while low < high:
        # The median of three keeps sorted and reversed input from taking quadratic time.
        a, b, c = x[low], x[(low + high) // 2], x[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while x[i] < pivot:
                i += 1
            while x[j] > pivot:
                j -= 1
            if i <= j:
                x[i], x[j] = x[j], x[i]
                i += 1
                j -= 1
        if k <= j:
            high = j
        elif k >= i:
            low = i
        else:
            break
    return float(x[k])


@jit
def median_of(x: F64) -> float:
    """Median of values in any order, at least one; `x` is reordered. Equal to `median` of them sorted."""
    n = x.size
    high = select(x, n // 2)
    if n % 2:
        return high
    low = x[0]
    for i in range(1, n // 2):
        low = max(low, x[i])
    return float((low + high) / 2.0)


@jit
def group_medians(x: I64, group: I64, groups: int) -> F64:
    """Median of every group of rows in each column.

    Parameters
    ----------
    x : (n, m) int64
        Below 2**53.
    group : (n,) int64
        0 <= group < groups; each has a row at least.
    groups : int

    Returns
    -------
    (m, groups) float64
    """
    n, m = x.shape
    out = np.empty((m, groups))
    size = np.zeros(groups, np.int64)
    for r in range(n):
        size[group[r]] += 1
    most = 1
    for g in range(groups):
        most = max(most, size[g])
    # A stretch of columns at a time, so that rows are read in runs and the values of a group stay in the cache.
    width = 64
    values = np.empty((groups, width, most))
    for first in range(0, m, width):
        last = min(first + width, m)
        size[:] = 0
        for r in range(n):
            g = group[r]
            for i in range(first, last):
                values[g, i - first, size[g]] = x[r, i]
            size[g] += 1
        for g in range(groups):
            for i in range(first, last):
                out[i, g] = median_of(values[g, i - first, : size[g]])
    return out


@jit
def theil_sen_slope(t: F64, d: F64) -> float:
    """Median of the slopes of all pairs of points (Theil 1950, Sen 1968).

    Parameters
    ----------
    t : (n,) float64, ns
        Times; pairs of equal times are left out.
    d : (n,) float64, ns
        Clock differences at these times. At most a few thousand points: the pairs are all formed.

    Returns
    -------
    float
        ns per ns; 0.0 when no pair has different times.
    """
    n = t.size
    slopes = np.empty(n * (n - 1) // 2, np.float64)
    m = 0
    for i in range(n):
        for j in range(i + 1, n):
            if t[j] != t[i]:
                slopes[m] = (d[j] - d[i]) / (t[j] - t[i])
                m += 1
    if m == 0:
        return 0.0
    return median_of(slopes[:m])


@jit
def best_step(d: F64, margin: int) -> tuple[int, float]:
    """Find where splitting a series in two lowers its absolute deviation most.

    Parameters
    ----------
    d : (n,) float64, ns
        Residuals in the order of time.
    margin : int
        Least number of points on either side, at least 1.

    Returns
    -------
    at : int
        Index of the first point after the step; -1 when the series is shorter than two margins.
    size : float, ns
        Median after the step less median before it; 0.0 with `at` -1.
    """
    n = d.size
    if n < 2 * margin:
        return -1, 0.0
    # Squared error by running sums finds the place; medians then measure the size robustly.
    total = 0.0
    for i in range(n):
        total += d[i]
    best, at, left = -1.0, margin, 0.0
    for i in range(1, n - margin + 1):
        left += d[i - 1]
        if i < margin:
            continue
        gain = left * left / i + (total - left) * (total - left) / (n - i)
        if gain > best:
            best, at = gain, i
    return at, median_of(d[at:].copy()) - median_of(d[:at].copy())
