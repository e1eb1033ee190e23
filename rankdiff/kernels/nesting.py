"""Which range encloses a moment, and which ranges belong to one begin/end group."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankdiff.kernels._jit import jit
from rankdiff.kernels.intervals import I64, as_int64

MEMBER, OPEN, CLOSE = 0, 1, 2  # what an event is to `groups`


@jit
def _innermost(track: I64, starts: I64, ends: I64, at_track: I64, at: I64) -> I64:
    out = np.full(at.size, -1, np.int64)
    stack = np.empty(starts.size, np.int64)
    depth = 0
    i = 0
    current = np.int64(0)
    for q in range(at.size):
        if q == 0 or at_track[q] != current:
            current = at_track[q]
            depth = 0
            while i < starts.size and track[i] < current:
                i += 1
        while i < starts.size and track[i] == current and starts[i] <= at[q]:
            stack[depth] = i
            depth += 1
            i += 1
        # A range that crosses its neighbour may end below the top of the stack; it goes when it surfaces.
        while depth > 0 and ends[stack[depth - 1]] <= at[q]:
            depth -= 1
        if depth > 0:
            out[q] = stack[depth - 1]
    return out


@jit
def _groups(track: I64, kind: I64, launches: I64) -> I64:
    out = np.full(kind.size, -1, np.int64)
    group = np.int64(-1)
    depth = 0
    for i in range(kind.size):
        if i > 0 and track[i] != track[i - 1]:
            depth = 0
        if kind[i] == OPEN:
            if depth == 0:
                group += 1
            depth += 1
        elif depth > 0:
            out[i] = group
            if kind[i] == CLOSE:
                depth = 0 if launches[i] != 0 else depth - 1
    return out


def innermost(
    track: npt.ArrayLike,
    starts: npt.ArrayLike,
    ends: npt.ArrayLike,
    at_track: npt.ArrayLike,
    at: npt.ArrayLike,
) -> I64:
    """Index of the latest started range of the same track that contains each moment.

    Parameters
    ----------
    track, starts, ends : (n,) int64, starts and ends in ns
        Ranges ``[start, end)`` in any order; they may nest and cross.
    at_track, at : (m,) int64, at in ns
        Moments in any order.

    Returns
    -------
    (m,) int64
        Index into the ranges as given; -1 where none contains the moment. Of ranges that started together the
        shorter one; of equal ranges the one given last.
    """
    track, starts, ends = as_int64(track), as_int64(starts), as_int64(ends)
    at_track, at = as_int64(at_track), as_int64(at)
    order = np.lexsort((-ends, starts, track))
    query = np.lexsort((at, at_track))
    found = _innermost(track[order], starts[order], ends[order], at_track[query], at[query])
    out = np.full(at.size, -1, np.int64)
    hit = found >= 0
    out[query[hit]] = order[found[hit]]
    return out


def groups(track: npt.ArrayLike, kind: npt.ArrayLike, launches: npt.ArrayLike) -> I64:
    """Number the outermost begin/end groups and say which events belong to them.

    Parameters
    ----------
    track : (n,) int64
        Thread of each event; events are sorted by (track, start).
    kind : (n,) int64
        MEMBER, OPEN or CLOSE.
    launches : (n,) int64
        Non-zero for a CLOSE during which something was launched: only the outermost CLOSE launches, so this
        ends the group even when a CLOSE before it was lost.

    Returns
    -------
    (n,) int64
        Group of each MEMBER and CLOSE, counted from 0; -1 outside of groups and for OPEN.
    """
    return _groups(as_int64(track), as_int64(kind), as_int64(launches))
