"""One labelled timeline per rank: every nanosecond of its GPU window has exactly one class.

While the GPU works, the class is what it works on. In an idle gap it is what the thread did that launches the
operation ending the gap: no other thread could have ended it sooner. Threads parked in poll or in a condition
variable for the whole run are therefore no evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from rankdiff.figures import Figures
from rankdiff.kernels.intervals import I64, union
from rankdiff.kernels.partition import flatten, partition, split
from rankdiff.ranges import Ranges, range_names
from rankdiff.reports.tables import ReportTables
from rankdiff.reports.threads import NO_NAME, Calls
from rankdiff.schema import CLASSES, check

Union = tuple[I64, I64]

_CODE = {name: code for code, name in enumerate(CLASSES)}
_BY_CUDA_CALL = [_CODE[name] for name in ("sync", "alloc", "launch")]
_WAIT = 1  # layer of the wait for the start, after the launch

# One row per piece of time, sorted, disjoint and abutting: together the rank's GPU window.
PIECES = pl.Schema(
    {
        "start_ns": pl.Int64,  # session time
        "end_ns": pl.Int64,  # session time
        "gap": pl.Int64,  # idle gap of the rank, counted from 0; null: the GPU is busy
        "class": pl.Int64,  # row in CLASSES
        "range": pl.Int64,  # row in Timeline.ranges; null: none
        "call": pl.Int64,  # row in Timeline.calls; null: none
    }
)


@dataclass(frozen=True)
class Evidence:
    """What is known of the threads of a process.

    Attributes
    ----------
    profiler : pair of (n,) int64, ns
        Union of the profiler's own work in the process.
    ranges : Ranges
        Of the threads that end gaps.
    cuda, os : Calls
        Of the threads that end gaps; none where they were not captured.
    off_cpu : polars.DataFrame
        From `reports.threads.off_cpu`; no rows where it was not captured.
    """

    profiler: Union
    ranges: Ranges
    cuda: Calls
    os: Calls
    off_cpu: pl.DataFrame


@dataclass(frozen=True)
class Timeline:
    """The timeline of a rank.

    Attributes
    ----------
    pieces : polars.DataFrame
        PIECES. Neighbours may be labelled alike.
    ranges, calls : tuple of str
        Names, sorted and distinct, so that their rows are in the order of the names. The call is the innermost
        OS call, else the innermost CUDA call of the thread at that time. But where the class is that of a CUDA
        call (sync, alloc, launch), it is the CUDA call, for the OS calls below it are the driver's; and
        after a launch has returned, it is that launch.
    unclassified : tuple of str
        OS calls of unknown class that the thread was in while its time was taken for code.
    """

    pieces: pl.DataFrame
    ranges: tuple[str, ...]
    calls: tuple[str, ...]
    unclassified: tuple[str, ...]


def find_timeline(tables: ReportTables, figures: Figures, evidence: Evidence) -> Timeline:
    """Label the GPU window of a rank.

    Parameters
    ----------
    tables : ReportTables
    figures : Figures
    evidence : Evidence
    """
    names = tuple(sorted({*evidence.os.names, *evidence.cuda.names}))
    parts = [_busy(figures)]
    parts += [_of_thread(figures, thread, evidence, names) for thread in np.unique(figures.enders.thread)]
    pieces, ranges = _with_named_ranges(tables, pl.concat(parts).sort("start_ns"))
    return Timeline(check(pieces, PIECES, "pieces"), ranges, names, _unclassified(pieces, names, evidence.os))


def _busy(figures: Figures) -> pl.DataFrame:
    """Pieces in which the GPU works."""
    layers = []
    for kind in ("compute", "copy"):
        rows = figures.work.filter(pl.col("kind") == kind)
        layers.append((rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()))
    layers.append(figures.nccl)
    window = figures.busy[0][:1], figures.busy[1][-1:]
    _, start, end, layer, _ = partition(*window, *_stacked(layers))
    busy = layer >= 0  # the layers are in the order of BUSY_CLASSES
    columns = {"start_ns": start[busy], "end_ns": end[busy], "class": layer[busy]}
    nothing = {name: pl.lit(None, pl.Int64) for name in ("gap", "range", "call")}
    return pl.DataFrame(columns).with_columns(**nothing).select(PIECES.names())


def _of_thread(figures: Figures, thread: int, evidence: Evidence, names: tuple[str, ...]) -> pl.DataFrame:
    """Pieces of the gaps that a thread ends (0: not known which); `range` is then a row of Ranges."""
    gaps = np.flatnonzero(figures.enders.thread == thread)
    layers = [("profiler", evidence.profiler)] + (_layers(figures, gaps, thread, evidence) if thread else [])
    codes = np.array([*(_CODE[name] for name, _ in layers), _CODE["host" if thread else "unknown"]])
    windows = figures.idle[0][gaps], figures.idle[1][gaps]
    at, start, end, layer, _ = partition(*windows, *_stacked([rows for _, rows in layers]))
    columns = {"start_ns": start, "end_ns": end, "gap": gaps[at], "wait": layer == _WAIT}
    part = pl.DataFrame(columns | {"class": codes[layer]})  # layer -1 is the last of the codes
    ranges, rows = evidence.ranges, evidence.ranges.of(thread)
    part = _cut(part, "range", ranges.start[rows], ranges.end[rows], ranges.row[rows])
    code = {name: row for row, name in enumerate(names)}
    for kind, calls in (("os", evidence.os), ("cuda", evidence.cuda)):
        rows = calls.of(thread)
        of_name = np.array([*(code[name] for name in calls.names), NO_NAME])  # row -1: a call without name
        part = _cut(part, kind, calls.start[rows], calls.end[rows], of_name[calls.name[rows]])
    launch = pl.Series("launch", figures.enders.name_id[part["gap"].to_numpy()])
    of_id = {number: code[evidence.cuda.names[row]] for number, row in evidence.cuda.of_id.items()}
    return part.with_columns(
        call=pl.when("wait")
        .then(launch.replace_strict(list(of_id), list(of_id.values()), default=None, return_dtype=pl.Int64))
        .when(pl.col("class").is_in(_BY_CUDA_CALL))
        .then(pl.coalesce("cuda", "os"))
        .otherwise(pl.coalesce("os", "cuda"))
    ).select(PIECES.names())


def _layers(figures: Figures, gaps: I64, thread: int, evidence: Evidence) -> list[tuple[str, Union]]:
    """Classes of the time of a thread, the first that applies counts; the first is the wait for the start."""
    launch_start, launch_end = figures.enders.start[gaps], figures.enders.end[gaps]
    gap_start, gap_end = figures.idle[0][gaps], figures.idle[1][gaps]
    ranges, rows = evidence.ranges, evidence.ranges.of(thread)
    data = ranges.loads_data[rows]
    cuda, os = evidence.cuda, evidence.os
    starts, ends = _of_class(cuda, thread, "launch")
    # The launching call counts as a launch whatever its name is.
    launches = union(np.concatenate([starts, launch_start]), np.concatenate([ends, launch_end]))
    out = evidence.off_cpu.filter(pl.col("thread") == thread)
    return [
        # It returned and the operation has not started. Were the GPU busy with work before it in the queue,
        # this would be no gap.
        ("launch", (np.maximum(gap_start, launch_end), gap_end)),
        ("data_load", union(ranges.start[rows][data], ranges.end[rows][data])),
        ("sync", union(*_of_class(cuda, thread, "sync"))),
        ("alloc", union(*_of_class(cuda, thread, "alloc"))),
        ("io", union(*_of_class(os, thread, "io"))),
        ("os_wait", union(*_of_class(os, thread, "os_wait"))),
        ("launch", launches),
        ("preempted", union(out["start_ns"].to_numpy(), out["end_ns"].to_numpy())),
    ]


def _of_class(calls: Calls, thread: int, kind: str) -> Union:
    """Calls of a thread that are of a class."""
    rows = calls.of(thread)
    chosen = np.isin(calls.name[rows], calls.are(kind))
    return calls.start[rows][chosen], calls.end[rows][chosen]


def _cut(part: pl.DataFrame, column: str, start: I64, end: I64, value: I64) -> pl.DataFrame:
    """Cut pieces where the innermost of some intervals changes, and add a column with its value.

    Null: no interval covers the piece, or its value is negative.
    """
    first, last = part["start_ns"].to_numpy(), part["end_ns"].to_numpy()
    # Most intervals lie where the GPU is busy: they need not be sorted.
    next_piece = np.searchsorted(last, start, side="right")
    touching = np.flatnonzero(first[np.minimum(next_piece, first.size - 1)] < end)
    line_start, line_end, at = flatten(start[touching], end[touching])
    kept, piece_start, piece_end, item = split(first, last, line_start, line_end)
    found = pl.Series(column, np.append(value[touching[at]], -1)[item])
    return part[kept].with_columns(
        pl.Series("start_ns", piece_start), pl.Series("end_ns", piece_end), found.set(found < 0, None)
    )


def _stacked(layers: list[Union]) -> tuple[I64, I64, I64]:
    """Layers as `partition` takes them."""
    first = np.cumsum([0, *(starts.size for starts, _ in layers)])
    return (
        first,
        np.concatenate([starts for starts, _ in layers]),
        np.concatenate([ends for _, ends in layers]),
    )


def _with_named_ranges(tables: ReportTables, pieces: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Replace rows of Ranges by rows of the names, which are few: only those in a gap."""
    named = range_names(tables, pieces["range"].drop_nulls().unique().sort()).filter(pl.col("name") != "")
    names = named.select("name").unique().sort("name")
    coded = names.with_row_index("code").join(named, on="name").select("row", pl.col("code").cast(pl.Int64))
    pieces = pieces.join(coded, left_on="range", right_on="row", how="left", maintain_order="left")
    return pieces.with_columns(range="code").select(PIECES.names()), tuple(names["name"])


def _unclassified(pieces: pl.DataFrame, names: tuple[str, ...], calls: Calls) -> tuple[str, ...]:
    """OS calls of no known class in which the thread was while its time was taken for code."""
    as_code = pieces.filter(pl.col("class").is_in([_CODE["host"], _CODE["preempted"]]))
    seen = {names[row] for row in as_code["call"].drop_nulls().unique()}
    unknown = (name for name, kind in zip(calls.names, calls.classes, strict=True) if kind is None)
    return tuple(sorted(seen.intersection(unknown)))
