"""Play the collectives of a job again, with other times between them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankdiff.kernels._jit import jit
from rankdiff.kernels.clocks import median_of, select

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]


@jit
def replayed_ends(first: I64, anchor: I32, segment: I64, transfer: I64) -> I64:
    """End of every collective when each member arrives a given time after an earlier one has ended.

    A collective ends for all its members at once: its transfer after the last of them has arrived.

    Parameters
    ----------
    first : (m + 1,) int64
        Instance i has the elements first[i] .. first[i + 1] - 1, one a member and at least one. In order of
        time: an instance comes after all those that its elements are anchored to.
    anchor : (e,) int32
        Instance after whose end the element's segment begins, smaller than its own; -1: after time 0.
    segment : (e,) int64, ns
    transfer : (m,) int64, ns

    Returns
    -------
    (m,) int64, ns
        Empty for no instances.
    """
    m = first.size - 1
    end = np.empty(m, np.int64)
    for i in range(m):
        x = first[i]
        last = segment[x] + (end[anchor[x]] if anchor[x] >= 0 else 0)
        for x in range(first[i] + 1, first[i + 1]):
            arrival = segment[x] + (end[anchor[x]] if anchor[x] >= 0 else 0)
            last = max(last, arrival)
        end[i] = last + transfer[i]
    return end


@jit
def segments(first: I64, row: I32, start: I64, end: I64, rows: int) -> tuple[I32, I64]:
    """What every element began after: the end of its row's that was the latest before its start.

    Clock errors can put an instance's last arrival after a member's end; what comes later in the order of instances
    cannot be waited for, so only earlier instances count.

    Parameters
    ----------
    first : (m + 1,) int64
        Instance i has the elements first[i] .. first[i + 1] - 1, of different rows.
    row : (e,) int32
        0 <= row < rows.
    start, end : (e,) int64, ns
    rows : int

    Returns
    -------
    anchor : (e,) int32
        Instance of that end, the later of equal ends; -1: there is none.
    segment : (e,) int64, ns
        From that end to the start; without an anchor the start itself.
    """
    e = row.size
    anchor = np.full(e, -1, np.int32)
    segment = start.copy()
    instance = np.empty(e, np.int32)
    # Each row's elements so far by end: from the latest down.
    latest = np.full(rows, -1, np.int32)
    below = np.empty(e, np.int32)
    for i in range(first.size - 1):
        for x in range(first[i], first[i + 1]):
            instance[x] = i
            at = latest[row[x]]
            while at >= 0 and end[at] > start[x]:
                at = below[at]
            if at >= 0:
                anchor[x] = instance[at]
                segment[x] = start[x] - end[at]
        for x in range(first[i], first[i + 1]):
            above, at = np.int32(-1), latest[row[x]]
            while at >= 0 and end[at] > end[x]:
                above, at = at, below[at]
            below[x] = at
            if above < 0:
                latest[row[x]] = x
            else:
                below[above] = x
    return anchor, segment


@jit
def place_in_step(row: I32, step: I32, rows: int, steps: int) -> I32:
    """Ordinal of each element among those of its row in its step, in the order given.

    Parameters
    ----------
    row, step : (e,) int32
        0 <= row < rows, 0 <= step < steps.
    rows, steps : int

    Returns
    -------
    (e,) int32
    """
    count = np.zeros((rows, steps), np.int32)
    out = np.empty(row.size, np.int32)
    for x in range(row.size):
        out[x] = count[row[x], step[x]]
        count[row[x], step[x]] += 1
    return out


@jit
def instance_medians(first: I64, chosen: Mask, value: I64) -> F64:
    """Median of the chosen values of each instance.

    Parameters
    ----------
    first : (m + 1,) int64
        Instance i has the elements first[i] .. first[i + 1] - 1.
    chosen : (e,) bool
    value : (e,) int64
        Below 2**53.

    Returns
    -------
    (m,) float64
        nan where none is chosen.
    """
    m = first.size - 1
    out = np.empty(m)
    most = 0
    for i in range(m):
        most = max(most, first[i + 1] - first[i])
    found = np.empty(most)
    for i in range(m):
        n = 0
        for x in range(first[i], first[i + 1]):
            if chosen[x]:
                found[n] = value[x]
                n += 1
        out[i] = median_of(found[:n]) if n else np.nan
    return out


@jit
def beyond_others(first: I64, chosen: Mask, value: I64) -> F64:
    """What each chosen value has beyond the median of the other chosen ones of its instance.

    Parameters
    ----------
    first, chosen, value
        As for `instance_medians`.

    Returns
    -------
    (e,) float64
        nan where there are no others, or the element is not chosen.
    """
    m = first.size - 1
    out = np.full(value.size, np.nan)
    most = 0
    for i in range(m):
        most = max(most, first[i + 1] - first[i])
    found = np.empty(most)
    for i in range(m):
        n = 0
        for x in range(first[i], first[i + 1]):
            if chosen[x]:
                found[n] = value[x]
                n += 1
        if n < 2:
            continue
        # Without an element, those above it in order move down by one: medians are two of these four.
        low, high = (n - 2) // 2, (n - 1) // 2
        top = select(found[:n], high + 1)
        middle = select(found[: high + 1], high)
        under = select(found[: high + 1], low) if low < high else middle
        above_low = middle if low < high else top
        for x in range(first[i], first[i + 1]):
            if chosen[x]:
                a = under if value[x] > under else above_low
                b = middle if value[x] > middle else top
                out[x] = value[x] - (a + b) / 2.0
    return out
