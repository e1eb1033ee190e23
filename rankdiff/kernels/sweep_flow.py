"""Who holds the instances of a sweep, and for how long (see `sweep`)."""

from __future__ import annotations

from rankdiff.kernels._jit import leaf
from rankdiff.kernels.sweep_state import F64, I32, PASSES, WAITS, WORKS, Sweep


@leaf
def add_to(sums: F64, who: I32, size: int, r: int, amount: float) -> int:
    """Add an `amount` for rank `r` to a row of sums and the list of its non-zero entries; returns the list's length."""
    if amount <= 0.0:
        return size
    if sums[r] == 0.0:
        who[size] = r
        size += 1
    sums[r] += amount
    return size


@leaf
def add_flow(s: Sweep, i: int, r: int, amount: float) -> None:
    """Rank `r` holds instance `i` for an `amount` of time."""
    at = s.place[i]
    s.flow_size[at] = add_to(s.flow[at], s.flow_who[at], s.flow_size[at], r, amount)


@leaf
def pass_on(s: Sweep, i: int, r: int, amount: float) -> None:
    """Those who held rank `r` hold instance `i` for an `amount` of time."""
    c, at = s.slot[s.head[r]], s.place[i]
    held, who, each = s.held[r, c], s.held_who[r, c], amount / s.weight[r, c]
    flow, flow_who, size = s.flow[at], s.flow_who[at], s.flow_size[at]
    for n in range(s.held_size[r, c]):
        h = who[n]
        more = each * held[h]
        if more > 0.0:
            if flow[h] == 0.0:
                flow_who[size] = h
                size += 1
            flow[h] += more
    s.flow_size[at] = size


@leaf
def pour(s: Sweep, i: int, source: int, amount: float) -> None:
    """Whoever holds `source` now holds instance `i` for an `amount` of time."""
    todo, rest, size = s.todo[0], s.rest, 1
    todo[0], rest[0] = source, amount
    while size > 0:
        size -= 1
        p = todo[size]
        if s.parts[p] == 0:
            continue
        each = rest[size] / s.parts[p]
        for x in range(s.first[p], s.first[p + 1]):
            if s.here[x]:
                continue
            r = s.member[x]
            if s.mode[r] == WORKS:
                add_flow(s, i, r, each)
            elif s.mode[r] == PASSES:
                pass_on(s, i, r, each)
            elif s.linked[x] and size < todo.size:
                todo[size], rest[size] = s.link[r], each
                size += 1


@leaf
def settle(s: Sweep, x: int) -> None:
    """Bring up to date what an awaited element adds to the flow of its instance."""
    i, r = s.owner[x], s.member[x]
    if s.parts[i] > 0:
        s.part[i] += (s.now[0] - s.part_at[i]) / s.parts[i]
    s.part_at[i] = s.now[0]
    amount = s.part[i] - s.since[x]
    s.since[x] = s.part[i]
    if amount <= 0.0:
        return
    if s.mode[r] == WORKS:
        add_flow(s, i, r, amount)
    elif s.mode[r] == PASSES:
        pass_on(s, i, r, amount)
    elif s.linked[x]:
        pour(s, i, s.link[r], amount)


@leaf
def settle_all(s: Sweep, i: int) -> None:
    """Settle every awaited element of an instance."""
    for x in range(s.first[i], s.first[i + 1]):
        if not s.here[x]:
            settle(s, x)


@leaf
def settle_below(s: Sweep, i: int) -> None:
    """Settle all that depends on who holds instance `i`, before that changes."""
    if s.below[i] == 0:
        return
    todo, size = s.todo[1], 1
    todo[0] = i
    while size > 0:
        size -= 1
        p = todo[size]
        for x in range(s.first[p], s.first[p + 1]):
            r = s.member[x]
            if s.here[x] and s.mode[r] == WAITS and s.link[r] == p:
                z = s.head[r]
                while z >= 0:
                    settle(s, z)
                    if s.linked[z] and s.below[s.owner[z]] > 0 and size < todo.size:
                        todo[size] = s.owner[z]
                        size += 1
                    z = s.after[z]


@leaf
def holds(s: Sweep, p: int, i: int) -> bool:
    """Whether somebody who waits in instance `i` holds `p`, directly or through others."""
    todo, size = s.todo[2], 1
    todo[0] = p
    while size > 0:
        size -= 1
        q = todo[size]
        if q == i:
            return True
        for x in range(s.first[q], s.first[q + 1]):
            r = s.member[x]
            if not s.here[x] and s.mode[r] == WAITS and s.linked[x] and size < todo.size:
                todo[size] = s.link[r]
                size += 1
    return False
