"""The ``quality`` key of report.json: what each capture carries, and what is wrong with some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankdiff.comparison import Comparison
from rankdiff.defects import Defect, defects
from rankdiff.findings import MAJOR_SHARE, MINOR_SHARE
from rankdiff.notes import Note
from rankdiff.quality import RankQuality
from rankdiff.render.json_values import utc, whole
from rankdiff.significance import ALPHA


def quality_dict(c: Comparison, notes: Sequence[Note]) -> dict[str, Any]:
    """Quality of a comparison as plain dicts and lists; null: not known, or the question does not arise.

    Parameters
    ----------
    c : Comparison
    notes : sequence of Note
        Further warnings, of reading the reports.
    """
    common = c.quality.common_ns
    return {
        "ranks_captured": len(c.identities),
        "ranks_expected": len(c.identities) + len(c.missing),
        "missing_ranks": list(c.missing),
        "ranks_not_compared": list(c.quality.apart),
        "common_window_ns": common[1] - common[0] if common else None,
        "common_window_start_utc_ns": utc(c, common[0]) if common else None,
        "common_window_end_utc_ns": utc(c, common[1]) if common else None,
        "unmatched_collectives": c.matching.unmatched,
        "steps_left_out": [
            label
            for island in c.islands
            for label, kept in zip(island.steps.labels, island.included, strict=True)
            if not kept
        ],
        "thresholds": {
            "smallest_findable_delay_ns_per_step": whole(c.verdict.threshold_ns),
            "minor_share_of_step": MINOR_SHARE,
            "major_share_of_step": MAJOR_SHARE,
            "false_alarm_rate": ALPHA,
        },
        "defects": [_defect(d) for d in all_defects(c, notes)],
        "ranks": [_rank(c, q) for q in c.quality.ranks],
    }


def all_defects(c: Comparison, notes: Sequence[Note]) -> list[Defect]:
    """Everything wrong with the captures of a comparison, the gravest first."""
    return defects(c.quality, list(zip(c.identities, c.digests, strict=True)), (*notes, *c.notes))


def _defect(d: Defect) -> dict[str, Any]:
    return {"code": d.code, "message": d.message, "ranks": list(d.ranks), "cure": d.cure}


def _rank(c: Comparison, q: RankQuality) -> dict[str, Any]:
    counts = q.counts
    start, end = q.window_ns or (None, None)
    return {
        "rank": q.rank,
        "tables": dict(q.tables),
        "unusable_events": dict(q.unusable_events),
        "lost_event_diagnostics": list(q.lost_events) if q.lost_events is not None else None,
        "window_start_utc_ns": utc(c, start),
        "window_end_utc_ns": utc(c, end),
        "starts_late_ns": q.starts_late_ns,
        "ends_early_ns": q.ends_early_ns,
        "open_ranges": q.open_ranges,
        "kernels": q.kernels,
        "kernels_without_launch": q.kernels_without_launch,
        "payloads": q.payloads,
        "collectives": {
            "matched": counts.matched if counts else None,
            "trimmed": counts.trimmed if counts else None,
            "missing": counts.missing if counts else None,
            "extra": counts.extra if counts else None,
            "unmatched": counts.unmatched if counts else None,
        },
        "residual_ns": whole(q.residual_ns),
        "clock_residual_ns": whole(q.clock_residual_ns),
        "steps_compared": q.steps_compared,
        "steps_captured": q.steps_captured,
    }
