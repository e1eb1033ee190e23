"""The application's own NVTX ranges: which thread was in which one, and which of them load data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from rankdiff.kernels.intervals import I64
from rankdiff.reports.names import top
from rankdiff.reports.nccl_calls import of_nccl
from rankdiff.reports.tables import ReportTables
from rankdiff.steps import matching_names

# Ranges that the program made itself. Imported ones (70, 71) do not count in the exact figures either.
OWN = pl.col("type").is_in([59, 60])


@dataclass(frozen=True)
class Ranges:
    """Ranges of a process for some threads, but NCCL's and those whose name is a step's.

    Attributes
    ----------
    thread, start, end : (n,) int64, times in ns
        Sorted by (thread, start); a range without end lasts to the end of the capture.
    row : (n,) int64
        Row in `ReportTables.nvtx`.
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
    names = tables.names_of(tables.nvtx_of(pid).filter(OWN)["name"])
    return [match.string for match in matching_names(names, data_range, fixed_digits).values()]


def top_names(tables: ReportTables, pid: int) -> tuple[str, ...]:
    """Most frequent names of a process's ranges, whatever numbers are in them."""
    counts = tables.nvtx_of(pid)["name"].value_counts()
    alike = tables.nvtx_names.gather(counts["name"]).str.replace_all("[0-9]+", "#")
    summed = counts.select("count").with_columns(alike).group_by("name").agg(pl.col("count").sum())
    return top((name, count) for name, count in summed.iter_rows() if name)


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
    callers = tables.calling_threads(pid)
    if not callers:
        return False
    if data_names:
        loading = pl.col("name").is_in(tables.codes_of(data_names))
        return tables.nvtx_of(pid).filter(OWN & loading & pl.col("thread").is_in(callers)).is_empty()
    of_gpu = tables.gpu["pid"].unique().to_list()
    workers = tables.names_of(tables.nvtx.filter(OWN & ~pl.col("pid").is_in(of_gpu))["name"])
    return bool(matching_names(workers, data_range, fixed_digits))


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
    shown = tables.nvtx.drop("payload", "json").with_row_index("row")
    mine = shown.filter((pl.col("pid") == pid) & ~of_nccl(tables, pid))
    counts = mine.group_by("thread").agg(ranges=pl.len()).sort("thread")
    owners = frozenset(counts["thread"].to_list())
    carrier = _carrier(tables, pid, counts)
    wanted = sorted((owners & set(threads)) | {carrier})
    rows = (
        mine.filter(pl.col("thread").is_in(wanted) & ~pl.col("name").is_in(tables.codes_of(step_names)))
        .select(
            "thread",
            "start_ns",
            pl.col("end_ns").fill_null(tables.capture_end_ns),
            pl.col("row").cast(pl.Int64),
            loads_data=OWN & pl.col("name").is_in(tables.codes_of(data_names)),
        )
        .sort("thread", "start_ns", "row")
    )
    return Ranges(
        thread=rows["thread"].to_numpy(),
        start=rows["start_ns"].to_numpy(),
        end=rows["end_ns"].to_numpy(),
        row=rows["row"].to_numpy(),
        loads_data=rows["loads_data"].to_numpy(),
        owners=owners,
        carrier=carrier,
    )


def _carrier(tables: ReportTables, pid: int, counts: pl.DataFrame) -> int:
    """Thread with the most ranges: of those that make CUDA calls, else of all; 0 for none.

    A helper that pins memory all the time may have more of them than the thread that trains.
    """
    if counts.is_empty():
        return 0
    calling = counts.filter(pl.col("thread").is_in(tables.calling_threads(pid)))
    best = (counts if calling.is_empty() else calling).sort(["ranges", "thread"], descending=[True, False])
    return int(best["thread"][0])
