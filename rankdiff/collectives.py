"""NCCL kernels to collectives: the call that launched each, its communicator, operation and size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from rankdiff.groups import share_out
from rankdiff.kernels.intervals import I64
from rankdiff.kernels.nesting import CLOSE, MEMBER, OPEN, groups, innermost
from rankdiff.reports.names import op_class
from rankdiff.reports.nccl_calls import find_calls
from rankdiff.reports.tables import ReportTables
from rankdiff.schema import COLLECTIVES, check
from rankdiff.steps import launch_times, step_at

_OF_KERNEL = (
    "device",
    "start_ns",
    "end_ns",
    "stream",
    "context",
    "name",
    "launch_ns",
    "launch_end_ns",
    "launch_tid",
)


def find_collectives(tables: ReportTables, pid: int, steps: pl.DataFrame) -> dict[int, pl.DataFrame]:
    """Collectives of a process.

    Parameters
    ----------
    tables : ReportTables
    pid : int
    steps : polars.DataFrame
        schema.STEPS of the process.

    Returns
    -------
    dict of int to polars.DataFrame
        schema.COLLECTIVES by device, for every device on which the process ran a kernel.
    """
    kernels = tables.gpu_of(pid).select("kind", *_OF_KERNEL).filter(pl.col("kind") == "kernel")
    names = tables.kernels
    communicates = names.communicates[kernels["name"].to_numpy()]
    nccl = kernels.drop("kind").filter(pl.Series(communicates)).with_row_index("row")
    name = nccl["name"].to_numpy()
    nccl = nccl.with_columns(
        kernel=pl.Series(names.texts, dtype=pl.String).gather(name),
        kernel_op=pl.Series(names.ops, dtype=pl.String).gather(name),
    )
    nccl = _with_operation(nccl, find_calls(tables, pid))
    # By the time of the launch, on whatever thread: NCCL is launched from threads without ranges.
    step = step_at(steps, launch_times(nccl["launch_ns"], nccl["start_ns"]))
    nccl = nccl.with_columns(step.alias("step"))
    classes = {op: op_class(op) for op in nccl["op"].unique()}
    nccl = nccl.with_columns(op_class=pl.col("op").replace_strict(classes, return_dtype=pl.String))
    hashes = names.hashes[kernels["name"].to_numpy()]
    launched = kernels["launch_ns"].fill_null(kernels["start_ns"]).to_numpy()
    out = {}
    for device in kernels["device"].unique().sort():
        on_device = (kernels["device"] == device).to_numpy()
        tokens = _lead_tokens(launched[on_device], communicates[on_device], hashes[on_device])
        mine = nccl.filter(pl.col("device") == device).sort("row").with_columns(tokens)
        out[int(device)] = check(mine.select(COLLECTIVES.names()), COLLECTIVES, "collectives")
    return out


def _lead_tokens(
    launched: I64, communicates: npt.NDArray[np.bool_], hashes: npt.NDArray[np.uint64]
) -> pl.Series:
    """For each NCCL kernel the wrapping sum of the hashes of the other kernels launched since the one before.

    In the order of the launches, which is the program's: kernels of several streams start in another order
    every time. Kernels whose launch was not captured take the place that their start gives them.
    """
    order = np.argsort(launched, kind="stable")
    is_nccl = communicates[order]
    so_far = np.cumsum(np.where(is_nccl, np.uint64(0), hashes[order]), dtype=np.uint64)[is_nccl]
    before = np.concatenate([np.zeros(1, np.uint64), so_far[:-1]]) if so_far.size else so_far
    tokens = np.zeros(launched.size, np.uint64)
    tokens[order[is_nccl]] = so_far - before
    return pl.Series("lead_token", tokens[communicates], dtype=pl.UInt64)


def _with_operation(nccl: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Add comm, op, bytes, root, ops_in_group and op_source to the NCCL kernels."""
    call = _launching_call(nccl, calls)
    launches = np.bincount(call[call >= 0], minlength=calls.height)
    group = groups(calls["thread"], calls["kind"], launches)
    calls = calls.with_columns(pl.Series("group", group), call=pl.int_range(pl.len(), dtype=pl.Int64))
    launched_by = calls.select("call", "kind", "group", "comm", "bytes", "root", "op")
    found = nccl.with_columns(pl.Series("call", call)).join(launched_by, on="call", how="left")
    by_group = (pl.col("kind") == CLOSE) & (pl.col("group") >= 0)
    single = found.filter(pl.col("kind") == MEMBER).select(
        "row", "comm", "root", "op", "bytes", ops_in_group=1
    )
    streams = (
        nccl.select("row", "context", "stream").join(single, on="row").select("context", "stream", "comm")
    )
    grouped = share_out(found.filter(by_group), calls, streams)
    told = pl.concat([single.cast({"ops_in_group": pl.Int64}), grouped])
    nccl = nccl.join(told, on="row", how="left").sort("row")
    op, named = pl.col("op"), pl.col("op").is_not_null()
    return nccl.with_columns(
        # NCCL 2.29 fuses broadcasts from every rank into one kernel that gathers.
        op=pl.when(named & ~((op == "broadcast") & (pl.col("kernel_op") == "all_gather")))
        .then(op)
        .otherwise(pl.col("kernel_op")),
        op_source=pl.when(named & pl.col("comm").is_not_null())
        .then(pl.lit("payload"))
        .when(named)
        .then(pl.lit("nvtx"))
        .otherwise(pl.lit("kernel")),
        ops_in_group=pl.col("ops_in_group").fill_null(1),
    )


def _launching_call(nccl: pl.DataFrame, calls: pl.DataFrame) -> I64:
    """Row of the innermost NCCL call, on the launching thread, that contains each launch; -1 for none."""
    candidates = calls.with_row_index("call").filter(pl.col("kind") != OPEN)
    launched = nccl.filter(pl.col("launch_ns").is_not_null())
    at = innermost(
        candidates["thread"],
        candidates["start_ns"],
        candidates["end_ns"],
        launched["launch_tid"],
        launched["launch_ns"],
    )
    out = np.full(nccl.height, -1, np.int64)
    hit = at >= 0
    out[launched["row"].to_numpy()[hit]] = candidates["call"].to_numpy()[at[hit]]
    return out
