"""report.json: the contract for programs (schema ``rankdiff.report/1``).

Keys are always present; what could not be measured is null, never 0. Integers are ns unless the name says
otherwise. Same input, same bytes: no time of the run, no paths.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from rankdiff import __version__
from rankdiff.comparison import Comparison
from rankdiff.court import Island
from rankdiff.differences.measure import traffic
from rankdiff.digest import Digest
from rankdiff.gaps import MIN_GAP_NS, longest_gaps, step_label
from rankdiff.idle import idle_by_cause
from rankdiff.notes import Note
from rankdiff.render.finding_json import finding_dict
from rankdiff.render.json_values import interval, share, utc, whole
from rankdiff.render.quality_json import quality_dict
from rankdiff.render.words import summary
from rankdiff.reports.identity import Identity

SCHEMA = "rankdiff.report/1"
_MOST_GAPS = 10
_MOST_DELAYS = 50_000  # ranks times steps


def to_json(c: Comparison, notes: Sequence[Note] = (), min_gap_ns: int = MIN_GAP_NS) -> str:
    """Render a comparison as the text of report.json.

    Parameters
    ----------
    c : Comparison
    notes : sequence of Note
        Further warnings, of reading the reports.
    min_gap_ns : int
        Shorter idle gaps are not listed.

    Returns
    -------
    str
        Indented JSON with a final line feed.
    """
    return json.dumps(to_dict(c, notes, min_gap_ns), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def to_dict(c: Comparison, notes: Sequence[Note] = (), min_gap_ns: int = MIN_GAP_NS) -> dict[str, Any]:
    """Like `to_json`, as plain dicts and lists."""
    margin = c.verdict.margin
    every = sorted({*notes, *c.notes}, key=lambda n: (n.code, n.ranks, n.message))
    return {
        "schema": SCHEMA,
        "rankdiff_version": __version__,
        "job": _job(c),
        "clock": _clock(c),
        "verdict": {
            "status": c.verdict.status,
            "reason": c.verdict.reason,
            "summary": summary(c),
            "wait_ns_per_step": whole(c.verdict.wait_ns_per_step),
            "wait_share_of_step": share(c.verdict.wait_share_of_step),
            "wait_ci95_ns_per_step": interval(c.verdict.wait_ci95_ns),
            "smallest_findable_delay_ns_per_step": whole(c.verdict.threshold_ns),
            "margin_ns_per_step": whole(margin.rank) if margin else None,
            "node_margin_ns_per_step": whole(margin.node) if margin else None,
        },
        "bottleneck": _bottleneck(c),
        "findings": [finding_dict(c, f) for f in c.verdict.findings],
        "steps": [s for n, island in enumerate(c.islands) for s in _steps(c, n, island)],
        "ranks": [_rank(c, i, d, min_gap_ns) for i, d in zip(c.identities, c.digests, strict=True)],
        "nodes": _nodes(c),
        "communicators": [
            {
                "id": m.id,
                "ranks": [c.job.ranks[int(r)].identity.rank for r in m.members],
                "source": m.source,
                "matched": int(m.positions.shape[0]),
                "trimmed": int(m.trimmed.sum()),
                "lost": int(m.lost.sum()),
                "first_divergence": m.first_divergence,
                "diverging_ranks": [c.job.ranks[r].identity.rank for r in m.minority],
                "transfers": [
                    {
                        "op": t.op,
                        "bytes": t.bytes,
                        "count": t.count,
                        "transfer_ns_median": whole(t.transfer_ns),
                        "slowdown": share(t.slowdown),
                        "bus_gbytes_per_s": share(t.bus_gbps),
                    }
                    for t in c.transfers
                    if t.comm == m.id
                ],
            }
            for m in c.matching.communicators
        ],
        "quality": quality_dict(c, notes),
        "warnings": [{"code": n.code, "message": n.message, "ranks": list(n.ranks)} for n in every],
    }


def _job(c: Comparison) -> dict[str, Any]:
    sizes = [int(i.included.sum()) for i in c.islands]
    main = c.islands[int(np.argmax(sizes))] if sizes else None
    ends = [t for island in c.islands for t in island.steps.last_end]
    operations, carried = traffic(c)
    starts = [d.info.session_start_utc_ns for d in c.digests if d.info.session_start_utc_ns is not None]
    return {
        "ranks": len(c.identities),
        "nodes": len({i.node for i in c.identities}),
        "missing_ranks": list(c.missing),
        "session_start_utc_ns": min(starts) if starts else None,
        "matched_collectives": sum(int(m.positions.shape[0]) for m in c.matching.communicators),
        "unmatched_collectives": c.matching.unmatched,
        "steps": max(sizes) if sizes else 0,
        "step_source": main.steps.source if main else None,
        "step_ns_median": whole(main.step_ns) if main else None,
        "window_ns": int(max(ends) - min(ends)) if ends else None,
        "islands": [[c.job.ranks[r].identity.rank for r in i.ranks] for i in c.islands],
        "operations_per_step": {k: share(n) for k, n in operations.items()} if operations else None,
        "bytes_per_step": whole(carried),
    }


def _clock(c: Comparison) -> dict[str, Any]:
    return {
        "method": c.clock.method,
        "reference": c.clock.reference,
        "uncertainty_ns": whole(c.clock.uncertainty_ns),
        "observations": c.clock.observations,
        "nodes": [
            {
                "node": n.node,
                "offset_ns": whole(n.offset_ns),
                "drift_ppm": round(n.drift_ppm, 4),
                "residual_ns": whole(n.residual_ns),
                "step_ns": whole(n.step_ns) if n.step_at_ns is not None else None,
                "ts_shift_ns": whole(-n.offset_ns),
            }
            for n in c.clock.nodes
        ],
    }


def _bottleneck(c: Comparison) -> dict[str, Any]:
    """Make-up of the median rank's step, and what takes most of it."""
    parts = {}
    for key in ("compute", "exposed_wait", "exposed_transfer", "copy", "idle"):
        per_step = []
        for island in c.islands:
            known = island.included & ~np.isnan(island.steps.step_ns)
            for r in island.ranks:
                made = c.figures[c.job.ranks[r].identity.rank].make_up_ns
                if made is not None and known.sum():
                    per_step.append(made[key] / int(known.sum()))
        parts[key] = whole(float(np.median(per_step))) if per_step else None
    b = c.bottleneck
    return {
        "kind": b.kind if b else None,
        "share_of_step": share(b.share) if b else None,
        "make_up_ns_per_step": parts,
        "kinds_ns_per_step": {k: whole(x) for k, x in b.parts_ns.items()} if b else None,
        "advice": b.advice if b else None,
        "patterns": [
            {"code": p.code, "message": p.message, "ranks": list(p.ranks), "advice": p.advice}
            for p in c.patterns
        ],
    }


def _steps(c: Comparison, number: int, island: Island) -> list[dict[str, Any]]:
    out = []
    # Of a large job the delay of every rank in every step would be most of the file.
    by_rank = island.delta.size <= _MOST_DELAYS
    total = island.delta.sum(axis=0)
    top = island.delta.argmax(axis=0)
    for k in range(island.steps.size):
        start = int(island.steps.last_end[k - 1]) if k else None
        length = island.steps.step_ns[k]
        held = float(island.delta[top[k], k])
        out.append(
            {
                "step": island.steps.labels[k],
                "island": number,
                "start_utc_ns": utc(c, start),
                "step_ns": whole(length),
                "delay_ns": whole(total[k]),
                "top_rank": c.job.ranks[island.ranks[int(top[k])]].identity.rank if held > 0 else None,
                "top_share": share(held / total[k]) if total[k] > 0 else None,
                "judged": bool(island.included[k]),
                "make_up_ns": None
                if np.isnan(length)
                else {p: whole(x[k] / len(island.ranks)) for p, x in c.step_parts[number].items()},
                "delay_by_rank_ns": [whole(x) for x in island.delta[:, k]] if by_rank else None,
            }
        )
    return out


def _rank(c: Comparison, i: Identity, d: Digest, min_gap_ns: int) -> dict[str, Any]:
    f, info = c.figures.get(i.rank), d.info
    index = next((r.index for r in c.job.ranks if r.identity.rank == i.rank), None)
    return {
        "rank": i.rank,
        "label": i.label,
        "node": i.node,
        "rank_source": i.rank_source,
        "node_source": i.node_source,
        "report": info.claims.report,
        "report_bytes": info.claims.size_bytes,
        "session_uuid": info.claims.session_uuid,
        "schema_version": info.schema_version,
        "pid": info.claims.pid,
        "device": info.claims.device,
        "gpu_uuid": info.gpu_uuid,
        "gpu_name": info.gpu_name,
        "gpu_index": info.gpu_index,
        "collectives": f.collectives if f else 0,
        "nccl_kernels": info.nccl_kernels,
        "nccl_ns": info.nccl_ns,
        "wait_ns": f.wait_ns if f else None,
        "imposed_wait_ns": f.imposed_wait_ns if f else None,
        "delay_ns": whole(f.delay_ns) if f else None,
        "delay_ci95_ns": interval(f.delay_ci95_ns) if f else None,
        "delay_share": share(f.delay_share) if f else None,
        "lateness_ns_median": whole(f.lateness_ns_median) if f else None,
        "last_count": f.last_count if f else None,
        "span_ns": info.span_ns,
        "busy_ns": info.busy_ns,
        "idle_ns": info.idle_ns,
        "idle_data_load_ns": info.idle_data_load_ns,
        "idle_osrt_ns": info.idle_osrt_ns,
        "idle_by_cause_ns": idle_by_cause(d),
        "end_skew_ns": whole(c.clock.end_skew_ns[index]) if index is not None else None,
        "make_up_ns": f.make_up_ns if f else None,
        "bottleneck": _rank_bottleneck(c, i.rank),
        "longest_gaps": _gaps(d, min_gap_ns),
    }


def _rank_bottleneck(c: Comparison, rank: int) -> dict[str, Any] | None:
    b = c.rank_bottlenecks.get(rank)
    return {"kind": b.kind, "share_of_step": share(b.share)} if b else None


def _gaps(d: Digest, min_gap_ns: int) -> list[dict[str, Any]]:
    """The longest idle gaps of a rank, longest first."""
    start = d.info.session_start_utc_ns
    return [
        {
            "step": step_label(d, g["step"]),
            "start_utc_ns": start + g["start_ns"] if start is not None else None,
            "ns": g["end_ns"] - g["start_ns"],
            "cause": g["class"],
            "cause_ns": g["class_ns"],
            "range": g["range"],
            "call": g["call"],
        }
        for g in longest_gaps(d, min_gap_ns, _MOST_GAPS).iter_rows(named=True)
    ]


def _nodes(c: Comparison) -> list[dict[str, Any]]:
    members: dict[str, list[int]] = {}
    for i in c.identities:
        members.setdefault(i.node, []).append(i.rank)
    counts = Counter(i.node for i in c.identities)
    out = []
    for node in members:
        delays = [f.delay_ns for r in members[node] if (f := c.figures.get(r)) and f.delay_ns is not None]
        known = len(delays) == counts[node]
        out.append(
            {
                "node": node,
                "ranks": sorted(members[node]),
                "delay_ns": whole(sum(delays)) if known else None,
                "delay_ci95_ns": interval(c.node_delay_ci95_ns.get(node)) if known else None,
            }
        )
    return out
