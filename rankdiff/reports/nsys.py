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
from rankdiff.reports.capture import read_capture
from rankdiff.reports.discover import Report
from rankdiff.reports.engine import open_engine
from rankdiff.reports.names import is_nccl_kernel, kernel_op
from rankdiff.reports.nvtx import add_nvtx
from rankdiff.reports.payloads import read_layouts
from rankdiff.reports.sqlite import INTEGER, TEXT, SqliteReader
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

# Page migrations of unified memory are not work of the program's streams.
NOT_UVM = '"copyKind" NOT IN (11, 12, 13)'
_ENDED = '"end" IS NOT NULL'
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
    reader = SqliteReader(report.path, report.name)
    try:
        db = open_engine()
        try:
            tables = ReportTables(report, read_capture(reader), reader, db, read_layouts(reader))
            gpu = _gpu_rows(tables)
            _fix_clock(tables, gpu)
            _add_gpu(tables, gpu, comm_regex)
            _add_api(tables)
            add_nvtx(tables)
            tables.capture_end_ns = _last(tables)
        except BaseException:
            db.close()
            raise
    except BaseException:
        reader.close()
        raise
    tables.notes.extend(reader.notes)
    return tables


def unnamed_pid(reader: SqliteReader) -> int:
    """Process of GPU rows that do not say theirs: the one that made CUDA calls; 0 when there are several."""
    if not reader.has(RUNTIME) or "globalTid" not in reader.columns(RUNTIME):
        return 0
    rows = reader.query(f'SELECT DISTINCT "globalTid" >> 24 & 16777215 FROM {RUNTIME} LIMIT 3', (), RUNTIME)
    known = [int(row[0]) for row in rows if row[0] is not None]
    return known[0] if len(known) == 1 else 0


def no_gpu_work(reader: SqliteReader) -> ReportError:
    """The error for a report in which nothing ran on a GPU, naming tables that look as if it had."""
    alike = [table for table in reader.tables() if table.startswith(KERNEL) and table != KERNEL]
    if alike:
        return ReportError(
            f"{reader.name}: no table {KERNEL}, but an unknown one like it: {', '.join(alike)}",
            "Export with a version of Nsight Systems up to 2026, or use a newer rankdiff",
        )
    return ReportError(
        f"{reader.name}: no GPU work was captured (no kernels, copies or graph launches)",
        "Capture with --trace=cuda,nvtx,osrt and export with all tables",
    )


def _gpu_rows(tables: ReportTables) -> dict[str, pa.Table]:
    """Read the GPU operations, by kind, with times as in the export."""
    found = {}
    for kind, table in GPU_TABLES.items():
        columns = dict.fromkeys(
            ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid"), INTEGER
        )
        required = ["start", "end", "deviceId"]
        where = _ENDED
        if kind == "kernel":
            columns |= dict.fromkeys(("shortName", "graphNodeId", *SHAPE), INTEGER)
            required += ["streamId", "shortName"]
        if kind in ("memcpy", "memset"):
            columns["bytes"] = INTEGER
        if kind == "memcpy":
            columns |= dict.fromkeys(("copyKind", "srcKind", "dstKind"), INTEGER)
        if kind == "memcpy" and "copyKind" in tables.reader.columns(table):
            where += f" AND {NOT_UVM}"
        rows = tables.reader.read(table, columns, required=required, where=where)
        if tables.reader.has(table):
            tables.rows[table] = rows.num_rows
        timed = pc.and_(
            pc.and_(rows["start"].is_valid(), rows["end"].is_valid()), rows["deviceId"].is_valid()
        )
        found[kind] = rows.filter(timed)
    return found


def _fix_clock(tables: ReportTables, gpu: Mapping[str, pa.Table]) -> None:
    """Settle the shift that makes session times of event times."""
    capture = tables.capture
    tables.session_start_utc_ns = capture.session_start_utc_ns
    if capture.time_shift_ns is not None:
        tables.shift_ns = capture.time_shift_ns
        return
    starts = [pc.min(rows["start"]).as_py() for rows in gpu.values() if rows.num_rows]
    first = min(starts, default=0)
    if first > _EPOCH_LIKE_NS:
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


def _kernel_names(reader: SqliteReader, ids: pa.ChunkedArray, comm_regex: str | None) -> pa.Table:
    """Names of the kernels, which of them communicate, the operation they name, and their hash.

    The hash is the same in every process and for every rank, which string ids are not.
    """
    names = reader.strings(pc.unique(ids.drop_null()).to_numpy())
    extra = re.compile(comm_regex) if comm_regex else None
    texts: list[str] = [text or "" for text in names["value"].to_pylist()]
    talks = [is_nccl_kernel(text) or bool(extra and extra.search(text)) for text in texts]
    hashes = [hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest() for text in texts]
    columns = {
        "id": names["id"],
        "name": pa.array(texts, TEXT),
        "communicates": pa.array(talks, pa.bool_()),
        "op": pa.array([kernel_op(text) for text in texts], TEXT),
        "hash": pa.array([int.from_bytes(each, "little") for each in hashes], pa.uint64()),
    }
    return pa.table(columns)


def _add_api(tables: ReportTables) -> None:
    reader = tables.reader
    columns = dict.fromkeys(("start", "end", "globalTid", "correlationId", "nameId"), INTEGER)
    rows = reader.read(RUNTIME, columns, required=("start", "end", "globalTid", "correlationId"))
    if reader.has(RUNTIME):
        tables.rows[RUNTIME] = rows.num_rows
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
