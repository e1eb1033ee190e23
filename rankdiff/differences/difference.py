"""Two sides to their difference: did the fix help, and what else changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankdiff.differences.bootstrap import FEWEST_STEPS
from rankdiff.differences.comparable import cautions, refusals
from rankdiff.differences.delays import Scale, delays, pair_of, said, why_absent
from rankdiff.differences.kernels import KernelRow, compare_kernels
from rankdiff.differences.places import Places, find_places
from rankdiff.differences.rows import (
    FLOOR_NS,
    LEAST_STEP_SHARE,
    NOT_DISTINGUISHABLE,
    TOO_SMALL,
    Pair,
    Row,
    changed,
    family,
)
from rankdiff.differences.side import BEFORE_COLLECTIVES, NOT_CAPTURED, Side
from rankdiff.errors import RankdiffError
from rankdiff.findings import Finding, is_loud
from rankdiff.makeup import PARTS
from rankdiff.notes import Note

F64 = NDArray[np.float64]

_MOST_EXPLAINED = 8  # ranks whose causes are compared
_EXPLAINS = 0.10  # of the change of a rank's delay: what is less explains nothing of it


@dataclass(frozen=True)
class Fate:
    """What became of a finding: ``gone``, ``new`` or ``still`` there."""

    what: str
    before: Finding | None
    after: Finding | None


@dataclass(frozen=True)
class Difference:
    """Everything the renderers need.

    Attributes
    ----------
    status : str
        ``faster``, ``slower``, ``too_small``, ``not_distinguishable`` or ``not_assessed``: of the step time.
    reason : str or None
        Why it was not assessed.
    refused : tuple of Note
        Why the sides should not be compared; only where the user insisted.
    parts : tuple of Row
        Wait, exposed communication and the make-up of a step.
    causes : tuple of Row
        Time before collectives by class, mean over the ranks.
    ranks, nodes, gpus : tuple of Row
        Delay caused. `gpus`: only those on which another rank ran before.
    rank_causes : tuple of Row
        Time before collectives by class, of the ranks that were late or whose delay changed.
    kernels : tuple of KernelRow or None
        None: a side does not tell.
    """

    before: Side
    after: Side
    status: str
    reason: str | None
    refused: tuple[Note, ...]
    cautions: tuple[Note, ...]
    places: Places
    step: Row
    parts: tuple[Row, ...]
    causes: tuple[Row, ...]
    ranks: tuple[Row, ...]
    nodes: tuple[Row, ...]
    gpus: tuple[Row, ...]
    rank_causes: tuple[Row, ...]
    kernels: tuple[KernelRow, ...] | None
    fates: tuple[Fate, ...]

    def row(self, key: str) -> Row:
        """Return a row of `parts` or `causes`."""
        return next(r for r in (*self.parts, *self.causes) if r.key == key)


def differ(before: Side, after: Side, force: bool = False) -> Difference:
    """Hold two sides against each other.

    Parameters
    ----------
    before, after : Side
    force : bool
        Compare also what should not be compared.

    Returns
    -------
    Difference

    Raises
    ------
    RankdiffError
        The sides are not of the same job, and not `force`.
    """
    refused = refusals(before, after)
    if refused and not force:
        raise RankdiffError(
            f"{before.name} and {after.name} cannot be compared: {'; '.join(n.message for n in refused)}",
            "--force compares them all the same",
        )
    known = [s.step_ns_median for s in (before, after) if s.step_ns_median is not None]
    scale = Scale(min(known, default=0.0), 3.0 * max(before.uncertainty_ns, after.uncertainty_ns))
    places = find_places(before, after)
    step = _step(before, after, scale)
    shared = (*_parts(before, after, scale), *_causes(before, after, scale))
    jobwide = family(shared)
    count = 2 + len(PARTS)
    ranks, nodes, gpus = delays(before, after, scale, places)
    status, reason = _status(before, after, step)
    return Difference(
        before=before,
        after=after,
        status=status,
        reason=reason,
        refused=refused,
        cautions=cautions(before, after),
        places=places,
        step=step,
        parts=jobwide[:count],
        causes=jobwide[count:],
        ranks=ranks,
        nodes=nodes,
        gpus=gpus,
        rank_causes=_rank_causes(before, after, scale, ranks),
        kernels=compare_kernels(before, after, FLOOR_NS, scale.step_ns),
        fates=_fates(before, after),
    )


def _step(before: Side, after: Side, scale: Scale) -> Row:
    pair = Pair(Row("step_time", least_ns=LEAST_STEP_SHARE * scale.step_ns), before.step, after.step)
    return family([pair])[0]


def _status(before: Side, after: Side, step: Row) -> tuple[str, str | None]:
    if step.verdict is None:
        for word, side in (("before", before), ("after", after)):
            if side.step.size < FEWEST_STEPS:
                why = f": {side.message.rstrip('.')}" if side.message else ": capture a longer window"
                return "not_assessed", f"{side.step.size} steps {word}, {FEWEST_STEPS} needed{why}"
        return "not_assessed", step.reason
    if step.verdict in (TOO_SMALL, NOT_DISTINGUISHABLE):
        return step.verdict, None
    return ("faster" if (step.change_ns or 0.0) < 0 else "slower"), None


def _parts(before: Side, after: Side, scale: Scale) -> list[Pair]:
    """Pairs of wait, exposed communication and the make-up of the step."""
    old: dict[str, F64 | None] = {"wait": before.wait, "exposed_communication": before.exposed_communication}
    new: dict[str, F64 | None] = {"wait": after.wait, "exposed_communication": after.exposed_communication}
    for part in PARTS:
        old[part] = before.parts[part] if before.parts is not None else None
        new[part] = after.parts[part] if after.parts is not None else None
    return [
        pair_of(
            Row(k, least_ns=scale.least(k)),
            old[k],
            new[k],
            why_absent(before, after, "wait" if k == "wait" else "parts"),
        )
        for k in old
    ]


def _causes(before: Side, after: Side, scale: Scale) -> list[Pair]:
    return [_class_pair(k, before, after, before.before, after.before, scale) for k in BEFORE_COLLECTIVES]


def _class_pair(
    key: str,
    before: Side,
    after: Side,
    old: Mapping[str, F64] | None,
    new: Mapping[str, F64] | None,
    scale: Scale,
    rank: int | None = None,
) -> Pair:
    """Pair of a class of time before collectives, of the job or of a rank."""
    b, a = (side.get(key) if side is not None else None for side in (old, new))
    what = "before" if rank is None else "before_by_rank"
    reason = said(
        before.why.get(what, NOT_CAPTURED) if b is None else None,
        after.why.get(what, NOT_CAPTURED) if a is None else None,
    )
    return pair_of(Row(key, least_ns=scale.least(key), rank=rank), b, a, reason)


def _rank_causes(before: Side, after: Side, scale: Scale, ranks: tuple[Row, ...]) -> tuple[Row, ...]:
    """Classes of time of the ranks that were late or whose delay changed."""
    wanted = [r for s in (before, after) for f in s.findings if is_loud(f) for r in f.ranks]
    wanted += [r.rank for r in changed(ranks) if r.rank is not None]
    both = [r for r in dict.fromkeys(wanted) if r in before.before_by_rank and r in after.before_by_rank]
    pairs = [
        _class_pair(k, before, after, before.before_by_rank[r], after.before_by_rank[r], scale, rank=r)
        for r in both[:_MOST_EXPLAINED]
        for k in BEFORE_COLLECTIVES
    ]
    moved = {r.rank: _EXPLAINS * abs(r.change_ns or 0.0) for r in ranks}
    pairs = [
        replace(p, row=replace(p.row, least_ns=max(p.row.least_ns, moved.get(p.row.rank, 0.0))))
        for p in pairs
    ]
    return tuple(r for r in family(pairs) if r.verdict is not None)


def _fates(before: Side, after: Side) -> tuple[Fate, ...]:
    """What became of the findings that matter, by what they accuse."""
    old = {_subject(f): f for f in before.findings if f.severity != "note"}
    new = {_subject(f): f for f in after.findings if f.severity != "note"}
    return (
        *(Fate("still", f, new[k]) for k, f in old.items() if k in new),
        *(Fate("gone", f, None) for k, f in old.items() if k not in new),
        *(Fate("new", None, f) for k, f in new.items() if k not in old),
    )


def _subject(f: Finding) -> tuple[str, int | None, str | None]:
    return f.kind, f.rank, f.node if f.kind in ("late_node", "slow_transfer") else None
