"""What happens to ranks and instances in a sweep (see `sweep`)."""

from __future__ import annotations

from rankdiff.kernels._jit import leaf
from rankdiff.kernels.sweep_flow import advance, blend, holds, settle, settle_all, settle_below
from rankdiff.kernels.sweep_state import ALL, F64, I64, NOT, NOTHING_NS, PASSES, WAITS, WORKS, Sweep, listed


@leaf
def leave(s: Sweep, r: int, flows: bool) -> None:
    """Charge an awaited rank, before anything changes for it."""
    mode = s.mode[r]
    if mode == NOT:
        return
    k, c = s.step[s.owner[s.head[r]]], s.slot[s.head[r]]
    if flows:
        x = s.head[r]
        while x >= 0:
            settle_below(s, s.owner[x])
            settle(s, x)
            if mode != WAITS:
                blend(s, s.owner[x], r, mode, -1.0)
                s.parts[s.owner[x]] -= 1
            elif s.linked[x]:
                s.links[s.owner[x]] -= 1
                s.parts[s.owner[x]] -= 1
            x = s.after[x]
    charge = s.now[2 if mode == WAITS else 1] - s.charged[r]
    if mode == PASSES:
        held, who, each = s.held[r, c], s.held_who[r, c], charge / s.weight[r, c]
        out = s.out[k]
        if s.held_size[r, c] == ALL:
            for h in range(held.size):
                out[h] += each * held[h]
        for n in range(s.held_size[r, c]):
            out[who[n]] += each * held[who[n]]
        s.balance[r, c] = max(0.0, s.balance[r, c] - (s.now[0] - s.from_at[r]))
    else:
        s.out[k, r] += charge
    if mode == WAITS:
        s.below[s.link[r]] -= 1
    else:
        s.many[0] -= 1
    s.many[1] -= 1
    s.mode[r] = NOT


@leaf
def enter(s: Sweep, r: int, flows: bool) -> None:
    """Say what an awaited rank does from now on."""
    if s.head[r] < 0:
        return
    if s.waits[r] > 0:
        mode = WAITS
        s.below[s.link[r]] += 1
    else:
        mode = PASSES if s.balance[r, s.slot[s.head[r]]] > 0.0 else WORKS
        if mode == PASSES:
            s.fresh[s.many[3]] = r
            s.many[3] += 1
        s.many[0] += 1
    s.many[1] += 1
    s.charged[r] = s.now[2 if mode == WAITS else 1]
    s.from_at[r] = s.now[0]
    x = s.head[r]
    while x >= 0 and flows:
        join(s, x, mode)
        x = s.after[x]
    s.mode[r] = mode


@leaf
def join(s: Sweep, x: int, mode: int) -> None:
    """Let an awaited element say who holds its instance."""
    i = s.owner[x]
    advance(s, i)
    s.since[x] = s.part[i]
    s.linked[x] = mode == WAITS and not holds(s, s.link[s.member[x]], i)
    if mode != WAITS:
        blend(s, i, s.member[x], mode, 1.0)
        s.parts[i] += 1
    elif s.linked[x]:
        s.links[i] += 1
        s.parts[i] += 1


@leaf
def count_from(s: Sweep, r: int, own: int, c: int, sign: float) -> None:
    """Add who held the instance that rank `r` waits in to what it was held on slot `c`, or begin by taking it off.

    `own` is the slot of that instance: on that one it is not held by it.
    """
    if c == own:
        return
    held, who, among, size = s.held[r, c], s.held_who[r, c], s.held_in[r, c], s.held_size[r, c]
    if sign < 0.0 and s.balance[r, c] != s.weight[r, c]:
        left = s.balance[r, c] / s.weight[r, c]
        if size == ALL:
            for h in range(held.size):
                held[h] *= left
        for n in range(size):
            held[who[n]] *= left
        s.weight[r, c] = s.balance[r, c]
    at = s.place[s.link[r]]
    flow, flow_who, flow_size = s.flow[at], s.flow_who[at], s.flow_size[at]
    if flow_size == ALL:
        s.held_size[r, c] = ALL
        for h in range(held.size):
            held[h] += sign * flow[h]
        if sign > 0.0:
            s.weight[r, c] = tidied(held)
    else:
        total = 0.0
        for n in range(flow_size):
            h = flow_who[n]
            size = listed(who, among, size, h)
            now = held[h] + sign * flow[h]
            if sign > 0.0 and now < NOTHING_NS:
                now = 0.0  # what was taken off has been added again
            total += now - held[h]
            held[h] = now
        s.held_size[r, c] = size
        s.weight[r, c] += total
    if sign > 0.0 and s.weight[r, c] < NOTHING_NS:
        clear(s, r, c)
    s.balance[r, c] = s.weight[r, c]


@leaf
def tidied(held: F64) -> float:
    """Drop those who have held a rank for no time, and return the sum of the others'."""
    a = b = c = d = 0.0  # four sums, made at the same time
    whole = held.size - held.size % 4
    for h in range(held.size):
        held[h] = held[h] if held[h] >= NOTHING_NS else 0.0
    for h in range(0, whole, 4):
        a += held[h]
        b += held[h + 1]
        c += held[h + 2]
        d += held[h + 3]
    for h in range(whole, held.size):
        a += held[h]
    return (a + b) + (c + d)


@leaf
def clear(s: Sweep, r: int, c: int) -> None:
    """Forget what held a rank since its last arrival on a slot: it arrives there."""
    if s.held_size[r, c] == ALL:
        s.held[r, c, :] = 0.0
        s.held_in[r, c, :] = False
    for n in range(s.held_size[r, c]):
        h = s.held_who[r, c, n]
        s.held[r, c, h] = 0.0
        s.held_in[r, c, h] = False
    s.held_size[r, c] = 0
    s.weight[r, c] = s.balance[r, c] = 0.0


@leaf
def begin_waiting(s: Sweep, r: int, i: int, own: int) -> None:
    """Let a rank that has arrived wait in an instance that `own` is the slot of."""
    settle_all(s, i)
    s.link[r] = i
    for c in range(s.weight.shape[1]):
        count_from(s, r, own, c, -1.0)


@leaf
def stop_waiting(s: Sweep, r: int, own: int) -> None:
    """Add up what a rank was held by the instance that it waits in."""
    settle_all(s, s.link[r])
    for c in range(s.weight.shape[1]):
        count_from(s, r, own, c, 1.0)
    s.link[r] = -1


@leaf
def slot_in(s: Sweep, r: int, i: int) -> int:
    """Slot of an instance for one of its members that has arrived; -1: it has not, or is none."""
    for x in range(s.first[i], s.first[i + 1]):
        if s.member[x] == r and s.here[x]:
            return int(s.slot[x])
    return -1


@leaf
def open_instance(s: Sweep, i: int, flows: bool) -> None:
    """Let all members of an instance be awaited."""
    s.opened[i] = s.many[2]
    s.many[2] += 1
    s.part_at[i] = s.now[0]
    for x in range(s.first[i], s.first[i + 1]):
        r = s.member[x]
        s.before[x], s.after[x] = s.tail[r], -1
        if s.tail[r] >= 0:
            s.after[s.tail[r]] = x
        else:
            s.head[r] = x
        s.tail[r] = x
        if s.mode[r] == NOT:
            enter(s, r, flows)
        elif flows:
            join(s, x, s.mode[r])


@leaf
def arrive_at(s: Sweep, e: int, flows: bool) -> None:
    """Let a member arrive; the instance is open."""
    i, r, c = s.owner[e], s.member[e], s.slot[e]
    leave(s, r, flows)
    if s.before[e] >= 0:
        s.after[s.before[e]] = s.after[e]
    else:
        s.head[r] = s.after[e]
    if s.after[e] >= 0:
        s.before[s.after[e]] = s.before[e]
    else:
        s.tail[r] = s.before[e]
    s.here[e] = True
    s.left[i] -= 1
    s.waits[r] += 1
    if not flows:
        s.link[r] = i
    else:
        was = s.link[r]
        own = slot_in(s, r, was) if was >= 0 else -1
        if was >= 0:
            stop_waiting(s, r, own)
        clear(s, r, c)
        if was >= 0 and s.opened[was] < s.opened[i]:
            begin_waiting(s, r, was, own)
        else:
            begin_waiting(s, r, i, c)
    enter(s, r, flows)


@leaf
def close_instance(s: Sweep, i: int, flows: bool, open_list: I64, n_open: int) -> None:
    """Let all members of an instance go on; `open_list` has the others, in the order of opening."""
    for x in range(s.first[i], s.first[i + 1]):
        r = s.member[x]
        leave(s, r, flows)
        s.waits[r] -= 1
        if s.link[r] == i:
            if flows:
                stop_waiting(s, r, s.slot[x])
            s.link[r] = -1
            for q in range(n_open if s.waits[r] > 0 else 0):
                own = slot_in(s, r, open_list[q])
                if own >= 0:
                    if flows:
                        begin_waiting(s, r, open_list[q], own)
                    s.link[r] = open_list[q]
                    break
        enter(s, r, flows)
    s.opened[i] = -1
