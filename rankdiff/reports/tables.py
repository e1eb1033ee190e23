"""One report in DuckDB, as the stages after the reading see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rankdiff.notes import Note
from rankdiff.reports.capture import Capture
from rankdiff.reports.discover import Report
from rankdiff.reports.filters import Filter
from rankdiff.reports.payloads import Layouts
from rankdiff.reports.reader import DamagedError, Reader

LONGEST_SESSION_NS = 10**15  # eleven days; profiles are of minutes


@dataclass
class ReportTables:
    """One report in DuckDB; a context manager that closes it.

    The tables, all times session times in ns:

    - ``gpu``: one row per GPU operation (kind, pid, device, start_ns, end_ns, correlation, context, stream,
      name_id, graph_node; grid_x to block_z of kernels; bytes, copy_kind, source_memory and target_memory of
      copies); page migrations of unified memory left out
    - ``name``: kernel names (id, name, communicates, op, hash)
    - ``api``: CUDA calls (pid, thread, start_ns, end_ns, correlation, name_id, row)
    - ``api_name``: their names (id, value)
    - ``launch``: the call of each (pid, correlation): thread, start_ns, end_ns, name_id
    - ``nvtx``: ranges (pid, thread, start_ns, end_ns, type, domain, name, payload, json); end_ns is null
      where a range has no end
    - ``domain``: NVTX domains (pid, domain, name)

    Attributes
    ----------
    shift_ns : int
        Taken out of every time.
    capture_end_ns : int
        Last event of any kind, session time: where ranges without an end are cut.
    rows : dict of str to int
        Rows read per table of the export; a table that was not captured is absent.
    unusable : dict of (str, int or None) to int
        Events whose times cannot be right, per table and process (None: it is not known whose); left out.
    """

    report: Report
    capture: Capture
    reader: Reader
    db: duckdb.DuckDBPyConnection
    layouts: Layouts
    shift_ns: int = 0
    session_start_utc_ns: int | None = None
    capture_end_ns: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    unusable: dict[tuple[str, int | None], int] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def __enter__(self) -> ReportTables:
        """Return the tables themselves."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close everything."""
        self.close()

    def close(self) -> None:
        """Close the database and the export."""
        self.db.close()
        self.reader.close()

    def arrow(self, sql: str, parameters: Iterable[Any] = ()) -> pa.Table:
        """Run a query and return its rows as an Arrow table.

        Always through a relation: newer versions of DuckDB refuse further work on a connection that still
        holds the result of `execute`.
        """
        return self.db.sql(sql, params=list(parameters)).to_arrow_table()

    def frame(self, sql: str, parameters: Iterable[Any] = ()) -> pl.DataFrame:
        """Run a query and return its rows as a polars frame."""
        return pl.DataFrame(self.arrow(sql, parameters))

    def optional(
        self,
        table: str,
        columns: Mapping[str, pa.DataType],
        required: Sequence[str],
        filters: Sequence[Filter] = (),
        where: str = "",
        parameters: Sequence[int] = (),
    ) -> pa.Table | None:
        """Rows of a table that one can do without; None when it was not captured or is damaged."""
        try:
            if not self.reader.has(table):
                return None
            rows = self.reader.read(
                table, columns, required=required, filters=filters, where=where, parameters=parameters
            )
        except DamagedError as error:
            self.notes.append(Note("table_unreadable", f"{error.what}; taken as not captured"))
            return None
        self.rows[table] = rows.num_rows
        return rows

    def usable(self, table: str, rows: pa.Table, owner: str, open_ended: bool = False) -> pa.ChunkedArray:
        """Say which events have times that can be right, and count the others in `unusable`.

        Those are events without a start or an end, those that end before they start, and those further from the
        session's start than any session lasts.

        Parameters
        ----------
        table : str
            Name in the export.
        rows : pyarrow.Table
            With ``start`` and ``end`` as in the export.
        owner : str
            Column with the globalTid or globalPid.
        open_ended : bool
            An event may lack its end.

        Returns
        -------
        pyarrow.ChunkedArray of bool
        """
        start, end = self.session(rows["start"]), self.session(rows["end"])
        good = pc.and_(start.is_valid(), pc.fill_null(pc.greater_equal(end, start), open_ended))
        bad = process_ids(rows.filter(pc.invert(good))[owner])
        for each in pc.value_counts(bad).to_pylist():
            key = table, each["values"]
            self.unusable[key] = self.unusable.get(key, 0) + each["counts"]
        return good

    def unusable_of(self, pid: int) -> dict[str, int]:
        """Counts of `unusable` of one process, or of nobody in particular, by table."""
        out: dict[str, int] = {}
        for (table, owner), count in sorted(self.unusable.items(), key=lambda item: item[0][0]):
            if owner in (None, pid):
                out[table] = out.get(table, 0) + count
        return out

    def session(self, times: pa.ChunkedArray) -> pa.ChunkedArray:
        """Event times of the export as session times; null where they are further off than a session lasts.

        What is left can be subtracted and added up in 64 bits.
        """
        low, high = (
            pa.scalar(self.shift_ns + end, pa.int64()) for end in (-LONGEST_SESSION_NS, LONGEST_SESSION_NS)
        )
        possible = pc.and_(pc.greater_equal(times, low), pc.less_equal(times, high))
        kept = pc.if_else(possible, times, pa.scalar(None, pa.int64()))
        return pc.subtract(kept, pa.scalar(self.shift_ns, pa.int64()))

    def create(self, name: str, table: pa.Table) -> None:
        """Store an Arrow table in the database."""
        self.db.register("incoming", table)
        self.db.execute(f"CREATE TABLE {name} AS SELECT * FROM incoming")
        self.db.unregister("incoming")


def process_ids(global_ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Process ids inside globalTid or globalPid values; null stays null."""
    shifted = pc.shift_right(global_ids, pa.scalar(24, pa.int64()))
    return pc.bit_wise_and(shifted, pa.scalar(0xFFFFFF, pa.int64()))
