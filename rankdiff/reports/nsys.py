"""From one export to tables in DuckDB: the place that knows the event tables and their versions.

Columns are chosen by name, never by position; versions differ in what they have, and a table without rows
was not captured. All times in the tables made here are session times.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankdiff.errors import ReportError
from rankdiff.notes import Note
from rankdiff.reports.capture import LATEST_UTC_NS, read_capture
from rankdiff.reports.discover import Report
from rankdiff.reports.engine import open_engine
from rankdiff.reports.filters import Filter
from rankdiff.reports.names import custom_op, is_nccl_kernel, kernel_op, nvtx_op
from rankdiff.reports.nvtx import NVTX, add_nvtx
from rankdiff.reports.opening import open_reader
from rankdiff.reports.payloads import read_layouts
from rankdiff.reports.reader import INTEGER, TEXT, Reader
from rankdiff.reports.tables import ReportTables, process_ids

KERNEL, MEMCPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET, GRAPH = "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SHAPE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
GPU_TABLES = {"kernel": KERNEL, "memcpy": MEMCPY, "memset": MEMSET, "graph": GRAPH}

# Columns of `gpu` that only some kinds of operations have.
_OF_SOME_KINDS = {
    "name_id": "shortName",
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
    """Read one report into DuckDB.

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
        db = open_engine()
        try:
            capture, layouts = read_capture(reader), read_layouts(reader)
            tables = ReportTables(report, capture, reader, db, layouts, notes=reader.notes)
            gpu = _gpu_rows(tables)
            _fix_clock(tables, gpu)
            _add_gpu(tables, _usable_rows(tables, gpu), comm_regex)
            _add_api(tables)
            add_nvtx(tables)
            tables.capture_end_ns = _last(tables)
        except BaseException:
            db.close()
            raise
    except BaseException:
        reader.close()
        raise
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
        found[kind] = rows.filter(pc.and_(timed, rows["deviceId"].is_valid()))
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


def _add_gpu(tables: ReportTables, gpu: Mapping[str, pa.Table], comm_regex: str | None) -> None:
    parts = []
    for kind, rows in gpu.items():
        nothing = pa.nulls(rows.num_rows, INTEGER)
        there = set(rows.column_names)
        columns = {
            "kind": pa.array([kind] * rows.num_rows, TEXT),
            "pid": process_ids(rows["globalPid"]),
            "device": rows["deviceId"],
            "start_ns": tables.session(rows["start"]),
            "end_ns": tables.session(rows["end"]),
            "correlation": rows["correlationId"],
            "context": rows["contextId"],
            "stream": rows["streamId"],
        }
        for name, column in _OF_SOME_KINDS.items():
            columns[name] = rows[column] if column in there else nothing
        parts.append(pa.table(columns))
    both = pa.concat_tables(parts)
    if both["pid"].null_count:
        only = pa.scalar(unnamed_pid(tables.reader), pa.int64())
        both = both.set_column(1, "pid", pc.fill_null(both["pid"], only))
    tables.create("gpu", both)
    tables.create("name", _kernel_names(tables.reader, gpu["kernel"]["shortName"], comm_regex))


def _kernel_names(reader: Reader, ids: pa.ChunkedArray, comm_regex: str | None) -> pa.Table:
    """Names of the kernels, which of them communicate, the operation they name, and their hash.

    The hash is the same in every process and for every rank, which string ids are not.
    """
    names = reader.strings(pc.unique(ids.drop_null()).to_numpy())
    extra = re.compile(comm_regex) if comm_regex else None
    texts: list[str] = [text or "" for text in names["value"].to_pylist()]
    of_nccl = [is_nccl_kernel(text) for text in texts]
    custom = [
        bool(extra and extra.search(text)) and not nccl for text, nccl in zip(texts, of_nccl, strict=True)
    ]
    hashes = [hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest() for text in texts]
    columns = {
        "id": names["id"],
        "name": pa.array(texts, TEXT),
        "communicates": pa.array([a or b for a, b in zip(of_nccl, custom, strict=True)], pa.bool_()),
        "op": pa.array(
            [custom_op(text) if own else kernel_op(text) for text, own in zip(texts, custom, strict=True)],
            TEXT,
        ),
        "hash": pa.array([int.from_bytes(each, "little") for each in hashes], pa.uint64()),
    }
    return pa.table(columns)


def _add_api(tables: ReportTables) -> None:
    reader = tables.reader
    columns = dict.fromkeys(("start", "end", "globalTid", "correlationId", "nameId"), INTEGER)
    rows = reader.read(RUNTIME, columns, required=("start", "end", "globalTid", "correlationId"))
    if reader.has(RUNTIME):
        tables.rows[RUNTIME] = rows.num_rows
    tables.usable(RUNTIME, rows, "globalTid")  # these calls launch all the same; `cuda_calls` leaves them out
    table = {
        "pid": process_ids(rows["globalTid"]),
        "thread": rows["globalTid"],
        "start_ns": tables.session(rows["start"]),
        "end_ns": tables.session(rows["end"]),
        "correlation": rows["correlationId"],
        "name_id": rows["nameId"],
        "row": pa.array(np.arange(rows.num_rows)),
    }
    tables.create("api", pa.table(table))
    tables.create("api_name", reader.strings(pc.unique(rows["nameId"].drop_null()).to_numpy()))
    # Correlation ids are unique inside a process only; of several calls with one id the last row counts.
    tables.db.execute(
        "CREATE TABLE launch AS "
        "SELECT pid, correlation, call.thread, call.start_ns, call.end_ns, call.name_id FROM "
        "(SELECT pid, correlation, arg_max(struct_pack("
        "thread := thread, start_ns := start_ns, end_ns := end_ns, name_id := name_id), row) AS call "
        "FROM api WHERE correlation IS NOT NULL AND pid IS NOT NULL GROUP BY pid, correlation)"
    )


def _last(tables: ReportTables) -> int:
    last = tables.frame(
        "SELECT max(t) AS t FROM (SELECT max(end_ns) AS t FROM gpu UNION ALL SELECT max(end_ns) FROM api "
        "UNION ALL SELECT max(end_ns) FROM nvtx UNION ALL SELECT max(start_ns) FROM nvtx)"
    )["t"][0]
    return int(last) if last is not None else 0
