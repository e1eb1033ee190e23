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
    first: I64, member: I64, arrive: I64, slot: I64, step: I64, n_ranks: int, n_slots: int, n_steps: int
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
        Which of the member's own communicators this is, 0 <= slot < n_slots.
    step : (m,) int64
        Step of each instance, 0 <= step < n_steps.
    n_ranks, n_slots, n_steps : int

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
    for i in range(m):
        owner[first[i] : first[i + 1]] = i
    order = np.argsort(arrive, kind="mergesort")
    here = np.zeros(member.size, np.bool_)
    left = first[1:] - first[:-1]  # members still awaited
    open_list = np.empty(m, np.int64)  # open instances, in the order of their opening
    n_open = 0
    waits = np.zeros(n_ranks, np.int64)  # instances the rank waits in
    held = np.zeros((n_ranks, n_slots, n_ranks))  # time held since the last arrival on that slot, by whom
    by = np.empty(n_ranks, np.int64)  # element through which a rank is awaited now, -1 if not
    passed = np.zeros(n_ranks)  # fraction of its share that an awaited rank passes on
    root = np.zeros((1, n_ranks))
    seen = np.empty(n_ranks, np.bool_)
    now = arrive[order[0]]
    for o in range(order.size):
        e = order[o]
        dt = float(arrive[e] - now)
        now = arrive[e]
        if dt > 0 and n_open > 0:
            by[:] = -1
            working = awaited = 0
            for q in range(n_open):
                i = open_list[q]
                for x in range(first[i], first[i + 1]):
                    if not here[x] and by[member[x]] < 0:
                        by[member[x]] = x
                        awaited += 1
                        if waits[member[x]] == 0:
                            working += 1
            among = working if working > 0 else awaited
            for r in range(n_ranks):
                passed[r] = 0.0
                if by[r] < 0 or waits[r] > 0:
                    continue
                balance = held[r, slot[by[r]]].sum()
                if balance > 0:
                    passed[r] = min(1.0, balance / dt)
            # Who holds the members of each open instance: the awaited, or whoever holds those in turn.
            if n_slots > 1:
                root = np.zeros((n_open, n_ranks))
                for turn in range(min(n_open, 8)):
                    fresh = np.zeros((n_open, n_ranks))
                    for q in range(n_open):
                        i = open_list[q]
                        parts = 0
                        for x in range(first[i], first[i + 1]):
                            r = member[x]
                            if here[x]:
                                continue
                            if waits[r] == 0:
                                parts += 1
                                fresh[q, r] += 1.0 - passed[r]
                                if passed[r] > 0:
                                    balance = held[r, slot[by[r]]].sum()
                                    fresh[q] += passed[r] * held[r, slot[by[r]]] / balance
                            else:
                                for p in range(n_open):
                                    if p != q and _waits_in(first, member, here, open_list[p], r):
                                        if root[p].sum() > 0:
                                            parts += 1
                                            fresh[q] += root[p]
                                        break
                        if parts > 0:
                            fresh[q] /= parts
                    root = fresh
            for r in range(n_ranks):
                if by[r] < 0 or (working > 0 and waits[r] > 0):
                    continue
                share = dt / among
                k = step[owner[by[r]]]
                out[r, k] += share * (1.0 - passed[r])
                if passed[r] > 0:
                    account = held[r, slot[by[r]]]
                    balance = account.sum()
                    used = min(dt, balance)
                    out[:, k] += share * passed[r] * account / balance
                    account *= (balance - used) / balance
            if n_slots > 1:
                seen[:] = False
                for q in range(n_open):
                    i = open_list[q]
                    for x in range(first[i], first[i + 1]):
                        r = member[x]
                        if not here[x] or seen[r]:
                            continue
                        seen[r] = True
                        for c in range(n_slots):
                            if c != slot[x]:
                                held[r, c] += dt * root[q]
        i, r = owner[e], member[e]
        if left[i] == first[i + 1] - first[i]:
            open_list[n_open] = i
            n_open += 1
        here[e] = True
        left[i] -= 1
        waits[r] += 1
        held[r, slot[e]] = 0.0
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
def _waits_in(first: I64, member: I64, here: NDArray[np.bool_], instance: int, rank: int) -> bool:
    """Whether `rank` has arrived at `instance`."""
    for x in range(first[instance], first[instance + 1]):
        if member[x] == rank:
            return bool(here[x])
    return False
