"""The loop of an island as the replay takes it: matched instances in order of time, and the time between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rankdiff.court import Island
from rankdiff.kernels.replay import place_in_step, replayed_ends, segments

I32 = NDArray[np.int32]
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
    row : (e,) int32
        Row of the member in the island.
    anchor : (e,) int32
        Instance of the member whose end was the latest before its arrival; -1: none was before.
    segment : (e,) int64, ns
        From that end to its arrival; without an anchor the arrival itself.
    elsewhere : (e,) int64, ns
        Part of the segment spent in NCCL kernels outside these instances, like send/recv.
    """

    first: I64
    step: I64
    transfer: I64
    row: I32
    anchor: I32
    segment: I64
    elsewhere: I64

    @cached_property
    def instance(self) -> I32:
        """(e,) int32: instance of each element."""
        return np.repeat(np.arange(self.step.size, dtype=np.int32), np.diff(self.first))

    @cached_property
    def step_of(self) -> I32:
        """(e,) int32: step of each element."""
        return np.repeat(self.step.astype(np.int32), np.diff(self.first))

    @cached_property
    def place(self) -> I32:
        """(e,) int32: ordinal of each element among those of its row in its step."""
        rows, steps = (int(x.max(initial=-1)) + 1 for x in (self.row, self.step))
        return place_in_step(self.row.astype(np.int32, copy=False), self.step_of, rows, steps)


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
    rows = [np.array([at[r] for r in t.comm.members.tolist()], np.int32) for t in island.timed]
    order = np.lexsort((done, last))
    before = np.cumsum([0, *sizes])[:-1]  # first element of each instance as they come
    first = np.cumsum([0, *sizes[order]])
    if len(island.timed) == 1 and bool((order == np.arange(order.size)).all()):
        element: slice | I64 = slice(None)  # as they come, nothing is moved
    else:
        element = np.repeat(before[order] - first[:-1], sizes[order]) + np.arange(first[-1])
    row = np.concatenate([np.tile(r, t.step.size) for r, t in zip(rows, island.timed, strict=True)])[element]
    start = _flat([t.start for t in island.timed])[element]
    end = _flat([t.end for t in island.timed])[element]
    anchor, segment = segments(first, row, start, end, len(island.ranks))
    elsewhere = np.broadcast_to(np.int64(0), row.shape)
    if any(spans[0].size for spans in unmatched):
        elsewhere = np.zeros(row.size, np.int64)
        by_row = np.argsort(row, kind="stable")
        edges = np.searchsorted(row[by_row], np.arange(len(unmatched) + 1))
        for r, spans in enumerate(unmatched):
            mine = by_row[edges[r] : edges[r + 1]]
            mine = mine[anchor[mine] >= 0]
            if spans[0].size:
                elsewhere[mine] = _covered(start[mine], *spans) - _covered(
                    start[mine] - segment[mine], *spans
                )
    transfer = np.maximum(0, done - last)[order]
    return Played(first, step[order], transfer, row, anchor, segment, elsewhere)


def _flat(parts: Sequence[I64]) -> I64:
    """All elements of some matrices, row by row."""
    return parts[0].reshape(-1) if len(parts) == 1 else np.concatenate([x.reshape(-1) for x in parts])


def _covered(until: I64, starts: I64, ends: I64) -> I64:
    """Length of a union before each of some moments."""
    at = np.searchsorted(starts, until, side="right")
    total = np.concatenate([[0], np.cumsum(ends - starts)])
    beyond = np.concatenate([[0], ends])[at] - until
    return np.asarray(total[at] - np.where(at > 0, np.maximum(beyond, 0), 0))


def step_times(p: Played, segment: I64, n_steps: int) -> F64:
    """(k,) ns: time of each step in a replay with these segments; the first step's means nothing."""
    end = replayed_ends(p.first, p.anchor.astype(np.int32, copy=False), segment, p.transfer)
    last = np.full(n_steps, np.iinfo(np.int64).min, np.int64)
    np.maximum.at(last, p.step, end)
    last = np.maximum.accumulate(last)
    return np.concatenate([[0.0], np.diff(last).astype(np.float64)])
