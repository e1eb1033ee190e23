"""An element of ``findings`` in report.json, with every doubt about it."""

from __future__ import annotations

from typing import Any

from rankdiff.comparison import Comparison
from rankdiff.findings import Finding
from rankdiff.render.json_values import interval, share, utc, whole


def finding_dict(c: Comparison, f: Finding) -> dict[str, Any]:
    """A finding as a plain dict; null: does not apply or is not known."""
    return {
        "kind": f.kind,
        "rank": f.rank,
        "node": f.node,
        "ranks": list(f.ranks),
        "severity": f.severity,
        "pattern": f.pattern,
        "cause": f.cause,
        "cause_detail": f.cause_detail or None,
        "delay_ns_per_step": whole(f.delay_ns_per_step),
        "delay_share": share(f.delay_share),
        "p_value": share(f.p_value),
        "steps_late": f.steps_late,
        "steps": f.steps,
        "first_step": f.first_step,
        "first_utc_ns": utc(c, f.first_ns),
        "period_steps": f.period_steps,
        "delay_ci95_ns": interval(f.delay_ci95_ns),
        "carried_by_step": f.carried_by_step,
        "twin": _twin(f),
        "what_if": _what_if(f),
        "what_if_refused": f.what_if.refused if f.what_if else None,
        "advice": f.advice,
        "evidence": list(f.evidence),
        "lowered_for": list(f.lowered_for),
    }


def _twin(f: Finding) -> dict[str, Any] | None:
    """What the durations say of a finding."""
    if f.twin is None:
        return None
    return {
        "delay_ns_per_step": whole(f.twin.delay_ns_per_step),
        "p_value": share(f.twin.p_value),
        "agrees": f.twin.agrees,
    }


def _what_if(f: Finding) -> dict[str, Any] | None:
    """What the job would gain without a finding."""
    w = f.what_if
    if w is None or w.refused is not None:
        return None
    return {
        "step_ns": whole(w.step_ns),
        "gain_ns_per_step": whole(w.gain_ns_per_step),
        "speedup": share(w.speedup),
        "gpu_hours_per_hour": share(w.gpu_hours_per_hour),
        "replay_error": share(w.replay_error),
    }
