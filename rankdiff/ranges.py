"""The application's own NVTX ranges: which thread was in which one, and which of them load data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from rankdiff.kernels.intervals import I64
from rankdiff.reports.nccl_calls import of_nccl
from rankdiff.reports.tables import ReportTables
from rankdiff.steps import matching_names


@dataclass(frozen=True)
class Ranges:
    """Ranges of a process for some threads, but NCCL's and those whose name is a step's.

    Attributes
    ----------
    thread, start, end : (n,) int64, times in ns
        Sorted by (thread, start); a range without end lasts to the end of the capture.
    row : (n,) int64
        Identifies the range for `range_names`.
    loads_data : (n,) bool
    owners : frozenset of int
        Threads that have ranges of their own, step ranges included.
    carrier : int
        The thread that speaks for threads without ranges; 0 for none.
    """

    thread: I64
    start: I64
    end: I64
    row: I64
    loads_data: npt.NDArray[np.bool_]
    owners: frozenset[int]
    carrier: int

    def of(self, thread: int) -> slice:
        """Rows that tell what a thread did: its own, or those of the carrier if it has none."""
        speaker = thread if thread in self.owners else self.carrier
        first, stop = np.searchsorted(self.thread, [speaker, speaker + 1])
        return slice(int(first), int(stop))


def data_range_names(tables: ReportTables, pid: int, data_range: str, fixed_digits: bool) -> list[str]:
    """Names of the data-loading ranges of a process.

    Parameters
    ----------
    tables : ReportTables
    pid : int
    data_range : str
        Regular expression, anchored at the start of the name.
    fixed_digits : bool
        The expression treats all digits alike.
    """
    names = tables.frame("SELECT DISTINCT name FROM nvtx WHERE pid = ? AND type IN (59, 60)", [pid])["name"]
    matches = matching_names(names.to_list(), data_range, fixed_digits)
    return [name for name, match in zip(names, matches, strict=True) if match]


def loads_in_background(
    tables: ReportTables, pid: int, data_names: list[str], data_range: str, fixed_digits: bool
) -> bool:
    """Whether data loading shows only in threads that make no CUDA calls, or in processes without GPU work.

    Parameters
    ----------
    tables : ReportTables
    pid : int
        A process with GPU work.
    data_names : list of str
        Names of its data-loading ranges.
    data_range, fixed_digits
        As for `data_range_names`.

    Returns
    -------
    bool
        False also where no CUDA calls were captured, so that nobody knows.
    """
    if not tables.frame("SELECT count(*) FROM api WHERE pid = ?", [pid]).item():
        return False
    if data_names:
        loading = pl.DataFrame({"name": data_names}, schema={"name": pl.String})
        tables.db.register("loading", loading.to_arrow())
        calling = tables.frame(
            "SELECT count(*) FROM nvtx WHERE pid = $1 AND type IN (59, 60) AND name IN (SELECT name FROM loading) "
            "AND thread IN (SELECT thread FROM api WHERE pid = $1)",
            [pid],
        ).item()
        tables.db.unregister("loading")
        return not calling
    workers = tables.frame(
        "SELECT DISTINCT name FROM nvtx WHERE type IN (59, 60) AND pid NOT IN (SELECT pid FROM gpu)"
    )["name"]
    return any(matching_names(workers.to_list(), data_range, fixed_digits))


def find_ranges(
    tables: ReportTables, pid: int, threads: Iterable[int], data_names: list[str], step_names: list[str]
) -> Ranges:
    """Ranges that tell what some threads of a process did.

    Parameters
    ----------
    tables : ReportTables
    pid : int
    threads : iterable of int
        globalTid values.
    data_names, step_names : list of str
        Names of the data-loading ranges, and names that are no answer to "where was it".
    """
    application = f"FROM nvtx n WHERE n.pid = $1 AND NOT {of_nccl(tables, pid)}"
    counts = tables.frame(f"SELECT n.thread, count(*) AS ranges {application} GROUP BY 1 ORDER BY 1", [pid])
    owners = frozenset(counts["thread"].to_list())
    carrier = _carrier(tables, pid, counts)
    wanted = sorted((owners & set(threads)) | {carrier})
    sets = {
        "data_name": pl.Series("name", data_names, dtype=pl.String),
        "step_name": pl.Series("name", step_names, dtype=pl.String),
        "wanted": pl.Series("thread", wanted, dtype=pl.Int64),
    }
    for name, values in sets.items():
        tables.db.register(name, values.to_frame().to_arrow())
    rows = tables.frame(
        "SELECT n.rowid AS row, n.thread, n.start_ns, coalesce(n.end_ns, $2) AS end_ns, "
        # Imported ranges (70, 71) do not count in the exact figures either.
        "n.type IN (59, 60) AND n.name IN (SELECT name FROM data_name) AS loads_data "
        f"{application} AND n.thread IN (SELECT thread FROM wanted) "
        "AND n.name NOT IN (SELECT name FROM step_name) ORDER BY n.thread, n.start_ns, n.rowid",
        [pid, tables.capture_end_ns],
    )
    for name in sets:
        tables.db.unregister(name)
    return Ranges(
        thread=rows["thread"].to_numpy(),
        start=rows["start_ns"].to_numpy(),
        end=rows["end_ns"].to_numpy(),
        row=rows["row"].to_numpy(),
        loads_data=rows["loads_data"].to_numpy(),
        owners=owners,
        carrier=carrier,
    )


def range_names(tables: ReportTables, rows: pl.Series) -> pl.DataFrame:
    """Names of ranges, ``row`` and ``name``; `rows` are distinct values of `Ranges.row`."""
    tables.db.register("wanted", rows.alias("row").to_frame().to_arrow())
    names = tables.frame("SELECT w.row, n.name FROM nvtx n JOIN wanted w ON w.row = n.rowid ORDER BY w.row")
    tables.db.unregister("wanted")
    return names


def _carrier(tables: ReportTables, pid: int, counts: pl.DataFrame) -> int:
    """Thread with the most ranges: of those that make CUDA calls, else of all; 0 for none.

    A helper that pins memory all the time may have more of them than the thread that trains.
    """
    if counts.is_empty():
        return 0
    callers = tables.frame("SELECT DISTINCT thread FROM api WHERE pid = ?", [pid])["thread"].to_list()
    calling = counts.filter(pl.col("thread").is_in(callers))
    best = (counts if calling.is_empty() else calling).sort(["ranges", "thread"], descending=[True, False])
    return int(best["thread"][0])
