"""Kernels that divide the waiting time among the ranks that were awaited (METHOD: delay share)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankdiff.kernels._jit import jit

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@jit
def skew_shares(arrive: I64, step: I64, n_steps: int) -> F64:
    """Divide the skew of instances of one communicator among its members: Shapley values.

    With sorted arrivals s_(1) <= ... <= s_(n), the k-th to arrive gets
    ``sum over j <= k of (s_(j) - s_(j-1)) / (n - j + 1)`` (the airport game, Littlechild and Owen 1973);
    the shares of an instance sum to its skew. Right when no two instances are open at once.

    Parameters
    ----------
    arrive : (m, n) int64, ns
        Start of each member in each instance, on the common clock.
    step : (m,) int64
        Step of each instance, 0 <= step < n_steps.
    n_steps : int

    Returns
    -------
    (n, n_steps) float64, ns
    """
    m, n = arrive.shape
    out = np.zeros((n, n_steps))
    for i in range(m):
        order = np.argsort(arrive[i])
        share = 0.0
        for k in range(1, n):
            share += (arrive[i, order[k]] - arrive[i, order[k - 1]]) / (n - k)
            out[order[k], step[i]] += share
    return out


@jit
def swept_shares(
    first: I64, member: I64, arrive: I64, slot: I64, step: I64, order: I64, n_ranks: int, n_steps: int
) -> F64:
    """Divide waiting time among awaited ranks, moment by moment, over overlapping communicators.

    At every moment that somebody waits, dt is shared once, equally among the ranks that any open instance
    awaits and that are not waiting themselves (among all awaited when all of them wait). A rank awaited while
    it works first uses up the time it was held in instances of other communicators since its last arrival
    on this one; that part goes to those who held it.

    Parameters
    ----------
    first : (m + 1,) int64
        Instance i has the members first[i] .. first[i + 1] - 1. An instance awaits a member until it arrives.
    member : (e,) int64
        Rank index.
    arrive : (e,) int64, ns
        Start of that member in that instance, on the common clock.
    slot : (e,) int64
        Which of the member's own communicators this is, from 0.
    step : (m,) int64
        Step of each instance, 0 <= step < n_steps.
    order : (e,) int64
        Stable order of `arrive` (sorting compiles slowly, so the caller does it).
    n_ranks, n_steps : int

    Returns
    -------
    (n_ranks, n_steps) float64, ns
        Sums to the time during which at least one instance was open.
    """
    m = first.size - 1
    out = np.zeros((n_ranks, n_steps))
    if m == 0:
        return out
    owner = np.empty(member.size, np.int64)
    left = np.empty(m, np.int64)  # members still awaited
    n_slots = 1
    for i in range(m):
        left[i] = first[i + 1] - first[i]
        for x in range(first[i], first[i + 1]):
            owner[x] = i
            n_slots = max(n_slots, slot[x] + 1)
    here = np.zeros(member.size, np.bool_)
    open_list = np.empty(m, np.int64)  # open instances, in the order of their opening
    n_open = 0
    waits = np.zeros(n_ranks, np.int64)  # instances the rank waits in
    held = np.zeros((n_ranks, n_slots, n_ranks))  # time held since the last arrival on that slot, by whom
    total = np.zeros((n_ranks, n_slots))  # its sum over whom
    by = np.empty(n_ranks, np.int64)  # element through which a rank is awaited now, -1 if not
    passed = np.zeros(n_ranks)  # fraction of its share that an awaited rank passes on
    seen = np.empty(n_ranks, np.bool_)
    root = np.zeros((1, n_ranks))
    now = arrive[order[0]]
    for o in range(order.size):
        e = order[o]
        dt = float(arrive[e] - now)
        now = arrive[e]
        if dt > 0 and n_open > 0:
            among = _awaited(first, member, here, open_list, n_open, waits, by)
            for r in range(n_ranks):
                passed[r] = 0.0
                if by[r] >= 0 and waits[r] == 0:
                    passed[r] = min(1.0, total[r, slot[by[r]]] / dt)
            if n_slots > 1:
                root = _holders(first, member, here, open_list, n_open, waits, by, passed, held, total, slot)
            for r in range(n_ranks):
                if by[r] < 0 or (among > 0 and waits[r] > 0):
                    continue
                share = dt / abs(among)
                k, c = step[owner[by[r]]], slot[by[r]]
                out[r, k] += share * (1.0 - passed[r])
                if passed[r] > 0:
                    balance = total[r, c]
                    used = min(dt, balance)
                    for h in range(n_ranks):
                        out[h, k] += share * passed[r] * held[r, c, h] / balance
                        held[r, c, h] *= (balance - used) / balance
                    total[r, c] = balance - used
            if n_slots > 1:
                for r in range(n_ranks):
                    seen[r] = False
                for q in range(n_open):
                    for x in range(first[open_list[q]], first[open_list[q] + 1]):
                        r = member[x]
                        if not here[x] or seen[r]:
                            continue
                        seen[r] = True
                        for c in range(n_slots):
                            if c != slot[x]:
                                for h in range(n_ranks):
                                    held[r, c, h] += dt * root[q, h]
                                    total[r, c] += dt * root[q, h]
        i, r = owner[e], member[e]
        if left[i] == first[i + 1] - first[i]:
            open_list[n_open] = i
            n_open += 1
        here[e] = True
        left[i] -= 1
        waits[r] += 1
        total[r, slot[e]] = 0.0
        for h in range(n_ranks):
            held[r, slot[e], h] = 0.0
        if left[i] == 0:
            for x in range(first[i], first[i + 1]):
                waits[member[x]] -= 1
            q = 0
            while open_list[q] != i:
                q += 1
            n_open -= 1
            for p in range(q, n_open):
                open_list[p] = open_list[p + 1]
    return out


@jit
def _awaited(
    first: I64, member: I64, here: NDArray[np.bool_], open_list: I64, n_open: int, waits: I64, by: I64
) -> int:
    """Fill `by` with the element through which each rank is awaited (the instance opened first).

    Returns the number of awaited ranks that work; when all of them wait, their number made negative.
    """
    working = awaited = 0
    for r in range(by.size):
        by[r] = -1
    for q in range(n_open):
        for x in range(first[open_list[q]], first[open_list[q] + 1]):
            r = member[x]
            if not here[x] and by[r] < 0:
                by[r] = x
                awaited += 1
                if waits[r] == 0:
                    working += 1
    return working if working > 0 else -awaited


@jit
def _holders(
    first: I64,
    member: I64,
    here: NDArray[np.bool_],
    open_list: I64,
    n_open: int,
    waits: I64,
    by: I64,
    passed: F64,
    held: NDArray[np.float64],
    total: F64,
    slot: I64,
) -> F64:
    """Who holds the members of each open instance: the awaited, or whoever holds those in turn.

    Returns
    -------
    (n_open, n_ranks) float64
        Rows sum to 1, or to 0 when the awaited hold each other in a circle.
    """
    n_ranks = by.size
    root = np.zeros((n_open, n_ranks))
    for _ in range(min(n_open, 8)):
        fresh = np.zeros((n_open, n_ranks))
        for q in range(n_open):
            parts = 0
            for x in range(first[open_list[q]], first[open_list[q] + 1]):
                r = member[x]
                if here[x]:
                    continue
                if waits[r] == 0:
                    parts += 1
                    fresh[q, r] += 1.0 - passed[r]
                    if passed[r] > 0:
                        c = slot[by[r]]
                        for h in range(n_ranks):
                            fresh[q, h] += passed[r] * held[r, c, h] / total[r, c]
                    continue
                for p in range(n_open):
                    if p != q and _waits_in(first, member, here, open_list[p], r):
                        weight = 0.0
                        for h in range(n_ranks):
                            weight += root[p, h]
                            fresh[q, h] += root[p, h]
                        if weight > 0:
                            parts += 1
                        break
            for h in range(n_ranks):
                if parts > 0:
                    fresh[q, h] /= parts
        root = fresh
    return root


@jit
def _waits_in(first: I64, member: I64, here: NDArray[np.bool_], instance: int, rank: int) -> bool:
    """Whether `rank` has arrived at `instance`."""
    for x in range(first[instance], first[instance + 1]):
        if member[x] == rank:
            return bool(here[x])
    return False
