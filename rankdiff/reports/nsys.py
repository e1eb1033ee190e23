"""From one export to tables: the place that knows the event tables and their versions.

Columns are chosen by name, never by position; versions differ in what they have, and a table without rows
was not captured. All times in the tables made here are session times.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rankdiff.errors import ReportError
from rankdiff.notes import Note
from rankdiff.reports.capture import LATEST_UTC_NS, read_capture
from rankdiff.reports.columns import framed, give_back, kept, process_ids, rows_of, whole
from rankdiff.reports.discover import Report
from rankdiff.reports.filters import Filter
from rankdiff.reports.launches import MADE, in_time, launch_columns, launches
from rankdiff.reports.names import custom_op, is_nccl_kernel, kernel_op, nvtx_op
from rankdiff.reports.nvtx import NVTX, add_nvtx
from rankdiff.reports.opening import open_reader
from rankdiff.reports.payloads import read_layouts
from rankdiff.reports.reader import INTEGER, Reader
from rankdiff.reports.tables import API, GPU, NO_KERNELS, KernelNames, ReportTables
from rankdiff.schema import check

KERNEL, MEMCPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET, GRAPH = "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SHAPE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
GPU_TABLES = {"kernel": KERNEL, "memcpy": MEMCPY, "memset": MEMSET, "graph": GRAPH}

# Columns of `gpu` that only some kinds of operations have.
_OF_SOME_KINDS = {
    "graph_node": "graphNodeId",
    **{f"{column[:-1]}_{column[-1].lower()}": column for column in SHAPE},
    "bytes": "bytes",
    "copy_kind": "copyKind",
    "source_memory": "srcKind",
    "target_memory": "dstKind",
}

_NEEDED = ("start", "end", "deviceId")  # of GPU work of any kind

# Page migrations of unified memory are not work of the program's streams.
NOT_UVM = Filter("copyKind", "not in", (11, 12, 13))
_EPOCH_LIKE_NS = 10**17  # three years: no session lasts that long, so these are times of the day


def load(report: Report, comm_regex: str | None = None) -> ReportTables:
    """Read one report.

    Parameters
    ----------
    report : Report
    comm_regex : str, optional
        Names of further kernels that communicate; searched anywhere in the short name.

    Raises
    ------
    ReportError
        When the file or a table that is needed cannot be read. Damage in NVTX ranges or OS calls costs only
        these, and a note says so.
    """
    reader = open_reader(report)
    try:
        capture, layouts = read_capture(reader), read_layouts(reader)
        tables = ReportTables(report, capture, reader, layouts, notes=reader.notes)
        gpu = _gpu_rows(tables)
        _fix_clock(tables, gpu)
        correlation = _add_api(tables)
        _add_gpu(tables, _usable_rows(tables, gpu), correlation, comm_regex)
        del gpu, correlation
        add_nvtx(tables)
        tables.capture_end_ns = _last(tables)
    except BaseException:
        reader.close()
        raise
    give_back()
    return tables


def unnamed_pid(reader: Reader) -> int:
    """Process of GPU rows that do not say theirs: the one that made CUDA calls; 0 when there are several."""
    if not reader.has(RUNTIME) or "globalTid" not in reader.columns(RUNTIME):
        return 0
    sql = f'SELECT DISTINCT ("globalTid" >> 24) & 16777215 FROM {reader.source(RUNTIME)} LIMIT 3'
    rows = reader.query(sql, (), RUNTIME)
    known = [int(row[0]) for row in rows if row[0] is not None]
    return known[0] if len(known) == 1 else 0


def no_gpu_work(reader: Reader) -> ReportError:
    """The error for a report in which nothing ran on a GPU, naming tables that look as if it had."""
    alike = [table for table in reader.tables() if table.startswith(KERNEL) and table != KERNEL]
    there = reader.columns(KERNEL)
    lacking = [column for column in _NEEDED if column not in there] if there else []
    if lacking:
        return ReportError(
            f"{reader.name}: table {reader.source(KERNEL)} has no column {', '.join(lacking)}",
            "Export with a version of Nsight Systems up to 2026, or use a newer rankdiff",
        )
    if alike:
        return ReportError(
            f"{reader.name}: no table {KERNEL}, but an unknown one like it: {', '.join(alike)}",
            "Export with a version of Nsight Systems up to 2026, or use a newer rankdiff",
        )
    nccl = (
        "; NCCL's NVTX ranges are there, but they tell when the host enqueued, not when the GPU worked"
        if _has_nccl_ranges(reader)
        else ""
    )
    return ReportError(
        f"{reader.name}: no GPU work was captured (no kernels, copies or graph launches){nccl}",
        "Capture with --trace=cuda,nvtx,osrt and export with all tables",
    )


def _has_nccl_ranges(reader: Reader) -> bool:
    """Whether the host's side of NCCL calls was captured."""
    there = reader.columns(NVTX)
    if not reader.has(NVTX) or "eventType" not in there:
        return False
    source, ranges = reader.source(NVTX), '"eventType" IN (59, 60)'
    names: list[str] = []
    if "text" in there:
        rows = reader.query(
            f'SELECT DISTINCT "text" FROM {source} WHERE {ranges} AND "text" LIKE \'nccl%\'', (), NVTX
        )
        names += [row[0] for row in rows if isinstance(row[0], str)]
    if "textId" in there:
        rows = reader.query(
            f'SELECT DISTINCT "textId" FROM {source} WHERE {ranges} AND "textId" IS NOT NULL', (), NVTX
        )
        texts = reader.strings([row[0] for row in rows if isinstance(row[0], int)])["value"].to_pylist()
        names += [text for text in texts if text]
    return any(nvtx_op(name) for name in names)


def _gpu_rows(tables: ReportTables) -> dict[str, pa.Table]:
    """Read the GPU operations, by kind, with times as in the export."""
    found = {}
    for kind, table in GPU_TABLES.items():
        columns = dict.fromkeys(
            ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid"), INTEGER
        )
        required = list(_NEEDED)
        filters: tuple[Filter, ...] = ()
        if kind == "kernel":
            columns |= dict.fromkeys(("shortName", "graphNodeId", *SHAPE), INTEGER)
            required += ["streamId", "shortName"]
        if kind in ("memcpy", "memset"):
            columns["bytes"] = INTEGER
        if kind == "memcpy":
            columns |= dict.fromkeys(("copyKind", "srcKind", "dstKind"), INTEGER)
        if kind == "memcpy" and "copyKind" in tables.reader.columns(table):
            filters = (NOT_UVM,)
        rows = tables.reader.read(table, columns, required=required, filters=filters)
        if tables.reader.has(table):
            tables.rows[table] = rows.num_rows
        found[kind] = rows
    return found


def _usable_rows(tables: ReportTables, gpu: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Leave out the operations whose times or device cannot be used."""
    found = {}
    for kind, rows in gpu.items():
        timed = tables.usable(GPU_TABLES[kind], rows, "globalPid")
        found[kind] = kept(rows, pc.and_(timed, rows["deviceId"].is_valid()))
    return found


def _fix_clock(tables: ReportTables, gpu: Mapping[str, pa.Table]) -> None:
    """Settle the shift that makes session times of event times."""
    capture = tables.capture
    tables.session_start_utc_ns = capture.session_start_utc_ns
    if capture.time_shift_ns is not None:
        tables.shift_ns = capture.time_shift_ns
        return
    starts = np.sort(np.concatenate([rows["start"].drop_null().to_numpy() for rows in gpu.values()]))
    # The middle one: a few broken times say nothing about the others.
    if starts.size and _EPOCH_LIKE_NS < starts[starts.size // 2] < LATEST_UTC_NS:
        first = int(starts[np.searchsorted(starts, _EPOCH_LIKE_NS)])
        # No word of a shift, yet times of the day: the export was normalised and its metadata left out.
        if tables.session_start_utc_ns is None:
            tables.session_start_utc_ns = first
        tables.shift_ns = tables.session_start_utc_ns
        message = f"{tables.report.name}: event times are UTC, as their size tells; the export does not say"
        tables.notes.append(Note("times_taken_as_utc", message))


def _add_api(tables: ReportTables) -> pa.Array:
    """Add the CUDA calls and return their correlation ids."""
    reader = tables.reader
    columns = dict.fromkeys(("start", "end", "globalTid", "correlationId", "nameId"), INTEGER)
    rows = reader.read(RUNTIME, columns, required=("start", "end", "globalTid", "correlationId"))
    if reader.has(RUNTIME):
        tables.rows[RUNTIME] = rows.num_rows
    tables.usable(RUNTIME, rows, "globalTid")  # these calls launch all the same; `cuda_calls` leaves them out
    named = reader.strings(pc.unique(rows["nameId"].drop_null()).to_numpy())
    tables.api_names = tuple(named["value"].to_pylist())
    columns = {
        "thread": rows["globalTid"],
        "start_ns": tables.session(rows["start"]),
        "end_ns": tables.session(rows["end"]),
        "name": rows_of(named["id"], rows["nameId"]),
    }
    tables.api = check(framed(columns), API, "api")
    # A copy: the column would keep the others in memory.
    return whole(rows["correlationId"])


def _add_gpu(
    tables: ReportTables, gpu: Mapping[str, pa.Table], correlation: pa.Array, comm_regex: str | None
) -> None:
    ids = pc.unique(gpu["kernel"]["shortName"].drop_null())
    named = tables.reader.strings(ids.to_numpy())
    tables.kernels = _kernel_names(named["value"].to_pylist(), comm_regex)
    parts: dict[str, list[pa.Array]] = {name: [] for name in GPU.names()}
    for kind, rows in gpu.items():
        columns = {
            "pid": process_ids(rows["globalPid"]),
            "device": rows["deviceId"],
            "start_ns": tables.session(rows["start"]),
            "end_ns": tables.session(rows["end"]),
            "correlation": rows["correlationId"],
            "context": rows["contextId"],
            "stream": rows["streamId"],
        }
        columns |= {
            name: rows[column] for name, column in _OF_SOME_KINDS.items() if column in rows.column_names
        }
        columns["name"] = (
            rows_of(named["id"], rows["shortName"]).fill_null(len(named))
            if kind == "kernel"
            else pa.chunked_array([np.full(rows.num_rows, len(named))])
        )
        for name, chunks in parts.items():
            if name in columns:
                chunks += columns[name].chunks
            elif name not in MADE:
                chunks.append(pa.nulls(rows.num_rows, INTEGER))
    # One column after the other: together they would need twice the memory.
    both = {name: pa.concat_arrays(chunks) for name, chunks in parts.items() if name not in MADE}
    unnamed = unnamed_pid(tables.reader) if both["pid"].null_count else 0
    both["pid"] = both["pid"].fill_null(unnamed)
    order = in_time(both)
    rows = pa.array(order)
    for name in both:
        both[name] = both[name].take(rows)
    kinds = np.repeat(np.arange(len(gpu), dtype=np.uint32), [part.num_rows for part in gpu.values()])
    call = launches(both["pid"], both["correlation"], tables.api["thread"], correlation)
    frame = framed(both | launch_columns(call, tables.api))
    of_kind = pl.Series("kind", list(gpu), dtype=pl.String).gather(kinds[order])
    tables.gpu = check(frame.with_columns(of_kind).select(GPU.names()), GPU, "gpu")


def _kernel_names(found: Sequence[str | None], comm_regex: str | None) -> KernelNames:
    extra = re.compile(comm_regex) if comm_regex else None
    texts = [text or "" for text in found]
    of_nccl = [is_nccl_kernel(text) for text in texts]
    custom = [
        bool(extra and extra.search(text)) and not nccl for text, nccl in zip(texts, of_nccl, strict=True)
    ]
    digests = [hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest() for text in texts]
    nameless = NO_KERNELS
    return KernelNames(
        texts=(*texts, *nameless.texts),
        ops=(
            *(custom_op(text) if own else kernel_op(text) for text, own in zip(texts, custom, strict=True)),
            *nameless.ops,
        ),
        communicates=np.array([*(a or b for a, b in zip(of_nccl, custom, strict=True)), False]),
        hashes=np.array([*(int.from_bytes(each, "little") for each in digests), 0], np.uint64),
    )


def _last(tables: ReportTables) -> int:
    times = (tables.gpu["end_ns"], tables.api["end_ns"], tables.nvtx["end_ns"], tables.nvtx["start_ns"])
    return max((last for each in times if isinstance(last := each.max(), int)), default=0)
