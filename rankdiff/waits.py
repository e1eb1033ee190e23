"""Who waited, for whom, and what it cost: waits, transfers and delay shares of matched instances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankdiff.instances import Timed
from rankdiff.kernels.shares import skew_shares, swept_shares

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Waits:
    """Waiting times of one communicator's instances; rows are instances, columns members."""

    wait: I64  # (m, n) ns: min(last arrival - own start, own duration), not below 0
    lateness: I64  # (m, n) ns: own start less the median start
    transfer: I64  # (m,) ns: median end less last arrival, not below 0
    last: I64  # (m,) column of the last to arrive (the first of equals)
    imposed: I64  # (m, n) ns: the others' waits, given to the last to arrive


def waits(t: Timed) -> Waits:
    """Waits of a communicator's instances (METHOD: Waits)."""
    last_start = t.start.max(axis=1)
    last = t.start.argmax(axis=1)
    wait = np.clip(last_start[:, None] - t.start, 0, t.duration)
    imposed = np.zeros_like(wait)
    imposed[np.arange(last.size), last] = wait.sum(axis=1)
    return Waits(
        wait=wait,
        lateness=t.start - np.median(t.start, axis=1).astype(np.int64)[:, None],
        transfer=np.maximum(0, np.median(t.end, axis=1).astype(np.int64) - last_start),
        last=last,
        imposed=imposed,
    )


def islands(n_ranks: int, members: Sequence[I64]) -> list[list[int]]:
    """Sets of ranks that meet in an N x N communicator, directly or through others.

    Returns
    -------
    list of list of int
        Job rank indices; ranks that meet nobody are left out. Ordered by lowest rank.
    """
    label = list(range(n_ranks))

    def root(r: int) -> int:
        while label[r] != r:
            label[r] = label[label[r]]
            r = label[r]
        return r

    for m in members:
        for r in m[1:]:
            a, b = sorted((root(int(m[0])), root(int(r))))
            label[b] = a
    met = {int(r) for m in members for r in m}
    sets: dict[int, list[int]] = {}
    for r in sorted(met):
        sets.setdefault(root(r), []).append(r)
    return [sets[k] for k in sorted(sets)]


def delay_shares(
    timed: Sequence[Timed], ranks: Sequence[int], n_steps: int, earlier: dict[int, float] | None = None
) -> F64:
    """Delay share of every rank of an island in every step.

    Parameters
    ----------
    timed : sequence of Timed
        The island's communicators.
    ranks : sequence of int
        Job rank indices of the island; rows of the result.
    n_steps : int
    earlier : dict, optional
        ns by which to move the arrivals of a job rank index earlier (to test a verdict against the clock).

    Returns
    -------
    (n, n_steps) float64, ns
    """
    at = {r: i for i, r in enumerate(ranks)}
    moved = earlier or {}
    arrivals = [
        t.start - np.array([np.int64(round(moved.get(int(r), 0.0))) for r in t.comm.members]) for t in timed
    ]
    if len(timed) == 1:
        a = arrivals[0]
        alone = np.ones(a.shape[0], np.bool_)
        order = np.argsort(a.min(axis=1), kind="stable")
        opened, closed = a.min(axis=1)[order], np.maximum.accumulate(a.max(axis=1)[order])
        overlap = opened[1:] < closed[:-1]
        alone[order[1:]] &= ~overlap
        alone[order[:-1]] &= ~overlap
        out = np.zeros((len(ranks), n_steps))
        rows = [at[int(r)] for r in timed[0].comm.members]
        out[rows] = skew_shares(np.ascontiguousarray(a[alone]), timed[0].step[alone], n_steps)
        if not alone.all():
            out += _swept([a[~alone]], [timed[0].comm.members], [timed[0].step[~alone]], at, n_steps)
        return out
    return _swept(arrivals, [t.comm.members for t in timed], [t.step for t in timed], at, n_steps)


def _swept(
    arrivals: list[I64], members: list[I64], steps: list[I64], at: dict[int, int], n_steps: int
) -> F64:
    """Flatten instances of several communicators for the sweep."""
    # Communicators of the same ranks are one to a rank that asks who held it elsewhere.
    sets = [tuple(int(r) for r in m) for m in members]
    slots: dict[int, dict[tuple[int, ...], int]] = {}
    first, member, arrive, slot = [0], [], [], []
    for a, m, key in zip(arrivals, members, sets, strict=True):
        own = np.array([at[int(r)] for r in m], np.int64)
        mine = np.array(
            [slots.setdefault(int(r), {}).setdefault(key, len(slots[int(r)])) for r in own], np.int64
        )
        arrive.append(a.ravel())
        member.append(np.tile(own, a.shape[0]))
        slot.append(np.tile(mine, a.shape[0]))
        first += [m.size] * a.shape[0]
    arrivals_flat = np.concatenate(arrive)
    return np.asarray(
        swept_shares(
            np.cumsum(np.array(first, np.int64)),
            np.concatenate(member),
            arrivals_flat,
            np.concatenate(slot),
            np.concatenate(steps),
            np.argsort(arrivals_flat, kind="stable"),
            len(at),
            n_steps,
        )
    )
