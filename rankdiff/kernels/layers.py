"""Time by the uppermost of several layers of intervals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankdiff.kernels._jit import jit

I64 = NDArray[np.int64]


@jit
def uppermost(edge: I64, start: I64, end: I64, first: I64) -> I64:
    """Divide windows among layers: every nanosecond goes to the first layer that covers it, or to none.

    Parameters
    ----------
    edge : (k + 1,) int64, ns
        Ascending; window i is [edge[i], edge[i + 1]).
    start, end : (e,) int64, ns
        Half-open intervals, layer after layer; within each sorted by start, overlaps allowed.
    first : (c + 1,) int64
        Layer l has the intervals first[l] .. first[l + 1] - 1.

    Returns
    -------
    (c + 1, k) int64, ns
        Per layer and, last, of no layer; each window's column sums to its length.
    """
    layers, k = first.size - 1, edge.size - 1
    out = np.zeros((layers + 1, max(k, 0)), np.int64)
    if k < 1:
        return out
    at = first[:layers].copy()
    reach = np.full(layers, edge[0], np.int64)  # a layer covers all until there
    now = edge[0]
    for i in range(k):
        while now < edge[i + 1]:
            until = edge[i + 1]
            top = layers
            for c in range(layers):
                while at[c] < first[c + 1] and start[at[c]] <= now:
                    reach[c] = max(reach[c], end[at[c]])
                    at[c] += 1
                if reach[c] > now:
                    # What lies below counts again only where this ends.
                    until, top = min(until, reach[c]), c
                    break
                if at[c] < first[c + 1]:
                    until = min(until, start[at[c]])
            out[top, i] += until - now
            now = until
    return out
