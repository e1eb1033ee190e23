"""The exact figures of a rank: busy, idle, and what the idle time overlaps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from rankdiff.kernels.intervals import I64, gaps, length_ns, overlap_each, overlap_ns, union
from rankdiff.ranges import OWN
from rankdiff.reports.tables import ReportTables
from rankdiff.reports.threads import NO_NAME, Calls
from rankdiff.schema import WORK, check

Union = tuple[I64, I64]
_FOREVER_NS = 1 << 62
_NO_ID = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Enders:
    """The CUDA calls that launched the operations ending some gaps, one a gap.

    Attributes
    ----------
    thread : (g,) int64
        globalTid; 0 where it is not known, and then the others mean nothing.
    start, end : (g,) int64, ns
    name : (g,) int64
        Row of `ReportTables.api_names`; -1: it has none.
    """

    thread: I64
    start: I64
    end: I64
    name: I64


@dataclass(frozen=True)
class Figures:
    """Busy and idle of one (process, device), in ns; session times.

    Attributes
    ----------
    idle_data_load_ns : int or None
        Idle time inside data-loading ranges of the process; None: it has no such range.
    idle_osrt_ns : int or None
        Idle time inside OS calls of the thread that ends the gap; None: not captured.
    busy, idle, nccl : pair of (n,) int64
        Unions: all work, the gaps between it, and NCCL kernels.
    enders : Enders
        What launched the operation ending each gap.
    """

    pid: int
    device: int
    busy: Union
    idle: Union
    enders: Enders
    nccl: Union
    work: pl.DataFrame
    nccl_kernels: int
    nccl_ns: int
    data_ranges: int = 0
    idle_data_load_ns: int | None = None
    idle_osrt_ns: int | None = None

    @property
    def span_ns(self) -> int:
        """First GPU start to last GPU end."""
        return int(self.busy[1][-1] - self.busy[0][0])


def find_figures(tables: ReportTables, units: Iterable[tuple[int, int]]) -> list[Figures]:
    """Busy and idle time of each (process, device) of a report that had GPU work.

    Parameters
    ----------
    tables : ReportTables
    units : iterable of (int, int)
        (pid, device) pairs; one without GPU work is left out.
    """
    return [figures for unit in units if (figures := _busy(tables, *unit)) is not None]


def gap_ending_threads(figures: Iterable[Figures]) -> set[int]:
    """Threads that launched an operation ending a gap."""
    return {int(thread) for each in figures for thread in np.unique(each.enders.thread) if thread}


def with_causes(
    tables: ReportTables, figures: Figures, data_names: list[str], calls: Calls | None
) -> Figures:
    """Add what the idle time overlaps.

    Parameters
    ----------
    tables : ReportTables
    figures : Figures
    data_names : list of str
        Names of the process's data-loading ranges.
    calls : Calls or None
        OS calls of the threads that end gaps; None: not captured.
    """
    starts, ends = figures.idle
    in_calls = None
    if calls is not None:
        in_calls = 0
        for thread in gap_ending_threads([figures]):
            mine, rows = figures.enders.thread == thread, calls.of(thread)
            covered = union(calls.start[rows], calls.end[rows])
            in_calls += int(overlap_each(starts[mine], ends[mine], *covered).sum())
    data, data_ranges = _data_ranges(tables, figures.pid, data_names)
    return replace(
        figures,
        data_ranges=data_ranges,
        idle_data_load_ns=overlap_ns(starts, ends, *data) if data_ranges else None,
        idle_osrt_ns=in_calls,
    )


def _busy(tables: ReportTables, pid: int, device: int) -> Figures | None:
    rows = tables.gpu_of(pid, device)
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    busy = union(start, end)
    if not busy[0].size:
        return None
    idle = gaps(*busy)
    kind = rows["kind"]
    is_nccl = tables.kernels.communicates[rows["name"].to_numpy()]
    compute = kind.is_in(["kernel", "graph"]).to_numpy() & ~is_nccl
    copies = kind.is_in(["memcpy", "memset"]).to_numpy()
    work = pl.concat(
        [_work("compute", start[compute], end[compute]), _work("copy", start[copies], end[copies])]
    )
    return Figures(
        pid=pid,
        device=device,
        busy=busy,
        idle=idle,
        enders=_enders(rows, idle[1]),
        nccl=union(start[is_nccl], end[is_nccl]),
        work=check(work, WORK, "work"),
        nccl_kernels=int(is_nccl.sum()),
        nccl_ns=int((end - start)[is_nccl].sum()),
    )


def _work(kind: str, start: I64, end: I64) -> pl.DataFrame:
    starts, ends = union(start, end)
    of_kind = pl.repeat(kind, starts.size, dtype=pl.String, eager=True)
    return pl.DataFrame({"kind": of_kind, "start_ns": starts, "end_ns": ends}, schema=WORK)


def _enders(gpu: pl.DataFrame, gap_ends: I64) -> Enders:
    """Launches of the operations that start at the end of each gap; of several the lowest id."""
    start = gpu["start_ns"].to_numpy()
    correlation = gpu["correlation"].fill_null(_NO_ID).to_numpy()
    # Operations that start together are neighbours.
    first = np.flatnonzero(np.append(True, start[1:] != start[:-1]))
    lowest = np.minimum.reduceat(correlation, first)
    together = np.repeat(np.arange(first.size), np.diff(np.append(first, start.size)))
    chosen = np.flatnonzero(correlation == lowest[together])
    ender = np.zeros(first.size, np.int64)
    ender[together[chosen]] = chosen
    ending = gpu.select("launched", "launch_ns", "launch_end_ns", "launch_tid", "launch_name")[
        ender[np.searchsorted(start[first], gap_ends)]
    ]
    known, at = ending["launched"], pl.Series(gap_ends)
    launch_end = ending["launch_end_ns"].zip_with(ending["launch_end_ns"].is_not_null(), at)
    launch_start = ending["launch_ns"].zip_with(ending["launch_ns"].is_not_null(), launch_end)
    found = (ending["launch_tid"], launch_start, launch_end, ending["launch_name"].fill_null(NO_NAME))
    return Enders(*(np.where(known, each.fill_null(0).to_numpy(), 0) for each in found))


def _data_ranges(tables: ReportTables, pid: int, data_names: list[str]) -> tuple[Union, int]:
    loading = OWN & pl.col("name").is_in(tables.codes_of(data_names))
    rows = tables.nvtx_of(pid).filter(loading)
    return union(rows["start_ns"].to_numpy(), rows["end_ns"].fill_null(_FOREVER_NS).to_numpy()), rows.height


def busy_ns(figures: Figures) -> int:
    """Union of the GPU work."""
    return length_ns(*figures.busy)


def idle_ns(figures: Figures) -> int:
    """The gaps between the GPU work."""
    return length_ns(*figures.idle)
