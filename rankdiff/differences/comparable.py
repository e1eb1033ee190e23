"""Whether two captures can be held against each other, and what to bear in mind where they can."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from rankdiff.differences.bootstrap import FEWEST_STEPS
from rankdiff.differences.side import STORED, Side
from rankdiff.notes import Note, rank_list, rank_words
from rankdiff.units import share

_MOST_TIMES = 5.0  # steps of the longer window to those of the shorter
_SAME_COUNT = 0.10  # operations per step: windows cut some off
_SAME_BYTES = 0.01
_COMMON_KERNELS = 0.5  # share of kernel time in kernels that both sides have


def refusals(before: Side, after: Side) -> tuple[Note, ...]:
    """Why two captures are not of the same job, each with what to do; empty: they can be compared."""
    return tuple(_refusals(before, after))


def _refusals(before: Side, after: Side) -> Iterator[Note]:
    ranks = [sorted(m.rank for m in side.members) for side in (before, after)]
    if ranks[0] != ranks[1]:
        common = sorted(set(ranks[0]) & set(ranks[1]))
        remedy = (
            f"compare those that both have (--ranks {rank_list(common)})"
            if common
            else "compare captures of one job"
        )
        yield Note(
            "other_ranks", f"{_ranks(ranks[0])} before, {_ranks(ranks[1])} after: {remedy}", tuple(common)
        )
    if before.step_source is None or after.step_source is None:
        return
    if before.step_source != after.step_source:
        yield Note(
            "other_steps",
            f"steps are told by {before.step_source} before, by {after.step_source} after: mark the steps alike in both "
            "captures, or name the ranges with --step-range",
        )
    old, new = dict(before.operations or {}), dict(after.operations or {})
    if {op for op in old | new if not _alike(old.get(op, 0.0), new.get(op, 0.0), _SAME_COUNT)}:
        yield Note(
            "other_operations",
            f"a step has {_counts(old)} before, {_counts(new)} after: the jobs do different work; compare captures of one "
            "job, with the same model and parallelism",
        )
    low, high = sorted((before.step_count, after.step_count))
    if low and high > _MOST_TIMES * low:
        yield Note(
            "other_windows",
            f"{before.step_count} steps before, {after.step_count} after: the windows may hold other phases of the job; "
            "capture about as many steps",
        )
    models = [sorted({m.gpu_name for m in side.members if m.gpu_name}) for side in (before, after)]
    if all(models) and models[0] != models[1]:
        yield Note(
            "other_gpus",
            f"{', '.join(models[0])} before, {', '.join(models[1])} after: another GPU explains any change; compare captures "
            "on the same model",
        )


def cautions(before: Side, after: Side) -> tuple[Note, ...]:
    """What a reader must bear in mind."""
    return tuple(_cautions(before, after))


def _cautions(before: Side, after: Side) -> Iterator[Note]:
    old, new = ({m.session_uuid for m in side.members if m.session_uuid} for side in (before, after))
    if old & new:
        yield Note(
            "same_capture", f"{'the same' if old == new else 'some of the same'} reports are on both sides"
        )
    for word, side in (("before", before), ("after", after)):
        if side.missing:
            yield Note("missing_ranks", f"{word}: {rank_words(side.missing)} not captured", side.missing)
        if side.source == STORED:
            yield Note(
                "stored", f"{word} is a report.json: kernels and the causes of single ranks are not in it"
            )
        if 0 < side.step_count < FEWEST_STEPS:
            yield Note(
                "few_steps",
                f"{word}: {side.step_count} steps, {FEWEST_STEPS} needed for an interval: capture a longer window",
            )
        for text in side.notes:
            yield Note("left_out", f"{word}, left out: {text}")
    sizes = before.bytes_per_step, after.bytes_per_step
    if sizes[0] and sizes[1] and not _alike(sizes[0], sizes[1], _SAME_BYTES):
        yield Note(
            "other_bytes",
            f"a rank's collectives carry {sizes[0] / 1e6:.3g} MB a step before, {sizes[1] / 1e6:.3g} MB after: another "
            "model, data type or bucket size?",
        )
    common = _common_kernels(before, after)
    if common is not None and common < _COMMON_KERNELS:
        yield Note(
            "other_kernels",
            f"only {share(common)} of the kernel time is in kernels that both sides have: another model, batch size or "
            "library?",
        )


def _common_kernels(before: Side, after: Side) -> float | None:
    """Share of the kernel time in signatures of both sides, of the side that has less; None: not known."""
    if before.kernels is None or after.kernels is None:
        return None
    by = ["kernel", "grid", "block"]
    old, new = (
        s.kernels.group_by(by).agg(pl.col("ns").sum()) for s in (before, after) if s.kernels is not None
    )
    shares = []
    for mine, other in ((old, new), (new, old)):
        total = int(mine["ns"].sum())
        if not total:
            return None
        shares.append(int(mine.join(other, on=by, how="semi", nulls_equal=True)["ns"].sum()) / total)
    return min(shares)


def _alike(a: float, b: float, tolerance: float) -> bool:
    return abs(a - b) <= tolerance * max(a, b)


def _counts(operations: dict[str, float]) -> str:
    return ", ".join(f"{n:.3g} {op}" for op, n in operations.items()) or "no N x N collectives"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {rank_list(ranks)}"
