"""Which intervals can share a track on which slices must nest."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankdiff.kernels._jit import jit
from rankdiff.kernels.intervals import I64, as_int64

_NOTHING = -1


@jit
def _tracks(starts: I64, ends: I64, below: I64, top: I64, out: I64) -> int:
    used = 0
    for i in range(starts.size):
        track = 0
        while True:
            if track == used:
                used += 1
                break
            while top[track] >= 0 and ends[top[track]] <= starts[i]:
                top[track] = below[top[track]]
            if top[track] < 0 or ends[top[track]] >= ends[i]:
                break
            track += 1
        below[i] = top[track]
        top[track] = i
        out[i] = track
    return used


def tracks(starts: npt.ArrayLike, ends: npt.ArrayLike) -> I64:
    """Track of each interval, so that on every track any two intervals nest or do not touch each other.

    Parameters
    ----------
    starts, ends : (n,) int64, ns
        Sorted by start; of intervals that start together the longer one first. ``end >= start``.

    Returns
    -------
    (n,) int64
        From 0. Each interval goes into the first track where it crosses nothing; empty for no input. One of no
        length that lies on the end of another stands beside it.

    Notes
    -----
    One pass with a stack a track: O(n × tracks), and calls of one thread or kernels of one stream need one.
    """
    first, last = as_int64(starts), as_int64(ends)
    out = np.zeros(first.size, np.int64)
    _tracks(first, last, np.full(first.size, _NOTHING), np.full(first.size + 1, _NOTHING), out)
    return out
