"""truth.json: what was planted, and what a right analysis should say (schema ``rankdiff.truth/1``).

Keys are always present; ns unless the name says otherwise; same settings, same bytes.

- ``settings``: what was asked for; ``faults``: each with its ranks, how many steps have it, and
  ``cost_ns_per_step``, by which a step of the job is longer with this fault alone than without any.
- ``jitter_cost_ns_per_step``: by which a step is longer with the jitter than without, in health.
- ``expected``: ``status`` (``status_or``: another that is right as well, where jitter is heavy), ``reason``,
  ``late_ranks``, ``late_nodes``, and ``findings`` with cause, pattern, period and range; a ``note`` accuses
  nobody. Faults that cost less than is worth a finding are not expected to be found.
- ``job``: ``matched_collectives`` (N x N, recorded by all members), ``step_ns_median``, nodes of the ranks.
- ``clocks``: of each node, against true time; ``ranks``: ``delay_ns_mean``, by which a rank arrives after
  the first one, mean over its N x N collectives.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import fmean, median
from typing import Any

from .expectation import expected
from .faults import Fault
from .planting import plan
from .play import play
from .scenario import ONE_SIDED, Instance, Job
from .settings import Settings

SCHEMA = "rankdiff.truth/1"


def truth_of(settings: Settings, job: Job) -> dict[str, Any]:
    """Return the contents of truth.json.

    Parameters
    ----------
    settings : Settings
    job : Job
        As it was written with these settings.
    """
    jitter, costs = _costs(settings)
    times = step_times(job.instances)
    nodes = settings.rank_nodes
    clocks = {clock.node: clock for clock in settings.clocks}
    delays: dict[int, list[int]] = defaultdict(list)
    for instance in job.instances:
        if instance.op not in ONE_SIDED:
            for rank, delay in instance.delays.items():
                delays[rank].append(delay)
    return {
        "schema": SCHEMA,
        "settings": _plain(settings),
        "faults": [
            {
                "fault": fault.text,
                "kind": fault.kind,
                "ranks": fault.on(nodes),
                "steps": len(_steps(fault, settings)),
                "cost_ns_per_step": cost,
            }
            for fault, cost in zip(settings.faults, costs, strict=True)
        ],
        "jitter_cost_ns_per_step": jitter,
        "expected": expected(settings, costs, jitter, (median(times), fmean(times)) if times else (0.0, 0.0)),
        "job": {
            "ranks": settings.ranks,
            "nodes": dict.fromkeys(nodes, 0) | dict(Counter(nodes)),
            "steps": settings.steps,
            "step_ns_median": round(median(times)) if times else None,
            "matched_collectives": _matched(job),
        },
        "clocks": [
            {
                "node": node,
                "offset_ns": clocks[node].offset_ns if node in clocks else 0,
                "drift_ppm": clocks[node].drift_ppm if node in clocks else 0.0,
                "steps": [
                    {"at_ns": at, "by_ns": by} for at, by in (clocks[node].steps if node in clocks else ())
                ],
            }
            for node in dict.fromkeys(nodes)
        ],
        "ranks": [
            {
                "rank": rank,
                "node": nodes[rank],
                "report": job.reports[rank].name,
                "delay_ns_mean": round(fmean(delays[rank])) if delays[rank] else None,
            }
            for rank in range(settings.ranks)
        ],
    }


def step_times(instances: Sequence[Instance]) -> list[int]:
    """Return the times from each step's last N x N end to the next one's; empty without such collectives."""
    ends: dict[int, int] = {}
    for instance in instances:
        if instance.op not in ONE_SIDED:
            ends[instance.step] = max(ends.get(instance.step, -(1 << 62)), *instance.ends.values())
    ordered = [ends[step] for step in sorted(ends)]
    return [b - a for a, b in itertools.pairwise(ordered)]


def _costs(settings: Settings) -> tuple[int | None, list[int | None]]:
    """By how much a mean step is longer with jitter, and with each fault; None without N x N collectives."""

    def mean_step(chosen: Settings, faults: Sequence[Fault]) -> float | None:
        times = step_times(play(plan(chosen, faults))[1])
        return fmean(times) if times else None

    healthy, calm = mean_step(settings, ()), mean_step(replace(settings, jitter_share=0.0), ())
    if healthy is None or calm is None:
        return None, [None] * len(settings.faults)
    with_each = [mean_step(settings, [fault]) for fault in settings.faults]
    return round(healthy - calm), [None if x is None else round(x - healthy) for x in with_each]


def _steps(fault: Fault, settings: Settings) -> list[int]:
    return [0] if fault.kind == "startup" else fault.steps(settings.steps)


def _matched(job: Job) -> int:
    """Count N x N collectives that all members recorded."""
    taken: Counter[int] = Counter()
    count = 0
    for instance in job.instances:
        seen = True
        for rank in instance.members:
            seen &= job.recorded[rank][taken[rank]]
            taken[rank] += 1
        count += seen and instance.op not in ONE_SIDED
    return count


def _plain(settings: Settings) -> dict[str, Any]:
    """Settings as people write them."""
    out = {key: value for key, value in asdict(settings).items() if key != "faults"}
    out["dp"] = settings.data_parallel
    out["stage_work"] = list(settings.stage_work or [1.0] * settings.pp)
    out["windows"] = [{**w, "ranks": list(w["ranks"])} for w in out["windows"]]
    del out["clocks"]  # they have a place of their own
    return out
