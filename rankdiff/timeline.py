"""One labelled timeline per rank: every nanosecond of its GPU window has exactly one class.

While the GPU works, the class is what it works on. In an idle gap it is what the thread did that launches the
operation ending the gap: no other thread could have ended it sooner. Threads parked in poll or in a condition
variable for the whole run are therefore no evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from rankdiff.figures import Figures
from rankdiff.kernels.grouping import grouped
from rankdiff.kernels.intervals import I64, union
from rankdiff.kernels.partition import flatten, partition, split
from rankdiff.ranges import Ranges
from rankdiff.reports.columns import framed
from rankdiff.reports.tables import ReportTables
from rankdiff.reports.threads import NO_NAME, Calls
from rankdiff.schema import CLASSES, check

Union = tuple[I64, I64]

_CODE = {name: code for code, name in enumerate(CLASSES)}
_BY_CUDA_CALL = np.isin(CLASSES, ("sync", "alloc", "launch"))
_NOTHING = -1  # instead of null
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
    labels : polars.DataFrame
        The different labels of pieces: ``class``, ``range`` and ``call`` as words, sorted by them, nulls first.
    label : (n,) int64
        Row in `labels` of each piece.
    ranges, calls : tuple of str
        Names, sorted and distinct, so that their rows are in the order of the names. The call is the innermost
        OS call, else the innermost CUDA call of the thread at that time. But where the class is that of a CUDA
        call (sync, alloc, launch), it is the CUDA call, for the OS calls below it are the driver's; and
        after a launch has returned, it is that launch.
    unclassified : tuple of str
        OS calls of unknown class that the thread was in while its time was taken for code.
    """

    pieces: pl.DataFrame
    labels: pl.DataFrame
    label: I64
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
    order = np.argsort(np.concatenate([part[0] for part in parts]), kind="stable")
    columns = {
        name: np.concatenate([part[row] for part in parts])[order] for row, name in enumerate(PIECES.names())
    }
    del parts, order
    columns["range"], ranges = _named_ranges(tables, columns["range"])
    labels, label = _labels(columns, {"class": CLASSES, "range": ranges, "call": names})
    # Times may well be negative: those before the session's own start, or moved with --ts-shift.
    pieces = framed(
        {
            name: pa.array(values, mask=None if name in ("start_ns", "end_ns") else values < 0)
            for name, values in columns.items()
        }
    )
    return Timeline(
        pieces=check(pieces, PIECES, "pieces"),
        labels=labels,
        label=label,
        ranges=ranges,
        calls=names,
        unclassified=_unclassified(labels, evidence.os),
    )


def _busy(figures: Figures) -> I64:
    """Pieces in which the GPU works, a row per column of PIECES, -1 for null."""
    kinds = figures.work["kind"]
    layers = []
    for kind in ("compute", "copy"):
        rows = figures.work.filter(kinds == kind)
        layers.append((rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()))
    layers.append(figures.nccl)
    window = figures.busy[0][:1], figures.busy[1][-1:]
    _, start, end, layer, _ = partition(*window, *_stacked(layers))
    busy = layer >= 0  # the layers are in the order of BUSY_CLASSES
    nothing = np.full(int(busy.sum()), _NOTHING)
    return np.stack((start[busy], end[busy], nothing, layer[busy], nothing, nothing))


def _of_thread(figures: Figures, thread: int, evidence: Evidence, names: tuple[str, ...]) -> I64:
    """Pieces of the gaps that a thread ends (0: not known which), likewise; the range is a row of NVTX_RANGES."""
    gaps = np.flatnonzero(figures.enders.thread == thread)
    layers = [("profiler", evidence.profiler)] + (_layers(figures, gaps, thread, evidence) if thread else [])
    codes = np.array([*(_CODE[name] for name, _ in layers), _CODE["host" if thread else "unknown"]])
    windows = figures.idle[0][gaps], figures.idle[1][gaps]
    at, start, end, layer, _ = partition(*windows, *_stacked([rows for _, rows in layers]))
    ranges, rows = evidence.ranges, evidence.ranges.of(thread)
    lanes = [(ranges.start[rows], ranges.end[rows], ranges.row[rows])]
    code = {name: row for row, name in enumerate(names)}
    for calls in (evidence.os, evidence.cuda):
        rows = calls.of(thread)
        of_name = np.array([*(code[name] for name in calls.names), NO_NAME])  # row -1: a call without name
        lanes.append((calls.start[rows], calls.end[rows], of_name[calls.name[rows]]))
    # Each lane cuts the pieces further; what was found of a piece holds for its parts.
    found = np.stack((gaps[at], layer))
    for lane in lanes:
        kept, start, end, value = _cut(start, end, *lane)
        found = np.concatenate((found[:, kept], value[None]))
    gap, layer, in_range, os, cuda = found
    kind = codes[layer]  # layer -1 is the last of the codes
    of_call = np.array([*(code[name] for name in evidence.cuda.names), NO_NAME])
    launch = np.append(of_call[evidence.cuda.row_of], NO_NAME)[figures.enders.name[gap]]
    first, second = np.where(_BY_CUDA_CALL[kind], (cuda, os), (os, cuda))
    call = np.where(layer == _WAIT, launch, np.where(first >= 0, first, second))
    return np.stack((start, end, gap, kind, in_range, call))


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
    of_kind = np.array([*(each == kind for each in calls.classes), False])  # row -1: a call without name
    chosen = of_kind[calls.name[rows]]
    return calls.start[rows][chosen], calls.end[rows][chosen]


def _cut(first: I64, last: I64, start: I64, end: I64, value: I64) -> tuple[I64, I64, I64, I64]:
    """Cut pieces where the innermost of some intervals changes.

    Returns the piece that each part is of, its start and end, and the value of the innermost interval: -1 where
    none covers it or its value is negative.
    """
    # Most intervals lie where the GPU is busy: they need not be sorted.
    next_piece = np.searchsorted(last, start, side="right")
    touching = np.flatnonzero(first[np.minimum(next_piece, first.size - 1)] < end)
    line_start, line_end, at = flatten(start[touching], end[touching])
    kept, piece_start, piece_end, item = split(first, last, line_start, line_end)
    return kept, piece_start, piece_end, np.append(value[touching[at]], _NOTHING)[item]


def _stacked(layers: list[Union]) -> tuple[I64, I64, I64]:
    """Layers as `partition` takes them."""
    first = np.cumsum([0, *(starts.size for starts, _ in layers)])
    return (
        first,
        np.concatenate([starts for starts, _ in layers]),
        np.concatenate([ends for _, ends in layers]),
    )


def _named_ranges(tables: ReportTables, rows: I64) -> tuple[I64, tuple[str, ...]]:
    """Which name ranges have, rows of NVTX_RANGES or -1, and the names; a range without a name is none."""
    of_range = np.append(tables.nvtx["name"].to_numpy(), len(tables.nvtx_names))
    code = of_range[rows]
    used = np.flatnonzero(np.bincount(code, minlength=of_range[-1] + 1)[:-1])
    names = tables.nvtx_names.gather(used)
    order = names.arg_sort().to_numpy()
    names = names.gather(order)
    nameless = int((names == "").sum())  # one at most, and the first
    row_of = np.full(of_range[-1] + 1, _NOTHING)
    row_of[used[order]] = np.arange(used.size) - nameless
    return row_of[code], tuple(names[nameless:].to_list())


def _labels(columns: dict[str, I64], words: dict[str, tuple[str, ...]]) -> tuple[pl.DataFrame, I64]:
    """The different labels of pieces, by their names, and which one each piece has."""
    group, first = grouped(np.stack([columns[name] for name in words]))
    found = pl.DataFrame(
        {
            name: pl.Series([*texts, None], dtype=pl.String).gather(columns[name][first] % (len(texts) + 1))
            for name, texts in words.items()
        }
    )
    labels = found.with_row_index("group").sort(list(words))
    place = np.empty(labels.height, np.int64)
    place[labels["group"].to_numpy()] = np.arange(labels.height)
    return labels.drop("group"), place[group]


def _unclassified(labels: pl.DataFrame, calls: Calls) -> tuple[str, ...]:
    """OS calls of no known class in which the thread was while its time was taken for code."""
    seen = labels.filter(pl.col("class").is_in(["host", "preempted"]))["call"].drop_nulls()
    unknown = {name for name, kind in zip(calls.names, calls.classes, strict=True) if kind is None}
    return tuple(sorted(unknown.intersection(seen)))
