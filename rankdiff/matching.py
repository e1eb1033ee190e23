"""Collectives of the ranks to matched instances: which kernels are one and the same all-reduce.

Key of an instance is (communicator, k-th operation on it). Capture windows differ, so k needs a shift per
rank; the shift is chosen by how well the *ends* coincide, one clock offset binding all ranks of a node.
Where counts differ inside the overlap, the sequences are aligned by operation and time instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankdiff.job import Job
from rankdiff.kernels.clocks import best_step
from rankdiff.kernels.matching import align_in_time
from rankdiff.notes import Note
from rankdiff.shifts import (
    Choice,
    KnownClocks,
    clear_offset,
    likely_offset,
    line,
    sequence,
    settle,
    shifts_between,
    tokens_agree,
)

I64 = NDArray[np.int64]

_LEAST_GAP_NS = 100_000.0  # ends of one instance may always be this far apart


@dataclass(frozen=True)
class Group:
    """Members of one communicator and their operations on it, before matching."""

    id: str
    source: str  # payload or inferred
    positions: dict[int, I64]  # job rank index -> positions in its N x N arrays, in order


@dataclass(frozen=True)
class Communicator:
    """A communicator with its matched instances (all members present)."""

    id: str
    source: str
    members: I64  # (n,) job rank indices, ascending
    positions: NDArray[np.int32]  # (m, n) positions in each member's N x N arrays, in order
    trimmed: I64  # (n,) operations before or after the common window
    lost: I64  # (n,) operations inside the common window that not all members have
    missing: I64  # (n,) operations inside the common window that most members have and this one lacks
    extra: I64  # (n,) operations inside the common window that only this and few other members have
    first_divergence: int | None = None  # instance index at which the sequences first part
    minority: tuple[int, ...] = ()  # job rank indices that part from the rest there

    def by_member(self, job: Job, side: str) -> I64:
        """(n, m) int64, ns since the job's origin on the session clocks; `side` is start or end."""
        return np.stack(
            [getattr(job.ranks[r], side)[self.positions[:, j]] for j, r in enumerate(self.members.tolist())]
        )

    def ends(self, job: Job) -> I64:
        """(m, n) int64: ends of the instances, as `by_member`."""
        return np.ascontiguousarray(self.by_member(job, "end").T)


@dataclass
class Matching:
    """All communicators of a job, and what was found on the way."""

    communicators: list[Communicator]
    notes: list[Note] = field(default_factory=list)
    unmatched: int = 0  # N x N kernels in no instance
    refused: tuple[int, ...] = ()  # job rank indices that belong to another run


def payload_groups(job: Job) -> list[Group]:
    """Group by the communicator hash of the payloads."""
    found: dict[str, dict[int, I64]] = defaultdict(dict)
    for r in job.ranks:
        names = {comm: n for n, comm in enumerate(sorted(r.comms))}
        code = np.array([-1 if c is None else names[c] for c in r.kinds.comm], np.int64)[r.kind]
        order = np.argsort(code, kind="stable")
        edges = np.searchsorted(code[order], np.arange(len(names) + 1))
        for comm, n in names.items():
            found[comm][r.index] = order[edges[n] : edges[n + 1]]
    return [Group(comm, "payload", found[comm]) for comm in sorted(found)]


def unresolved_share(job: Job, groups: Sequence[Group]) -> float:
    """Share of the N x N kernels that are on no communicator."""
    total = sum(r.kind.size for r in job.ranks)
    return 1.0 - sum(p.size for g in groups for p in g.positions.values()) / total if total else 0.0


def match(job: Job, groups: Iterable[Group]) -> Matching:
    """Match the operations of each group across its members.

    Parameters
    ----------
    job : Job
    groups : iterable of Group
        Groups with a single captured member are left out (their kernels count as unmatched).

    Returns
    -------
    Matching
    """
    groups = [g for g in groups if len(g.positions) > 1]
    clocks = KnownClocks(len(job.clocks))
    of_group = [_choices(job, i, g, clocks) for i, g in enumerate(groups)]
    offsets, notes = settle(job, [c for found in of_group for c in found])
    communicators = []
    for group, choices in zip(groups, of_group, strict=True):
        made = _instances(job, group, choices, offsets)
        if made is not None:
            communicators.append(made)
    total = sum(r.kind.size for r in job.ranks)
    used = sum(c.positions.size for c in communicators)
    return Matching(communicators, notes, unmatched=total - used)


def _reference(group: Group) -> int:
    """Member with the most operations: the others' windows lie in its window most often."""
    return max(group.positions, key=lambda r: (group.positions[r].size, -r))


def _choices(job: Job, index: int, group: Group, clocks: KnownClocks) -> list[Choice]:
    """How each member's operations fit the reference's: at length for one rank of a clock, then near its answer."""
    ref = _reference(group)
    base = line(job.ranks[ref], group.positions[ref])
    clock = job.clock_of
    likely: dict[tuple[int, int], float] = {}
    out = []
    for r, positions in group.positions.items():
        if r == ref:
            continue
        pair = int(clock[ref]), int(clock[r])
        known = clocks.between(*pair)
        guess = likely.get(pair) if known is None else None
        near = guess if known is None else known
        choice = shifts_between(index, base, line(job.ranks[r], positions), near)
        if guess is not None:
            choice = replace(choice, guessed=True)
        elif known is None and (offset := clear_offset(choice)) is not None:
            clocks.learn(*pair, offset)
        elif known is None and choice.fits and (offset := likely_offset(job, choice)) is not None:
            # Steps so regular that several shifts fit: the other ranks of the clock will follow this one anyway.
            likely[pair] = offset
        out.append(choice)
    return out


def _instances(
    job: Job, group: Group, choices: list[Choice], offsets: dict[tuple[int, int], float]
) -> Communicator | None:
    """Line all members up with the reference; keep the instances that all of them have."""
    if not choices:
        return None
    ref = choices[0].reference
    base = group.positions[ref]
    a = sequence(job.ranks[ref], base)
    usual = _usual_distance(a[2])
    members = sorted(group.positions)
    column = {r: j for j, r in enumerate(members)}
    by_member = np.full((len(members), base.size), -1, np.int32)  # position of each member in each instance
    by_member[column[ref]] = base
    sizes = np.array([group.positions[r].size for r in members])
    for c in choices:
        if (c.group, c.rank) not in offsets:
            return None
        positions = group.positions[c.rank]
        b = sequence(job.ranks[c.rank], positions)
        partner = partners(a, b, c, offsets[c.group, c.rank], usual)
        hit = partner >= 0
        by_member[column[c.rank], partner[hit]] = positions[hit]
    full = (by_member >= 0).all(axis=0)
    if not full.any():
        return None
    at = np.flatnonzero(full)
    # Columns lie together in memory: almost everything asks for the instances of one member.
    complete = by_member[:, full].T
    lost = np.zeros(len(members), np.int64)
    place = by_member[:, at[0] : at[-1] + 1].T
    has = place >= 0
    most = 2 * has.sum(axis=1) >= len(members)  # as `_divergence`: of two halves, those without stand out
    missing = (~has & most[:, None]).sum(axis=0)
    extra = (has & ~most[:, None]).sum(axis=0)
    for j, r in enumerate(members):
        own = np.searchsorted(group.positions[r], [complete[0, j], complete[-1, j]])
        lost[j] = own[1] - own[0] + 1 - complete.shape[0]
        extra[j] += own[1] - own[0] + 1 - has[:, j].sum()  # unlike any operation of the reference
    divergence, minority = _divergence(place, complete, members, group, lost)
    return Communicator(
        id=group.id,
        source=group.source,
        members=np.array(members, np.int64),
        positions=complete,
        trimmed=sizes - complete.shape[0] - lost,
        lost=lost,
        missing=missing,
        extra=extra,
        first_divergence=divergence,
        minority=minority,
    )


def partners(a: I64, b: I64, c: Choice, offset: float, usual: float | None = None) -> I64:
    """Pair the operations of two ranks.

    Parameters
    ----------
    a, b : (3, na), (3, nb) int64
        As `sequence` gives them; `a` of the choice's reference.
    c : Choice
    offset : float, ns
        Clock of `b` less that of `a`.
    usual : float, optional, ns
        Distance from one end of `a` to the next, where it was measured before.

    Returns
    -------
    (nb,) int64
        For each operation of `b` the matching one of `a`, or -1.
    """
    best = int(np.argmin(np.abs(c.offset - offset)))
    fits = abs(float(c.offset[best]) - offset) <= 1_000.0  # else no shift agrees with the known clock
    shift = int(c.shift[best])
    first, last = max(0, -shift), min(b.shape[1], a.shape[1] - shift)
    j = np.arange(first, last)
    d = b[2][j] - a[2][j + shift]
    if usual is None:
        usual = _usual_distance(a[2])
    off = np.asarray(d - offset, np.float64)
    partner = np.full(b.shape[1], -1, np.int64)
    agree = fits and tokens_agree(a[0][j + shift], b[0][j])
    # Nothing is displaced where no end is off by half of what counts as displaced: most sequences are told by that.
    if agree and off.size and max(off.max(), -off.min()) <= 0.5 * max(_LEAST_GAP_NS, 0.5 * usual):
        partner[j] = j + shift
        return partner
    gap = _gap_cost(usual, a[2].size, d)
    if agree and (not _event_lost(off, gap, a[2][j + shift]) or _clock_set(off, a[2][j + shift])):
        partner[j] = j + shift
        return partner
    moved = b[2] - np.int64(round(offset))
    by_time: I64 = align_in_time(a[0], a[2], b[0], moved, gap, 16)
    return by_time


def _event_lost(off: NDArray[np.float64], gap: float, end: I64) -> bool:
    """Whether end differences leave the offset and stay away: a lost event displaces all that follow it.

    Single collectives that end far apart (a preempted GPU) come back at once and do not count.
    """
    if off.size < 6:
        return False
    _, size = best_step(off, 3)
    if abs(size) > gap:
        return True
    if _one_apart(off, gap, end):
        return True
    width = 7  # a loss made good by a loss on the other side displaces a stretch only
    if off.size < 2 * width:
        return False
    rolling = np.median(np.lib.stride_tricks.sliding_window_view(off, width), axis=1)
    displaced = np.abs(rolling) > gap
    return bool(np.lib.stride_tricks.sliding_window_view(displaced, width).all(axis=1).any())


def _one_apart(off: NDArray[np.float64], gap: float, end: I64) -> bool:
    """Whether two pairs in a row would fit far better with the operation before or after."""
    to_next = np.append(np.diff(end), np.iinfo(np.int64).max // 2).astype(np.float64)
    to_last = np.append(to_next[-1], to_next[:-1])
    better = np.minimum(np.abs(off - to_next), np.abs(off + to_last)) < 0.1 * np.abs(off)
    displaced = (np.abs(off) > gap) & better
    return bool((displaced[:-1] & displaced[1:]).any())


def _clock_set(off: NDArray[np.float64], end: I64) -> bool:
    """Whether one jump of a clock explains what looks like a lost event.

    Behind a lost event pairs are one operation apart and their differences vary with the step times; a clock that
    was set leaves them as calm as before. A jump by just the distance of the operations there is taken for a lost event:
    with perfectly regular steps the two look alike, and events are lost more often than clocks are set.
    """
    at, size = best_step(off, 5)
    if at < 0:
        return False
    calm = _scatter(off)
    loosest = max(float(np.quantile(np.abs(x - np.median(x)), 0.9)) for x in (off[:at], off[at:]))
    if loosest > max(100_000.0, 10.0 * calm):
        return False
    apart = np.cumsum(np.diff(end[max(0, at - 1) : at + 5]))
    return not bool((np.abs(apart - abs(size)) <= max(100_000.0, 0.05 * abs(size))).any())


def _usual_distance(end: I64) -> float:
    """Median distance from one end to the next, ns; 0 for a single one."""
    return float(np.median(np.diff(end))) if end.size > 1 else 0.0


def _gap_cost(usual: float, size: int, d: I64) -> float:
    """How far apart two ends may be and still rather be one instance than two lost ones.

    Half of the usual distance of operations, but not less than the ends scatter from one operation to the
    next. That is told by the calmest stretch of the sequence: where a lost event has displaced the pairs, their
    differences vary with the step times instead.
    """
    if size < 2 or d.size < 2:
        return 1e9
    return max(_LEAST_GAP_NS, 0.5 * usual, 6.0 * _scatter(d))


def _scatter(d: NDArray[Any]) -> float:
    """How much end differences change from one operation to the next in the calmest stretch of them."""
    change = np.abs(np.diff(d))
    stretches = np.array_split(change, max(1, min(8, change.size // 8)))
    return min(float(np.median(x)) for x in stretches)


def _divergence(
    place: NDArray[np.int32], complete: NDArray[np.int32], members: list[int], group: Group, lost: I64
) -> tuple[int | None, tuple[int, ...]]:
    """Where inside the common window the members' sequences first part, and who is in the minority."""
    gaps = np.flatnonzero((place < 0).any(axis=1))
    extra = []
    for j in np.flatnonzero(lost).tolist():
        r = members[j]
        own = np.searchsorted(group.positions[r], complete[:, j])
        jump = np.flatnonzero(np.diff(own) > 1)
        if jump.size:
            extra.append((int(jump[0]) + 1, r))
    if not gaps.size and not extra:
        return None, ()
    if gaps.size:
        at = int(gaps[0])
        without = [r for j, r in enumerate(members) if place[at, j] < 0]
        with_it = [r for r in members if r not in without]
        return at, tuple(without if len(without) <= len(with_it) else with_it)
    at = min(x for x, _ in extra)
    return at, tuple(r for x, r in extra if x == at)
