"""What is in each report, rank by rank, and how to capture better."""

from __future__ import annotations

from collections import Counter

from rankdiff.compare import Readings
from rankdiff.digest import Digest
from rankdiff.render.document import clean_lines
from rankdiff.reports.identity import Identity
from rankdiff.units import duration, share, utc

_TABLES = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", "kernels"),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "copies"),
    ("CUPTI_ACTIVITY_KIND_MEMSET", "sets"),
    ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "graph launches"),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUDA calls"),
    ("NVTX_EVENTS", "NVTX events"),
    ("OSRT_API", "OS calls"),
)


def to_text(found: Readings) -> str:
    """Render the readings of a job's reports as plain text with a final line feed."""
    blocks = [_rank(i, d) for i, d in zip(found.identities, found.digests, strict=True)]
    advice = _advice(found)
    if advice:
        blocks.append("To capture better:\n" + "\n".join(f"  - {a}" for a in advice))
    if found.missing:
        blocks.append(f"not captured: rank {', '.join(map(str, found.missing))}")
    if found.notes:
        blocks.append("\n".join(f"warning: {n.message} [{n.code}]" for n in found.notes))
    return clean_lines("\n\n".join(blocks)) + "\n"


def _rank(i: Identity, d: Digest) -> str:
    info = d.info
    rows = [
        f"rank {i.label} on {i.node}: {info.claims.report}",
        f"  identity  rank from {i.rank_source}, node from {i.node_source}; pid {info.claims.pid}, "
        f"CUDA device {info.claims.device}",
        f"  gpu       {info.gpu_name or 'name unknown'}, uuid {info.gpu_uuid or 'unknown'}, "
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
        f"{name} {rows[table]:,}" if table in rows else f"{name} not captured" for table, name in _TABLES
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


def _advice(found: Readings) -> list[str]:
    digests = found.digests
    out = []

    def some(test: list[bool]) -> str:
        labels = [i.label for i, bad in zip(found.identities, test, strict=True) if bad]
        return (
            "all ranks"
            if len(labels) == len(digests)
            else f"rank {', '.join(labels[:8])}{', ...' * (len(labels) > 8)}"
        )

    hidden = [d.info.hidden_by_graphs for d in digests]
    if any(hidden):
        out.append(
            f"nsys profile --cuda-graph-trace=node: collectives inside CUDA graphs are hidden ({some(hidden)})"
        )
    bare = [bool(d.info.nccl_kernels) and not d.info.has_payloads for d in digests]
    if any(bare):
        out.append(
            f"nsys profile -t nvtx and nsys export --include-blobs=true: communicators are unknown ({some(bare)})"
        )
    for table, option, why in (
        (
            "NVTX_EVENTS",
            "nsys profile -t cuda,nvtx,osrt",
            "no NVTX ranges, so no steps and no data-loading time",
        ),
        ("OSRT_API", "nsys profile -t cuda,nvtx,osrt", "no OS runtime calls, so no system call to blame"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "nsys profile -t cuda", "no CUDA calls, so no launches"),
    ):
        absent = [table not in d.info.tables for d in digests]
        if any(absent):
            out.append(f"{option}: {why} ({some(absent)})")
    unstepped = [d.info.step_source is None and "NVTX_EVENTS" in d.info.tables for d in digests]
    if any(unstepped):
        out.append(
            f"an NVTX range around each step, like nvtx.range_push(f'step {{i}}'), or --step-range ({some(unstepped)})"
        )
    unloaded = [d.info.data_ranges == 0 and "NVTX_EVENTS" in d.info.tables for d in digests]
    if any(unloaded):
        out.append(
            f"an NVTX range named data_load around fetching a batch, or --data-range ({some(unloaded)})"
        )
    return out
