"""One report, as the stages after the reading see it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rankdiff.notes import Note
from rankdiff.reports.capture import Capture, pid_of
from rankdiff.reports.columns import process_ids
from rankdiff.reports.discover import Report
from rankdiff.reports.filters import Filter
from rankdiff.reports.payloads import Layouts
from rankdiff.reports.reader import DamagedError, Reader

LONGEST_SESSION_NS = 10**15  # eleven days; profiles are of minutes


# One row per GPU operation; page migrations of unified memory are left out.
GPU = pl.Schema(
    {
        "kind": pl.String,  # kernel, graph, memcpy or memset
        "pid": pl.Int64,
        "device": pl.Int64,
        "start_ns": pl.Int64,  # session time
        "end_ns": pl.Int64,  # session time
        "correlation": pl.Int64,  # of the call that launched it; null: not in the export
        "context": pl.Int64,
        "stream": pl.Int64,
        "name": pl.Int64,  # row of KernelNames, the last one for whatever is no kernel
        "graph_node": pl.Int64,  # null: not launched from a graph, or not in the export
        "grid_x": pl.Int64,  # of a kernel; null: no kernel, or not in the export; likewise to block_z
        "grid_y": pl.Int64,
        "grid_z": pl.Int64,
        "block_x": pl.Int64,
        "block_y": pl.Int64,
        "block_z": pl.Int64,
        "bytes": pl.Int64,  # of copies and sets
        "copy_kind": pl.Int64,  # of copies, as in the export; likewise the next two
        "source_memory": pl.Int64,
        "target_memory": pl.Int64,
        "launched": pl.Boolean,  # the CUDA call that launched it is in the export
        "launch_ns": pl.Int64,  # its start, session time; null: not known, likewise the next ones
        "launch_end_ns": pl.Int64,
        "launch_tid": pl.Int64,  # globalTid
        "launch_name": pl.Int64,  # row of ReportTables.api_names
    }
)

# One row per CUDA call.
API = pl.Schema(
    {
        "thread": pl.Int64,  # globalTid; null: the export does not say
        "start_ns": pl.Int64,  # session time; null: it cannot be right
        "end_ns": pl.Int64,  # the same
        "name": pl.Int64,  # row of ReportTables.api_names; null: it has none
    }
)

# One row per NVTX range.
NVTX_RANGES = pl.Schema(
    {
        "pid": pl.Int64,
        "thread": pl.Int64,  # globalTid
        "start_ns": pl.Int64,  # session time
        "end_ns": pl.Int64,  # session time; null: the range has no end
        "type": pl.Int64,  # 59 push/pop, 60 start/end, 70 and 71 imported from text
        "domain": pl.Int64,
        "name": pl.Int64,  # row of ReportTables.nvtx_names
        "payload": pl.Binary,  # null: it has none
        "json": pl.String,  # the same as text, by other exports
    }
)
DOMAINS = pl.Schema({"pid": pl.Int64, "domain": pl.Int64, "name": pl.String})


@dataclass(frozen=True)
class KernelNames:
    """What a kernel's name says. The last row is for kernels without a name in the export.

    Attributes
    ----------
    texts, ops : tuple of str
        Names, perhaps the same one several times, and the operations that they name.
    communicates : (n,) bool
        NCCL's kernels, and those the user named.
    hashes : (n,) uint64
        Of the name, the same in every process and for every rank, which string ids are not.
    """

    texts: tuple[str, ...]
    ops: tuple[str, ...]
    communicates: npt.NDArray[np.bool_]
    hashes: npt.NDArray[np.uint64]


NO_KERNELS = KernelNames(("",), ("unknown",), np.zeros(1, np.bool_), np.zeros(1, np.uint64))


@dataclass
class ReportTables:
    """One report, read; a context manager that closes it.

    Attributes
    ----------
    gpu : polars.DataFrame
        GPU, by (pid, device, start_ns, end_ns, stream, correlation).
    kernels : KernelNames
        What the column ``name`` of `gpu` means.
    api : polars.DataFrame
        API, in the order of the export.
    api_names : tuple of (str or None)
        What the column ``name`` of `api` means; None: the export has no such name, or it is no name.
    nvtx : polars.DataFrame
        NVTX_RANGES, in the order of the export.
    nvtx_names : polars.Series
        What the column ``name`` of `nvtx` means; distinct. There may be as many as ranges: some programs put a
        number into each.
    domains : polars.DataFrame
        NVTX domains, distinct: ``pid``, ``domain``, ``name``.
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
    layouts: Layouts
    gpu: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=GPU))
    kernels: KernelNames = NO_KERNELS
    api: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=API))
    api_names: tuple[str | None, ...] = ()
    nvtx: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=NVTX_RANGES))
    nvtx_names: pl.Series = field(default_factory=lambda: pl.Series("name", dtype=pl.String))
    domains: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=DOMAINS))
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
        """Close the export."""
        self.reader.close()

    def gpu_of(self, pid: int, device: int | None = None) -> pl.DataFrame:
        """GPU operations of a process, or of one of its devices: a part of `gpu` that needs no memory."""
        first, end = _run_of(self.gpu["pid"], pid)
        if device is not None:
            below, above = _run_of(self.gpu["device"][first:end], device)
            first, end = first + below, first + above
        return self.gpu[first:end]

    def calling_threads(self, pid: int) -> list[int]:
        """Threads of a process that made CUDA calls."""
        return [thread for thread in self._callers if pid_of(thread) == pid]

    @cached_property
    def _callers(self) -> list[int]:
        return self.api["thread"].drop_nulls().unique().sort().to_list()

    def nvtx_of(self, pid: int) -> pl.DataFrame:
        """NVTX ranges of a process; no copy where there is no other."""
        return self.nvtx if self._marking == [pid] else self.nvtx.filter(pl.col("pid") == pid)

    @cached_property
    def _marking(self) -> list[int]:
        """Processes with NVTX ranges."""
        return self.nvtx["pid"].unique().to_list()

    def names_of(self, codes: pl.Series) -> pl.Series:
        """The different names of some NVTX ranges, given by the column ``name``."""
        return self.nvtx_names.gather(codes.unique())

    def codes_of(self, names: Collection[str]) -> list[int]:
        """Values of the column ``name`` of `nvtx` for some names."""
        return self.nvtx_names.is_in(list(names)).arg_true().to_list()

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
        if pc.all(good).as_py() is not False:
            return good
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
        low, high = self.shift_ns - LONGEST_SESSION_NS, self.shift_ns + LONGEST_SESSION_NS
        found = pc.min_max(times).as_py()
        if found["min"] is not None and (found["min"] < low or found["max"] > high):
            ends = pa.scalar(low, pa.int64()), pa.scalar(high, pa.int64())
            possible = pc.and_(pc.greater_equal(times, ends[0]), pc.less_equal(times, ends[1]))
            times = pc.if_else(possible, times, pa.scalar(None, pa.int64()))
        return pc.subtract(times, pa.scalar(self.shift_ns, pa.int64())) if self.shift_ns else times


def _run_of(rising: pl.Series, value: int) -> tuple[int, int]:
    """First and end of the rows of a rising column that have some value."""
    first, end = np.searchsorted(rising.to_numpy(), [value, value + 1])
    return int(first), int(end)
