"""Permutation test of the largest sum: are the ranks exchangeable within each step?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankdiff.kernels._jit import jit

F64 = NDArray[np.float64]


@jit
def max_sum_exceedances(delta: F64, observed: float, draws: int, seed: int, stop: int) -> tuple[int, int]:
    """Count permutations whose largest sum over the steps reaches `observed`.

    Each draw permutes the units within every step independently and sums per unit (Westfall and Young
    1993, max-T). The generator is xorshift64 (Marsaglia 2003), seeded per draw, so that the answer depends
    on nothing but the arguments.

    Parameters
    ----------
    delta : (k, n) float64
        One row per step, one column per unit (rank or node).
    observed : float
        The sum to beat.
    draws : int
    seed : int
        0 <= seed < 2**31.
    stop : int
        Stop early once this many draws have reached `observed`.

    Returns
    -------
    reached : int
    done : int
        Draws made; fewer than `draws` only after an early stop.
    """
    k, n = delta.shape
    sums = np.empty(n)
    row = np.empty(n)
    reached = 0
    # A hair of slack, so that the identical sum added in another order counts as reached.
    bar = observed * (1.0 - 1e-12)
    for draw in range(draws):
        state = np.uint64((seed + 1) * 2654435761 + (draw + 1) * 40503)
        for _ in range(8):  # small seeds differ in few bits: let them spread
            state ^= state << np.uint64(13)
            state ^= state >> np.uint64(7)
            state ^= state << np.uint64(17)
        for j in range(n):
            sums[j] = 0.0
        for i in range(k):
            for j in range(n):
                row[j] = delta[i, j]
            for j in range(n - 1, 0, -1):
                state ^= state << np.uint64(13)
                state ^= state >> np.uint64(7)
                state ^= state << np.uint64(17)
                other = np.int64((state >> np.uint64(33)) % np.uint64(j + 1))
                row[j], row[other] = row[other], row[j]
            for j in range(n):
                sums[j] += row[j]
        largest = sums[0]
        for j in range(1, n):
            largest = max(largest, sums[j])
        if largest >= bar:
            reached += 1
            if reached >= stop:
                return reached, draw + 1
    return reached, draws


@jit
def many_sum_exceedances(
    ranked: F64, top: int, observed: float, draws: int, seed: int, stop: int
) -> tuple[int, int]:
    """`max_sum_exceedances` for many units: most draws are decided by where the largest values of each step fall.

    A unit's sum is at most that of the (top + 1)-th largest values of all steps, and what the `top` largest that fall
    to it have beyond these. Only where that bound reaches `observed` for some unit are the other values drawn as well.

    Parameters
    ----------
    ranked : (k, n) float64
        One row per step, its values in descending order: which unit has which means nothing to a permutation.
    top : int
        1 <= top < n.
    observed, draws, seed, stop
        As for `max_sum_exceedances`.

    Returns
    -------
    reached : int
    done : int
    """
    k, n = ranked.shape
    base = 0.0
    for i in range(k):
        base += ranked[i, top]
    place = np.empty((k, top), np.int64)
    taken = np.full(n, -1, np.int64)  # row that took a unit last, counted over all draws
    beyond = np.empty(n)
    rest = np.empty(n - top)
    reached = 0
    bar = observed * (1.0 - 1e-12)
    for draw in range(draws):
        state = np.uint64((seed + 1) * 2654435761 + (draw + 1) * 40503)
        for _ in range(8):
            state ^= state << np.uint64(13)
            state ^= state >> np.uint64(7)
            state ^= state << np.uint64(17)
        for j in range(n):
            beyond[j] = 0.0
        for i in range(k):
            for b in range(top):
                at = np.int64(-1)
                while at < 0 or taken[at] == draw * k + i:
                    state ^= state << np.uint64(13)
                    state ^= state >> np.uint64(7)
                    state ^= state << np.uint64(17)
                    at = np.int64((state >> np.uint64(33)) % np.uint64(n))
                taken[at] = draw * k + i
                place[i, b] = at
                beyond[at] += ranked[i, b] - ranked[i, top]
        largest = beyond[0]
        for j in range(1, n):
            largest = max(largest, beyond[j])
        if base + largest < bar:
            continue
        for j in range(n):
            beyond[j] = 0.0
            taken[j] = -1
        for i in range(k):
            for b in range(top):
                taken[place[i, b]] = draw * k + i
                beyond[place[i, b]] += ranked[i, b]
            for b in range(n - top):
                rest[b] = ranked[i, top + b]
            left = n - top
            for j in range(n):
                if taken[j] == draw * k + i:
                    continue
                state ^= state << np.uint64(13)
                state ^= state >> np.uint64(7)
                state ^= state << np.uint64(17)
                other = np.int64((state >> np.uint64(33)) % np.uint64(left))
                beyond[j] += rest[other]
                left -= 1
                rest[other] = rest[left]
        largest = beyond[0]
        for j in range(1, n):
            largest = max(largest, beyond[j])
        if largest >= bar:
            reached += 1
            if reached >= stop:
                return reached, draw + 1
    return reached, draws
