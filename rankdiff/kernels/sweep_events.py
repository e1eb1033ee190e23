"""What happens to ranks and instances in a sweep (see `sweep`)."""

from __future__ import annotations

from rankdiff.kernels._jit import leaf
from rankdiff.kernels.sweep_flow import holds, settle, settle_all, settle_below
from rankdiff.kernels.sweep_state import I64, NOT, NOTHING_NS, PASSES, WAITS, WORKS, Sweep


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
            if mode != WAITS or s.linked[x]:
                s.parts[s.owner[x]] -= 1
            x = s.after[x]
    charge = s.now[2 if mode == WAITS else 1] - s.charged[r]
    if mode == PASSES:
        for n in range(s.held_size[r, c]):
            h = s.held_who[r, c, n]
            s.out[k, h] += charge * s.held[r, c, h] / s.weight[r, c]
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
    if s.parts[i] > 0:
        s.part[i] += (s.now[0] - s.part_at[i]) / s.parts[i]
    s.part_at[i] = s.now[0]
    s.since[x] = s.part[i]
    s.linked[x] = mode == WAITS and not holds(s, s.link[s.member[x]], i)
    if mode != WAITS or s.linked[x]:
        s.parts[i] += 1


@leaf
def count_from(s: Sweep, r: int, own: int, c: int, sign: float) -> None:
    """Add who held the instance that rank `r` waits in to what it was held on slot `c`, or begin by taking it off.

    `own` is the slot of that instance: on that one it is not held by it.
    """
    if c == own:
        return
    held, who, among, size = s.held[r, c], s.held_who[r, c], s.among[r, c], s.held_size[r, c]
    if sign < 0.0 and s.balance[r, c] != s.weight[r, c]:
        for n in range(size):
            held[who[n]] *= s.balance[r, c] / s.weight[r, c]
        s.weight[r, c] = s.balance[r, c]
    at = s.place[s.link[r]]
    flow, flow_who = s.flow[at], s.flow_who[at]
    total = 0.0
    for n in range(s.flow_size[at]):
        h = flow_who[n]
        if not among[h]:
            among[h] = True
            who[size] = h
            size += 1
        held[h] += sign * flow[h]
        total += flow[h]
    s.held_size[r, c] = size
    s.weight[r, c] += sign * total
    s.balance[r, c] = s.weight[r, c]
    if sign > 0.0:
        tidy(s, r, c)


@leaf
def tidy(s: Sweep, r: int, c: int) -> None:
    """Drop those who have held a rank for no time: what was taken off and added again."""
    held, who, among = s.held[r, c], s.held_who[r, c], s.among[r, c]
    kept, total = 0, 0.0
    for n in range(s.held_size[r, c]):
        h = who[n]
        if held[h] >= NOTHING_NS:
            total += held[h]
            who[kept] = h
            kept += 1
        else:
            held[h] = 0.0
            among[h] = False
    s.held_size[r, c] = kept
    s.weight[r, c] = s.balance[r, c] = total


@leaf
def clear(s: Sweep, r: int, c: int) -> None:
    """Forget what held a rank since its last arrival on a slot: it arrives there."""
    for n in range(s.held_size[r, c]):
        h = s.held_who[r, c, n]
        s.held[r, c, h] = 0.0
        s.among[r, c, h] = False
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
