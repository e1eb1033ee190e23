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
from rankdiff.matching import Group
from rankdiff.notes import Note
from rankdiff.shifts import Choice, settle, shifts_between

I64 = NDArray[np.int64]

# Above this number of ranks only the common case is tried first: one communicator over all of them.
_ALL_PAIRS = 64
# Ends of members scatter alike; bystanders stand apart from them by at least this factor.
_APART = 1.8
_GRAIN_NS = 20_000.0  # differences of spread below this mean nothing
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
            return world, []
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
                    choice = shifts_between(
                        job, len(tried), (r, classes[a].positions), (q, classes[b].positions)
                    )
                    if choice.shift.size:
                        tried.append((a, b, replace(choice, group=len(tried))))
    offsets, _ = settle(job, [c for _, _, c in tried])
    out = []
    for n, (a, b, choice) in enumerate(tried):
        known = offsets[n, choice.rank]
        out.append(
            _fit(job, classes, a, b, int(choice.shift[np.argmin(np.abs(choice.offset - known))]), known)
        )
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


def _world(
    classes: list[_Class], pairs: list[_Pair], by_rank: dict[int, list[int]], ranks: list[int]
) -> list[list[int]]:
    """Communicators over all ranks, when every class of the first rank fits one class on every other alike."""
    out = []
    for a in by_rank[ranks[0]]:
        members = [a]
        spreads = []
        for r in ranks[1:]:
            fit = [p for p in pairs if p.a == a and classes[p.b].rank == r and p.broken <= _BROKEN_SHARE]
            if not fit:
                return []
            best = min(fit, key=lambda p: (p.spread, p.b))
            members.append(best.b)
            spreads.append(best.spread)
        # Members and bystanders would stand apart in two heaps.
        ordered = np.sort(np.maximum(spreads, _GRAIN_NS))
        if ordered.size > 1 and (ordered[1:] / ordered[:-1]).max() > _APART:
            return []
        out.append(members)
    used = {i for g in out for i in g}
    return out if len(used) == len(classes) else []


def _components(classes: list[_Class], pairs: list[_Pair]) -> tuple[list[list[int]], list[int]]:
    """Sets of classes that may be one communicator by causality, split where their ends form heaps."""
    good = [p for p in pairs if p.broken <= _BROKEN_SHARE and np.isfinite(p.spread)]
    best: dict[tuple[int, int], _Pair] = {}
    for p in sorted(good, key=lambda p: (p.spread, p.a, p.b)):
        best.setdefault((p.a, classes[p.b].rank), p)
        best.setdefault((p.b, classes[p.a].rank), p)
    mutual = [p for p in good if best[p.a, classes[p.b].rank] is p and best[p.b, classes[p.a].rank] is p]
    spread = {frozenset((p.a, p.b)): max(p.spread, _GRAIN_NS) for p in mutual}
    groups, rest = [], []
    todo = _connected(range(len(classes)), spread)
    while todo:
        members = todo.pop()
        n = len(members)
        parts = _heaps(members, spread)
        if len(parts) > 1:
            todo += parts
            continue
        edges = sum(1 for e in spread if e <= set(members))
        one_each = len({classes[i].rank for i in members}) == n
        if n > 1 and one_each and edges >= 0.9 * n * (n - 1) / 2:
            groups.append(members)
        else:
            rest += members
    return groups, sorted(rest)


def _connected(
    members: Iterable[int], spread: dict[frozenset[int], float], limit: float = np.inf
) -> list[list[int]]:
    """Connected sets over the pairs whose spread does not exceed `limit`."""
    inside = sorted(members)
    parent = {i: i for i in inside}

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for pair, value in spread.items():
        a, b = sorted(pair)
        if value <= limit and a in parent and b in parent:
            low, high = sorted((root(a), root(b)))
            parent[high] = low
    sets: dict[int, list[int]] = defaultdict(list)
    for i in inside:
        sets[root(i)].append(i)
    return list(sets.values())


def _heaps(members: list[int], spread: dict[frozenset[int], float]) -> list[list[int]]:
    """Split a set where the ends of its parts agree far better within than between.

    Ranks that run in step pass the causality test without being members; their ends scatter more. A split
    counts when every pair within is closer than any pair between by a clear factor, and no part is alone.
    """
    own = {e: x for e, x in spread.items() if e <= set(members)}
    for limit in sorted(set(own.values()), reverse=True):
        parts = _connected(members, own, limit)
        if len(parts) < 2:
            continue
        if any(len(p) < 2 for p in parts):
            return [members]
        where = {i: n for n, p in enumerate(parts) for i in p}
        within = [x for e, x in own.items() if len({where[i] for i in e}) == 1]
        between = [x for e, x in own.items() if len({where[i] for i in e}) == 2]
        if between and max(within) * _APART <= min(between):
            return parts
    return [members]
