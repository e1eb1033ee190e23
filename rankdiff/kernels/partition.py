"""Cut time into labelled pieces: every nanosecond gets exactly one label.

Contract of the whole module: int64 nanoseconds, half-open ``[start, end)``; a *timeline* is a pair of arrays,
sorted and disjoint, whose neighbours may abut, and its labels are the row numbers. An interval with
``end <= start`` is empty: it covers nothing and cuts nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankdiff.kernels._jit import jit
from rankdiff.kernels.intervals import I64, as_int64

NOTHING = -1  # layer or item where no interval covers the time
_EARLIEST = np.iinfo(np.int64).min


# The kernels fill a table of the caller, one row of it per column of the answer, and return how many entries
# they wrote: slicing and copying five arrays in compiled code would double the time it takes to compile.
@jit
def _flatten(starts: I64, ends: I64, stack: I64, out: I64) -> int:
    n = 0
    depth = 0
    t = np.int64(0)
    for i in range(starts.size + 1):
        last = i == starts.size
        while depth > 0 and (last or t < starts[i]):
            top = stack[depth - 1]
            # An interval that crosses its neighbour may end below the top; it goes when it surfaces.
            if ends[top] <= t:
                depth -= 1
                continue
            stop = ends[top]
            if not last and starts[i] < stop:
                stop = starts[i]
            out[0, n] = t
            out[1, n] = stop
            out[2, n] = top
            n += 1
            t = stop
        if not last:
            t = starts[i]
            stack[depth] = i
            depth += 1
    return n


@jit
def _partition(windows: I64, layer_first: I64, start: I64, end: I64, position: I64, out: I64) -> int:
    n = 0
    layers = layer_first.size - 1
    t = np.int64(_EARLIEST)
    for w in range(windows.shape[1]):
        # Never back in time: so each segment ends later than the one before it, and `out` suffices whatever
        # the input.
        t = max(t, windows[0, w])
        window_end = windows[1, w]
        opening = True
        while t < window_end:
            stop = window_end
            layer = NOTHING
            item = NOTHING
            for k in range(layers):
                i = position[k]
                while i < layer_first[k + 1] and end[i] <= t:
                    i += 1
                position[k] = i
                if i == layer_first[k + 1]:
                    continue
                if start[i] <= t:
                    # Lower layers do not matter before `stop`; they catch up when it is their turn.
                    stop = min(stop, end[i])
                    layer = k
                    item = i
                    break
                stop = min(stop, start[i])
            # An empty interval ends a piece without changing the label: the next piece continues it.
            if not opening and out[3, n - 1] == layer and out[4, n - 1] == item:
                out[2, n - 1] = stop
            else:
                out[0, n] = w
                out[1, n] = t
                out[2, n] = stop
                out[3, n] = layer
                out[4, n] = item
                n += 1
                opening = False
            t = stop
    return n


def flatten(starts: npt.ArrayLike, ends: npt.ArrayLike) -> tuple[I64, I64, I64]:
    """Turn nested and crossing intervals into a timeline of the innermost one.

    Innermost is the active interval that started last. Of those that started together it is the one that ends
    first, and of equal ones the one given last; so the outer interval is seen again where the inner one ends.

    Parameters
    ----------
    starts, ends : (n,) int64, ns
        In any order; nested, crossing and abutting. Empty intervals are left out.

    Returns
    -------
    seg_start, seg_end : (m,) int64, ns
        A timeline that covers exactly the union of the intervals, m < 2n. Two empty arrays for no input.
    item : (m,) int64
        Index of the innermost interval in the input. Abutting segments differ in it.

    Notes
    -----
    Sorting, then one pass with a stack: O(n log n).
    """
    first, last = as_int64(starts), as_int64(ends)
    kept = np.flatnonzero(last > first)
    order = kept[np.lexsort((-last[kept], first[kept]))]  # stable: equal intervals keep their order
    out = np.empty((3, 2 * order.size), np.int64)
    n = _flatten(first[order], last[order], np.empty(order.size, np.int64), out)
    return out[0, :n].copy(), out[1, :n].copy(), order[out[2, :n]]


def partition(
    window_start: npt.ArrayLike,
    window_end: npt.ArrayLike,
    layer_first: npt.ArrayLike,
    start: npt.ArrayLike,
    end: npt.ArrayLike,
) -> tuple[I64, I64, I64, I64, I64]:
    """Label every nanosecond of the windows with the first layer that covers it.

    Parameters
    ----------
    window_start, window_end : (w,) int64, ns
        A timeline. Empty windows yield nothing; what a window shares with the one before it, that one has.
    layer_first : (layers + 1,) int64
        Layer k is made of the rows ``layer_first[k]`` to ``layer_first[k + 1] - 1``; where several cover a
        time, the lowest k counts. A layer may have no rows, and ``[0]`` is no layer at all.
    start, end : (n,) int64, ns
        The rows; each layer is a timeline.

    Returns
    -------
    seg_window : (m,) int64
        Index of the window, ascending; each window that is not empty has at least one segment.
    seg_start, seg_end : (m,) int64, ns
        Sorted, disjoint and abutting within a window: they sum exactly to it. Empty for no windows.
    seg_layer : (m,) int64
        First layer that covers the segment, -1 for none.
    seg_item : (m,) int64
        The covering row of `start` and `end`, -1 for none. Neighbours within a window differ in layer or
        item; windows that touch are not joined.

    Notes
    -----
    One pass over all layers at once: O(n + layers × (w + m)), with m ≤ w + 2n.
    """
    windows = np.stack((as_int64(window_start), as_int64(window_end)))
    first, rows_start, rows_end = as_int64(layer_first), as_int64(start), as_int64(end)
    # Every segment ends with its window or at a start or an end within it, and the windows are disjoint. The
    # operating system gives memory to the part of the table only that is written to.
    out = np.empty((5, windows.shape[1] + 2 * rows_start.size), np.int64)
    n = _partition(windows, first, rows_start, rows_end, first[:-1].copy(), out)
    return out[0, :n].copy(), out[1, :n].copy(), out[2, :n].copy(), out[3, :n].copy(), out[4, :n].copy()


def split(
    seg_start: npt.ArrayLike, seg_end: npt.ArrayLike, at_start: npt.ArrayLike, at_end: npt.ArrayLike
) -> tuple[I64, I64, I64, I64]:
    """Cut the segments of one timeline where the items of another begin and end.

    Parameters
    ----------
    seg_start, seg_end : (m,) int64, ns
        A timeline. Empty segments yield nothing.
    at_start, at_end : (n,) int64, ns
        A timeline.

    Returns
    -------
    seg_index : (p,) int64
        Segment that the piece is a part of, ascending.
    start, end : (p,) int64, ns
        The pieces of a segment abut and sum exactly to it. Four empty arrays for no segments.
    item : (p,) int64
        Row of `at_start` and `at_end` that covers the piece, -1 for none.
    """
    at_start = as_int64(at_start)
    index, start, end, _, item = partition(seg_start, seg_end, [0, at_start.size], at_start, at_end)
    return index, start, end, item
