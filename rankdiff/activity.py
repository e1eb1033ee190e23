"""What a rank did, step by step: kernels by signature, CUDA calls, copies, and the clock of its GPU."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl

from rankdiff.reports.gpu_clock import sm_clock
from rankdiff.reports.tables import ReportTables
from rankdiff.reports.threads import Calls
from rankdiff.schema import CLOCKS, COPIES, HOST_CALLS, SIGNATURES, check
from rankdiff.steps import launch_times, step_at

SMALL_BYTES = 8

_COUNTED_CLASSES = ("sync", "alloc", "launch")
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_PAGEABLE, _UNKNOWN_MEMORY = 0, 255


def launching_threads(tables: ReportTables, pid: int, device: int) -> list[int]:
    """Threads that launched GPU operations of a rank, sorted."""
    rows = tables.frame(
        "SELECT DISTINCT l.thread FROM gpu g JOIN launch l ON l.pid = g.pid AND l.correlation = g.correlation "
        "WHERE g.pid = ? AND g.device = ? ORDER BY 1",
        [pid, device],
    )
    return rows["thread"].to_list()


def signatures(tables: ReportTables, pid: int, device: int, steps: pl.DataFrame) -> pl.DataFrame:
    """Kernels but NCCL's by step and signature: schema.SIGNATURES.

    Parameters
    ----------
    tables : ReportTables
    pid, device : int
    steps : polars.DataFrame
        schema.STEPS.
    """
    columns = "coalesce(n.name, '') AS kernel, g.grid_x, g.grid_y, g.grid_z, g.block_x, g.block_y, g.block_z"
    which = "g.kind = 'kernel' AND NOT coalesce(n.communicates, false)"
    rows = _operations(tables, pid, device, columns, which, steps)
    sides = [f"{what}_{side}" for what in ("grid", "block") for side in "xyz"]
    summed = rows.group_by("step", "kernel", *sides).agg(count=pl.len().cast(pl.Int64), ns=pl.col("ns").sum())
    shapes = {
        what: pl.concat_str([f"{what}_{side}" for side in "xyz"], separator="x") for what in ("grid", "block")
    }
    found = summed.with_columns(**shapes).sort("step", "kernel", *sides)
    return check(found.select(SIGNATURES.names()), SIGNATURES, "signatures")


def copies(tables: ReportTables, pid: int, device: int, steps: pl.DataFrame) -> pl.DataFrame:
    """Copies and sets by step, direction and memory: schema.COPIES.

    Parameters
    ----------
    tables : ReportTables
    pid, device : int
    steps : polars.DataFrame
        schema.STEPS.
    """
    columns = "g.kind AS operation, g.bytes, g.copy_kind, g.source_memory, g.target_memory"
    rows = _operations(tables, pid, device, columns, "g.kind IN ('memcpy', 'memset')", steps)
    kind = pl.col("copy_kind").replace_strict(_COPY_KINDS, default="other", return_dtype=pl.String)
    host_side = (
        pl.when(pl.col("copy_kind") == 1)
        .then(pl.col("source_memory"))
        .when(pl.col("copy_kind") == 2)
        .then(pl.col("target_memory"))
    )
    size = pl.col("bytes").fill_null(0)
    found = (
        rows.with_columns(
            kind=pl.when(pl.col("operation") == "memset").then(pl.lit("memset")).otherwise(kind),
            pageable=pl.when(host_side < _UNKNOWN_MEMORY).then(host_side == _PAGEABLE),
        )
        .group_by("step", "kind", "pageable")
        .agg(
            count=pl.len().cast(pl.Int64),
            small=(pl.col("bytes") <= SMALL_BYTES).sum().cast(pl.Int64),
            bytes=size.sum(),
            ns=pl.col("ns").sum(),
        )
        .sort("step", "kind", "pageable")
    )
    return check(found.select(COPIES.names()), COPIES, "copies")


def host_calls(calls: Calls, threads: Iterable[int], steps: pl.DataFrame) -> pl.DataFrame:
    """CUDA calls of some threads by step: schema.HOST_CALLS.

    Parameters
    ----------
    calls : Calls
        CUDA calls.
    threads : iterable of int
        globalTid values.
    steps : polars.DataFrame
        schema.STEPS.
    """
    kinds = pl.DataFrame(
        {"name": range(len(calls.names)), "call": calls.names, "class": calls.classes},
        schema={"name": pl.Int64, "call": pl.String, "class": pl.String},
    ).filter(pl.col("class").is_in(_COUNTED_CLASSES))
    counted = np.isin(calls.name, kinds["name"].to_numpy()) & np.isin(calls.thread, sorted(threads))
    start = pl.Series(calls.start[counted])
    rows = pl.DataFrame(
        {
            "name": calls.name[counted],
            "step": step_at(steps, start),
            "ns": calls.end[counted] - start.to_numpy(),
        }
    )
    summed = rows.group_by("step", "name").agg(count=pl.len().cast(pl.Int64), ns=pl.col("ns").sum())
    found = summed.join(kinds, on="name").sort("step", "class", "call")
    return check(found.select(HOST_CALLS.names()), HOST_CALLS, "host_calls")


def clocks(
    tables: ReportTables, gpu: int | None, window: tuple[int, int], steps: pl.DataFrame
) -> pl.DataFrame:
    """Mean SM clock by step: schema.CLOCKS.

    Parameters
    ----------
    tables : ReportTables
    gpu : int or None
        Index of the rank's GPU on its node; None: not known.
    window : (int, int)
        First GPU start and last GPU end of the rank, session times in ns: samples outside tell of others.
    steps : polars.DataFrame
        schema.STEPS.
    """
    samples = sm_clock(tables, gpu).filter(pl.col("at_ns").is_between(*window, closed="left"))
    found = (
        samples.with_columns(step_at(steps, samples["at_ns"]).alias("step"))
        .group_by("step", maintain_order=True)  # means of floats depend on the order
        .agg(samples=pl.len().cast(pl.Int64), sm_mhz=pl.col("sm_mhz").mean())
        .sort("step")
    )
    return check(found.select(CLOCKS.names()), CLOCKS, "clocks")


def _operations(
    tables: ReportTables, pid: int, device: int, columns: str, which: str, steps: pl.DataFrame
) -> pl.DataFrame:
    """Some columns of some GPU operations with their duration and step, in no particular order."""
    rows = tables.frame(
        f"SELECT {columns}, g.end_ns - g.start_ns AS ns, g.start_ns, l.start_ns AS launch_ns FROM gpu g "
        "LEFT JOIN name n ON n.id = g.name_id "
        "LEFT JOIN launch l ON l.pid = g.pid AND l.correlation = g.correlation "
        f"WHERE g.pid = ? AND g.device = ? AND {which}",
        [pid, device],
    )
    return rows.with_columns(step_at(steps, launch_times(rows["launch_ns"], rows["start_ns"])).alias("step"))


def kernels_launched(tables: ReportTables, pid: int, device: int) -> tuple[int, int]:
    """Kernels of one (process, device), and how many of them have their CUDA call in the export."""
    rows = tables.frame(
        "SELECT count(*), count(l.pid) FROM gpu g LEFT JOIN launch l ON l.pid = g.pid AND "
        "l.correlation = g.correlation WHERE g.kind = 'kernel' AND g.pid = ? AND g.device = ?",
        [pid, device],
    )
    kernels, launched = rows.row(0)
    return int(kernels), int(launched)
