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

from rankdiff.components import components
from rankdiff.job import Job
from rankdiff.matching import Group
from rankdiff.notes import Note
from rankdiff.one_clock import OneClock, on_one_clock, refined
from rankdiff.pairing import (
    APART,
    BROKEN_SHARE,
    GRAIN_NS,
    Candidates,
    KernelClass,
    Pairs,
    by_place,
    classes_of,
    laid_out,
    mixed,
    of_ranks,
    periods_to_try,
    split,
)

# Up to this number of ranks each pair of them is looked at at length. Above it a glance tells them, on one clock, and the
# common case is tried first: one communicator over all of them.
_AT_LENGTH = 16
_MOST_CHECKED = 32  # communicators of an operation for which it is checked whether they are several in truth


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
    clock = None
    if len(job.ranks) > _AT_LENGTH:
        clock = on_one_clock(
            job, [c.rank for c in whole], [c.op for c in whole], [c.positions for c in whole]
        )
    joined, rest = _resolve(Candidates(job, whole, clock))
    periods = dict.fromkeys(rest, 1) | _shared(job, whole, joined, clock)
    joined = [g for g in joined if not set(g) & set(periods)]
    parts = [c for i in sorted(periods) for c in split(job.ranks[whole[i].rank], whole[i], periods[i])]
    finer, refused = _by_place(job, parts, clock)
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


def _shared(
    job: Job, whole: list[KernelClass], joined: list[list[int]], clock: OneClock | None
) -> dict[int, int]:
    """Classes in groups that hold several communicators' kernels, with the period to split them by."""
    periods: dict[int, int] = {}  # by operation: what one group shares, the others share too
    for op in sorted({whole[g[0]].op for g in joined}):
        groups = [g for g in joined if whole[g[0]].op == op]
        firsts = [whole[min(g)] for g in groups[:: -(-len(groups) // _MOST_CHECKED)]]
        parts: dict[int, Candidates] = {}
        for first, period in ((c, period) for c in firsts for period in periods_to_try(job, c)):
            if period not in parts:
                parts[period] = by_place(job, whole, op, period, clock)
            if mixed(parts[period], first):
                periods[op] = period
                break
    return {i: periods[whole[i].op] for g in joined for i in g if whole[i].op in periods}


def _by_place(
    job: Job, parts: list[KernelClass], clock: OneClock | None
) -> tuple[list[list[int]], list[int]]:
    """Resolve classes by place in the step: ranks with one program first, which have the same places."""
    if not parts:
        return [], []
    if clock is not None:  # a part of a shared stream tells the clocks better than the whole
        clock = refined(job, clock, laid_out(parts, clock, same_place=True))
    finer, rest = _told_apart(parts, _resolve(Candidates(job, parts, clock, same_place=True))[0])
    left = [parts[i] for i in rest]
    more, _ = _resolve(Candidates(job, left, clock)) if left else ([], [])
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


def _resolve(candidates: Candidates) -> tuple[list[list[int]], list[int]]:
    """Group classes into communicators; also returns the classes that fit nobody, or not clearly."""
    by_rank = of_ranks(candidates.classes)
    ranks = sorted(by_rank)
    if len(ranks) > _AT_LENGTH:
        world = _world(candidates.classes, candidates.fits(by_rank[ranks[0]]), by_rank, ranks)
        if world:
            return world, []
    return components(candidates.classes, candidates.fits())


def _world(
    classes: Sequence[KernelClass], pairs: Pairs, by_rank: dict[int, list[int]], ranks: list[int]
) -> list[list[int]]:
    """Communicators over all ranks, when every class of the first rank fits one class on every other alike."""
    out = []
    best: dict[tuple[int, int], int] = {}
    for n in np.lexsort((pairs.b, pairs.spread)).tolist():
        if pairs.broken[n] <= BROKEN_SHARE:
            best.setdefault((int(pairs.a[n]), classes[pairs.b[n]].rank), n)
    for a in by_rank[ranks[0]]:
        fit = [best[a, r] for r in ranks[1:] if (a, r) in best]
        if len(fit) < len(ranks) - 1:
            return []
        # Members and bystanders would stand apart in two heaps.
        ordered = np.sort(np.maximum(pairs.spread[fit], GRAIN_NS))
        if ordered.size > 1 and (ordered[1:] / ordered[:-1]).max() > APART:
            return []
        out.append([a, *pairs.b[fit].tolist()])
    used = {i for g in out for i in g}
    return out if len(used) == len(classes) else []
