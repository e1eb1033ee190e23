"""Kernels of a rank that may be one communicator's, and how well those of two ranks fit together.

Several communicators may share a stream. What they share is then no class of one communicator, however well
most of it fits: the same rank has other partners at another place in the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankdiff.job import Job, JobRank
from rankdiff.kernels.agreement import how_near
from rankdiff.matching import partners
from rankdiff.one_clock import OneClock, Sequences, agreement, pairs_of, sequences
from rankdiff.shifts import Choice, KnownClocks, Line, clear_offset, line, sequence, settle, shifts_between

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

# Two ranks' ends of one collective cannot be further apart than this once their nodes' clocks are aligned.
_FAR_NS = 5_000_000.0
# Above this share of instances in which one ends before the other starts, two classes are not one communicator.
BROKEN_SHARE = 0.02
_PAIRED_SHARE = 0.9  # of the operations between the first and the last pair
GRAIN_NS = 20_000.0  # differences of spread below this mean nothing
APART = 1.8  # ends of members scatter alike; bystanders stand apart from them by at least this factor
_LEAST = 6  # instances at a place of the step from which something may follow
_PERIODS = (2, 3, 4)  # collectives a step that are tried where no ranges tell the steps


@dataclass(frozen=True)
class KernelClass:
    """Kernels of one rank that are taken to be on one communicator."""

    rank: int
    key: tuple[int, ...]  # (stream, operation) or (stream, operation, place in the step)
    op: int
    positions: I64


@dataclass(frozen=True)
class Pairs:
    """How well pairs of classes fit together; those that do not are left out."""

    a: I64  # (p,) indices of the classes
    b: I64
    spread: F64  # (p,) ns: 95th percentile of end differences less their median; inf: too far apart
    broken: F64  # (p,) share of instances in which one ends before the other starts

    def where(self, keep: I64 | NDArray[np.bool_]) -> Pairs:
        """Some of the pairs."""
        return Pairs(self.a[keep], self.b[keep], self.spread[keep], self.broken[keep])


def classes_of(r: JobRank) -> list[KernelClass]:
    """Kernels of a rank by (stream, operation)."""
    out = []
    known = list(zip(r.kinds.stream.tolist(), r.kinds.op_token.tolist(), strict=True))
    for stream, op in sorted({known[k] for k in np.unique(r.kind).tolist()}):
        mine = np.array([kind == (stream, op) for kind in known])
        out.append(KernelClass(r.index, (stream, op), op, np.flatnonzero(mine[r.kind])))
    return out


def split(r: JobRank, c: KernelClass, period: int = 1) -> list[KernelClass]:
    """Split a class by place in the step; kernels outside steps are left out.

    Without steps every `period`-th kernel is taken to be at the same place.
    """
    step = r.step[c.positions]
    if not (step >= 0).any():
        parts = [c.positions[p::period] for p in range(min(period, c.positions.size))]
        return [KernelClass(c.rank, (*c.key, p), c.op, at) for p, at in enumerate(parts)]
    at = np.arange(step.size)
    place = at - np.maximum.accumulate(np.where(np.diff(step, prepend=step[0] - 1) != 0, at, 0))
    out = []
    for p in range(int(place.max()) + 1):
        at = c.positions[(place == p) & (step >= 0)]
        if at.size:
            out.append(KernelClass(c.rank, (*c.key, p), c.op, at))
    return out


class Candidates:
    """Classes of a job that may be one communicator's.

    Parameters
    ----------
    job : Job
    classes : sequence of KernelClass
    clock : OneClock or None
        Of many ranks: all on one clock, by which a glance tells pairs. Without it each pair is looked at at length,
        and the clocks are told by what fits.
    same_place : bool
        Only those at the same place in the step fit, which is the last element of their keys.
    """

    def __init__(
        self, job: Job, classes: Sequence[KernelClass], clock: OneClock | None, same_place: bool = False
    ) -> None:
        self.job, self.classes, self.clock, self.same_place = job, classes, clock, same_place
        self._laid_out: Sequences | None = None

    def fits(self, own: Sequence[int] | None = None) -> Pairs:
        """Judge all pairs of classes with the same operation; of some of a rank with all others' if they are given."""
        if self.clock is None:
            of = of_ranks(self.classes)
            if own is None:
                pairs = [(of[r], of[q]) for r in sorted(of) for q in sorted(of) if r < q]
            else:
                rank = self.classes[own[0]].rank
                pairs = [(list(own), of[q]) for q in sorted(of) if q != rank]
            return _at_length(self.job, self.classes, pairs, self.same_place)
        if self._laid_out is None:
            self._laid_out = laid_out(self.classes, self.clock, self.same_place)
        a, b = pairs_of(self._laid_out, self.clock.island, own)
        spread, broken = agreement(self._laid_out, a, b)
        found = np.isfinite(spread)
        return Pairs(a[found], b[found], spread[found], broken[found])


def laid_out(classes: Sequence[KernelClass], clock: OneClock, same_place: bool = False) -> Sequences:
    """Lay classes out one after the other on the clock; of one kind are those that `Candidates` may pair."""
    kinds = [(c.op, c.key[-1] if same_place else 0) for c in classes]
    return sequences(clock, [c.rank for c in classes], kinds, [c.positions for c in classes])


def _at_length(
    job: Job,
    classes: Sequence[KernelClass],
    rank_pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    same_place: bool,
) -> Pairs:
    """Judge the pairs of classes with the same operation of these pairs of ranks' classes, each by itself."""
    clock = job.clock_of
    clocks = KnownClocks(len(job.clocks))
    lines: dict[int, Line] = {}
    tried: list[tuple[int, int, Choice]] = []

    def line_of(i: int) -> Line:
        if i not in lines:
            lines[i] = line(job.ranks[classes[i].rank], classes[i].positions)
        return lines[i]

    for first, second in rank_pairs:
        for a in first:
            for b in second:
                r, q = classes[a].rank, classes[b].rank
                if classes[a].op == classes[b].op and not (
                    same_place and classes[a].key[-1] != classes[b].key[-1]
                ):
                    # Near enough for all pairs of two clocks, of one communicator or not: it is only where to look first.
                    known = clocks.between(clock[r], clock[q])
                    choice = shifts_between(len(tried), line_of(a), line_of(b), known)
                    if known is None and choice.whole and (offset := clear_offset(choice)) is not None:
                        clocks.learn(clock[r], clock[q], offset)
                    if choice.shift.size:
                        tried.append((a, b, replace(choice, group=len(tried))))
    offsets, _ = settle(job, [c for _, _, c in tried])
    found = [
        _fit(job, classes, a, b, choice, offsets[n, choice.rank]) for n, (a, b, choice) in enumerate(tried)
    ]
    kept = [(a, b, *fit) for (a, b, _), fit in zip(tried, found, strict=True) if fit is not None]
    columns = np.array(kept, np.float64).reshape(-1, 4).T
    return Pairs(columns[0].astype(np.int64), columns[1].astype(np.int64), columns[2], columns[3])


def _fit(
    job: Job, classes: Sequence[KernelClass], a: int, b: int, choice: Choice, known: float
) -> tuple[float, float] | None:
    """Spread and broken share of a pair; None: too few of their operations pair up."""
    x, y = classes[a], classes[b]
    rx, ry = job.ranks[x.rank], job.ranks[y.rank]
    # Event by event where some were lost: behind a lost one every pair would look like that of bystanders.
    partner = partners(sequence(rx, x.positions), sequence(ry, y.positions), choice, known)
    hit = np.flatnonzero(partner >= 0)
    if not hit.size:
        return None
    # Classes that only share some operations (several communicators on one stream) are not one communicator.
    overlap = max(np.ptp(hit), np.ptp(partner[hit])) + 1
    if hit.size < _PAIRED_SHARE * overlap:
        return None
    i, j = x.positions[partner[hit]], y.positions[hit]
    near = np.empty(6)
    how_near(rx.start[i], rx.end[i], ry.start[j], ry.end[j], near)
    spread, broken, middle = near[:3].tolist()
    return (spread if abs(middle - known) < _FAR_NS else float("inf")), broken


def of_ranks(classes: Sequence[KernelClass]) -> dict[int, list[int]]:
    """Indices of the classes of each rank."""
    out: dict[int, list[int]] = defaultdict(list)
    for i, c in enumerate(classes):
        out[c.rank].append(i)
    return out


def periods_to_try(job: Job, c: KernelClass) -> tuple[int, ...]:
    """Collectives a step to split a class by when it may be shared; 1: the steps tell."""
    return (1,) if _has_steps(job, c) else _PERIODS


def by_place(
    job: Job, classes: Sequence[KernelClass], op: int, period: int, clock: OneClock | None
) -> Candidates:
    """Classes with an operation, split by place in the step; only those at equal places may fit if steps tell them."""
    alike = [c for c in classes if c.op == op]
    parts = [
        p for c in alike for p in split(job.ranks[c.rank], _in_usual_steps(job.ranks[c.rank], c), period)
    ]
    return Candidates(job, parts, clock, same_place=period == 1)


def mixed(parts: Candidates, first: KernelClass) -> bool:
    """Say whether the communicator that a class is taken to be on is in truth several.

    The class's partners are looked for at each place in the step by itself, among all ranks. When two
    places have partners that stand clearly apart from everybody else, and neither set contains the other, no
    single communicator can hold both. False: one communicator, or nothing is clear.

    Parameters
    ----------
    parts : Candidates
        The classes of all ranks split `by_place`.
    first : KernelClass
        Before it was split.
    """
    here = [
        a
        for a, c in enumerate(parts.classes)
        if c.rank == first.rank and c.key[: len(first.key)] == first.key
    ]
    if len(here) < 2:
        return False
    pairs = parts.fits(here)
    sets = [
        _partners(parts.classes, pairs.where(pairs.a == a), parts.classes[a].positions.size)
        for a in here
        if parts.classes[a].positions.size >= _LEAST
    ]
    return any(bool(a - b and b - a) for a in sets for b in sets)


def _has_steps(job: Job, c: KernelClass) -> bool:
    return bool((job.ranks[c.rank].step[c.positions] >= 0).any())


def _in_usual_steps(r: JobRank, c: KernelClass) -> KernelClass:
    """Keep the kernels of steps with the usual number of them: behind a lost one, places in the step are wrong."""
    step = r.step[c.positions]
    if not (step >= 0).any():
        return c
    _, which, counts = np.unique(step, return_inverse=True, return_counts=True)
    values, times = np.unique(counts, return_counts=True)
    usual = values[np.argmax(times)]
    return replace(c, positions=c.positions[(counts[which] == usual) & (step >= 0)])


def _partners(parts: Sequence[KernelClass], pairs: Pairs, count: int) -> frozenset[int]:
    """Ranks whose ends stand clearly nearer than those of all the rest; empty: it is not clear.

    A 95th percentile of `count` values is known to some 0.8 / sqrt(count), the ratio of two to 1.1 / sqrt(count):
    a factor counts from three such errors on, so that the scatter of one communicator's ends seldom passes.
    """
    clear = max(APART, float(np.exp(3.5 / np.sqrt(count))))
    best: dict[int, float] = {}
    near = np.where(pairs.broken <= BROKEN_SHARE, np.maximum(pairs.spread, GRAIN_NS), np.inf)
    for b, spread in zip(pairs.b.tolist(), near.tolist(), strict=True):
        rank = parts[b].rank
        best[rank] = min(spread, best.get(rank, float("inf")))
    ordered = sorted(best, key=lambda r: (best[r], r))
    for n in range(1, len(ordered)):
        if best[ordered[n]] >= clear * best[ordered[n - 1]]:
            return frozenset(ordered[:n])
    return frozenset()
