"""Kernels that line up two ranks' sequences of collectives: by a shift, or event by event in time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankdiff.kernels._jit import jit
from rankdiff.kernels.clocks import median_of

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

_MOST_RATE = 100e-6


@jit
def shift_scores(a: I64, b: I64, shifts: I64, sample: int, most: int, allowed: float) -> tuple[I64, F64, F64]:
    """Judge shifts between two sequences of collectives of one communicator.

    Shift k says that element j of `b` is element j + k of `a`. A shift counts when at least one
    element overlaps, all overlapping tokens agree, and nobody ends before the other starts once the
    median end difference is taken out. Its score is the mean absolute deviation of the end differences
    from their median: ends coincide only under the true shift, because step times vary. A drift that two
    clocks can have (100 ppm at most) is taken out first.

    Parameters
    ----------
    a, b : (3, na), (3, nb) int64
        Token (operation and bytes; -1 is unknown and agrees with everything), start and end in ns, in the
        order of the communicator's operations.
    shifts : (k,) int64
        Shifts to judge, in this order.
    sample : int
        Elements that a shift is judged by, at least 1; evenly spread over the overlap.
    most : int
        Stop after so many shifts that count.
    allowed : float
        Share of the elements that may end before the other starts. From 1 on the shifts are only sifted: tokens too
        need to agree in the sample alone then.

    Returns
    -------
    shift : (m,) int64
        The shifts that count, in the order given; empty when none does.
    score : (m,) float64, ns
    offset : (m,) float64, ns
        Median of end_b - end_a under the shift.
    """
    token_a, start_a, end_a = a[0], a[1], a[2]
    token_b, start_b, end_b = b[0], b[1], b[2]
    na, nb = token_a.size, token_b.size
    found = np.empty(shifts.size, np.int64)
    scores = np.empty(shifts.size, np.float64)
    offsets = np.empty(shifts.size, np.float64)
    m = 0
    for k in shifts:
        first, last = max(0, -k), min(nb, na - k)
        n = last - first
        if n < 1:
            continue
        stride = max(1, n // sample)
        agree = True
        for j in range(first, last, stride if allowed >= 1.0 else 1):
            if token_a[j + k] != token_b[j] and token_a[j + k] >= 0 and token_b[j] >= 0:
                agree = False
                break
        if not agree:
            continue
        size = (n + stride - 1) // stride
        d = np.empty(size, np.float64)
        for i in range(size):
            j = first + i * stride
            d[i] = end_b[j] - end_a[j + k]
        half = size // 2
        if half >= 8:
            apart = (end_a[first + k + (size - 1) * stride] - end_a[first + k]) / 2.0
            if apart > 0.0:
                rate = (median_of(d[half:].copy()) - median_of(d[:half].copy())) / apart
                rate = min(max(rate, -_MOST_RATE), _MOST_RATE)
                middle = end_a[first + k + half * stride]
                for i in range(size):
                    d[i] -= rate * (end_a[first + i * stride + k] - middle)
        offset = median_of(d.copy())
        dev = np.empty(size, np.float64)
        score = 0.0
        for i in range(size):
            dev[i] = abs(d[i] - offset)
            score += dev[i] / size
        if allowed < 1.0:
            # Slack for the causality test: what the ends themselves scatter by, at least a device clock's grain.
            slack = max(50_000.0, 6.0 * median_of(dev))
            broken = 0
            for i in range(size):
                j = first + i * stride
                # d[i] is the end difference less the drift: what remains of b's clock is end_b - d.
                drift = end_b[j] - end_a[j + k] - d[i]
                here = offset + drift
                if end_a[j + k] + here + slack < start_b[j] or end_b[j] + slack < start_a[j + k] + here:
                    broken += 1
            if broken > allowed * size:
                continue
        found[m], scores[m], offsets[m] = k, score, offset
        m += 1
        if m == most:
            break
    return found[:m], scores[:m], offsets[:m]


@jit
def equal_shares(a: I64, b: I64, shifts: I64) -> F64:
    """Share of the elements that are equal under each shift, of those that are known on both sides.

    Parameters
    ----------
    a, b : (na,), (nb,) int64
        Negative: not known.
    shifts : (k,) int64
        Shift k brings element j of `b` to element j + k of `a`.

    Returns
    -------
    (k,) float64
        nan where nothing is known on both sides.
    """
    out = np.empty(shifts.size)
    for n in range(shifts.size):
        k = shifts[n]
        both = equal = 0
        for j in range(max(0, -k), min(b.size, a.size - k)):
            if a[j + k] >= 0 and b[j] >= 0:
                both += 1
                equal += a[j + k] == b[j]
        out[n] = equal / both if both else np.nan
    return out


@jit
def align_in_time(token_a: I64, end_a: I64, token_b: I64, end_b: I64, gap_cost: float, width: int) -> I64:
    """Pair the elements of two sequences in order, by token and time, allowing losses on both sides.

    Least-cost alignment (Needleman and Wunsch 1970) in a band around equal times: a pair of equal tokens
    costs the difference of its ends, leaving an element alone costs `gap_cost`. Clock offsets must be taken
    out before. Ties prefer pairing, then leaving the element of `a` alone.

    Parameters
    ----------
    token_a, token_b : (na,), (nb,) int64
    end_a, end_b : (na,), (nb,) int64, ns, ascending
    gap_cost : float, ns
    width : int
        Half width of the band in elements.

    Returns
    -------
    (nb,) int64
        For each element of `b` its partner in `a`, or -1. Strictly ascending where not -1.
    """
    na, nb = end_a.size, end_b.size
    partner = np.full(nb, -1, np.int64)
    if na == 0 or nb == 0:
        return partner
    # Row j of the band covers the elements centre[j] - width .. centre[j] + width of a; j = 0 is "none yet".
    centre = np.zeros(nb + 1, np.int64)
    centre[1:] = np.searchsorted(end_a, end_b) + 1
    for j in range(1, nb + 1):
        centre[j] = min(max(centre[j], centre[j - 1]), na)
    cols = 2 * width + 1
    back = np.full((nb + 1, cols), np.int8(-1), np.int8)
    before = np.full(cols, np.inf)
    for c in range(cols):
        i = c - width
        if 0 <= i <= na:
            before[c] = i * gap_cost
            back[0, c] = 1
    for j in range(1, nb + 1):
        now = np.full(cols, np.inf)
        move = centre[j] - centre[j - 1]
        for c in range(cols):
            i = centre[j] - width + c
            if i < 0 or i > na:
                continue
            best, how = np.inf, np.int8(-1)
            up = c + move  # the column of the same i in the row before
            if up - 1 < cols:
                diagonal = before[up - 1] if up >= 1 else np.inf
            else:  # beyond the band: what lies between was left alone
                diagonal = before[cols - 1] + (up - cols) * gap_cost
            above = before[up] if up < cols else before[cols - 1] + (up - cols + 1) * gap_cost
            same = i >= 1 and (token_a[i - 1] == token_b[j - 1] or token_a[i - 1] < 0 or token_b[j - 1] < 0)
            if same and diagonal + abs(end_a[i - 1] - end_b[j - 1]) < best:
                best, how = diagonal + abs(end_a[i - 1] - end_b[j - 1]), np.int8(0)
            if i >= 1 and c >= 1 and now[c - 1] + gap_cost < best:
                best, how = now[c - 1] + gap_cost, np.int8(1)
            if above + gap_cost < best:
                best, how = above + gap_cost, np.int8(2)
            now[c], back[j, c] = best, how
        before = now
    # Start the way back at the cheapest cell of the last row, charging what is left of a.
    best, col = np.inf, -1
    for c in range(cols):
        i = centre[nb] - width + c
        if 0 <= i <= na and before[c] + (na - i) * gap_cost < best:
            best, col = before[c] + (na - i) * gap_cost, c
    j = nb
    while j > 0 and col >= 0:
        how = back[j, col]
        if how == 0:
            partner[j - 1] = centre[j] - width + col - 1
            col = min(col + centre[j] - centre[j - 1] - 1, cols - 1)
            j -= 1
        elif how == 1:
            col -= 1
        elif how == 2:
            col = min(col + centre[j] - centre[j - 1], cols - 1)
            j -= 1
        else:
            break
    return partner
