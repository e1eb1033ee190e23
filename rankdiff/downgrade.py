"""Findings that the quality of the captures does not carry: their severity falls, and they say why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankdiff.court import CARRIED_BY, Island
from rankdiff.findings import Finding, is_loud
from rankdiff.job import Job
from rankdiff.notes import rank_words
from rankdiff.quality import JobQuality
from rankdiff.units import duration
from rankdiff.waits import delay_shares

NOT_CARRIED = "not_carried"  # reason of a verdict that the captures do not carry
_LOWER = {"major": "minor", "minor": "note"}
# Seen in less than this share of the job's steps, a finding is not one about the job.
_SEEN = 0.5
# A delay that loses this share when the rank's clock is moved by its own scatter is made of that scatter.
_KEPT = 0.5
_AGAIN = {
    "events_lost": "Capture again with --cuda-flush-interval=1000 and a shorter --duration",
    "clock_suspect": "Capture a longer window",
    "clock_residual": "Capture a longer window",
    "few_steps": "Capture the same steps on all ranks",
}


def carried(f: Finding, job: Job, island: Island, quality: JobQuality, uncertainty_ns: float) -> Finding:
    """Lower a finding by a level for each reason why the captures do not carry it; a note stays one.

    Parameters
    ----------
    f : Finding
        About ranks of `island`.
    job : Job
    island : Island
    quality : JobQuality
    uncertainty_ns : float
        Of the common clock. The test itself has allowed for it already.
    """
    if not is_loud(f):
        return f
    scatter = _clock_residual(f, job, island, quality, uncertainty_ns)
    for code, reason in (
        ("events_lost", _events_lost(f, quality)),
        ("clock_residual", scatter),
        # One fault of one clock is one reason.
        ("clock_suspect", None if scatter else _clock_suspect(f)),
        ("few_steps", _few_steps(f, job, island, quality)),
    ):
        if reason and f.severity in _LOWER:
            lower = _LOWER[f.severity]
            f = replace(
                f,
                severity=lower,
                evidence=(*f.evidence, f"{f.severity} lowered to {lower}: {reason}"),
                lowered_for=(*f.lowered_for, code),
            )
    return f


def not_carried(findings: Sequence[Finding]) -> str | None:
    """Why nothing can be said, when findings became notes for want of quality; None: none did."""
    doubted = [f for f in findings if f.lowered_for and f.severity == "note"]
    if not doubted:
        return None
    f = doubted[0]
    who = f"node {f.node}" if f.kind == "late_node" else f"rank {f.rank}"
    return (
        f"{who} looks late by {duration(f.delay_ns_per_step)} a step, but the captures do not carry it: "
        f"{f.evidence[-1].partition(': ')[2]}. {_AGAIN[f.lowered_for[-1]]}"
    )


def _events_lost(f: Finding, quality: JobQuality) -> str | None:
    """Its collectives differ in number and the profiler says that events were lost.

    Past a lost event operations may be paired with the wrong ones, which looks like lateness. Either alone means
    little: ranks may issue other collectives, and complete captures carry the same words. A node is carried by
    most of its ranks, so that the sound ones must be as many.
    """
    hit = []
    for rank in f.ranks:
        q = quality.of(rank)
        if q.counts is not None and q.counts.missing + q.counts.extra and q.lost_events:
            hit.append(rank)
    if 1 - len(hit) / len(f.ranks) >= CARRIED_BY:
        return None
    return (
        f"the collectives of {rank_words(hit)} differ in number from the others', and the profiler says that events "
        "may be missing: possible event loss"
    )


def _clock_suspect(f: Finding) -> str | None:
    """Its durations, which need no clock, do not carry it."""
    if f.twin is None or f.twin.agrees:
        return None
    return (
        f"by the durations of its collectives, which need no clock, it is late by {duration(f.twin.delay_ns_per_step)} "
        "a step only"
    )


def _clock_residual(
    f: Finding, job: Job, island: Island, quality: JobQuality, uncertainty_ns: float
) -> str | None:
    """Its own clock scatters by as much as it is late.

    The uncertainty of the common clock is that of all ranks; one whose ends scatter more looks late in every other
    collective and early in the rest, and only the first adds to its share. The move that every finding must
    survive by the common uncertainty is repeated by its own.
    """
    known = [x for rank in f.ranks if (x := quality.of(rank).residual_ns) is not None]
    own = float(np.median(known)) if known else 0.0
    late = np.array(f.late_mask, np.bool_)
    if own <= uncertainty_ns or not late.any():
        return None
    rows = [n for n, r in enumerate(island.ranks) if job.ranks[r].identity.rank in f.ranks]
    moved = delay_shares(island.timed, island.ranks, island.steps.size, {island.ranks[n]: own for n in rows})
    before, after = (x[:, island.included][rows][:, late].sum() for x in (island.delta, moved))
    if after >= _KEPT * before:
        return None
    return (
        f"the ends of its collectives scatter by {duration(own)} on the common clock, and without that less than "
        "half of the delay is left"
    )


def _few_steps(f: Finding, job: Job, island: Island, quality: JobQuality) -> str | None:
    """It was compared in less than half of the steps of the job: of the others nothing is known."""
    found = [quality.of(job.ranks[r].identity.rank) for r in island.ranks]
    of_job = max((q.steps_captured or 0 for q in found), default=0)
    seen = max((quality.of(rank).steps_compared or 0 for rank in f.ranks), default=0)
    if seen >= _SEEN * of_job:
        return None
    return f"it could be compared in {seen} of the {of_job} captured steps only"
