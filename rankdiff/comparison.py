"""Digests of all ranks to a Comparison: match, align the clocks, share out the delay, judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rankdiff.advice import advice
from rankdiff.bottleneck import Bottleneck, Pattern
from rankdiff.clocks import Clock, fit_clocks
from rankdiff.court import Island
from rankdiff.digest import Digest
from rankdiff.downgrade import NOT_CARRIED
from rankdiff.fabric import Transfer, slow_transfers, transfers
from rankdiff.findings import Finding, is_loud
from rankdiff.inference import inferred_groups, without_payloads
from rankdiff.instances import Timed, label_instances, steps_of, timed
from rankdiff.job import Job, build_job
from rankdiff.judging import judged
from rankdiff.makeup import unmatched_nccl
from rankdiff.matching import Communicator, Matching, match, payload_groups, unresolved_share
from rankdiff.notes import Note
from rankdiff.quality import JobQuality, compared_quality
from rankdiff.rank_figures import RankFigures, node_intervals, rank_figures, time_spent
from rankdiff.remarks import (
    apart_notes,
    counts_notes,
    no_data_range,
    not_compared,
    other_run_note,
    rank_notes,
    unclassified_calls,
    why_nothing,
)
from rankdiff.reports.identity import Identity
from rankdiff.runs import other_runs
from rankdiff.self_doubt import Margin, widest
from rankdiff.significance import mean_ci95
from rankdiff.verdict import Judgement, unless_unresolved, warm_up_step
from rankdiff.waits import Waits, delay_shares, islands, waits

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """The answer for the whole job."""

    status: str  # straggler, rotating, balanced or not_assessed
    reason: str | None
    message: str | None
    findings: tuple[Finding, ...]
    threshold_ns: float | None
    wait_ns_per_step: float | None
    wait_share_of_step: float | None
    wait_ci95_ns: tuple[float, float] | None = None  # of wait_ns_per_step
    margin: Margin | None = None  # of an acquittal; of several islands the widest


@dataclass(frozen=True)
class Comparison:
    """Everything the renderers need."""

    job: Job  # the ranks that were compared
    identities: tuple[Identity, ...]  # all captured ranks, sorted
    digests: tuple[Digest, ...]  # in the order of `identities`
    missing: tuple[int, ...]
    matching: Matching
    clock: Clock
    islands: tuple[Island, ...]
    judgements: tuple[Judgement, ...]
    waited: tuple[tuple[Waits, ...], ...]  # per island, per communicator
    figures: dict[int, RankFigures]  # by rank number
    step_parts: tuple[
        dict[str, I64], ...
    ]  # per island: make-up of every step (makeup.PARTS), summed over its ranks
    node_delay_ci95_ns: dict[str, tuple[float, float]]  # of the summed delay of a node's ranks
    verdict: Verdict
    quality: JobQuality
    bottleneck: Bottleneck | None  # of the median rank; None: no steps to divide
    rank_bottlenecks: dict[int, Bottleneck]  # by rank number
    patterns: tuple[Pattern, ...]
    transfers: tuple[Transfer, ...]
    notes: tuple[Note, ...] = field(default=())


def compare_digests(
    digests: Sequence[Digest], identities: Sequence[Identity], missing: Sequence[int], skip_steps: int = 0
) -> Comparison:
    """Compare the digests of a job.

    Parameters
    ----------
    digests, identities : sequences of equal length
        Any order; the result does not depend on it.
    missing : sequence of int
        Ranks of the job without a report.
    skip_steps : int
        Steps to leave out at the beginning, besides a warm-up step.

    Returns
    -------
    Comparison
    """
    pairs = sorted(zip(identities, digests, strict=True), key=lambda p: p[0].rank)
    notes = [n for i, d in pairs for n in rank_notes(i, d)] + no_data_range(pairs) + unclassified_calls(pairs)
    usable = [(i, d) for i, d in pairs if (d.columns("collectives", "op_class")["op_class"] == "nxn").any()]
    job = build_job([d for _, d in usable], [i for i, _ in usable])
    strangers = other_runs(job)
    strangers_out = tuple(job.ranks[r].identity.rank for r in strangers)
    if strangers:
        notes.append(other_run_note(job, strangers))
        kept = [p for n, p in enumerate(usable) if n not in strangers]
        job = build_job([d for _, d in kept], [i for i, _ in kept])
    payloads = [r.has_payloads for r in job.ranks]
    if job.ranks and all(payloads):
        groups = payload_groups(job)
    else:
        job = without_payloads(job)
        groups, found = inferred_groups(job) if len(job.ranks) > 1 else ([], [])
        notes += found
    matching = match(job, groups)
    notes += [*matching.notes, *counts_notes(job, matching)]
    labelled = [_labelled(job, matching.communicators, ranks) for ranks in _islands(job, matching)]
    warm = {
        c.id: _first_step(step) for island in labelled for c, step in zip(island[0], island[2], strict=True)
    }
    clock = fit_clocks(job, matching.communicators, [warm[c.id] for c in matching.communicators])
    notes += clock.notes
    made = [_island(job, clock, *island, skip_steps) for island in labelled]
    uncertainty = clock.uncertainty_ns or 0.0
    apart = not_compared(pairs, job, matching, strangers_out)
    notes += apart_notes(apart, pairs)
    absent = sorted({*missing, *apart})
    quality = compared_quality(pairs, missing, apart, job, matching, clock, [island for island, _ in made])
    gpus = len({i.rank for i, _ in pairs} | set(missing))
    judgements = tuple(judged(job, clock, island, uncertainty, absent, quality, gpus) for island, _ in made)
    judgements = tuple(unless_unresolved(j, unresolved_share(job, groups)) for j in judgements)
    figures: dict[int, RankFigures] = {}
    step_parts: list[dict[str, I64]] = []
    for (island, waited), judgement in zip(made, judgements, strict=True):
        found_figures, parts = rank_figures(job, clock, island, waited, judgement)
        figures |= found_figures
        step_parts.append(parts)
        notes += judgement.notes
    verdict = _verdict(pairs, job, made, judgements, _slow_transfers(job, made, judgements))
    whole, each, seen = time_spent(job, made, judgements, figures, bool(absent))
    return Comparison(
        job=job,
        identities=tuple(i for i, _ in pairs),
        digests=tuple(d for _, d in pairs),
        missing=tuple(missing),
        matching=matching,
        clock=clock,
        islands=tuple(island for island, _ in made),
        judgements=judgements,
        waited=tuple(waited for _, waited in made),
        figures=figures,
        step_parts=tuple(step_parts),
        node_delay_ci95_ns=node_intervals(job, [island for island, _ in made]),
        verdict=verdict,
        quality=quality,
        bottleneck=whole,
        rank_bottlenecks=each,
        patterns=seen,
        transfers=tuple(t for island, waited in made for t in transfers(job, island.timed, waited)),
        notes=tuple(notes),
    )


def _islands(job: Job, matching: Matching) -> list[list[int]]:
    return islands(len(job.ranks), [c.members for c in matching.communicators])


def _labelled(
    job: Job, communicators: Sequence[Communicator], ranks: Sequence[int]
) -> tuple[list[Communicator], str, list[I64], dict[int, str], list[int]]:
    """Communicators of an island with the step of every instance."""
    inside = [c for c in communicators if int(c.members[0]) in set(ranks)]
    source, keys, names = label_instances(job, inside)
    return inside, source, keys, names, list(ranks)


def _slow_transfers(
    job: Job, made: Sequence[tuple[Island, tuple[Waits, ...]]], judgements: Sequence[Judgement]
) -> list[Finding]:
    """Compare the transfers of all communicators, across islands."""
    judged = [(i, w, j) for (i, w), j in zip(made, judgements, strict=True) if j.threshold_ns is not None]
    if not judged:
        return []
    loud = {r for _, _, j in judged for f in j.findings if is_loud(f) for r in f.ranks}
    parts = [(t, w, i.included) for i, ws, _ in judged for t, w in zip(i.timed, ws, strict=True)]
    return slow_transfers(
        job,
        parts,
        float(np.median([i.step_ns for i, _, _ in judged])),
        max(j.threshold_ns or 0.0 for _, _, j in judged),
        [r.index for r in job.ranks if r.identity.rank in loud],
    )


def _first_step(step: I64) -> NDArray[np.bool_]:
    """Instances of the first captured step: left out of the clock fit."""
    return np.asarray(step == step.min())


def _island(
    job: Job,
    clock: Clock,
    communicators: list[Communicator],
    source: str,
    keys: list[I64],
    names: dict[int, str],
    ranks: list[int],
    skip_steps: int,
) -> tuple[Island, tuple[Waits, ...]]:
    steps, timed_comms = steps_of(
        source, [timed(job, clock, c, k) for c, k in zip(communicators, keys, strict=True)], names
    )
    waited = tuple(waits(t) for t in timed_comms)
    delta = delay_shares(timed_comms, ranks, steps.size)
    included = np.ones(steps.size, np.bool_)
    included[:skip_steps] = False
    included[skip_steps:] = warm_up_step(delta[:, skip_steps:]) if steps.size > skip_steps else False
    island = Island(
        ranks=tuple(ranks),
        timed=tuple(timed_comms),
        steps=steps,
        delta=delta,
        included=included,
        unmatched_ns=unmatched_nccl(job, clock, ranks, timed_comms, steps),
        transfer_ns=_transfer(timed_comms, waited, ranks, steps.size),
    )
    return island, waited


def _transfer(
    timed_comms: Sequence[Timed], waited: Sequence[Waits], ranks: Sequence[int], n_steps: int
) -> F64:
    """Transfer of a rank's instances per step, mean over the ranks."""
    out = np.zeros(n_steps)
    for t, w in zip(timed_comms, waited, strict=True):
        np.add.at(out, t.step, w.transfer * t.comm.members.size)
    return out / len(ranks)


def _verdict(
    pairs: Sequence[tuple[Identity, Digest]],
    job: Job,
    made: Sequence[tuple[Island, tuple[Waits, ...]]],
    judgements: Sequence[Judgement],
    more: Sequence[Finding],
) -> Verdict:
    """One answer for the job out of its islands': the worst that was found."""
    # An island with a finding that its captures do not carry says more than one in which nobody was late.
    order = ("straggler", "rotating", NOT_CARRIED, "balanced", "not_assessed")
    if not judgements:
        reason, message = why_nothing(pairs, job)
        return Verdict("not_assessed", reason, message, (), None, None, None)
    first = min(judgements, key=lambda j: order.index(NOT_CARRIED if j.reason == NOT_CARRIED else j.status))
    status = first.status
    findings = tuple(
        replace(f, advice=advice(job, f)) for f in (*(f for j in judgements for f in j.findings), *more)
    )
    severity = {"major": 0, "minor": 1, "note": 2}
    findings = tuple(sorted(findings, key=lambda f: (severity[f.severity], -(f.delay_ns_per_step or 0.0))))
    per_step = [island.delta[:, island.included].sum(axis=0) for island, _ in made]
    waits_, steps = float(sum(x.sum() for x in per_step)), sum(x.size for x in per_step)
    measured = sum(island.measured_ns for island, _ in made)
    thresholds = [j.threshold_ns for j in judgements if j.threshold_ns is not None]
    assessed = status != "not_assessed"
    return Verdict(
        status,
        first.reason,
        first.message,
        findings,
        max(thresholds) if thresholds else None,
        waits_ / steps if assessed and steps else None,
        waits_ / measured if assessed and measured > 0 else None,
        mean_ci95(np.concatenate(per_step)) if assessed and steps else None,
        widest([j.margin for j in judgements if j.margin is not None]) if status == "balanced" else None,
    )
