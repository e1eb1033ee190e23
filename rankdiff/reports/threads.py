"""What single threads did: their CUDA calls, OS calls and times off the CPU, and the profiler's own work.

The tables behind these are the largest of an export, so the choice of threads is made while reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
import pyarrow as pa

from rankdiff.kernels.intervals import I64
from rankdiff.reports.call_names import cuda_class, os_class, strip_version
from rankdiff.reports.filters import Filter
from rankdiff.reports.reader import INTEGER
from rankdiff.reports.tables import ReportTables, process_ids

OSRT, OVERHEAD, SCHED = "OSRT_API", "PROFILER_OVERHEAD", "SCHED_EVENTS"

_OS_CALL = 27  # 31 and 32 are markers of zero length
NO_NAME = -1  # in Calls.name


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
    of_id : mapping of int to int
        Row in `names` by the export's id of the name.
    """

    thread: I64
    start: I64
    end: I64
    name: I64
    names: tuple[str, ...]
    classes: tuple[str | None, ...]
    of_id: Mapping[int, int]

    @cached_property
    def _rows(self) -> dict[int, slice]:
        threads, first, count = np.unique(self.thread, return_index=True, return_counts=True)
        spans = zip(threads.tolist(), first.tolist(), count.tolist(), strict=True)
        return {thread: slice(start, start + rows) for thread, start, rows in spans}

    def of(self, thread: int) -> slice:
        """Rows of one thread."""
        return self._rows.get(thread, slice(0, 0))

    def are(self, kind: str) -> list[int]:
        """Rows of `names` that are of a class."""
        return [at for at, found in enumerate(self.classes) if found == kind]


_EMPTY = np.empty(0, np.int64)
NO_CALLS = Calls(_EMPTY, _EMPTY, _EMPTY, _EMPTY, (), (), {})


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
    table = table.filter(tables.usable(OSRT, table, "globalTid"))
    rows = pl.DataFrame(
        pa.table(
            {
                "thread": table["globalTid"],
                "start_ns": tables.session(table["start"]),
                "end_ns": tables.session(table["end"]),
                "name_id": table["nameId"],
            }
        )
    )
    rows = rows.sort("thread", "start_ns", "end_ns", "name_id")
    names = pl.DataFrame(tables.reader.strings(rows["name_id"].drop_nulls().unique().to_numpy()))
    return _calls(rows, names, str, os_class)


def cuda_calls(tables: ReportTables, threads: Iterable[int]) -> Calls:
    """CUDA API calls of some threads; none when they were not captured.

    Parameters
    ----------
    tables : ReportTables
    threads : iterable of int
        globalTid values.
    """
    wanted = pl.DataFrame({"thread": sorted(set(threads))}, schema={"thread": pl.Int64})
    tables.db.register("wanted", wanted.to_arrow())
    rows = tables.frame(
        "SELECT thread, start_ns, end_ns, name_id FROM api WHERE thread IN (SELECT thread FROM wanted) "
        "AND end_ns >= start_ns ORDER BY thread, start_ns, end_ns, row"
    )
    tables.db.unregister("wanted")
    return _calls(rows, tables.frame("SELECT id, value FROM api_name"), strip_version, cuda_class)


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
    table = table.filter(tables.usable(OVERHEAD, table, "globalTid"))
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
    names: pl.DataFrame,
    spell: Callable[[str], str],
    classify: Callable[[str], str | None],
) -> Calls:
    """Build `Calls`: `rows` sorted with ``name_id``, `names` with ``id`` and ``value``."""
    spelled = {number: spell(text) for number, text in names.iter_rows() if text}
    distinct = tuple(sorted(set(spelled.values())))
    at = {text: row for row, text in enumerate(distinct)}
    of_id = {number: at[text] for number, text in spelled.items()}
    codes = pl.DataFrame(
        {"name_id": list(of_id), "name": list(of_id.values())},
        schema={"name_id": pl.Int64, "name": pl.Int64},
    )
    coded = rows.join(codes, on="name_id", how="left", maintain_order="left")
    return Calls(
        thread=coded["thread"].to_numpy(),
        start=coded["start_ns"].to_numpy(),
        end=coded["end_ns"].to_numpy(),
        name=coded["name"].fill_null(NO_NAME).to_numpy(),
        names=distinct,
        classes=tuple(classify(text) for text in distinct),
        of_id=of_id,
    )
