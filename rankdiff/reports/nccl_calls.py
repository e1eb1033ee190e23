"""NCCL's own NVTX ranges: one row per call that names an operation or delimits a group."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from rankdiff.kernels.nesting import CLOSE, MEMBER, OPEN
from rankdiff.reports.names import nvtx_op
from rankdiff.reports.payloads import decode_blobs, decode_json
from rankdiff.reports.tables import ReportTables
from rankdiff.schema import check

# But not nccl:all_reduce, which is PyTorch's.
_NAMED = "^(?i)nccl[a-z]"
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
    rows = tables.nvtx_of(pid).filter(of_nccl(tables, pid))
    codes = rows["name"].unique()
    op = {code: nvtx_op(name) for code, name in zip(codes, tables.nvtx_names.gather(codes), strict=True)}
    known = [(code, found, _KINDS.get(found, MEMBER)) for code, found in op.items() if found]
    names = pl.DataFrame(known, schema={"name": pl.Int64, "op": pl.String, "kind": pl.Int64}, orient="row")
    rows = rows.join(names, on="name", how="inner", maintain_order="left").sort(
        "thread",
        "start_ns",
        pl.col("kind") != OPEN,
        "kind",
        "end_ns",
        descending=[False, False, False, False, True],
        nulls_last=True,
        maintain_order=True,
    )
    rows = rows.with_columns(pl.col("end_ns").fill_null(tables.capture_end_ns))
    calls = rows.select("thread", "start_ns", "end_ns", "op", "kind")
    payloads = _payloads(tables, rows).select("comm", "bytes", "root")
    return check(pl.concat([calls, payloads], how="horizontal"), CALLS, "calls")


def of_nccl(tables: ReportTables, pid: int) -> pl.Expr:
    """Condition that a row of `ReportTables.nvtx` is one of NCCL's own ranges.

    Windowed exports lose the row that names the domain; then the name of the range must do, but not in a
    domain that has another name.
    """
    domains = tables.domains.filter(pl.col("pid") == pid)
    nccl = domains.filter(pl.col("name") == "NCCL")["domain"].unique().sort().to_list()
    others = domains["domain"].unique().sort().to_list()
    if nccl:
        return pl.col("domain").is_in(nccl)
    named = pl.col("name").is_in(tables.nvtx_names.str.contains(_NAMED).arg_true().to_list())
    return named & ~pl.col("domain").is_in(others) if others else named


def _payloads(tables: ReportTables, rows: pl.DataFrame) -> pl.DataFrame:
    """Payloads of the calls: from the blobs, or from their JSON where there are no blobs."""
    blobs = rows["payload"].to_arrow().cast(pa.binary())
    payloads = decode_blobs(blobs, tables.layouts)
    texts = rows["json"]
    if payloads["comm"].null_count() < payloads.height or texts.null_count() == len(texts):
        return payloads
    texts = texts.fill_null("")
    distinct = texts.unique()
    decoded = decode_json(distinct.to_list()).with_columns(distinct)
    order = pl.DataFrame({"json": texts}).with_row_index("row")
    return order.join(decoded, on="json", how="left").sort("row")
