"""Kernels that tell which sequences of collectives end together, once all are on one clock."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankdiff.kernels._jit import jit
from rankdiff.kernels.clocks import median_of, select

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

_GOLDEN = 0.6180339887498949
_PLACES = 9  # at which it is looked up how far two sequences are shifted
_ROUGH_SAMPLE = 24  # elements by which neighbouring shifts are told apart
_ALIKE = 0.8  # of the operations in the window of both that the one with fewer must have: some are lost
_EDGE = 3  # operations more or less at the edges of that window
_PAIRED = 0.9  # of the operations between the first and the last pair
_BETTER = 4.0  # times nearer the ends must come before pairs are made in time instead of by one shift
_LEAST_GAP_NS = 100_000.0  # ends of one instance may always be this far apart
_MOST_RATE = 100e-6  # of two clocks
_SURE = 2.0  # times its error that a drift must be
_LEAST_DRIFT = 16  # instances that show a drift


@jit
def end_agreement(
    start: I64, end: I64, first: I64, a: I64, b: I64, around: int, sample: int, factor: float, grain: float
) -> F64:
    """Say how well the ends of pairs of sequences agree.

    Member j of `b` belongs to element j + k of `a` with one shift k. Of the shifts at hand that fit about as well as the
    best, the one with ends nearest on the clock is taken. Where elements were lost no shift fits all of the
    sequences; pairs are made by time then, if that brings the ends far nearer.

    Parameters
    ----------
    start, end : (e,) int64, ns
        The elements of all sequences one after the other, on one clock; ascending within a sequence.
    first : (c + 1,) int64
        Sequence i is elements first[i] to first[i + 1] - 1.
    a, b : (p,) int64
        Sequences to compare.
    around : int
        Shifts to either side of the likeliest that are tried.
    sample : int
        Elements that a pair of sequences is judged by, at least 24; drawn so that no period of them can hide.
    factor, grain : float
        Two shifts fit alike when the scatter of one is below `factor` times that of the other plus `grain` ns.

    Returns
    -------
    (6, p) float64
        For each pair: 95th percentile of the end differences less their median, ns; share of instances in which one
        ends before the other starts; median of end_b - end_a, ns; rate at which it grows, 0 where that is not clear; the time, ns, at which it
        is the median; mean deviation of the end differences from their median, ns. The first is inf where the sequences cannot be one communicator's: they do not overlap, or one
        has far more operations in the window that both cover.
    """
    out = np.empty((6, a.size))
    gap = np.array([_gap(end[first[i] : first[i + 1]]) for i in range(first.size - 1)])
    chosen = np.empty(sample, np.int64)
    near = np.empty(6)
    for n in range(a.size):
        out[0, n], out[1:, n] = np.inf, 0.0
        a0, a1, b0, b1 = first[a[n]], first[a[n] + 1], first[b[n]], first[b[n] + 1]
        end_a, end_b = end[a0:a1], end[b0:b1]
        start_a, start_b = start[a0:a1], start[b0:b1]
        if end_a.size == 0 or end_b.size == 0:
            continue
        low, high = max(end_a[0], end_b[0]), min(end_a[-1], end_b[-1])
        j0 = np.searchsorted(end_b, low)
        in_a = np.searchsorted(end_a, high, side="right") - np.searchsorted(end_a, low)
        in_b = np.searchsorted(end_b, high, side="right") - j0
        fewer, more = min(in_a, in_b), max(in_a, in_b)
        shorter = min(end_a.size, end_b.size)
        if fewer < min(4, (shorter + 1) // 2) or fewer < _ALIKE * more - _EDGE:
            continue
        k = _shift(end_a, end_b, j0, in_b, around, factor, grain)
        lowest, beyond = max(0, -k), min(end_b.size, end_a.size - k)
        size = min(beyond - lowest, sample)
        if size < 1:
            continue
        for i in range(size):
            chosen[i] = _drawn(i, lowest, beyond, sample)
        own_b = chosen[:size]
        own_a = own_b + k
        how_near(start_a[own_a], end_a[own_a], start_b[own_b], end_b[own_b], near)
        out[:, n] = near
        # Only what is off by more than that can be displaced by a lost element.
        if np.abs(end_b[own_b] - end_a[own_a] - near[2]).max() > gap[a[n]]:
            ia, jb = _by_time(end_a, end_b, gap[a[n]])
            if ia.size:
                size = min(ia.size, sample)
                for i in range(size):
                    chosen[i] = _drawn(i, 0, ia.size, sample)
                own_a, own_b = ia[chosen[:size]], jb[chosen[:size]]
                how_near(start_a[own_a], end_a[own_a], start_b[own_b], end_b[own_b], near)
                if _BETTER * near[5] <= out[5, n]:
                    out[:, n] = near
    return out


@jit
def _drawn(i: int, lowest: int, beyond: int, sample: int) -> int:
    """Element i of a sample of lowest .. beyond - 1: all of them, or spread evenly without a period."""
    if beyond - lowest <= sample:
        return lowest + i
    part = i * _GOLDEN
    return lowest + int((part - np.floor(part)) * (beyond - lowest))


@jit
def _shift(end_a: I64, end_b: I64, j0: int, count: int, around: int, factor: float, grain: float) -> int:
    """Shift that brings ends together: of those that fit about as well as the best the nearest on the clock."""
    local = np.empty(_PLACES)
    for p in range(_PLACES):
        j = j0 + (count - 1) * p // (_PLACES - 1)
        i = min(np.searchsorted(end_a, end_b[j]), end_a.size - 1)
        if i > 0 and end_b[j] - end_a[i - 1] < end_a[i] - end_b[j]:
            i -= 1
        local[p] = i - j
    middle = int(median_of(local))
    width = 2 * around + 1
    score, offset = np.full(width, np.inf), np.zeros(width)
    d, x = np.empty(_ROUGH_SAMPLE), np.empty(_ROUGH_SAMPLE)
    for c in range(width):
        k = middle - around + c
        lowest, beyond = max(0, -k), min(end_b.size, end_a.size - k)
        # A shift that leaves out much of the window fits by luck.
        if beyond - lowest < 1 or beyond - lowest < count - around - _EDGE:
            continue
        size = min(beyond - lowest, _ROUGH_SAMPLE)
        mean_x = mean_d = 0.0
        for i in range(size):
            j = _drawn(i, lowest, beyond, _ROUGH_SAMPLE)
            d[i], x[i] = end_b[j] - end_a[j + k], j
            mean_x += x[i] / size
            mean_d += d[i] / size
        # What two clocks drift apart is taken out, as far as it is more than a few elements can show.
        xx = xd = 0.0
        for i in range(size):
            xx += (x[i] - mean_x) ** 2
            xd += (x[i] - mean_x) * (d[i] - mean_d)
        slope = xd / xx if size >= 16 else 0.0
        score[c] = 0.0
        for i in range(size):
            score[c] += abs(d[i] - mean_d - slope * (x[i] - mean_x)) / size
        offset[c] = mean_d
    limit = factor * score.min() + grain
    best = -1
    for c in range(width):
        if score[c] <= limit and (best < 0 or abs(offset[c]) < abs(offset[best])):
            best = c
    return middle if best < 0 else middle - around + best


@jit
def how_near(start_a: I64, end_a: I64, start_b: I64, end_b: I64, near: F64) -> None:
    """Say how near the ends of pairs of collectives are, once the clocks' offset and a clear drift are taken out.

    Parameters
    ----------
    start_a, end_a, start_b, end_b : (n,) int64, ns
        Element i of `a` and element i of `b` are taken for one instance; at least one, in the same order.
    near : (6,) float64
        Filled with a column of what `end_agreement` returns.
    """
    size = end_a.size
    d = (end_b - end_a).astype(np.float64)
    when = end_a.astype(np.float64)
    half = median_of(when.copy())
    rate = 0.0
    if size >= _LEAST_DRIFT:
        # The medians of both halves, by time, give the drift: lone collectives far apart do not count.
        early = when < half
        x = median_of(when[~early]) - median_of(when[early]) if early.any() else 0.0
        first, second = median_of(d[early]) if x > 0.0 else 0.0, median_of(d[~early])
        away = np.abs(d - np.where(early, first, second))
        # The median of n values that are off by m (in the median) is known to 1.9 m / sqrt(n).
        error = 1.9 * median_of(away) / np.sqrt(size / 4.0)
        if x > 0.0 and abs(second - first) > _SURE * error:
            rate = min(max((second - first) / x, -_MOST_RATE), _MOST_RATE)
            d -= rate * (when - half)
    middle = median_of(d.copy())
    away = np.abs(d - middle)
    mean = away.mean()
    slack = 50_000.0 + 2.0 * median_of(away)
    broken = 0
    for i in range(size):
        offset = middle + rate * (when[i] - half)
        if end_a[i] + offset + slack < start_b[i] or end_b[i] + slack < start_a[i] + offset:
            broken += 1
    place = 0.95 * (size - 1)
    under = int(place)
    above = min(under + 1, size - 1)
    top = select(away, above)
    below = away[:above].max() if above > under else top
    near[0] = below + (top - below) * (place - under)
    near[1], near[2], near[3], near[4], near[5] = broken / size, middle, rate, half, mean


@jit
def _gap(end: I64) -> float:
    """How far apart two ends may be and still be one instance: half of the usual distance of operations."""
    if end.size < 2:
        return _LEAST_GAP_NS
    size = min(end.size - 1, 256)
    apart = np.empty(size)
    for i in range(size):
        j = _drawn(i, 0, end.size - 1, 256)
        apart[i] = end[j + 1] - end[j]
    return max(_LEAST_GAP_NS, 0.5 * median_of(apart))


@jit
def _by_time(end_a: I64, end_b: I64, gap: float) -> tuple[I64, I64]:
    """Pairs of elements each of which is the other's nearest in time; none where too few are paired."""
    na, nb = end_a.size, end_b.size
    ia, jb = np.empty(min(na, nb), np.int64), np.empty(min(na, nb), np.int64)
    m = i = 0
    for j in range(nb):
        t = end_b[j]
        while i + 1 < na and abs(end_a[i + 1] - t) <= abs(end_a[i] - t):
            i += 1
        own = abs(end_a[i] - t)
        if own > gap:
            continue
        if j + 1 < nb and abs(end_b[j + 1] - end_a[i]) < own:
            continue
        if m and ia[m - 1] == i:
            continue
        ia[m], jb[m] = i, j
        m += 1
    if m == 0 or m < _PAIRED * (max(ia[m - 1] - ia[0], jb[m - 1] - jb[0]) + 1):
        m = 0
    return ia[:m], jb[:m]


@jit
def connected(count: int, low: I64, high: I64) -> I64:
    """Number of the connected set of each of `count` points; sets are numbered by their lowest point.

    Parameters
    ----------
    count : int
    low, high : (p,) int64
        Pairs of points that are connected.
    """
    parent = np.arange(count)
    for n in range(low.size):
        a, b = _root(parent, low[n]), _root(parent, high[n])
        parent[max(a, b)] = min(a, b)
    label = np.empty(count, np.int64)
    sets = 0
    for i in range(count):
        r = _root(parent, i)
        if r == i:
            label[i] = sets
            sets += 1
        else:
            label[i] = label[r]
    return label


@jit
def joining(count: int, low: I64, high: I64) -> NDArray[np.bool_]:
    """Whether each of the pairs, in this order, joins two sets that were not connected by those before."""
    parent = np.arange(count)
    joins = np.zeros(low.size, np.bool_)
    for n in range(low.size):
        a, b = _root(parent, low[n]), _root(parent, high[n])
        if a != b:
            parent[max(a, b)] = min(a, b)
            joins[n] = True
    return joins


@jit
def _root(parent: I64, i: int) -> int:
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i
