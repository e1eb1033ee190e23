"""Kernels of a rank that may be one communicator's, and how well those of two ranks fit together.

Several communicators may share a stream. What they share is then no class of one communicator, however well
most of it fits: the same rank has other partners at another place in the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankdiff.job import Job, JobRank
from rankdiff.matching import partners
from rankdiff.shifts import Choice, KnownClocks, Line, clear_offset, line, sequence, settle, shifts_between

I64 = NDArray[np.int64]

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
class Pair:
    """How well two classes fit together."""

    a: int
    b: int
    spread: float  # ns: 95th percentile of end differences less their median
    broken: float  # share of instances in which one ends before the other starts


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


def fits(
    job: Job,
    classes: Sequence[KernelClass],
    rank_pairs: Iterable[tuple[int, int]],
    same_place: bool = False,
) -> list[Pair]:
    """Judge all pairs of classes with the same operation on the given pairs of ranks.

    With `same_place` only those at the same place in the step, which is the last element of their keys.
    """
    by_rank = of_ranks(classes)
    clock = job.clock_of
    clocks = KnownClocks(len(job.clocks))
    lines: dict[int, Line] = {}
    tried: list[tuple[int, int, Choice]] = []

    def line_of(i: int) -> Line:
        if i not in lines:
            lines[i] = line(job.ranks[classes[i].rank], classes[i].positions)
        return lines[i]

    for r, q in rank_pairs:
        for a in by_rank[r]:
            for b in by_rank[q]:
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
    return [pair for pair in found if pair is not None]


def _fit(
    job: Job, classes: Sequence[KernelClass], a: int, b: int, choice: Choice, known: float
) -> Pair | None:
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
    d = (ry.end[j] - rx.end[i]).astype(np.float64)
    middle = float(np.median(d))
    away = np.abs(d - middle)
    slack = 50_000.0 + 2.0 * float(np.median(away))
    broken = (rx.end[i] + middle + slack < ry.start[j]) | (ry.end[j] + slack < rx.start[i] + middle)
    spread = float(np.quantile(away, 0.95)) if abs(middle - known) < _FAR_NS else float("inf")
    return Pair(a, b, spread, float(broken.mean()))


def of_ranks(classes: Sequence[KernelClass]) -> dict[int, list[int]]:
    """Indices of the classes of each rank."""
    out: dict[int, list[int]] = defaultdict(list)
    for i, c in enumerate(classes):
        out[c.rank].append(i)
    return out


def mixed(job: Job, whole: Sequence[KernelClass], group: Sequence[int]) -> int | None:
    """Say whether a group of classes holds the kernels of several communicators.

    The first member's partners are looked for at each place in the step by itself, among all ranks. When two
    places have partners that stand clearly apart from everybody else, and neither set contains the other, no
    single communicator can hold both.

    Parameters
    ----------
    job : Job
    whole : sequence of KernelClass
        All classes of the job.
    group : sequence of int
        Indices of those that are taken to be one communicator.

    Returns
    -------
    int or None
        Collectives a step to split its classes by (1: the steps tell); None: one communicator, or nothing is
        clear.
    """
    first = whole[min(group)]
    alike = [c for c in whole if c.op == first.op and c.rank != first.rank]
    if not alike:
        return None
    steps = bool((job.ranks[first.rank].step[first.positions] >= 0).any())
    for period in (1,) if steps else _PERIODS:
        here = split(job.ranks[first.rank], _in_usual_steps(job.ranks[first.rank], first), period)
        if len(here) < 2:
            continue
        parts = here + [
            p for c in alike for p in split(job.ranks[c.rank], _in_usual_steps(job.ranks[c.rank], c), period)
        ]
        others = sorted({c.rank for c in alike})
        pairs = fits(job, parts, [(first.rank, r) for r in others], same_place=steps)
        sets = [
            _partners(parts, [p for p in pairs if p.a == a], c.positions.size)
            for a, c in enumerate(here)
            if c.positions.size >= _LEAST
        ]
        if any(a - b and b - a for a in sets for b in sets):
            return period
    return None


def _in_usual_steps(r: JobRank, c: KernelClass) -> KernelClass:
    """Keep the kernels of steps with the usual number of them: behind a lost one, places in the step are wrong."""
    step = r.step[c.positions]
    if not (step >= 0).any():
        return c
    _, which, counts = np.unique(step, return_inverse=True, return_counts=True)
    values, times = np.unique(counts, return_counts=True)
    usual = values[np.argmax(times)]
    return replace(c, positions=c.positions[(counts[which] == usual) & (step >= 0)])


def _partners(parts: Sequence[KernelClass], pairs: Iterable[Pair], count: int) -> frozenset[int]:
    """Ranks whose ends stand clearly nearer than those of all the rest; empty: it is not clear.

    A 95th percentile of `count` values is known to some 0.8 / sqrt(count), the ratio of two to 1.1 / sqrt(count):
    a factor counts from three such errors on, so that the scatter of one communicator's ends seldom passes.
    """
    clear = max(APART, float(np.exp(3.5 / np.sqrt(count))))
    best: dict[int, float] = {}
    for p in pairs:
        near = max(p.spread, GRAIN_NS) if p.broken <= BROKEN_SHARE else float("inf")
        rank = parts[p.b].rank
        best[rank] = min(near, best.get(rank, float("inf")))
    ordered = sorted(best, key=lambda r: (best[r], r))
    for n in range(1, len(ordered)):
        if best[ordered[n]] >= clear * best[ordered[n - 1]]:
            return frozenset(ordered[:n])
    return frozenset()
