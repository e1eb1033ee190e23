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
from dataclasses import replace

import numpy as np

from rankdiff.job import Job
from rankdiff.matching import Group
from rankdiff.notes import Note
from rankdiff.pairing import (
    APART,
    BROKEN_SHARE,
    GRAIN_NS,
    KernelClass,
    Pair,
    classes_of,
    fits,
    mixed,
    of_ranks,
    split,
)

# Above this number of ranks the common case is tried first: one communicator over all of them.
_WORLD_FIRST = 16
# Up to this number of ranks it is checked whether a stream is shared by several communicators.
_MOST_CHECKED = 64


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
    whole = [c for r in job.ranks for c in classes_of(r)]
    joined, rest = _resolve(job, whole)
    periods = dict.fromkeys(rest, 1) | _shared(job, whole, joined)
    joined = [g for g in joined if not set(g) & set(periods)]
    parts = [c for i in sorted(periods) for c in split(job.ranks[whole[i].rank], whole[i], periods[i])]
    finer, refused = _by_place(job, parts)
    found = [[whole[i] for i in g] for g in joined] + [[parts[i] for i in g] for g in finer]
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
    lost = [parts[i] for i in refused]
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


def _shared(job: Job, whole: list[KernelClass], joined: list[list[int]]) -> dict[int, int]:
    """Classes in groups that hold several communicators' kernels, with the period to split them by."""
    if len(job.ranks) > _MOST_CHECKED:
        return {}
    periods: dict[int, int] = {}  # by operation: what one group shares, the others share too
    for g in joined:
        op = whole[g[0]].op
        if op not in periods and (period := mixed(job, whole, g)):
            periods[op] = period
    return {i: periods[whole[i].op] for g in joined for i in g if whole[i].op in periods}


def _by_place(job: Job, parts: list[KernelClass]) -> tuple[list[list[int]], list[int]]:
    """Resolve classes by place in the step: ranks with one program first, which have the same places."""
    if not parts:
        return [], []
    finer, rest = _told_apart(parts, _resolve(job, parts, same_place=True)[0])
    left = [parts[i] for i in rest]
    more, _ = _resolve(job, left) if left else ([], [])
    finer, refused = _told_apart(parts, finer + [[rest[i] for i in g] for g in more])
    return finer, refused


def _told_apart(parts: list[KernelClass], groups: list[list[int]]) -> tuple[list[list[int]], list[int]]:
    """Groups by place in the step, and the classes in none; what contains another group is refused.

    Where several communicators run in step at one place, all their ranks end together and look like one.
    """
    ranks = [frozenset(parts[i].rank for i in g) for g in groups]
    kept = []
    for g, mine in zip(groups, ranks, strict=True):
        alike = [r for h, r in zip(groups, ranks, strict=True) if parts[h[0]].op == parts[g[0]].op]
        if not any(r < mine for r in alike):
            kept.append(g)
    used = {i for g in kept for i in g}
    return kept, [i for i in range(len(parts)) if i not in used]


def _resolve(
    job: Job, classes: list[KernelClass], same_place: bool = False
) -> tuple[list[list[int]], list[int]]:
    """Group classes into communicators; also returns the classes that fit nobody, or not clearly."""
    by_rank = of_ranks(classes)
    ranks = sorted(by_rank)
    if len(ranks) > _WORLD_FIRST:
        pairs = fits(job, classes, [(ranks[0], r) for r in ranks[1:]], same_place)
        world = _world(classes, pairs, by_rank, ranks)
        if world:
            return world, []
    pairs = fits(job, classes, [(r, q) for n, r in enumerate(ranks) for q in ranks[n + 1 :]], same_place)
    return _components(classes, pairs)


def _world(
    classes: list[KernelClass], pairs: list[Pair], by_rank: dict[int, list[int]], ranks: list[int]
) -> list[list[int]]:
    """Communicators over all ranks, when every class of the first rank fits one class on every other alike."""
    out = []
    for a in by_rank[ranks[0]]:
        members = [a]
        spreads = []
        for r in ranks[1:]:
            fit = [p for p in pairs if p.a == a and classes[p.b].rank == r and p.broken <= BROKEN_SHARE]
            if not fit:
                return []
            best = min(fit, key=lambda p: (p.spread, p.b))
            members.append(best.b)
            spreads.append(best.spread)
        # Members and bystanders would stand apart in two heaps.
        ordered = np.sort(np.maximum(spreads, GRAIN_NS))
        if ordered.size > 1 and (ordered[1:] / ordered[:-1]).max() > APART:
            return []
        out.append(members)
    used = {i for g in out for i in g}
    return out if len(used) == len(classes) else []


def _components(classes: list[KernelClass], pairs: list[Pair]) -> tuple[list[list[int]], list[int]]:
    """Sets of classes that may be one communicator by causality, split where their ends form heaps."""
    good = [p for p in pairs if p.broken <= BROKEN_SHARE and np.isfinite(p.spread)]
    best: dict[tuple[int, int], Pair] = {}
    for p in sorted(good, key=lambda p: (p.spread, p.a, p.b)):
        best.setdefault((p.a, classes[p.b].rank), p)
        best.setdefault((p.b, classes[p.a].rank), p)
    mutual = [p for p in good if best[p.a, classes[p.b].rank] is p and best[p.b, classes[p.a].rank] is p]
    spread = {frozenset((p.a, p.b)): max(p.spread, GRAIN_NS) for p in mutual}
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
        if between and max(within) * APART <= min(between):
            return parts
    return [members]
