"""From one export to tables in DuckDB: the place that knows the event tables and their versions.

Columns are chosen by name, never by position; versions differ in what they have, and a table without rows
was not captured. All times in the tables made here are session times.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rankdiff.errors import ReportError
from rankdiff.notes import Note
from rankdiff.reports.capture import Capture, read_capture
from rankdiff.reports.discover import Report
from rankdiff.reports.engine import open_engine
from rankdiff.reports.names import is_nccl_kernel, kernel_op
from rankdiff.reports.payloads import Layouts, read_layouts
from rankdiff.reports.sqlite import BLOB, INTEGER, TEXT, SqliteReader

KERNEL, MEMCPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET, GRAPH = "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME, NVTX, OSRT, STRINGS = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "OSRT_API", "StringIds"
GPU_TABLES = {"kernel": KERNEL, "memcpy": MEMCPY, "memset": MEMSET, "graph": GRAPH}

# Page migrations of unified memory are not work of the program's streams.
_NOT_UVM = '"copyKind" NOT IN (11, 12, 13)'
_ENDED = '"end" IS NOT NULL'
_RANGES = (59, 60, 70, 71)  # push/pop, start/end, and the same imported from text
_DOMAIN = 75
_OS_CALL = 27  # 31 and 32 are markers of zero length
_EPOCH_LIKE_NS = 10**17  # three years: no session lasts that long, so these are times of the day
_GRAPH_LAUNCH = re.compile(r"cu(?:da)?GraphLaunch", re.IGNORECASE)


@dataclass
class ReportTables:
    """One report in DuckDB; a context manager that closes it.

    Tables: ``gpu`` (one row per GPU operation), ``api`` (CUDA calls), ``launch`` (one row per process and
    correlation id), ``nvtx`` (ranges), ``domain`` (NVTX domain names), ``name`` (names of kernels and calls).

    Attributes
    ----------
    shift_ns : int
        Taken out of every time.
    capture_end_ns : int
        Last event of any kind, session time: where ranges without an end are cut.
    rows : dict of str to int
        Rows read per table of the export; a table that was not captured is absent.
    """

    report: Report
    capture: Capture
    reader: SqliteReader
    db: duckdb.DuckDBPyConnection
    layouts: Layouts
    shift_ns: int = 0
    session_start_utc_ns: int | None = None
    capture_end_ns: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def __enter__(self) -> ReportTables:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and the export."""
        self.db.close()
        self.reader.close()

    def frame(self, sql: str, parameters: Iterable[Any] = ()) -> pl.DataFrame:
        """Run a query and return its rows as a polars frame."""
        return pl.DataFrame(self.db.sql(sql, params=list(parameters)).to_arrow_table())

    def os_calls(self, threads: Iterable[int]) -> pl.DataFrame | None:
        """OS runtime calls of some threads.

        Parameters
        ----------
        threads : iterable of int
            globalTid values. Helper threads sit in poll for the whole run and fill gigabytes, so the choice
            is made while reading.

        Returns
        -------
        polars.DataFrame or None
            ``thread``, ``start_ns``, ``end_ns``, ``name_id``, sorted by (thread, start_ns); None when OS calls
            were not captured.
        """
        if not self.reader.has(OSRT):
            return None
        wanted = sorted(set(threads))
        marks = ",".join("?" * len(wanted))
        table = self.reader.read(
            OSRT,
            {"start": INTEGER, "end": INTEGER, "globalTid": INTEGER, "nameId": INTEGER},
            required=("start", "end", "globalTid", "eventClass"),
            where=f'"eventClass" = {_OS_CALL} AND {_ENDED} AND "globalTid" IN ({marks})',
            parameters=wanted,
        )
        self.rows[OSRT] = self.rows.get(OSRT, 0) + table.num_rows
        return pl.DataFrame(
            pa.table(
                {
                    "thread": table["globalTid"],
                    "start_ns": _session(table["start"], self.shift_ns),
                    "end_ns": _session(table["end"], self.shift_ns),
                    "name_id": table["nameId"],
                }
            )
        ).sort("thread", "start_ns", "end_ns")


def load(report: Report, comm_regex: str | None = None) -> ReportTables:
    """Read one report into DuckDB.

    Parameters
    ----------
    report : Report
    comm_regex : str, optional
        Names of further kernels that communicate.

    Raises
    ------
    ReportError
        When the file or a table that is needed cannot be read.
    """
    reader = SqliteReader(report.path, report.name)
    try:
        db = open_engine()
        try:
            tables = ReportTables(report, read_capture(reader), reader, db, read_layouts(reader))
            tables.notes.extend(reader.notes)
            gpu = _gpu_rows(tables)
            _fix_clock(tables, gpu)
            _add_gpu(tables, gpu, comm_regex)
            _add_api(tables)
            _add_nvtx(tables)
            tables.capture_end_ns = _last(tables)
            _count_wrong(tables)
        except BaseException:
            db.close()
            raise
    except BaseException:
        reader.close()
        raise
    return tables


def is_graph_launch(name: str) -> bool:
    """Say whether a CUDA call replays a graph."""
    return _GRAPH_LAUNCH.match(name) is not None


def stable_hash(name: str) -> int:
    """64 bits of a name's hash, the same in every process and for every rank."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).digest(), "little")


def _session(times: pa.ChunkedArray, shift_ns: int) -> pa.ChunkedArray:
    return pc.subtract(times, pa.scalar(shift_ns, pa.int64())) if shift_ns else times


def _pids(global_ids: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.bit_wise_and(
        pc.shift_right(global_ids, pa.scalar(24, pa.int64())), pa.scalar(0xFFFFFF, pa.int64())
    )


def _gpu_rows(tables: ReportTables) -> dict[str, pa.Table]:
    """Read the GPU operations, by kind, with times as in the export."""
    found = {}
    for kind, table in GPU_TABLES.items():
        columns = {
            "start": INTEGER,
            "end": INTEGER,
            "deviceId": INTEGER,
            "contextId": INTEGER,
            "streamId": INTEGER,
            "correlationId": INTEGER,
            "globalPid": INTEGER,
        }
        required = ["start", "end", "deviceId"]
        where = _ENDED
        if kind == "kernel":
            columns |= {"shortName": INTEGER, "graphNodeId": INTEGER}
            required += ["streamId", "shortName"]
        if kind == "memcpy" and "copyKind" in tables.reader.columns(table):
            where += f" AND {_NOT_UVM}"
        rows = tables.reader.read(table, columns, required=required, where=where)
        if tables.reader.has(table):
            tables.rows[table] = rows.num_rows
        found[kind] = rows
    return found


def _fix_clock(tables: ReportTables, gpu: dict[str, pa.Table]) -> None:
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
        tables.notes.append(
            Note("times_taken_as_utc", f"{tables.report.name}: event times are UTC, inferred from their size")
        )


def _add_gpu(tables: ReportTables, gpu: dict[str, pa.Table], comm_regex: str | None) -> None:
    parts = []
    for kind, rows in gpu.items():
        nothing = pa.nulls(rows.num_rows, INTEGER)
        parts.append(
            pa.table(
                {
                    "kind": pa.repeat(pa.scalar(kind), rows.num_rows),
                    "pid": _pids(rows["globalPid"]),
                    "device": rows["deviceId"],
                    "start_ns": _session(rows["start"], tables.shift_ns),
                    "end_ns": _session(rows["end"], tables.shift_ns),
                    "correlation": rows["correlationId"],
                    "context": rows["contextId"],
                    "stream": rows["streamId"],
                    "name_id": rows["shortName"] if kind == "kernel" else nothing,
                    "graph_node": rows["graphNodeId"] if kind == "kernel" else nothing,
                }
            )
        )
    both = pa.concat_tables(parts)
    if both["pid"].null_count:
        both = both.set_column(1, "pid", pc.fill_null(both["pid"], _only_pid(tables, both["pid"])))
    _create(tables.db, "gpu", both)
    _create(tables.db, "name", _kernel_names(tables.reader, gpu["kernel"]["shortName"], comm_regex))


def _only_pid(tables: ReportTables, pids: pa.ChunkedArray) -> pa.Scalar:
    """The one process of a report whose GPU rows do not say theirs; 0 when there may be several."""
    known = set(pc.unique(pids).to_pylist()) - {None}
    if not known and "globalTid" in tables.reader.columns(RUNTIME):
        rows = tables.reader.query(
            f'SELECT DISTINCT "globalTid" >> 24 & 16777215 FROM {RUNTIME}', (), RUNTIME
        )
        known = {row[0] for row in rows} - {None}
    return pa.scalar(known.pop() if len(known) == 1 else 0, pa.int64())


def _kernel_names(reader: SqliteReader, ids: pa.ChunkedArray, comm_regex: str | None) -> pa.Table:
    """Names of the kernels, which of them communicate, the operation they name, and their hash."""
    names = reader.strings(pc.unique(ids.drop_null()).to_numpy())
    extra = re.compile(comm_regex) if comm_regex else None
    texts: list[str] = [text or "" for text in names["value"].to_pylist()]
    return pa.table(
        {
            "id": names["id"],
            "name": pa.array(texts, TEXT),
            "communicates": pa.array(
                [is_nccl_kernel(text) or bool(extra and extra.search(text)) for text in texts], pa.bool_()
            ),
            "op": pa.array([kernel_op(text) for text in texts], TEXT),
            "hash": pa.array([stable_hash(text) for text in texts], pa.uint64()),
        }
    )


def _add_api(tables: ReportTables) -> None:
    reader = tables.reader
    columns = {
        "start": INTEGER,
        "end": INTEGER,
        "globalTid": INTEGER,
        "correlationId": INTEGER,
        "nameId": INTEGER,
    }
    rows = reader.read(RUNTIME, columns, required=("start", "end", "globalTid", "correlationId"))
    if reader.has(RUNTIME):
        tables.rows[RUNTIME] = rows.num_rows
    table = pa.table(
        {
            "pid": _pids(rows["globalTid"]),
            "thread": rows["globalTid"],
            "start_ns": _session(rows["start"], tables.shift_ns),
            "end_ns": _session(rows["end"], tables.shift_ns),
            "correlation": rows["correlationId"],
            "name_id": rows["nameId"],
            "row": pa.array(np.arange(rows.num_rows)),
        }
    )
    _create(tables.db, "api", table)
    _create(tables.db, "api_name", reader.strings(pc.unique(rows["nameId"].drop_null()).to_numpy()))
    # Correlation ids are unique inside a process only; of several calls with one id the last row counts.
    tables.db.execute(
        "CREATE TABLE launch AS SELECT pid, correlation, call.thread, call.start_ns, call.end_ns FROM ("
        "SELECT pid, correlation, arg_max(struct_pack(thread := thread, start_ns := start_ns, end_ns := end_ns), row) AS call "
        "FROM api WHERE correlation IS NOT NULL AND pid IS NOT NULL GROUP BY pid, correlation)"
    )


def _add_nvtx(tables: ReportTables) -> None:
    reader = tables.reader
    columns = {
        "start": INTEGER,
        "end": INTEGER,
        "eventType": INTEGER,
        "globalTid": INTEGER,
        "domainId": INTEGER,
        "text": TEXT,
        "textId": INTEGER,
        "binaryData": BLOB,
        "jsonText": TEXT,
        "jsonTextId": INTEGER,
    }
    kinds = ", ".join(map(str, (*_RANGES, _DOMAIN)))
    rows = reader.read(
        NVTX,
        columns,
        required=("start", "end", "eventType", "globalTid"),
        where=f'"eventType" IN ({kinds}) AND "globalTid" IS NOT NULL',
    )
    if reader.has(NVTX):
        tables.rows[NVTX] = rows.num_rows
    ids = (
        pa.concat_arrays([*rows["textId"].chunks, *rows["jsonTextId"].chunks])
        if rows.num_rows
        else pa.array([], INTEGER)
    )
    _create(tables.db, "nvtx_string", reader.strings(pc.unique(ids.drop_null()).to_numpy()))
    raw = pa.table(
        {
            "pid": _pids(rows["globalTid"]),
            "thread": rows["globalTid"],
            "start_ns": _session(rows["start"], tables.shift_ns),
            "end_ns": _session(rows["end"], tables.shift_ns),
            "type": rows["eventType"],
            "domain": pc.fill_null(rows["domainId"], 0),
            "text": rows["text"],
            "text_id": rows["textId"],
            "json_id": rows["jsonTextId"],
            "json": rows["jsonText"],
            "payload": rows["binaryData"],
        }
    )
    tables.db.register("raw_nvtx", raw)
    tables.db.execute(
        "CREATE TABLE nvtx AS SELECT r.pid, r.thread, r.start_ns, r.end_ns, r.type, r.domain, "
        "coalesce(s.value, r.text, '') AS name, r.payload, coalesce(j.value, r.json) AS json FROM raw_nvtx r "
        "LEFT JOIN nvtx_string s ON s.id = r.text_id LEFT JOIN nvtx_string j ON j.id = r.json_id"
    )
    tables.db.unregister("raw_nvtx")
    tables.db.execute(
        f"CREATE TABLE domain AS SELECT DISTINCT pid, domain, name FROM nvtx WHERE type = {_DOMAIN}"
    )
    tables.db.execute(f"DELETE FROM nvtx WHERE type = {_DOMAIN}")


def _create(db: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    db.register("incoming", table)
    db.execute(f"CREATE TABLE {name} AS SELECT * FROM incoming")
    db.unregister("incoming")


def _last(tables: ReportTables) -> int:
    last = tables.frame(
        "SELECT max(t) AS t FROM (SELECT max(end_ns) AS t FROM gpu UNION ALL SELECT max(end_ns) FROM api "
        "UNION ALL SELECT max(end_ns) FROM nvtx UNION ALL SELECT max(start_ns) FROM nvtx)"
    )["t"][0]
    return int(last) if last is not None else 0


def _count_wrong(tables: ReportTables) -> None:
    for where, count in sorted(tables.reader.wrong_values.items()):
        tables.notes.append(
            Note(
                "wrong_type",
                f"{tables.report.name}: {count} values of {where} are of another type, read as missing",
            )
        )


def no_gpu_work(reader: SqliteReader) -> ReportError:
    """The error for a report in which nothing ran on a GPU, naming tables that look as if it had."""
    alike = [table for table in reader.tables() if table.startswith(KERNEL) and table != KERNEL]
    if alike:
        return ReportError(
            f"{reader.name}: no table {KERNEL}, but an unknown one like it: {', '.join(alike)}"
        )
    return ReportError(
        f"{reader.name}: no GPU work was captured (no kernels, copies or graph launches)",
        "Capture with --trace=cuda,nvtx,osrt and export with all tables",
    )
