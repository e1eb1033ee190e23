"""The state of a sweep over several communicators (see `sweep`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankdiff.kernels._jit import jit, leaf

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

# A rank is not awaited; awaited and works; works off what it was held by others; waits itself.
NOT, WORKS, PASSES, WAITS = 0, 1, 2, 3
NOTHING_NS = 1e-3  # rounding
# Size of a list of ranks that has become so long that all ranks are looked at instead, in their order: that is
# several times faster for each.
ALL = -1
_LISTED = 8  # a list has at most one in so many ranks


class Sweep(NamedTuple):
    """All that changes during a sweep.

    Elements are the (instance, member) pairs. A working rank that is awaited is charged with its share of the time;
    while all awaited ranks wait, each of them is.
    """

    first: I64
    member: I64
    slot: I64
    step: I64
    owner: I64  # (e,) instance of an element
    here: Mask  # (e,) arrived
    after: I64  # (e,) next element through which the member is awaited, in the order of opening
    before: I64  # (e,)
    since: F64  # (e,) `part` of its instance when the element was settled last
    linked: Mask  # (e,) a waiting member counts: what it waits in does not await somebody who waits here
    opened: I64  # (m,) when it opened, by number; -1: it is not open
    left: I64  # (m,) members awaited
    parts: I64  # (m,) of these, those that say who holds the instance
    part: F64  # (m,) share of time of each of these since the instance opened
    part_at: F64  # (m,) time up to which that is known
    below: I64  # (m,) awaited ranks that wait in it
    place: I64  # (m,) row in `flow`
    links: I64  # (m,) members that are `linked`
    mixed: F64  # (m,) `part` up to which `mix` has been added to `flow`
    flow: F64  # (open, n) who held the instance, and for how long
    mix: F64  # (open, n) how long each of them does per `part`, through members that are not waiting
    flow_who: I32  # (open, n) those to whom these belong, listed
    flow_in: Mask  # (open, n) whether a rank is in `flow_who`
    flow_size: I64  # ALL: not listed
    head: I64  # (n,) first element through which a rank is awaited, -1
    tail: I64
    mode: I64  # (n,)
    link: I64  # (n,) of the instances in which it waits the one opened first, -1
    waits: I64  # (n,) instances in which it waits
    charged: F64  # (n,) `now` when the rank was charged last
    from_at: F64  # (n,) time from which it works off what it was held
    held: F64  # (n, slots, n) time held since the last arrival on that slot, by whom
    held_who: I32  # (n, slots, n) those, listed
    held_in: Mask  # (n, slots, n) whether a rank is in `held_who`
    held_size: I64  # (n, slots) ALL: not listed
    weight: F64  # (n, slots) sum of `held`
    balance: F64  # (n, slots) what of it is not worked off
    out: F64  # (steps, n)
    now: F64  # time, what a working rank was charged, what a waiting one was
    many: I64  # working ranks, awaited ranks, instances opened, `fresh` ones
    fresh: I64  # (n,) ranks that began to work off what they were held
    todo: I64  # (3, e) stacks of instances to look at, one for each function that needs one
    rest: F64  # (e,)


@leaf
def listed(who: I32, among: Mask, size: int, r: int) -> int:
    """Put a rank on a list that it may be on already; returns its new size, ALL when it would get too long."""
    if size == ALL or among[r]:
        return size
    if size >= who.size // _LISTED:
        return ALL
    who[size] = r
    among[r] = True
    return size + 1


@jit
def begun(
    first: I64, member: I64, slot: I64, step: I64, n: int, n_steps: int, flows: bool, rows: int
) -> Sweep:
    """Return the state before anything has happened.

    Parameters
    ----------
    first, member, slot, step
        As for `swept_shares`.
    n, n_steps : int
        Ranks and steps.
    flows : bool
        Whether it is to be followed who holds whom.
    rows : int
        Most instances that are open at once.
    """
    m, e, slots = first.size - 1, member.size, slot.max() + 1
    wide = n if flows else 0
    owner = np.repeat(np.arange(m), first[1:] - first[:-1])
    left = first[1:] - first[:-1]
    return Sweep(
        first,
        member,
        slot,
        step,
        owner,
        np.zeros(e, np.bool_),
        np.full(e, -1, np.int64),
        np.full(e, -1, np.int64),
        np.zeros(e),
        np.zeros(e, np.bool_),
        np.full(m, -1, np.int64),
        left,
        np.zeros(m, np.int64),
        np.zeros(m),
        np.zeros(m),
        np.zeros(m, np.int64),
        np.zeros(m, np.int64),
        np.zeros(m, np.int64),
        np.zeros(m),
        np.zeros((rows, wide)),
        np.zeros((rows, wide)),
        np.zeros((rows, wide), np.int32),
        np.zeros((rows, wide), np.bool_),
        np.zeros(rows, np.int64),
        np.full(n, -1, np.int64),
        np.full(n, -1, np.int64),
        np.zeros(n, np.int64),
        np.full(n, -1, np.int64),
        np.zeros(n, np.int64),
        np.zeros(n),
        np.zeros(n),
        np.zeros((wide, slots, wide)),
        np.zeros((wide, slots, wide), np.int32),
        np.zeros((wide, slots, wide), np.bool_),
        np.zeros((n, slots), np.int64),
        np.zeros((n, slots)),
        np.zeros((n, slots)),
        np.zeros((n_steps, n)),
        np.zeros(3),
        np.zeros(4, np.int64),
        np.zeros(n + 1, np.int64),
        np.zeros((3, e + 1), np.int64),
        np.zeros(e + 1),
    )
