"""Communicators without payloads: which ranks' kernels belong together, told by their ends.

Kernels of one rank are split by (stream, operation), and where that does not resolve them by their place in
the step as well, since several communicators may share a stream. Two ranks' sequences belong together when
their ends agree and nobody ends before the last starts. The 95th percentile of the end differences tells
members from bystanders that merely run in step with them; the median does not. What cannot be resolved is
refused and counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankdiff.job import Job, JobRank
from rankdiff.matching import Choice, Group, settle, shifts_between
from rankdiff.notes import Note

I64 = NDArray[np.int64]

# Above this number of ranks only the common case is tried first: one communicator over all of them.
_ALL_PAIRS = 64
# Ends of members scatter alike; a partner this much worse than the usual best one is a bystander.
_SPREAD_FACTOR = 2.5
_SPREAD_NS = 100_000.0
# Two ranks' ends of one collective cannot be further apart than this once their nodes' clocks are aligned.
_FAR_NS = 5_000_000.0
_BROKEN_SHARE = 0.02


@dataclass(frozen=True)
class _Class:
    """Kernels of one rank that are taken to be on one communicator."""

    rank: int
    key: tuple[int, ...]  # (stream, operation) or (stream, operation, place in the step)
    op: int
    positions: I64


@dataclass(frozen=True)
class _Pair:
    """How well two classes fit together."""

    a: int
    b: int
    spread: float  # ns: 95th percentile of end differences less their median
    broken: float  # share of instances in which one ends before the other starts


def without_payloads(job: Job) -> Job:
    """Return the job as if no report had payloads, so that ranks with and without compare alike."""
    return replace(
        job, ranks=tuple(replace(r, token=r.op_token, comm=[None] * len(r.comm)) for r in job.ranks)
    )


def inferred_groups(job: Job) -> tuple[list[Group], list[Note]]:
    """Infer the communicators of a job.

    Parameters
    ----------
    job : Job
        Its payloads are not used.

    Returns
    -------
    groups : list of Group
    notes : list of Note
        That the grouping is inferred, and what was refused.
    """
    job = without_payloads(job)
    whole = [c for r in job.ranks for c in _classes(r)]
    joined, open_classes = _resolve(job, whole)
    split = [c for i in open_classes for c in _split(job.ranks[whole[i].rank], whole[i])]
    finer, refused = _resolve(job, split) if split else ([], [])
    found = [[whole[i] for i in g] for g in joined] + [[split[i] for i in g] for g in finer]
    found.sort(key=lambda g: (sorted(c.rank for c in g), min(c.positions[0] for c in g), g[0].op))
    groups = [
        Group(f"inferred-{n}", "inferred", {c.rank: c.positions for c in sorted(g, key=lambda c: c.rank)})
        for n, g in enumerate(found)
    ]
    notes = [
        Note(
            "inferred_communicators",
            "no NCCL payloads in (all of) these exports: communicators are inferred from operations and end times "
            "(export with --include-blobs=true to know them)",
        )
    ]
    lost = [split[i] for i in refused]
    if lost:
        ranks = sorted({job.ranks[c.rank].identity.rank for c in lost})
        count = sum(c.positions.size for c in lost)
        notes.append(
            Note(
                "unresolved_collectives",
                f"{count} collective kernel(s) could not be assigned to a communicator and are left out",
                tuple(ranks),
            )
        )
    return groups, notes


def _classes(r: JobRank) -> list[_Class]:
    out = []
    for stream, op in sorted({(int(s), int(o)) for s, o in zip(r.stream, r.op_token, strict=True)}):
        positions = np.flatnonzero((r.stream == stream) & (r.op_token == op))
        out.append(_Class(r.index, (stream, op), op, positions))
    return out


def _split(r: JobRank, c: _Class) -> list[_Class]:
    """Split a class by place in the step; kernels outside steps are left out. Without steps: nothing to split by."""
    step = r.step[c.positions]
    if not (step >= 0).any():
        return [c]
    place = np.zeros(step.size, np.int64)
    for i in range(1, step.size):
        place[i] = place[i - 1] + 1 if step[i] == step[i - 1] else 0
    out = []
    for p in range(int(place.max()) + 1):
        at = c.positions[(place == p) & (step >= 0)]
        if at.size:
            out.append(_Class(c.rank, (*c.key, p), c.op, at))
    return out


def _resolve(job: Job, classes: list[_Class]) -> tuple[list[list[int]], list[int]]:
    """Group classes into communicators; also returns the classes that fit nobody, or not clearly."""
    by_rank: dict[int, list[int]] = defaultdict(list)
    for i, c in enumerate(classes):
        by_rank[c.rank].append(i)
    ranks = sorted(by_rank)
    if len(ranks) > _ALL_PAIRS:
        pairs = _fits(job, classes, [(ranks[0], r) for r in ranks[1:]], by_rank)
        world = _world(classes, pairs, by_rank, ranks)
        if world:
            used = {i for g in world for i in g}
            return world, [i for i in range(len(classes)) if i not in used]
    pairs = _fits(job, classes, [(r, q) for n, r in enumerate(ranks) for q in ranks[n + 1 :]], by_rank)
    return _components(classes, pairs)


def _fits(
    job: Job, classes: list[_Class], rank_pairs: Iterable[tuple[int, int]], by_rank: dict[int, list[int]]
) -> list[_Pair]:
    """Judge all pairs of classes with the same operation on the given pairs of ranks."""
    tried: list[tuple[int, int, Choice]] = []
    for r, q in rank_pairs:
        for a in by_rank[r]:
            for b in by_rank[q]:
                if classes[a].op == classes[b].op:
                    choice = shifts_between(job, len(tried), (r, classes[a].positions), (q, classes[b].positions))
                    if choice.shift.size:
                        tried.append((a, b, replace(choice, group=len(tried))))
    offsets, _ = settle(job, [c for _, _, c in tried])
    out = []
    for n, (a, b, choice) in enumerate(tried):
        known = offsets[n, choice.rank]
        out.append(_fit(job, classes, a, b, int(choice.shift[np.argmin(np.abs(choice.offset - known))]), known))
    return out


def _fit(job: Job, classes: list[_Class], a: int, b: int, shift: int, known: float) -> _Pair:
    x, y = classes[a], classes[b]
    n = x.positions.size
    j = np.arange(max(0, -shift), min(y.positions.size, n - shift))
    i, j = x.positions[j + shift], y.positions[j]
    rx, ry = job.ranks[x.rank], job.ranks[y.rank]
    d = (ry.end[j] - rx.end[i]).astype(np.float64)
    middle = float(np.median(d))
    away = np.abs(d - middle)
    slack = 50_000.0 + 2.0 * float(np.median(away))
    broken = (rx.end[i] + middle + slack < ry.start[j]) | (ry.end[j] + slack < rx.start[i] + middle)
    spread = float(np.quantile(away, 0.95)) if abs(middle - known) < _FAR_NS else float("inf")
    return _Pair(a, b, spread, float(broken.mean()))


def _limit(pairs: list[_Pair]) -> float:
    """Largest spread of true members: a multiple of what the best partner of a class usually has."""
    best: dict[int, float] = {}
    for p in pairs:
        if p.broken <= _BROKEN_SHARE:
            for i in (p.a, p.b):
                best[i] = min(best.get(i, float("inf")), p.spread)
    known = [x for x in best.values() if np.isfinite(x)]
    return _SPREAD_FACTOR * float(np.median(known)) + _SPREAD_NS if known else 0.0


def _world(
    classes: list[_Class], pairs: list[_Pair], by_rank: dict[int, list[int]], ranks: list[int]
) -> list[list[int]]:
    """Communicators over all ranks, when every class of the first rank fits one class on every other."""
    limit = _limit(pairs)
    out = []
    for a in by_rank[ranks[0]]:
        members = [a]
        for r in ranks[1:]:
            fit = [p for p in pairs if p.a == a and classes[p.b].rank == r]
            fit = [p for p in fit if p.broken <= _BROKEN_SHARE and p.spread <= limit]
            if not fit:
                return []
            members.append(min(fit, key=lambda p: (p.spread, p.b)).b)
        out.append(members)
    return out


def _components(classes: list[_Class], pairs: list[_Pair]) -> tuple[list[list[int]], list[int]]:
    """Sets of classes that all fit each other; one class per rank, each with its best partner."""
    limit = _limit(pairs)
    good = [p for p in pairs if p.broken <= _BROKEN_SHARE and p.spread <= limit]
    best: dict[tuple[int, int], _Pair] = {}
    for p in sorted(good, key=lambda p: (p.spread, p.a, p.b)):
        best.setdefault((p.a, classes[p.b].rank), p)
        best.setdefault((p.b, classes[p.a].rank), p)
    mutual = [
        p for p in good if best[p.a, classes[p.b].rank] is p and best[p.b, classes[p.a].rank] is p
    ]
    parent = list(range(len(classes)))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for p in mutual:
        low, high = sorted((root(p.a), root(p.b)))
        parent[high] = low
    sets: dict[int, list[int]] = defaultdict(list)
    for i in range(len(classes)):
        sets[root(i)].append(i)
    groups, rest = [], []
    for members in sets.values():
        n = len(members)
        edges = sum(1 for p in mutual if root(p.a) == root(members[0]))
        one_each = len({classes[i].rank for i in members}) == n
        if n > 1 and one_each and edges >= 0.8 * n * (n - 1) / 2:
            groups.append(members)
        else:
            rest += members
    return groups, sorted(rest)
