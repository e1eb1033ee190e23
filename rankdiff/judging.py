"""One island before the court: its verdict, the causes, and every doubt about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from rankdiff.causes import explain
from rankdiff.clocks import Clock
from rankdiff.court import Court, Island
from rankdiff.downgrade import NOT_CARRIED, carried, not_carried
from rankdiff.excess import Scene
from rankdiff.findings import Finding, is_loud
from rankdiff.job import Job
from rankdiff.quality import JobQuality
from rankdiff.self_doubt import carried_by_step
from rankdiff.stalls import common_stall
from rankdiff.twin import Durations
from rankdiff.verdict import Judgement, judge
from rankdiff.what_if import Loop, gains_alike, gains_nothing, replayed_without


def judged(
    job: Job,
    clock: Clock,
    island: Island,
    uncertainty: float,
    missing: Sequence[int],
    quality: JobQuality,
    gpus: int,
) -> Judgement:
    """Judge an island, explain what was found and doubt it; a common stall comes on top of the verdict.

    Parameters
    ----------
    job : Job
    clock : Clock
    island : Island
    uncertainty : float
        Of the common clock, ns.
    missing : sequence of int
        Ranks that were not captured or could not be compared.
    quality : JobQuality
    gpus : int
        Of the whole job.
    """
    steps = np.flatnonzero(island.included)
    scene = Scene(island.ranks, island.timed, steps, island.delta[:, island.included])
    by_durations = Durations(job, island)

    @cache
    def loop() -> Loop:
        """Give the loop to be played again, laid out once: it is as large as all instances of the job."""
        return Loop(job, clock, island, gpus)

    def explained(court: Court, f: Finding, accused: Iterable[int]) -> Finding:
        named = {job.ranks[r].identity.rank for r in accused} | set(f.ranks)
        worst = court.worst_of(f) if f.kind == "late_node" and is_loud(f) else None
        if worst is not None and gains_alike(loop(), f, worst, named):
            f = worst
        f = carried_by_step(court, explain(job, scene, f, accused), accused)
        f = carried(by_durations.weighed(court, f, accused), job, island, quality, uncertainty)
        return gains_nothing(loop, f, named)

    found = judge(job, island, uncertainty, missing, explained, clock.skew_scale_ns)
    if found.threshold_ns is not None:
        found = replace(found, notes=by_durations.notes(found.threshold_ns, uncertainty, found.findings))
    if found.status == "balanced" and (doubted := not_carried(found.findings)):
        return replace(found, status="not_assessed", reason=NOT_CARRIED, message=doubted)
    findings = found.findings
    if any(is_loud(f) for f in findings):
        findings = replayed_without(loop(), findings)
    if found.status in ("balanced", "rotating"):
        stall = common_stall(job, clock, island.ranks, island.steps, steps.tolist(), island.step_ns)
        findings += (stall,) if stall is not None else ()
    return replace(found, findings=findings)
