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
    return median(np.sort(slopes[:m]))


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
    return at, median(np.sort(d[at:])) - median(np.sort(d[:at]))
