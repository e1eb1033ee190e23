"""A binary heap of what is to happen when (Williams 1964)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankdiff.kernels._jit import jit

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@jit
def push(when: F64, what: I64, size: int, at: float, who: int) -> int:
    """Add one; `when` and `what` have room for it. Returns the new size."""
    i = size
    while i > 0 and when[(i - 1) // 2] > at:
        when[i], what[i] = when[(i - 1) // 2], what[(i - 1) // 2]
        i = (i - 1) // 2
    when[i], what[i] = at, who
    return size + 1


@jit
def drop_earliest(when: F64, what: I64, size: int) -> int:
    """Take away the first, ``when[0]``; at least one is there. Returns the new size."""
    size -= 1
    at, who = when[size], what[size]
    i = 0
    while 2 * i + 1 < size:
        j = 2 * i + 1
        if j + 1 < size and when[j + 1] < when[j]:
            j += 1
        if when[j] >= at:
            break
        when[i], what[i] = when[j], what[j]
        i = j
    when[i], what[i] = at, who
    return size
