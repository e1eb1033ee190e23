"""Who waited, for whom, and what it cost: waits, transfers and delay shares of matched instances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankdiff.instances import Timed
from rankdiff.kernels.shares import row_spans, skew_shares
from rankdiff.kernels.sweep import swept_shares

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Waits:
    """Waiting times of one communicator's instances; rows are instances, columns members."""

    wait: I64  # (m, n) ns: min(last arrival - own start, own duration), not below 0
    transfer: I64  # (m,) ns: median end less last arrival, not below 0
    last: I64  # (m,) column of the last to arrive (the first of equals)
    start: I64  # (m, n) ns: of the instances themselves, not a copy
    middle: I64  # (m,) ns: median start

    @property
    def lateness(self) -> I64:
        """(m, n) ns: own start less the median start."""
        return self.start - self.middle[:, None]

    @property
    def imposed(self) -> I64:
        """(m, n) ns: the others' waits, given to the last to arrive."""
        out = np.zeros_like(self.wait)
        out[np.arange(self.last.size), self.last] = self.wait.sum(axis=1)
        return out

    def imposed_by(self, keep: NDArray[np.bool_]) -> I64:
        """(n,) ns: the waits in some instances, given to the last to arrive in each."""
        out = np.zeros(self.wait.shape[1], np.int64)
        np.add.at(out, self.last[keep], self.wait[keep].sum(axis=1))
        return out


def waits(t: Timed) -> Waits:
    """Waits of a communicator's instances (METHOD: Waits)."""
    last_start = t.start.max(axis=1)
    wait = last_start[:, None] - t.start
    np.clip(wait, 0, t.duration, out=wait)
    return Waits(
        wait=wait,
        transfer=np.maximum(0, np.median(t.end, axis=1).astype(np.int64) - last_start),
        last=t.start.argmax(axis=1),
        start=t.start,
        middle=np.median(t.start, axis=1).astype(np.int64),
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
    early = [np.array([round(moved.get(r, 0.0)) for r in t.comm.members.tolist()], np.int64) for t in timed]
    if len(timed) > 1:
        arrivals = [t.start - by if by.any() else t.start for t, by in zip(timed, early, strict=True)]
        return _swept(arrivals, [t.comm.members for t in timed], [t.step for t in timed], at, n_steps)
    t, by = timed[0], early[0]
    opened, closed = row_spans(t.start, by)
    alone = np.ones(opened.size, np.bool_)
    order = np.argsort(opened, kind="stable")
    overlap = opened[order][1:] < np.maximum.accumulate(closed[order])[:-1]
    alone[order[1:]] &= ~overlap
    alone[order[:-1]] &= ~overlap
    out = np.zeros((len(ranks), n_steps))
    rows = [at[r] for r in t.comm.members.tolist()]
    out[rows] = skew_shares(t.start, by, t.order, alone, t.step, n_steps)
    if not alone.all():
        out += _swept([t.start[~alone] - by], [t.comm.members], [t.step[~alone]], at, n_steps)
    return out


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
