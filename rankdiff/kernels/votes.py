"""What most members of an instance say."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankdiff.kernels._jit import jit

I64 = NDArray[np.int64]


@jit
def votes(x: I64) -> tuple[I64, I64, I64]:
    """Commonest value of each row.

    Parameters
    ----------
    x : (m, n) int64
        Negative: not known.

    Returns
    -------
    value : (m,) int64
        The commonest known value, the lowest of equals; -1 where none is known.
    known : (m,) int64
        Known values.
    count : (m,) int64
        Those that are the commonest; equal to `known` where all agree.
    """
    m, n = x.shape
    value = np.full(m, -1, np.int64)
    known = np.zeros(m, np.int64)
    count = np.zeros(m, np.int64)
    for i in range(m):
        alike = True
        for j in range(n):
            if x[i, j] < 0:
                continue
            if known[i] == 0:
                value[i] = x[i, j]
            alike = alike and x[i, j] == value[i]
            known[i] += 1
        count[i] = known[i]
        if alike:
            continue
        row = np.sort(x[i])
        at = n - known[i]
        count[i] = 0
        while at < n:
            after = at
            while after < n and row[after] == row[at]:
                after += 1
            if after - at > count[i]:
                value[i], count[i] = row[at], after - at
            at = after
    return value, known, count
