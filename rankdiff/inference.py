"""Communicators without payloads: which ranks' kernels belong together, told by their ends.

Kernels of one rank are split by (stream, operation), and where that does not resolve them by their place in
the step as well, since several communicators may share a stream. Two ranks' sequences belong together when
their ends agree and nobody ends before the last starts. The 95th percentile of the end differences tells
members from bystanders that merely run in step with them; the median does not. What cannot be resolved is
refused and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    return replace(job, ranks=tuple(r.without_payloads() for r in job.ranks))


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
    best: dict[tuple[int, int], Pair] = {}
    for p in sorted(pairs, key=lambda p: (p.spread, p.b)):
        if p.broken <= BROKEN_SHARE:
            best.setdefault((p.a, classes[p.b].rank), p)
    for a in by_rank[ranks[0]]:
        found = [best.get((a, r)) for r in ranks[1:]]
        fit = [p for p in found if p is not None]
        if len(fit) < len(found):
            return []
        members = [a, *(p.b for p in fit)]
        spreads = [p.spread for p in fit]
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
    net = _Net(mutual)
    groups, rest = [], []
    todo = net.connected(list(range(len(classes))), np.inf)
    while todo:
        members = todo.pop()
        n = len(members)
        inside = net.inside(members)
        parts = _heaps(members, inside)
        if len(parts) > 1:
            todo += parts
            continue
        one_each = len({classes[i].rank for i in members}) == n
        if n > 1 and one_each and inside.value.size >= 0.9 * n * (n - 1) / 2:
            groups.append(members)
        else:
            rest += members
    return groups, sorted(rest)


class _Net:
    """Pairs of classes with the spread of their ends."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        ends = {(min(p.a, p.b), max(p.a, p.b)): max(p.spread, GRAIN_NS) for p in pairs}
        self.low = np.array([a for a, _ in ends], np.int64)
        self.high = np.array([b for _, b in ends], np.int64)
        self.value = np.array(list(ends.values()), np.float64)

    def inside(self, members: Sequence[int]) -> _Net:
        """Keep the pairs between members."""
        keep = np.isin(self.low, members) & np.isin(self.high, members)
        out = _Net(())
        out.low, out.high, out.value = self.low[keep], self.high[keep], self.value[keep]
        return out

    def connected(self, members: Sequence[int], limit: float) -> list[list[int]]:
        """Sets of members that pairs with spreads below `limit` connect."""
        label = {i: [i] for i in sorted(members)}
        keep = self.value < limit
        for a, b in zip(self.low[keep].tolist(), self.high[keep].tolist(), strict=True):
            if a in label and b in label and label[a] is not label[b]:
                first, second = sorted((label[a], label[b]))
                first += second
                for i in second:
                    label[i] = first
        sets = {id(found): sorted(found) for found in label.values()}
        return sorted(sets.values())

    def joints(self) -> list[float]:
        """Spreads at which connected sets come together as the limit rises, the largest first."""
        parent: dict[int, int] = {}

        def root(i: int) -> int:
            while parent.setdefault(i, i) != i:
                i = parent[i]
            return i

        found = set()
        for n in np.argsort(self.value, kind="stable").tolist():
            a, b = root(int(self.low[n])), root(int(self.high[n]))
            if a != b:
                parent[b] = a
                found.add(float(self.value[n]))
        return sorted(found, reverse=True)


def _heaps(members: list[int], net: _Net) -> list[list[int]]:
    """Split a set where the ends of its parts agree far better within than between.

    Ranks that run in step pass the causality test without being members; their ends scatter more. A split
    counts when every pair within is closer than any pair between by a clear factor, and no part is alone.
    """
    for limit in net.joints():
        parts = net.connected(members, limit)
        if any(len(p) < 2 for p in parts):
            return [members]
        where = {i: n for n, p in enumerate(parts) for i in p}
        apart = np.array(
            [where[a] != where[b] for a, b in zip(net.low.tolist(), net.high.tolist(), strict=True)]
        )
        if net.value[~apart].max() * APART <= net.value[apart].min():
            return parts
    return [members]
