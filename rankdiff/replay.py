"""The loop of an island as the replay takes it: matched instances in order of time, and the time between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankdiff.court import Island
from rankdiff.kernels.replay import replayed_ends

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Played:
    """The matched instances of an island, flattened in order of time, as the replay takes them.

    Attributes
    ----------
    first : (m + 1,) int64
        Elements (instance, member) of instance i: first[i] .. first[i + 1] - 1.
    step : (m,) int64
    transfer : (m,) int64, ns
    row : (e,) int64
        Row of the member in the island.
    anchor : (e,) int64
        Instance of the member whose end was the latest before its arrival; -1: none was before.
    segment : (e,) int64, ns
        From that end to its arrival; without an anchor the arrival itself.
    elsewhere : (e,) int64, ns
        Part of the segment spent in NCCL kernels outside these instances, like send/recv.
    """

    first: I64
    step: I64
    transfer: I64
    row: I64
    anchor: I64
    segment: I64
    elsewhere: I64

    @property
    def instance(self) -> I64:
        """(e,) int64: instance of each element."""
        return np.repeat(np.arange(self.step.size), np.diff(self.first))


def lay_out(island: Island, unmatched: Sequence[tuple[I64, I64]]) -> Played:
    """Flatten the instances of an island and measure the time between them.

    Parameters
    ----------
    island : Island
    unmatched : sequence of pairs of (u,) int64, ns
        Per row of the island the union of its NCCL kernels outside matched instances.
    """
    at = {r: n for n, r in enumerate(island.ranks)}
    sizes = np.concatenate([np.full(t.step.size, t.comm.members.size) for t in island.timed])
    last = np.concatenate([t.start.max(axis=1) for t in island.timed])
    done = np.concatenate([np.median(t.end, axis=1).astype(np.int64) for t in island.timed])
    step = np.concatenate([t.step for t in island.timed])
    rows = [np.tile([at[int(r)] for r in t.comm.members], t.step.size) for t in island.timed]
    order = np.lexsort((done, last))
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    before = np.cumsum([0, *sizes])[:-1]  # first element of each instance as they come
    first = np.cumsum([0, *sizes[order]])
    element = np.repeat(before[order] - first[:-1], sizes[order]) + np.arange(first[-1])
    row = np.concatenate(rows)[element].astype(np.int64)
    start = np.concatenate([t.start.ravel() for t in island.timed])[element]
    end = np.concatenate([t.end.ravel() for t in island.timed])[element]
    instance = np.repeat(np.arange(order.size), sizes[order])
    anchor, segment = _segments(row, start, end, instance)
    elsewhere = np.zeros(row.size, np.int64)
    for r, spans in enumerate(unmatched):
        mine = np.flatnonzero((row == r) & (anchor >= 0))
        elsewhere[mine] = _covered(start[mine], *spans) - _covered(start[mine] - segment[mine], *spans)
    transfer = np.maximum(0, done - last)[order]
    return Played(first, step[order], transfer, row, anchor, segment, elsewhere)


def _covered(until: I64, starts: I64, ends: I64) -> I64:
    """Length of a union before each of some moments."""
    at = np.searchsorted(starts, until, side="right")
    total = np.concatenate([[0], np.cumsum(ends - starts)])
    beyond = np.concatenate([[0], ends])[at] - until
    return np.asarray(total[at] - np.where(at > 0, np.maximum(beyond, 0), 0))


def _segments(row: I64, start: I64, end: I64, instance: I64) -> tuple[I64, I64]:
    """Anchor and segment of every element, see `Played`."""
    anchor = np.full(row.size, -1, np.int64)
    segment = start.copy()
    for mine in np.split(np.argsort(row, kind="stable"), np.cumsum(np.bincount(row))[:-1]):
        by_end = mine[np.argsort(end[mine], kind="stable")]
        found = np.searchsorted(end[by_end], start[mine], side="right") - 1
        # Clock errors can put an instance's last arrival after a member's end: what comes later cannot be waited for.
        while (wrong := (found >= 0) & (instance[by_end[found]] >= instance[mine])).any():
            found[wrong] -= 1
        has = found >= 0
        anchor[mine[has]] = instance[by_end[found[has]]]
        segment[mine[has]] = start[mine[has]] - end[by_end[found[has]]]
    return anchor, segment


def step_times(p: Played, segment: I64, n_steps: int) -> F64:
    """(k,) ns: time of each step in a replay with these segments; the first step's means nothing."""
    end = replayed_ends(p.first, p.anchor, segment, p.transfer)
    last = np.full(n_steps, np.iinfo(np.int64).min, np.int64)
    np.maximum.at(last, p.step, end)
    last = np.maximum.accumulate(last)
    return np.concatenate([[0.0], np.diff(last).astype(np.float64)])
