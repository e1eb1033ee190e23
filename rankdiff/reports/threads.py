"""What single threads did: their CUDA calls, OS calls and times off the CPU, and the profiler's own work.

The tables behind these are the largest of an export, so the choice of threads is made while reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rankdiff.kernels.intervals import I64
from rankdiff.reports.call_names import cuda_class, os_class, strip_version
from rankdiff.reports.columns import give_back, kept, process_ids, rows_of
from rankdiff.reports.filters import Filter
from rankdiff.reports.reader import INTEGER
from rankdiff.reports.tables import ReportTables

OSRT, OVERHEAD, SCHED = "OSRT_API", "PROFILER_OVERHEAD", "SCHED_EVENTS"

_OS_CALL = 27  # 31 and 32 are markers of zero length
NO_NAME = -1  # in Calls.name
NO_THREAD = -1  # instead of null; no globalTid is negative


@dataclass(frozen=True)
class Calls:
    """Calls of some threads.

    Attributes
    ----------
    thread, start, end : (n,) int64, times in ns
        globalTid and session times, sorted by (thread, start, end).
    name : (n,) int64
        Row in `names`; -1 where the export has no name.
    names : tuple of str
        Distinct names, sorted; CUDA calls without their version.
    classes : tuple of (str or None)
        Class of each name: what `call_names` says; None: not in its table.
    row_of : (m,) int64
        Row in `names` of each of `ReportTables.api_names` (CUDA calls), or of the names of the OS calls.
    """

    thread: I64
    start: I64
    end: I64
    name: I64
    names: tuple[str, ...]
    classes: tuple[str | None, ...]
    row_of: I64

    @cached_property
    def _rows(self) -> dict[int, slice]:
        threads, first, count = np.unique(self.thread, return_index=True, return_counts=True)
        spans = zip(threads.tolist(), first.tolist(), count.tolist(), strict=True)
        return {thread: slice(start, start + rows) for thread, start, rows in spans}

    def of(self, thread: int) -> slice:
        """Rows of one thread."""
        return self._rows.get(thread, slice(0, 0))


_EMPTY = np.empty(0, np.int64)
NO_CALLS = Calls(_EMPTY, _EMPTY, _EMPTY, _EMPTY, (), (), _EMPTY)


def os_calls(tables: ReportTables, threads: Iterable[int]) -> Calls | None:
    """OS runtime calls of some threads.

    Parameters
    ----------
    tables : ReportTables
    threads : iterable of int
        globalTid values. Helper threads sit in poll for the whole run and fill gigabytes.

    Returns
    -------
    Calls or None
        None when OS calls were not captured or cannot be read.
    """
    table = tables.optional(
        OSRT,
        {"start": INTEGER, "end": INTEGER, "globalTid": INTEGER, "nameId": INTEGER},
        required=("start", "end", "globalTid", "eventClass"),
        filters=(Filter("eventClass", "in", (_OS_CALL,)), _of(threads)),
    )
    if table is None:
        return None
    table = kept(table, tables.usable(OSRT, table, "globalTid"))
    named = tables.reader.strings(pc.unique(table["nameId"].drop_null()).to_numpy())
    rows = pl.DataFrame(
        pa.table(
            {
                "thread": table["globalTid"],
                "start_ns": tables.session(table["start"]),
                "end_ns": tables.session(table["end"]),
                "name": rows_of(named["id"], table["nameId"]),
                "name_id": table["nameId"],
            }
        )
    )
    del table
    give_back()
    rows = rows.sort("thread", "start_ns", "end_ns", "name_id")
    return _calls(rows, named["value"].to_pylist(), str, os_class)


def cuda_calls(tables: ReportTables, threads: Iterable[int]) -> Calls:
    """CUDA API calls of some threads; none when they were not captured.

    Parameters
    ----------
    tables : ReportTables
    threads : iterable of int
        globalTid values.
    """
    api = tables.api
    timed = (api["end_ns"] >= api["start_ns"]).fill_null(False).to_numpy()
    thread = api["thread"].fill_null(NO_THREAD).to_numpy()
    start, end = api["start_ns"].fill_null(0).to_numpy(), api["end_ns"].fill_null(0).to_numpy()
    rows = [np.empty(0, np.int64)]
    for wanted in sorted(set(threads)):
        mine = np.flatnonzero((thread == wanted) & timed)
        if np.any(start[mine[1:]] <= start[mine[:-1]]):
            mine = mine[np.lexsort((end[mine], start[mine]))]  # stable: equal calls keep their order
        rows.append(mine)
    chosen = api.select("thread", "start_ns", "end_ns", "name")[np.concatenate(rows)]
    return _calls(chosen, tables.api_names, strip_version, cuda_class)


def off_cpu(tables: ReportTables, threads: Iterable[int]) -> pl.DataFrame:
    """Times at which threads were not on any CPU.

    Parameters
    ----------
    tables : ReportTables
    threads : iterable of int
        globalTid values.

    Returns
    -------
    polars.DataFrame
        ``thread``, ``start_ns``, ``end_ns``, sorted by (thread, start_ns): from each "scheduled out" to the
        next event of the thread, at the end to that of the capture. No rows when it was not captured.
    """
    table = tables.optional(
        SCHED,
        {"start": INTEGER, "isSchedIn": INTEGER, "globalTid": INTEGER},
        required=("start", "isSchedIn", "globalTid"),
        filters=(_of(threads),),
    )
    if table is None:
        return pl.DataFrame(schema=dict.fromkeys(("thread", "start_ns", "end_ns"), pl.Int64))
    rows = pl.DataFrame(
        pa.table(
            {
                "thread": table["globalTid"],
                "start_ns": tables.session(table["start"]),
                "inward": table["isSchedIn"],
            }
        )
    )
    # At one time "out" comes before "in": a move from one CPU to another takes no time.
    rows = rows.drop_nulls().sort("thread", "start_ns", "inward")
    end = pl.col("start_ns").shift(-1).over("thread").fill_null(tables.capture_end_ns)
    return rows.with_columns(end_ns=end).filter(pl.col("inward") == 0).select("thread", "start_ns", "end_ns")


def profiler_overhead(tables: ReportTables) -> pl.DataFrame:
    """Times at which the profiler itself worked in a process: ``pid``, ``start_ns``, ``end_ns``."""
    table = tables.optional(
        OVERHEAD,
        {"start": INTEGER, "end": INTEGER, "globalTid": INTEGER},
        required=("start", "end", "globalTid"),
    )
    if table is None:
        return pl.DataFrame(schema=dict.fromkeys(("pid", "start_ns", "end_ns"), pl.Int64))
    table = kept(table, tables.usable(OVERHEAD, table, "globalTid"))
    columns = {
        "pid": process_ids(table["globalTid"]),
        "start_ns": tables.session(table["start"]),
        "end_ns": tables.session(table["end"]),
    }
    return pl.DataFrame(pa.table(columns)).drop_nulls()


def _of(threads: Iterable[int]) -> Filter:
    return Filter("globalTid", "in", tuple(sorted(set(threads))))


def _calls(
    rows: pl.DataFrame,
    texts: Sequence[str | None],
    spell: Callable[[str], str],
    classify: Callable[[str], str | None],
) -> Calls:
    """Build `Calls`: `rows` sorted, their ``name`` a row of `texts`."""
    spelled = [spell(text) if text else None for text in texts]
    distinct = tuple(sorted({text for text in spelled if text is not None}))
    at = {text: row for row, text in enumerate(distinct)}
    row_of = np.array([NO_NAME if text is None else at[text] for text in spelled], np.int64)
    name = rows["name"].fill_null(len(texts)).to_numpy()
    return Calls(
        thread=rows["thread"].to_numpy(),
        start=rows["start_ns"].to_numpy(),
        end=rows["end_ns"].to_numpy(),
        name=np.append(row_of, NO_NAME)[name],
        names=distinct,
        classes=tuple(classify(text) for text in distinct),
        row_of=row_of,
    )
