"""diff.json: a difference for programs (schema ``rankdiff.diff/1``).

Keys are always present; what could not be measured is null, never 0. Integers are ns a step unless the name says
otherwise. Same input, same bytes: no time of the run, no paths.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rankdiff import __version__
from rankdiff.differences.bootstrap import DRAWS
from rankdiff.differences.difference import Difference, Fate
from rankdiff.differences.gate import Gate
from rankdiff.differences.kernels import KernelRow
from rankdiff.differences.places import Move
from rankdiff.differences.rows import ERROR, Row
from rankdiff.differences.side import Side
from rankdiff.findings import Finding
from rankdiff.notes import Note
from rankdiff.render.diff_words import moves as moves_in_words
from rankdiff.render.diff_words import summary
from rankdiff.render.json_values import share, whole

SCHEMA = "rankdiff.diff/1"


def to_json(d: Difference, gate: Gate | None = None) -> str:
    """Render a difference as the text of diff.json: indented, with a final line feed."""
    return json.dumps(to_dict(d, gate), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def to_dict(d: Difference, gate: Gate | None = None) -> dict[str, Any]:
    """Like `to_json`, as plain dicts and lists."""
    p = d.places
    both = p.gpus_in_both
    return {
        "schema": SCHEMA,
        "rankdiff_version": __version__,
        "verdict": {"status": d.status, "reason": d.reason, "summary": summary(d)},
        "before": _side(d.before),
        "after": _side(d.after),
        "comparable": not d.refused,
        "refused": _notes(d.refused),
        "places": {
            "nodes_before": list(p.nodes_before),
            "nodes_after": list(p.nodes_after),
            "nodes_in_both": list(p.nodes_in_both),
            "gpus_before": list(p.gpus_before) if p.gpus_before is not None else None,
            "gpus_after": list(p.gpus_after) if p.gpus_after is not None else None,
            "gpus_in_both": list(both) if both is not None else None,
            "moves": [_move(m) for m in p.moves],
            "summary": moves_in_words(d),
        },
        "method": {"interval": "circular block bootstrap, max-T", "draws": DRAWS, "confidence": 1.0 - ERROR},
        "step_time": _row(d.step),
        "parts": {r.key: _row(r) for r in d.parts},
        "before_collectives": {r.key: _row(r) for r in d.causes},
        "ranks": [{"rank": r.rank, "node": r.node, "moved": r.moved, "delay": _row(r)} for r in d.ranks],
        "nodes": [{"node": r.node, "delay": _row(r)} for r in d.nodes],
        "gpus": [{"gpu_uuid": r.gpu_uuid, "node": r.node, "delay": _row(r)} for r in d.gpus],
        "rank_causes": [
            {"rank": rank, "before_collectives": {r.key: _row(r) for r in d.rank_causes if r.rank == rank}}
            for rank in dict.fromkeys(r.rank for r in d.rank_causes)
        ],
        "kernels": [_kernel(k) for k in d.kernels] if d.kernels is not None else None,
        "findings": [_fate(f) for f in d.fates],
        "gate": {"threshold": gate.threshold, "status": gate.status, "message": gate.message}
        if gate
        else None,
        "warnings": _notes(d.cautions),
    }


def _side(s: Side) -> dict[str, Any]:
    return {
        "name": s.name,
        "source": s.source,
        "status": s.status,
        "reason": s.reason,
        "ranks": len(s.members),
        "nodes": len(s.nodes),
        "missing_ranks": list(s.missing),
        "steps": s.step_count,
        "step_source": s.step_source,
        "step_ns_median": whole(s.step_ns_median),
        "window_ns": whole(s.window_ns),
        "operations_per_step": {k: round(n, 3) for k, n in s.operations.items()} if s.operations else None,
        "bytes_per_step": whole(s.bytes_per_step),
        "clock_uncertainty_ns": whole(s.uncertainty_ns),
        "not_measured": dict(sorted(s.why.items())),
    }


def _row(r: Row) -> dict[str, Any]:
    ends = None if r.low_ns is None or r.high_ns is None else [whole(r.low_ns), whole(r.high_ns)]
    return {
        "before_ns": whole(r.before_ns),
        "after_ns": whole(r.after_ns),
        "change_ns": whole(r.change_ns),
        "change_share": share(r.change_share),
        "change_ci95_ns": ends,
        "least_change_ns": whole(r.least_ns),
        "verdict": r.verdict,
        "reason": r.reason,
    }


def _kernel(k: KernelRow) -> dict[str, Any]:
    return {
        "kernel": k.row.key,
        "grid": k.grid,
        "block": k.block,
        "what": k.kind if k.row.changed else None,
        "count_per_step_before": round(k.count_before, 3),
        "count_per_step_after": round(k.count_after, 3),
        "duration_ns_before": whole(k.duration_before_ns),
        "duration_ns_after": whole(k.duration_after_ns),
        "time": _row(k.row),
    }


def _move(m: Move) -> dict[str, Any]:
    return {
        "rank": m.rank,
        "node_before": m.before.node,
        "node_after": m.after.node,
        "gpu_uuid_before": m.before.gpu_uuid,
        "gpu_uuid_after": m.after.gpu_uuid,
        "delay": m.delay,
    }


def _fate(f: Fate) -> dict[str, Any]:
    return {"what": f.what, "before": _finding(f.before), "after": _finding(f.after)}


def _finding(f: Finding | None) -> dict[str, Any] | None:
    if f is None:
        return None
    return {
        "kind": f.kind,
        "rank": f.rank,
        "node": f.node,
        "ranks": list(f.ranks),
        "severity": f.severity,
        "cause": f.cause,
        "delay_ns_per_step": whole(f.delay_ns_per_step),
        "delay_share": share(f.delay_share),
    }


def _notes(notes: Sequence[Note]) -> list[dict[str, Any]]:
    return [{"code": n.code, "message": n.message, "ranks": list(n.ranks)} for n in notes]
