"""The exact figures of a rank: busy, idle, and what the idle time overlaps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from rankdiff.kernels.intervals import I64, gaps, length_ns, overlap_each, overlap_ns, union
from rankdiff.reports.tables import ReportTables
from rankdiff.reports.threads import Calls
from rankdiff.schema import WORK, check

Union = tuple[I64, I64]
_FOREVER_NS = 1 << 62


@dataclass(frozen=True)
class Enders:
    """The CUDA calls that launched the operations ending some gaps, one a gap.

    Attributes
    ----------
    thread : (g,) int64
        globalTid; 0 where it is not known, and then the others mean nothing.
    start, end : (g,) int64, ns
    name_id : (g,) int64
    """

    thread: I64
    start: I64
    end: I64
    name_id: I64


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
    rows = tables.frame(
        "SELECT g.kind, g.start_ns, g.end_ns, coalesce(n.communicates, false) AS nccl FROM gpu g "
        "LEFT JOIN name n ON n.id = g.name_id WHERE g.pid = ? AND g.device = ? ORDER BY g.start_ns",
        [pid, device],
    )
    busy = union(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
    if not busy[0].size:
        return None
    idle = gaps(*busy)
    nccl = rows.filter(pl.col("nccl"))
    kind = rows["kind"]
    compute = rows.filter(((kind == "kernel") & ~rows["nccl"]) | (kind == "graph"))
    copies = rows.filter(kind.is_in(["memcpy", "memset"]))
    work = pl.concat([_work("compute", compute), _work("copy", copies)])
    return Figures(
        pid=pid,
        device=device,
        busy=busy,
        idle=idle,
        enders=_enders(tables, pid, device, idle[1]),
        nccl=union(nccl["start_ns"].to_numpy(), nccl["end_ns"].to_numpy()),
        work=check(work, WORK, "work"),
        nccl_kernels=nccl.height,
        nccl_ns=int((nccl["end_ns"] - nccl["start_ns"]).sum()),
    )


def _work(kind: str, rows: pl.DataFrame) -> pl.DataFrame:
    starts, ends = union(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
    return pl.DataFrame({"kind": [kind] * starts.size, "start_ns": starts, "end_ns": ends}, schema=WORK)


def _enders(tables: ReportTables, pid: int, device: int, gap_ends: I64) -> Enders:
    """Launches of the operations that start at the end of each gap; of several the lowest id."""
    tables.db.register("gap", pl.DataFrame({"end_ns": gap_ends}, schema={"end_ns": pl.Int64}).to_arrow())
    rows = tables.frame(
        "SELECT e.end_ns AS gap_end, l.thread, coalesce(l.start_ns, l.end_ns, e.end_ns) AS start_ns, "
        "coalesce(l.end_ns, e.end_ns) AS end_ns, coalesce(l.name_id, -1) AS name_id "
        "FROM (SELECT gap.end_ns, min(g.correlation) AS correlation FROM gap "
        "JOIN gpu g ON g.start_ns = gap.end_ns WHERE g.pid = $1 AND g.device = $2 GROUP BY gap.end_ns) e "
        "JOIN launch l ON l.pid = $1 AND l.correlation = e.correlation ORDER BY e.end_ns",
        [pid, device],
    )
    tables.db.unregister("gap")
    at = np.searchsorted(gap_ends, rows["gap_end"].to_numpy())
    found = {}
    for name in ("thread", "start_ns", "end_ns", "name_id"):
        found[name] = np.zeros(gap_ends.size, np.int64)
        found[name][at] = rows[name].to_numpy()
    return Enders(found["thread"], found["start_ns"], found["end_ns"], found["name_id"])


def _data_ranges(tables: ReportTables, pid: int, data_names: list[str]) -> tuple[Union, int]:
    hits = pl.DataFrame({"name": data_names}, schema={"name": pl.String})
    tables.db.register("hit", hits.to_arrow())
    rows = tables.frame(
        "SELECT start_ns, coalesce(end_ns, ?) AS end_ns FROM nvtx WHERE pid = ? AND type IN (59, 60) "
        "AND name IN (SELECT name FROM hit)",
        [_FOREVER_NS, pid],
    )
    tables.db.unregister("hit")
    return union(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()), rows.height


def busy_ns(figures: Figures) -> int:
    """Union of the GPU work."""
    return length_ns(*figures.busy)


def idle_ns(figures: Figures) -> int:
    """The gaps between the GPU work."""
    return length_ns(*figures.idle)
