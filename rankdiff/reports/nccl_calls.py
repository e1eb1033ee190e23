"""NCCL's own NVTX ranges: one row per call that names an operation or delimits a group."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from rankdiff.kernels.nesting import CLOSE, MEMBER, OPEN
from rankdiff.reports.names import nvtx_op
from rankdiff.reports.payloads import decode_blobs, decode_json
from rankdiff.reports.tables import ReportTables
from rankdiff.schema import check

_KINDS = {"group_start": OPEN, "group_end": CLOSE}

# Sorted by (thread, start_ns); of calls that start together OPEN comes first and CLOSE last.
CALLS = pl.Schema(
    {
        "thread": pl.Int64,  # globalTid
        "start_ns": pl.Int64,  # session time
        "end_ns": pl.Int64,  # session time; an open range ends with the capture
        "op": pl.String,  # operation, or group_start and group_end
        "kind": pl.Int64,  # MEMBER, OPEN or CLOSE of a group
        "comm": pl.String,  # communicator hash, 16 hex digits; null: no payload
        "bytes": pl.Int64,  # message size; null: no payload
        "root": pl.Int64,  # root in the communicator; null: no payload or no root
    }
)


def find_calls(tables: ReportTables, pid: int) -> pl.DataFrame:
    """NCCL calls of a process.

    Calls on communicators (ncclCommInitRank, ...) are left out: they name no operation, and one whose end was
    lost encloses the rest of the session.

    Parameters
    ----------
    tables : ReportTables
    pid : int

    Returns
    -------
    polars.DataFrame
        CALLS.
    """
    names = tables.frame("SELECT DISTINCT name FROM nvtx WHERE pid = ? AND name ILIKE 'nccl%'", [pid])
    known = [(name, op) for name in names["name"] if (op := nvtx_op(name))]
    if not known:
        return pl.DataFrame(schema=CALLS)
    table = {
        "name": pa.array([name for name, _ in known], pa.string()),
        "op": pa.array([op for _, op in known], pa.string()),
        "kind": pa.array([_KINDS.get(op, MEMBER) for _, op in known], pa.int64()),
    }
    tables.db.register("nccl_name", pa.table(table))
    rows = tables.arrow(
        "SELECT n.thread, n.start_ns, coalesce(n.end_ns, $2) AS end_ns, c.op, c.kind, n.payload, n.json "
        f"FROM nvtx n JOIN nccl_name c ON c.name = n.name WHERE n.pid = $1 AND {of_nccl(tables, pid)} "
        "ORDER BY n.thread, n.start_ns, c.kind <> 1, c.kind, n.end_ns DESC",
        [pid, tables.capture_end_ns],
    )
    tables.db.unregister("nccl_name")
    calls = pl.DataFrame(rows.select(["thread", "start_ns", "end_ns", "op", "kind"]))
    payloads = _payloads(tables, rows).select("comm", "bytes", "root")
    return check(pl.concat([calls, payloads], how="horizontal"), CALLS, "calls")


def of_nccl(tables: ReportTables, pid: int) -> str:
    """SQL condition that a row of `nvtx`, called n, is one of NCCL's own ranges.

    Windowed exports lose the row that names the domain; then the name of the range must do, but not in a
    domain that has another name.
    """
    domains = tables.frame("SELECT domain, name FROM domain WHERE pid = ?", [pid])
    nccl = domains.filter(pl.col("name") == "NCCL")["domain"].unique().sort().to_list()
    others = domains["domain"].unique().sort().to_list()
    if nccl:
        return f"n.domain IN ({', '.join(map(str, nccl))})"
    named = "regexp_matches(n.name, '(?i)^nccl[a-z]')"  # but not nccl:all_reduce, which is PyTorch's
    return f"({named} AND n.domain NOT IN ({', '.join(map(str, others))}))" if others else named


def _payloads(tables: ReportTables, rows: pa.Table) -> pl.DataFrame:
    """Payloads of the calls: from the blobs, or from their JSON where there are no blobs."""
    blobs = pa.concat_arrays(
        [chunk.cast(pa.binary()) for chunk in rows["payload"].chunks] or [pa.array([], pa.binary())]
    )
    payloads = decode_blobs(blobs, tables.layouts)
    texts = pl.Series("json", rows["json"], dtype=pl.String)
    if payloads["comm"].null_count() < payloads.height or texts.null_count() == len(texts):
        return payloads
    texts = texts.fill_null("")
    distinct = texts.unique()
    decoded = decode_json(distinct.to_list()).with_columns(distinct)
    order = pl.DataFrame({"json": texts}).with_row_index("row")
    return order.join(decoded, on="json", how="left").sort("row")
