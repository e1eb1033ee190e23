"""What a rank did, event by event: read from its report for a picture or a trace of some stretch of time.

A digest holds sums; these are the events themselves, so they are read again from the report, for one rank at
a time and a window only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from rankdiff.activity import launching_threads
from rankdiff.claims import Claims
from rankdiff.digest import DigestOptions
from rankdiff.figures import Figures, find_figures, gap_ending_threads
from rankdiff.kernels.intervals import union
from rankdiff.kernels.partition import flatten
from rankdiff.ranges import data_range_names, find_ranges
from rankdiff.reports.discover import Report
from rankdiff.reports.names import DEFAULT_DATA_RANGE
from rankdiff.reports.nccl_calls import of_nccl
from rankdiff.reports.nsys import load
from rankdiff.reports.tables import ReportTables
from rankdiff.reports.threads import NO_CALLS, Calls, cuda_calls, off_cpu, os_calls, profiler_overhead
from rankdiff.schema import CLASSES, check
from rankdiff.steps import find_steps
from rankdiff.timeline import Evidence, Timeline, find_timeline

# In all of these: one row per event that touches the window, sorted by (start_ns, -end_ns); session times.
# GPU work of the rank but for NCCL's kernels, which are in the digest.
WORK_SPANS = pl.Schema(
    {
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "kind": pl.String,  # kernel, graph, memcpy or memset
        "context": pl.Int64,
        "stream": pl.Int64,
        "name": pl.String,  # of a kernel; null: it has none
        "grid": pl.String,  # as 128x1x1; null: no kernel, or not in the export
        "block": pl.String,
        "bytes": pl.Int64,  # of copies and sets; null otherwise
        "copy_kind": pl.Int64,  # of copies, as in the export; null otherwise
    }
)
# NVTX ranges of the process, on all of its threads.
RANGE_SPANS = pl.Schema(
    {
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,  # an open range ends with the capture
        "thread": pl.Int64,  # globalTid
        "name": pl.String,
        "nccl": pl.Boolean,  # one of NCCL's own
    }
)
# OS calls, and CUDA calls that wait for the GPU or are about memory, of the threads that launch what ends gaps.
CALL_SPANS = pl.Schema(
    {
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "thread": pl.Int64,  # globalTid
        "name": pl.String,
        "class": pl.String,  # of schema.CLASSES; null: of none
        "cuda": pl.Boolean,
    }
)
# Idle time of the rank: disjoint pieces with one label each.
IDLE_SPANS = pl.Schema(
    {
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "class": pl.String,  # of schema.IDLE_CLASSES
        "range": pl.String,  # as in schema.IDLE
        "call": pl.String,  # the call that it was in longest at a stretch; null: in none
    }
)
# What the launching thread did: its innermost application range at any time, disjoint.
PHASE_SPANS = pl.Schema(
    {"start_ns": pl.Int64, "end_ns": pl.Int64, "name": pl.String, "loads_data": pl.Boolean}
)


@dataclass(frozen=True)
class RankSpans:
    """The events of one rank in a window; session times.

    Attributes
    ----------
    claims : Claims
    work, ranges, calls, idle, phases : polars.DataFrame
        WORK_SPANS, RANGE_SPANS, CALL_SPANS, IDLE_SPANS and PHASE_SPANS.
    thread : int
        globalTid of the launching thread: of those that end idle gaps the one with the application's NVTX ranges,
        else the one that ends most of the idle time of the capture; 0 for none.
    has_os_calls : bool
        Whether OS calls were captured.
    """

    claims: Claims
    work: pl.DataFrame
    ranges: pl.DataFrame
    calls: pl.DataFrame
    idle: pl.DataFrame
    phases: pl.DataFrame
    thread: int
    has_os_calls: bool


def read_spans(
    report: Report, options: DigestOptions, windows: Mapping[Claims, tuple[int, int]]
) -> Iterator[RankSpans]:
    """Read the events of the ranks of one report, one rank at a time.

    Parameters
    ----------
    report : Report
    options : DigestOptions
        As for the digests, so that the same ranges load data and are steps.
    windows : mapping of Claims to (int, int)
        The ranks of this report to read, with start and end of what is wanted, session times in ns.

    Yields
    ------
    RankSpans
        In the order of `windows`; a rank without GPU work is left out.

    Raises
    ------
    ReportError
        When the report cannot be read.
    """
    with load(report, options.comm_regex) as tables:
        for each, window in windows.items():
            found = find_figures(tables, [(each.pid, each.device)])
            if found:
                yield _spans(tables, each, found[0], options, window)


def _spans(
    tables: ReportTables, claims: Claims, figures: Figures, options: DigestOptions, window: tuple[int, int]
) -> RankSpans:
    enders = gap_ending_threads([figures])
    cuda = cuda_calls(tables, enders.union(launching_threads(tables, claims.pid, claims.device)))
    in_os = os_calls(tables, enders)
    step_names = find_steps(tables, claims.pid, options.step_range)[2]
    pattern = options.data_range or DEFAULT_DATA_RANGE
    data_names = data_range_names(tables, claims.pid, pattern, options.data_range is None)
    ranges = find_ranges(tables, claims.pid, enders, data_names, step_names)
    overhead = profiler_overhead(tables).filter(pl.col("pid") == claims.pid)
    profiler = union(overhead["start_ns"].to_numpy(), overhead["end_ns"].to_numpy())
    evidence = Evidence(profiler, ranges, cuda, in_os or NO_CALLS, off_cpu(tables, enders))
    thread = _launching_thread(figures, ranges.carrier)
    shown = _ranges(tables, claims.pid, window)
    # Threads without ranges of their own do the work of the one that has them.
    speaker = thread if thread in ranges.owners else ranges.carrier
    told = shown.filter((pl.col("thread") == speaker) & ~pl.col("nccl") & ~pl.col("name").is_in(step_names))
    return RankSpans(
        claims=claims,
        work=_work(tables, claims, window),
        ranges=shown,
        calls=_calls(cuda, in_os, enders, window),
        idle=_idle(find_timeline(tables, figures, evidence), window),
        phases=_phases(told, data_names),
        thread=thread,
        has_os_calls=in_os is not None,
    )


def _launching_thread(figures: Figures, carrier: int) -> int:
    """The thread that trains, if it ends gaps; else the one that ends most of the idle time; 0 for none."""
    threads, which = np.unique(figures.enders.thread, return_inverse=True)
    idle = np.bincount(which, weights=figures.idle[1] - figures.idle[0], minlength=threads.size)
    known = threads != 0
    if carrier in threads[known]:
        return carrier
    return int(threads[known][idle[known].argmax()]) if known.any() else 0


def _touching(window: tuple[int, int]) -> pl.Expr:
    return (pl.col("end_ns") > window[0]) & (pl.col("start_ns") < window[1])


def _in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """Enclosing events before those inside them; the rest of the columns makes the order certain."""
    rest = [name for name in frame.columns if name not in ("start_ns", "end_ns")]
    return frame.sort("start_ns", -pl.col("end_ns"), *rest, nulls_last=True)


def _work(tables: ReportTables, claims: Claims, window: tuple[int, int]) -> pl.DataFrame:
    gpu, names = tables.gpu_of(claims.pid, claims.device), tables.kernels
    communicates = pl.Series(names.communicates[gpu["name"].to_numpy()])
    rows = gpu.filter(_touching(window) & ~communicates)
    shape = {
        what: pl.concat_str([f"{what}_{side}" for side in "xyz"], separator="x") for what in ("grid", "block")
    }
    texts = pl.Series([*names.texts[:-1], None], dtype=pl.String)
    rows = rows.with_columns(name=texts.gather(rows["name"]), **shape).select(WORK_SPANS.names())
    return check(_in_order(rows.cast(WORK_SPANS)), WORK_SPANS, "work spans")


def _ranges(tables: ReportTables, pid: int, window: tuple[int, int]) -> pl.DataFrame:
    mine = tables.nvtx_of(pid).with_columns(pl.col("end_ns").fill_null(tables.capture_end_ns))
    rows = mine.filter(_touching(window)).with_columns(nccl=of_nccl(tables, pid))
    rows = rows.with_columns(name=tables.nvtx_names.gather(rows["name"])).select(RANGE_SPANS.names())
    kept = rows.filter(pl.col("end_ns") >= pl.col("start_ns"))
    return check(_in_order(kept.cast(RANGE_SPANS)), RANGE_SPANS, "range spans")


def _calls(cuda: Calls, in_os: Calls | None, threads: set[int], window: tuple[int, int]) -> pl.DataFrame:
    parts = []
    for calls, is_cuda in ((cuda, True), (in_os, False)):
        if calls is None:
            continue
        # Row -1 is for calls without a name.
        names = pl.Series([*calls.names, None], dtype=pl.String)
        classes = pl.Series([*calls.classes, None], dtype=pl.String)
        part = pl.DataFrame(
            {"start_ns": calls.start, "end_ns": calls.end, "thread": calls.thread}
        ).with_columns(
            name=names.gather(calls.name % len(names)).fill_null("?"),
            cuda=pl.lit(is_cuda),
            **{"class": classes.gather(calls.name % len(names))},
        )
        parts.append(part.select(CALL_SPANS.names()).filter(_touching(window)))
    rows = pl.concat(parts).filter(pl.col("thread").is_in(sorted(threads)))
    kept = rows.filter(~pl.col("cuda") | pl.col("class").is_in(["sync", "alloc"]))
    return check(_in_order(kept.cast(CALL_SPANS)), CALL_SPANS, "call spans")


def _idle(timeline: Timeline, window: tuple[int, int]) -> pl.DataFrame:
    def named(column: str, names: Sequence[str]) -> pl.Expr:
        values = dict(enumerate(names))
        return pl.col(column).replace_strict(values, default=None, return_dtype=pl.String)

    rows = timeline.pieces.filter(_touching(window) & (pl.col("gap") >= 0)).select(
        "start_ns",
        "end_ns",
        named("class", CLASSES),
        named("range", timeline.ranges),
        named("call", timeline.calls),
    )
    # Neighbours of one class and range are one; its call is the one that it was in longest at a stretch.
    labels = ["class", "range"]
    joins = (pl.col("start_ns") == pl.col("end_ns").shift(1)) & pl.all_horizontal(
        pl.col(name).eq_missing(pl.col(name).shift(1)) for name in labels
    )
    runs = rows.with_columns(run=(~joins).fill_null(True).cum_sum(), ns=pl.col("end_ns") - pl.col("start_ns"))
    merged = runs.group_by("run", *labels, maintain_order=True).agg(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.col("call").sort_by("ns", descending=True, maintain_order=True).first(),
    )
    return check(merged.select(IDLE_SPANS.names()), IDLE_SPANS, "idle spans")


def _phases(ranges: pl.DataFrame, data_names: list[str]) -> pl.DataFrame:
    start, end, item = flatten(ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy())
    names = ranges["name"].gather(item)
    found = pl.DataFrame({"start_ns": start, "end_ns": end}).with_columns(
        names, loads_data=names.is_in(data_names)
    )
    return check(found.select(PHASE_SPANS.names()), PHASE_SPANS, "phase spans")
