"""Matched instances on the common clock, and the steps they belong to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rankdiff.clocks import Clock
from rankdiff.job import Job
from rankdiff.kernels.votes import votes
from rankdiff.matching import Communicator

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

_ROWS = 512  # instances that are sorted at once


@dataclass(frozen=True)
class Timed:
    """The instances of one communicator on the common clock; rows are instances, columns members."""

    comm: Communicator
    start: I64  # (m, n) ns since the job's origin
    end: I64  # (m, n)
    duration: I64  # (m, n) ns on the rank's own clock: no alignment in it
    step: I64  # (m,) index into Steps, -1: outside every step
    near: NDArray[np.int16] | NDArray[np.int32] | None = (
        None  # `order` of instances that differ in few members
    )

    @cached_property
    def order(self) -> NDArray[np.int16] | NDArray[np.int32]:
        """(m, n) members of each instance in about the order of their arrival."""
        if self.near is not None:
            return self.near
        m, n = self.start.shape
        out = np.empty((m, n), np.int16 if n <= np.iinfo(np.int16).max else np.int32)
        for a in range(0, m, _ROWS):
            out[a : a + _ROWS] = np.argsort(self.start[a : a + _ROWS], axis=1)
        return out


def seats(timed: Sequence[Timed]) -> dict[int, list[tuple[Timed, int]]]:
    """Where each job rank index is a member: its communicators, and its column in each."""
    out: dict[int, list[tuple[Timed, int]]] = {}
    for t in timed:
        for j, r in enumerate(t.comm.members.tolist()):
            out.setdefault(r, []).append((t, j))
    return out


@dataclass(frozen=True)
class Steps:
    """The steps of one island of ranks, in the order of time."""

    source: str  # nvtx:<name>, period or collective
    labels: tuple[str, ...]
    last_end: I64  # (k,) ns since the job's origin: last end of the step's collectives
    step_ns: F64  # (k,) last end less the last end of the step before; nan for the first

    @property
    def size(self) -> int:
        """Number of steps."""
        return len(self.labels)


def timed(job: Job, clock: Clock, comm: Communicator, step: I64) -> Timed:
    """Put the instances of a communicator on the common clock.

    A start later than the rank's own end after rounding cannot happen: both move by one smooth function.
    """
    raw_start, raw_end = comm.by_member(job, "start"), comm.by_member(job, "end")
    duration = np.ascontiguousarray((raw_end - raw_start).T)
    for j, r in enumerate(comm.members):
        raw_start[j] = clock.common(job, int(r), raw_start[j])
        raw_end[j] = clock.common(job, int(r), raw_end[j])
    return Timed(comm, np.ascontiguousarray(raw_start.T), np.ascontiguousarray(raw_end.T), duration, step)


def label_instances(job: Job, communicators: Sequence[Communicator]) -> tuple[str, list[I64], dict[int, str]]:
    """Give every instance of an island a step.

    Parameters
    ----------
    job : Job
    communicators : sequence of Communicator
        All communicators of one island (ranks that meet directly or through others).

    Returns
    -------
    source : str
        Where the steps come from: ``nvtx:<name>``, ``period`` or ``collective``.
    keys : list of (m,) int64
        Per communicator the step key of each instance; keys ascend in time but may have gaps.
    names : dict
        Step key to the name shown; keys without one are shown by their order.
    """
    total = sum(c.positions.shape[0] for c in communicators)
    named = _from_ranges(job, communicators)
    if named is not None and sum((k >= 0).sum() for k in named[1]) >= 0.8 * total:
        source, keys, names = named
        return source, _fill(job, communicators, keys), names
    return _from_period(job, communicators)


def _from_ranges(
    job: Job, communicators: Sequence[Communicator]
) -> tuple[str, list[I64], dict[int, str]] | None:
    """Steps by the NVTX range that contains the launch, numbered alike on all ranks."""
    sources = Counter(job.ranks[int(r)].digest.info.step_source for c in communicators for r in c.members)
    del sources[None]
    if not sources:
        return None
    source = sources.most_common(1)[0][0]
    numbered = [votes(x) for x in _stack(job, communicators, "step_number")]
    agree = sum(int(((known >= 2) & (count == known)).sum()) for _, known, count in numbered)
    both = sum(int((known >= 2).sum()) for _, known, _ in numbered)
    if both and agree >= 0.9 * both:
        keys = [value for value, _, _ in numbered]
        present = {int(k) for x in keys for k in np.unique(x) if k >= 0}
        if _ascend(keys):
            return str(source), keys, {k: str(k) for k in present}
    ordinals = _stack(job, communicators, "step")
    shift = _ordinal_shifts(job, communicators, ordinals)
    moved = [
        np.where(x >= 0, x + np.array([shift.get(int(r), 0) for r in c.members]), -1)
        for x, c in zip(ordinals, communicators, strict=True)
    ]
    low = min((int(x[x >= 0].min()) for x in moved if (x >= 0).any()), default=0)
    keys = [votes(np.where(x >= 0, x - low, -1))[0] for x in moved]
    if not _ascend(keys):
        return None
    return str(source), keys, {}


def _stack(job: Job, communicators: Sequence[Communicator], what: str) -> list[I64]:
    """(m, n) int64 for each communicator: a property of the members' collectives."""
    return [
        np.ascontiguousarray(
            np.stack([getattr(job.ranks[int(r)], what)[c.positions[:, j]] for j, r in enumerate(c.members)]).T
        )
        for c in communicators
    ]


def _ordinal_shifts(job: Job, communicators: Sequence[Communicator], ordinals: list[I64]) -> dict[int, int]:
    """What to add to each rank's step ordinal so that all ranks count alike."""
    counts = Counter({r.index: int((r.step >= 0).sum()) for r in job.ranks})
    first = {int(r) for c in communicators for r in c.members}
    start = max(first, key=lambda r: (counts[r], -r))
    shift = {start: 0}
    grown = True
    while grown:
        grown = False
        for c, x in zip(communicators, ordinals, strict=True):
            done = [j for j, r in enumerate(c.members) if int(r) in shift]
            for j, r in enumerate(c.members):
                if int(r) in shift or not done:
                    continue
                base = done[0]
                both = (x[:, j] >= 0) & (x[:, base] >= 0)
                if both.any():
                    away = x[both, base] + shift[int(c.members[base])] - x[both, j]
                    shift[int(r)] = int(np.rint(np.median(away)))
                    grown = True
    return shift


def _ascend(keys: list[I64]) -> bool:
    """Whether step keys ascend with time (numbers that start again each epoch do not)."""
    for k in keys:
        seen = k[k >= 0]
        if seen.size > 1 and (np.diff(seen) < 0).mean() > 0.02:
            return False
    return True


def _order(job: Job, communicators: Sequence[Communicator]) -> tuple[I64, I64, I64]:
    """All instances by their median end: (communicator, instance, end)."""
    which = np.concatenate([np.full(c.positions.shape[0], i) for i, c in enumerate(communicators)])
    index = np.concatenate([np.arange(c.positions.shape[0]) for c in communicators])
    end = np.concatenate([np.median(c.ends(job), axis=1).astype(np.int64) for c in communicators])
    by = np.lexsort((index, which, end))
    return which[by], index[by], end[by]


def _fill(job: Job, communicators: Sequence[Communicator], keys: list[I64]) -> list[I64]:
    """Instances launched outside every range belong to the step before them in time."""
    which, index, _ = _order(job, communicators)
    first = np.cumsum([0, *(k.size for k in keys)])
    place = first[which] + index
    flat = np.concatenate(keys)
    known = flat[place] >= 0
    before = np.maximum.accumulate(np.where(known, np.arange(place.size), -1))
    lowest = flat[flat >= 0].min() if known.any() else 0
    flat[place] = np.where(before >= 0, flat[place][before], lowest)
    return [flat[a:b] for a, b in pairwise(first)]


def _from_period(job: Job, communicators: Sequence[Communicator]) -> tuple[str, list[I64], dict[int, str]]:
    """Steps by the period of operations and of the kernels before them; else every instance by itself.

    The period is looked for on the rank with the most instances, in the order of its launches: that order is
    the program's, while streams and ranks interleave differently every time. Instances of other ranks go to
    the step in whose time they end.
    """
    which, index, end = _order(job, communicators)
    counts: Counter[int] = Counter()
    for comm in communicators:
        counts.update(dict.fromkeys(comm.members.tolist(), comm.positions.shape[0]))
    ref = min(counts, key=lambda r: (-counts[r], r))
    own = np.array([ref in communicators[c].members for c in which])
    mine = np.flatnonzero(own)
    position = np.array([_position(communicators[which[n]], int(index[n]), ref) for n in mine], np.int64)
    rank = job.ranks[ref]
    table = rank.digest.columns("collectives", "launch_ns", "start_ns", "lead_token")[rank.row[position]]
    launched = table["launch_ns"].fill_null(table["start_ns"]).to_numpy()
    by = np.argsort(launched, kind="stable")
    tokens = [
        hash((int(which[n]), int(rank.token[p]), lead))
        for n, p, lead in zip(mine[by], position[by], table["lead_token"].gather(by).to_list(), strict=True)
    ]
    period = _period(np.array(tokens, np.int64))
    keys = [np.empty(c.positions.shape[0], np.int64) for c in communicators]
    step = np.arange(which.size)
    if period is not None:
        # A step begins after the longest silence: the next step's forward pass.
        begin = launched[by]
        gap = np.diff(begin, prepend=begin[0]).astype(np.float64)
        silence = [np.median(gap[p::period][1:]) if gap[p::period].size > 1 else 0.0 for p in range(period)]
        own_step = (np.arange(by.size) + period - int(np.argmax(silence))) // period
        last = np.maximum.accumulate(
            [end[mine[by[own_step == k]]].max() for k in range(own_step[0], own_step[-1] + 1)]
        )
        step = np.minimum(np.searchsorted(last, end), last.size - 1)
        step[mine[by]] = own_step - own_step[0]
    for c, key in enumerate(keys):
        key[index[which == c]] = step[which == c]
    return "collective" if period is None else "period", keys, {}


def _position(c: Communicator, instance: int, rank: int) -> int:
    """Position of a member's kernel of an instance in its N x N arrays."""
    return int(c.positions[instance, int(np.searchsorted(c.members, rank))])


def _period(tokens: I64) -> int | None:
    """Smallest lag at which 90 % of the tokens repeat, seen at least three times over; None: there is none."""
    for lag in range(1, tokens.size // 3 + 1):
        if np.mean(tokens[lag:] == tokens[:-lag]) >= 0.9:
            return lag
    return None


def steps_of(source: str, timed_comms: Sequence[Timed], names: dict[int, str]) -> tuple[Steps, list[Timed]]:
    """Number the steps of an island from 0 and time them by their last ends.

    Step time is GPU time: the difference of consecutive steps' last N x N ends on the common clock.
    """
    keys = sorted({int(k) for t in timed_comms for k in np.unique(t.step)})
    at = {k: i for i, k in enumerate(keys)}
    out = []
    last = np.full(len(keys), np.iinfo(np.int64).min, np.int64)
    for t in timed_comms:
        step = np.array([at[int(k)] for k in t.step], np.int64)
        np.maximum.at(last, step, t.end.max(axis=1))
        out.append(replace(t, step=step))
    # A step that ends before its predecessor (overlapped communicators) takes no time of its own.
    last = np.maximum.accumulate(last)
    step_ns = np.concatenate([[np.nan], np.diff(last).astype(np.float64)])
    labels = tuple(names.get(k, str(k)) for k in keys)
    return Steps(source, labels, last, step_ns), out
