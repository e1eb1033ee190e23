"""What a rank did, step by step: kernels by signature, CUDA calls, copies, and the clock of its GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import polars as pl

from rankdiff.kernels.grouping import grouped, sums
from rankdiff.reports.gpu_clock import sm_clock
from rankdiff.reports.names import top
from rankdiff.reports.tables import ReportTables
from rankdiff.reports.threads import Calls
from rankdiff.schema import CLOCKS, COPIES, HOST_CALLS, SIGNATURES, check
from rankdiff.steps import launch_times, step_at

SMALL_BYTES = 8

_COUNTED_CLASSES = ("sync", "alloc", "launch")
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_PAGEABLE, _UNKNOWN_MEMORY = 0, 255
_TIMES = ("start_ns", "end_ns", "launch_ns")
_NONE = np.iinfo(np.int64).min  # instead of null


def launching_threads(tables: ReportTables, pid: int, device: int) -> list[int]:
    """Threads that launched GPU operations of a rank, sorted."""
    return tables.gpu_of(pid, device)["launch_tid"].drop_nulls().unique().sort().to_list()


def signatures(tables: ReportTables, pid: int, device: int, steps: pl.DataFrame) -> pl.DataFrame:
    """Kernels but NCCL's by step and signature: schema.SIGNATURES.

    Parameters
    ----------
    tables : ReportTables
    pid, device : int
    steps : polars.DataFrame
        schema.STEPS.
    """
    sides = [f"{what}_{side}" for what in ("grid", "block") for side in "xyz"]
    gpu = tables.gpu_of(pid, device)
    names = tables.kernels
    other = (gpu["kind"] == "kernel").to_numpy() & ~names.communicates[gpu["name"].to_numpy()]
    rows = _operations(gpu.select("name", *sides, *_TIMES).filter(pl.Series(other)), steps)
    # By name, not by number: several entries of an export may be the same text.
    first_of = {text: row for row, text in reversed(list(enumerate(names.texts)))}
    kernel = np.array([first_of[text] for text in names.texts])[rows["name"].to_numpy()]
    keys = [rows["step"].fill_null(_NONE).to_numpy(), kernel]
    group, first = grouped(np.stack(keys + [rows[side].fill_null(_NONE).to_numpy() for side in sides]))
    (ns,) = sums(group, first.size, rows["ns"].to_numpy()[None])
    shapes = {
        what: pl.concat_str([f"{what}_{side}" for side in "xyz"], separator="x") for what in ("grid", "block")
    }
    found = (
        rows.select("step", "name", *sides)[first]
        .with_columns(
            kernel=pl.Series(names.texts, dtype=pl.String).gather(kernel[first]),
            count=pl.Series(np.bincount(group, minlength=first.size), dtype=pl.Int64),
            ns=pl.Series(ns),
            **shapes,
        )
        .sort("step", "kernel", *sides)
    )
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
    gpu = tables.gpu_of(pid, device).select(
        "kind", "bytes", "copy_kind", "source_memory", "target_memory", *_TIMES
    )
    rows = _operations(gpu.filter(pl.col("kind").is_in(["memcpy", "memset"])), steps)
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
            kind=pl.when(pl.col("kind") == "memset").then(pl.lit("memset")).otherwise(kind),
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
    counted = [found in _COUNTED_CLASSES for found in calls.classes]
    of_name = np.array([*counted, False])  # row -1: a call without name
    parts = [np.arange(len(calls.thread))[calls.of(thread)] for thread in sorted(set(threads))]
    rows = np.concatenate(parts) if parts else np.empty(0, np.int64)
    rows = rows[of_name[calls.name[rows]]]
    start = calls.start[rows]
    step = step_at(steps, pl.Series(start))
    group, first = grouped(np.stack((step.fill_null(_NONE).to_numpy(), calls.name[rows])))
    (ns,) = sums(group, first.size, (calls.end[rows] - start)[None])
    name = calls.name[rows][first]
    found = pl.DataFrame(
        {
            "step": step.gather(first),
            "class": pl.Series(calls.classes, dtype=pl.String).gather(name),
            "call": pl.Series(calls.names, dtype=pl.String).gather(name),
            "count": pl.Series(np.bincount(group, minlength=first.size), dtype=pl.Int64),
            "ns": ns,
        }
    ).sort("step", "class", "call")
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


def top_kernels(tables: ReportTables, pid: int, device: int) -> tuple[str, ...]:
    """Most frequent kernels of a rank."""
    counts: Counter[str] = Counter()
    for row, count in tables.gpu_of(pid, device)["name"].value_counts().iter_rows():
        counts[tables.kernels.texts[row]] += count
    return top((name, count) for name, count in counts.items() if name)


def _operations(gpu: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Some GPU operations with their duration and step."""
    step = step_at(steps, launch_times(gpu["launch_ns"], gpu["start_ns"]))
    return gpu.with_columns(ns=pl.col("end_ns") - pl.col("start_ns"), step=step)


def kernels_launched(tables: ReportTables, pid: int, device: int) -> tuple[int, int]:
    """Kernels of one (process, device), and how many of them have their CUDA call in the export."""
    gpu = tables.gpu_of(pid, device).select("kind", "launched")
    launched = gpu.filter(pl.col("kind") == "kernel")["launched"]
    return len(launched), int(launched.sum())
