"""What is in each report, rank by rank, and how to capture better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rankdiff.defects import TABLE_WORDS, Defect, defects
from rankdiff.digest import Digest
from rankdiff.pipeline import Readings
from rankdiff.quality import read_quality
from rankdiff.render.document import clean_lines
from rankdiff.reports.identity import Identity
from rankdiff.units import duration, share, utc

_TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
    "OSRT_API",
)


def to_text(found: Readings) -> str:
    """Render the readings of a job's reports as plain text with a final line feed."""
    blocks = [_rank(i, d) for i, d in zip(found.identities, found.digests, strict=True)]
    pairs = list(zip(found.identities, found.digests, strict=True))
    wrong = defects(read_quality(pairs, found.missing), pairs, found.notes)
    if wrong:
        blocks.append("\n".join(["To capture better:", *_cured(wrong)]))
    else:
        blocks.append("Nothing is missing from these captures.")
    return clean_lines("\n\n".join(blocks)) + "\n"


def _rank(i: Identity, d: Digest) -> str:
    info = d.info
    rows = [
        f"rank {i.label} on {i.node}: {info.claims.report}",
        f"  identity  rank from {i.rank_source}, node from {i.node_source}; pid {info.claims.pid}, "
        f"CUDA device {info.claims.device}",
        f"  gpu       {info.gpu_name or 'name unknown'}, physical index "
        f"{'unknown' if info.gpu_index is None else info.gpu_index}, uuid {info.gpu_uuid or 'unknown'}, "
        f"bus {info.gpu_bus or 'unknown'}",
        f"  export    nsys {info.product_version or 'unknown'}, schema {info.schema_version or 'unknown'}, "
        f"{info.claims.size_bytes / 1e6:.1f} MB, session {info.claims.session_uuid or 'unknown'}",
        f"  window    {duration(info.span_ns)} of GPU activity, from "
        f"{_begin(info.window_start_ns, info.session_start_utc_ns)}; "
        f"idle {share(info.idle_ns / info.span_ns if info.span_ns else None)}, "
        f"under data loading {share(_under(d))}",
        f"  tables    {_tables(d)}",
        f"  NCCL      {_nccl(d)}",
        f"  steps     {_steps(d)}",
        f"  profiler  {_diagnostics(d)}",
    ]
    return "\n".join(rows)


def _begin(start: int, session: int | None) -> str:
    return utc(session + start) if session is not None else "an unknown time (no session start in the export)"


def _under(d: Digest) -> float | None:
    info = d.info
    return (
        info.idle_data_load_ns / info.idle_ns if info.idle_data_load_ns is not None and info.idle_ns else None
    )


def _tables(d: Digest) -> str:
    rows = d.info.tables
    return ", ".join(
        f"{TABLE_WORDS[table]} {rows[table]:,}" if table in rows else f"{TABLE_WORDS[table]} not captured"
        for table in _TABLES
    )


def _nccl(d: Digest) -> str:
    if not d.info.nccl_kernels:
        return "no kernels" + (" (inside CUDA graphs traced whole?)" if d.info.hidden_by_graphs else "")
    ops = Counter(d.collectives["op"].to_list())
    names = ", ".join(f"{n} {op}" for op, n in sorted(ops.items(), key=lambda x: (-x[1], x[0])))
    comms = d.collectives["comm"].n_unique() - (1 if d.collectives["comm"].null_count() else 0)
    payload = f"payloads, {comms} communicator{'s' * (comms != 1)}" if d.info.has_payloads else "no payloads"
    return f"{d.info.nccl_kernels} kernels, {duration(d.info.nccl_ns)}: {names}; {payload}"


def _steps(d: Digest) -> str:
    if d.info.step_source is None:
        top = ", ".join(d.info.top_nvtx[:6])
        return f"no step ranges; NVTX ranges seen: {top}" if top else "no step ranges, no NVTX ranges"
    numbers = d.steps["number"].drop_nulls()
    span = f", {int(numbers[0])} to {int(numbers[-1])}" if numbers.len() else ""
    return f"{d.steps.height} ranges ({d.info.step_source}{span}); data-loading ranges: {d.info.data_ranges}"


def _cured(wrong: Sequence[Defect]) -> list[str]:
    """Every defect, and what would cure it; one cure for several is said after the last of them."""
    lines = []
    for d, after in zip(wrong, [*wrong[1:], None], strict=True):
        lines.append(f"  - {d.message} [{d.code}]")
        if d.cure and (after is None or after.cure != d.cure):
            lines.append(f"    cure: {d.cure}")
    return lines


def _diagnostics(d: Digest) -> str:
    info = d.info
    if not info.has_diagnostics:
        return "no diagnostics in the export"
    if not info.lost_events:
        return "no word of lost events"
    return f"{', '.join(info.lost_events)} (*_incomplete stands in complete captures as well)"
