"""Kernel that divides waiting time over several communicators, event by event (METHOD: delay share).

What is charged to a rank, and who held it, grow evenly between two events that concern it, and at rates that all
awaited ranks share. So both are read off running totals when something changes for that rank, and an event costs what
it changes: not a look at every rank and every open instance.
"""

from __future__ import annotations

import numpy as np

from rankdiff.kernels._jit import jit
from rankdiff.kernels.heap import drop_earliest, push
from rankdiff.kernels.sweep_events import arrive_at, close_instance, enter, leave, open_instance
from rankdiff.kernels.sweep_flow import forget
from rankdiff.kernels.sweep_state import F64, I64, NOTHING_NS, PASSES, begun


@jit
def most_open(first: I64, order: I64) -> int:
    """Most instances that are open at once."""
    owner = np.repeat(np.arange(first.size - 1), first[1:] - first[:-1])
    left = first[1:] - first[:-1]
    n = most = 0
    for e in order:
        i = owner[e]
        if left[i] == first[i + 1] - first[i]:
            n += 1
            most = max(most, n)
        left[i] -= 1
        if left[i] == 0:
            n -= 1
    return most


@jit
def swept_shares(
    first: I64, member: I64, arrive: I64, slot: I64, step: I64, order: I64, n_ranks: int, n_steps: int
) -> F64:
    """Divide waiting time among awaited ranks, moment by moment, over overlapping communicators.

    At every moment that somebody waits, dt is shared once, equally among the ranks that any open instance
    awaits and that are not waiting themselves (among all awaited when all of them wait). A rank awaited while
    it works first uses up the time it was held in instances of other communicators since its last arrival
    on this one; that part goes to those who held it. An instance is held by those it awaits, or by whoever holds
    these in turn; ranks that hold each other in a circle (by clock errors) are not followed around it.

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
    if m == 0:
        return np.zeros((n_ranks, n_steps))
    flows = bool(slot.max() > 0)
    rows = most_open(first, order) if flows else 1
    s = begun(first, member, slot, step, n_ranks, n_steps, flows, rows)
    open_list = np.empty(m, np.int64)
    n_open = 0
    free = np.arange(rows)
    n_free = rows
    when, what, size = np.empty(64), np.empty(64, np.int64), 0
    origin = arrive[order[0]]
    o = 0
    while o < order.size:
        e = order[o]
        t = float(arrive[e] - origin)
        due = size > 0 and when[0] <= t
        if due:
            t = when[0]
        if s.many[0] > 0:
            s.now[1] += (t - s.now[0]) / s.many[0]
        elif s.many[1] > 0:
            s.now[2] += (t - s.now[0]) / s.many[1]
        s.now[0] = t
        if due:
            r = what[0]
            size = drop_earliest(when, what, size)
            # Only where nothing has happened to the rank since this was foreseen.
            if s.mode[r] == PASSES and s.from_at[r] + s.balance[r, slot[s.head[r]]] <= t + NOTHING_NS:
                c = slot[s.head[r]]
                leave(s, r, flows)
                s.balance[r, c] = 0.0
                enter(s, r, flows)
        else:
            o += 1
            i = s.owner[e]
            if s.opened[i] < 0:
                if flows:
                    n_free -= 1
                    s.place[i] = free[n_free]
                open_instance(s, i, flows)
                open_list[n_open] = i
                n_open += 1
            arrive_at(s, e, flows)
            if s.left[i] == 0:
                q = 0
                while open_list[q] != i:
                    q += 1
                n_open -= 1
                for p in range(q, n_open):
                    open_list[p] = open_list[p + 1]
                close_instance(s, i, flows, open_list, n_open)
                if flows:
                    forget(s, i)
                    free[n_free] = s.place[i]
                    n_free += 1
        while size + s.many[3] > when.size:
            when, what = np.append(when, np.empty(when.size)), np.append(what, np.empty_like(what))
        for k in range(s.many[3]):
            r = s.fresh[k]
            if s.mode[r] == PASSES:
                size = push(when, what, size, s.from_at[r] + s.balance[r, slot[s.head[r]]], r)
        s.many[3] = 0
    return np.ascontiguousarray(s.out.T)
