"""Who holds the instances of a sweep, and for how long (see `sweep`)."""

from __future__ import annotations

from rankdiff.kernels._jit import leaf
from rankdiff.kernels.sweep_state import ALL, F64, PASSES, WAITS, WORKS, Sweep, listed


@leaf
def add_flow(s: Sweep, i: int, r: int, amount: float) -> None:
    """Rank `r` holds instance `i` for an `amount` of time."""
    at = s.place[i]
    s.flow_size[at] = listed(s.flow_who[at], s.flow_in[at], s.flow_size[at], r)
    s.flow[at, r] += amount


@leaf
def pass_to(s: Sweep, at: int, sums: F64, r: int, each: float) -> None:
    """Add `each` of what held rank `r` to a row of sums by rank, of the instance with that place."""
    c = s.slot[s.head[r]]
    held, who, size = s.held[r, c], s.held_who[r, c], s.held_size[r, c]
    if size == ALL:
        s.flow_size[at] = ALL
        for h in range(held.size):
            sums[h] += each * held[h]
        return
    flow_who, among, flow_size = s.flow_who[at], s.flow_in[at], s.flow_size[at]
    for n in range(size):
        h = who[n]
        flow_size = listed(flow_who, among, flow_size, h)
        sums[h] += each * held[h]
    s.flow_size[at] = flow_size


@leaf
def pass_on(s: Sweep, i: int, r: int, amount: float) -> None:
    """Those who held rank `r` hold instance `i` for an `amount` of time."""
    at = s.place[i]
    pass_to(s, at, s.flow[at], r, amount / s.weight[r, s.slot[s.head[r]]])


@leaf
def blend(s: Sweep, i: int, r: int, mode: int, sign: float) -> None:
    """Let rank `r`, which is awaited and does not wait, hold instance `i` from now on, or no longer."""
    at = s.place[i]
    if mode == PASSES:
        pass_to(s, at, s.mix[at], r, sign / s.weight[r, s.slot[s.head[r]]])
    else:
        s.flow_size[at] = listed(s.flow_who[at], s.flow_in[at], s.flow_size[at], r)
        s.mix[at, r] += sign


@leaf
def advance(s: Sweep, i: int) -> None:
    """Bring up to date what the members of an instance that do not wait add to its flow."""
    if s.parts[i] > 0:
        s.part[i] += (s.now[0] - s.part_at[i]) / s.parts[i]
    s.part_at[i] = s.now[0]
    amount = s.part[i] - s.mixed[i]
    s.mixed[i] = s.part[i]
    if amount <= 0.0:
        return
    at = s.place[i]
    flow, mix, who = s.flow[at], s.mix[at], s.flow_who[at]
    if s.flow_size[at] == ALL:
        for h in range(flow.size):
            flow[h] += amount * mix[h]
    for n in range(s.flow_size[at]):
        flow[who[n]] += amount * mix[who[n]]


@leaf
def forget(s: Sweep, i: int) -> None:
    """Leave the place of an instance to another one."""
    at = s.place[i]
    if s.flow_size[at] == ALL:
        s.flow[at, :] = 0.0
        s.mix[at, :] = 0.0
        s.flow_in[at, :] = False
    for n in range(s.flow_size[at]):
        h = s.flow_who[at, n]
        s.flow[at, h] = s.mix[at, h] = 0.0
        s.flow_in[at, h] = False
    s.flow_size[at] = 0


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
    advance(s, i)
    amount = s.part[i] - s.since[x]
    s.since[x] = s.part[i]
    if amount > 0.0 and s.mode[r] == WAITS and s.linked[x]:
        pour(s, i, s.link[r], amount)


@leaf
def settle_all(s: Sweep, i: int) -> None:
    """Settle every awaited element of an instance."""
    advance(s, i)
    if s.links[i] == 0:
        return
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
