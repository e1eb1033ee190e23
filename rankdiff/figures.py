"""The exact figures of a rank: busy, idle, and what the idle time overlaps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from rankdiff.kernels.intervals import I64, gaps, length_ns, overlap_each, overlap_ns, union
from rankdiff.reports.nsys import os_calls
from rankdiff.reports.tables import ReportTables
from rankdiff.schema import WORK, check
from rankdiff.steps import matching_names

Union = tuple[I64, I64]
_FOREVER_NS = 1 << 62


@dataclass(frozen=True)
class Figures:
    """Busy and idle of one (process, device), in ns; session times.

    Attributes
    ----------
    idle_data_load_ns : int or None
        Idle time inside data-loading ranges of the process; None: it has no such range.
    idle_osrt_ns : int or None
        Idle time inside OS calls of the thread that ends the gap; None: not captured.
    enders : (g,) int64
        Global thread id that launched the operation ending each gap; 0 where it is not known.
    """

    pid: int
    device: int
    busy: Union
    idle: Union
    enders: I64
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


def find_figures(
    tables: ReportTables, units: Iterable[tuple[int, int]], data_range: str, fixed_digits: bool
) -> list[Figures]:
    """Figures of each (process, device) of a report that had GPU work.

    Parameters
    ----------
    tables : ReportTables
    units : iterable of (int, int)
        (pid, device) pairs; one without GPU work is left out.
    data_range : str
        Regular expression for the names of data-loading ranges, anchored at their start.
    fixed_digits : bool
        The expression treats all digits alike.
    """
    found = [figures for unit in units if (figures := _busy(tables, *unit)) is not None]
    data = {pid: _data_ranges(tables, pid, data_range, fixed_digits) for pid in {each.pid for each in found}}
    calls = os_calls(tables, {int(thread) for each in found for thread in each.enders if thread})
    return [_with_causes(each, *data[each.pid], calls) for each in found]


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
        work=check(work, WORK, "work"),
        nccl_kernels=nccl.height,
        nccl_ns=int((nccl["end_ns"] - nccl["start_ns"]).sum()),
    )


def _work(kind: str, rows: pl.DataFrame) -> pl.DataFrame:
    starts, ends = union(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
    return pl.DataFrame({"kind": [kind] * starts.size, "start_ns": starts, "end_ns": ends}, schema=WORK)


def _enders(tables: ReportTables, pid: int, device: int, gap_ends: I64) -> I64:
    """Thread that launched the operation starting at the end of each gap; of several the lowest id."""
    tables.db.register("gap", pl.DataFrame({"end_ns": gap_ends}, schema={"end_ns": pl.Int64}).to_arrow())
    rows = tables.frame(
        "SELECT e.end_ns, l.thread FROM (SELECT gap.end_ns, min(g.correlation) AS correlation FROM gap "
        "JOIN gpu g ON g.start_ns = gap.end_ns WHERE g.pid = $1 AND g.device = $2 GROUP BY gap.end_ns) e "
        "JOIN launch l ON l.pid = $1 AND l.correlation = e.correlation ORDER BY e.end_ns",
        [pid, device],
    )
    tables.db.unregister("gap")
    out = np.zeros(gap_ends.size, np.int64)
    out[np.searchsorted(gap_ends, rows["end_ns"].to_numpy())] = rows["thread"].to_numpy()
    return out


def _data_ranges(tables: ReportTables, pid: int, data_range: str, fixed_digits: bool) -> tuple[Union, int]:
    names = tables.frame("SELECT DISTINCT name FROM nvtx WHERE pid = ? AND type IN (59, 60)", [pid])["name"]
    matches = matching_names(names.to_list(), data_range, fixed_digits)
    hits = pl.DataFrame(
        {"name": [name for name, hit in zip(names, matches, strict=True) if hit]}, schema={"name": pl.String}
    )
    tables.db.register("hit", hits.to_arrow())
    rows = tables.frame(
        "SELECT start_ns, coalesce(end_ns, ?) AS end_ns FROM nvtx WHERE pid = ? AND type IN (59, 60) "
        "AND name IN (SELECT name FROM hit)",
        [_FOREVER_NS, pid],
    )
    tables.db.unregister("hit")
    return union(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()), rows.height


def _with_causes(figures: Figures, data: Union, data_ranges: int, calls: pl.DataFrame | None) -> Figures:
    starts, ends = figures.idle
    in_calls = None
    if calls is not None:
        in_calls = 0
        for (thread,), rows in calls.group_by("thread"):
            mine = figures.enders == thread
            covered = union(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
            in_calls += int(overlap_each(starts[mine], ends[mine], *covered).sum())
    return replace(
        figures,
        data_ranges=data_ranges,
        idle_data_load_ns=overlap_ns(starts, ends, *data) if data_ranges else None,
        idle_osrt_ns=in_calls,
    )


def busy_ns(figures: Figures) -> int:
    """Union of the GPU work."""
    return length_ns(*figures.busy)


def idle_ns(figures: Figures) -> int:
    """The gaps between the GPU work."""
    return length_ns(*figures.idle)
