"""Kernels that divide the waiting time among the ranks that were awaited (METHOD: delay share)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankdiff.kernels._jit import jit

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@jit
def row_spans(arrive: I64, earlier: I64) -> tuple[I64, I64]:
    """First and last arrival of each instance, (m,) int64 both, with members moved earlier as in `skew_shares`."""
    m, n = arrive.shape
    first = np.empty(m, np.int64)
    last = np.empty(m, np.int64)
    for i in range(m):
        low = high = arrive[i, 0] - earlier[0]
        for j in range(1, n):
            at = arrive[i, j] - earlier[j]
            low, high = min(low, at), max(high, at)
        first[i], last[i] = low, high
    return first, last


@jit
def skew_shares(
    arrive: I64, earlier: I64, order: NDArray[Any], chosen: NDArray[np.bool_], step: I64, n_steps: int
) -> F64:
    """Divide the skew of instances of one communicator among its members: Shapley values.

    With sorted arrivals s_(1) <= ... <= s_(n), the k-th to arrive gets
    ``sum over j <= k of (s_(j) - s_(j-1)) / (n - j + 1)`` (the airport game, Littlechild and Owen 1973);
    the shares of an instance sum to its skew. Right when no two instances are open at once.

    Parameters
    ----------
    arrive : (m, n) int64, ns
        Start of each member in each instance, on the common clock.
    earlier : (n,) int64, ns
        By which each member's arrivals are moved earlier.
    order : (m, n) integers
        Members of each instance in about the order of their arrival: any order will do, but only one in which few are
        out of place is fast (one move of a few ranks leaves all the others as they were).
    chosen : (m,) bool
        Instances that count.
    step : (m,) int64
        Step of each instance, 0 <= step < n_steps.
    n_steps : int

    Returns
    -------
    (n, n_steps) float64, ns
    """
    m, n = arrive.shape
    out = np.zeros((n_steps, n))
    at = np.empty(n, np.int64)
    who = np.empty(n, np.int64)
    for i in range(m):
        if not chosen[i]:
            continue
        for k in range(n):
            r = np.int64(order[i, k])
            key = arrive[i, r] - earlier[r]
            j = k
            while j > 0 and at[j - 1] > key:
                at[j], who[j] = at[j - 1], who[j - 1]
                j -= 1
            at[j], who[j] = key, r
        share = 0.0
        for k in range(1, n):
            share += (at[k] - at[k - 1]) / (n - k)
            out[step[i], who[k]] += share
    return np.ascontiguousarray(out.T)
