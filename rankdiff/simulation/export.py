"""One export file, written by hand: `Export` is the file and its first GPU process."""

from __future__ import annotations

import hashlib
import sqlite3
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from .clocks import linear_clock
from .events import Span, Value
from .process import Process
from .tables import columns, has_table, table_names, version_tuple

EPOCH = 1_779_630_000_000_000_000  # UTC ns at session time 0, unless said otherwise


class Export(Process):
    """One export file and its first GPU process; a context manager that writes on a clean exit.

    Parameters
    ----------
    path : Path
        The file to write; replaced when it exists.
    node : str
        Host name of the capture.
    env : mapping, optional
        Captured environment variables, written with their quotes into META_DATA_CAPTURE.
    utc_ns : int or None
        UTC of session time 0 by the node's own clock; None leaves the table out.
    pid, device : int
        The first process.
    uuid : str, optional
        Its GPU; by default made from the node and the pid.
    gpu : int
        Physical index of that GPU on its node.
    version : str or None
        Schema version; None writes no version at all, as exporters of 2020 and 2021.
    blobs : bool
        Export NVTX payloads (``--include-blobs``).
    nccl_ranges : bool
        Write the ranges of the NCCL domain.
    clock : callable, optional
        Maps true time to session time (`linear_clock`).
    shift_ns : int
        What ``--ts-shift`` or ``--ts-normalize`` added to every event time.
    window : (int, int), optional
        The capture window in true time: events not wholly inside are not recorded.
    machine : int
        The upper 16 bits of every global id: hardware id and virtual machine id.
    session : str, optional
        PROFILING_SESSION_UUID; by default each file has its own.
    uncaptured : collection of str
        Tables that the capture was not asked for.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        node: str = "nodeA",
        env: Mapping[str, object] | None = None,
        utc_ns: int | None = EPOCH,
        pid: int = 4000,
        device: int = 0,
        uuid: str | None = None,
        gpu: int = 0,
        version: str | None = "3.24.14",
        blobs: bool = True,
        nccl_ranges: bool = True,
        clock: Callable[[int], int] | None = None,
        shift_ns: int = 0,
        window: Span | None = None,
        machine: int = 1,
        session: str | None = None,
        uncaptured: Collection[str] = (),
    ) -> None:
        self.path = Path(path)
        self.node = node
        self.env = dict(env or {})
        self.utc_ns = utc_ns
        self.version = version
        self.blobs = blobs
        self.nccl_ranges = nccl_ranges
        self.shift_ns = shift_ns
        self.window = window
        self.machine = machine
        self.uncaptured = frozenset(uncaptured)
        self.begin_ns = window[0] if window else 0
        self._clock = clock or linear_clock()
        self._rows: dict[str, list[dict[str, Value]]] = {table: [] for table in table_names()}
        self._strings: dict[str, int] = {}
        self._sql: list[str] = []
        self._last_ns = 0
        self.session = session or _uuid(f"{self.path.name}/{node}/{pid}/{utc_ns}")
        super().__init__(self, pid, device)
        self._add_process(self, uuid, gpu)

    def process(self, pid: int, device: int = 0, *, uuid: str | None = None, gpu: int = 0) -> Process:
        """Return another process of the same report, as under torchrun."""
        process = Process(self, pid, device)
        self._add_process(process, uuid, gpu)
        return process

    def string(self, value: str) -> int:
        """Return the StringIds id of a text."""
        return self._strings.setdefault(value, len(self._strings) + 1)

    def event(
        self, table: str, start: int, end: int | None, row: Mapping[str, Value], *, anyway: bool = False
    ) -> None:
        """Write one event; `anyway` also outside the capture window."""
        if self.window and not anyway:
            low, high = self.window
            if start < low or (start if end is None else end) > high:
                return
        times: dict[str, Value] = {"start": self.session_time(start) + self.shift_ns}
        if end is not None:
            times["end"] = self.session_time(end) + self.shift_ns
            self._last_ns = max(self._last_ns, self.session_time(end))
        self.row(table, **times, **row)

    def session_time(self, time_ns: int) -> int:
        """Return a true time as session time of this file, before any shift."""
        return self._clock(int(time_ns))

    def row(self, table: str, **values: Value) -> None:
        """Write one row as it is; columns that the schema version does not have are left out."""
        self._rows[table].append(values)

    def written(self, table: str) -> list[dict[str, Value]]:
        """Return the rows of a table so far."""
        return list(self._rows[table])

    def rows_of(self, rows: Iterable[tuple[str, Mapping[str, Value]]]) -> None:
        """Write (table, row) pairs as they are."""
        for table, values in rows:
            self.row(table, **values)

    def diagnostic(
        self, text: str, *, severity: int = 2, at: int = 0, process: Process | None = None
    ) -> None:
        """Write a diagnostic message (severity 1 info, 2 warning, 3 error)."""
        self.row(
            "DIAGNOSTIC_EVENT",
            timestamp=self.session_time(at) + self.shift_ns,
            timestampType=1,
            source=1,
            severity=severity,
            text=text,
            globalPid=(process or self).gpid,
        )

    def capture(self, name: str, value: str) -> None:
        """Write one more row of META_DATA_CAPTURE; names repeat there."""
        self.row("META_DATA_CAPTURE", name=name, value=value)

    def mpi_rank(self, rank: int) -> None:
        """Write the MPI rank of the main thread."""
        self.row("MPI_RANKS", globalTid=self.gtid(), rank=rank)

    def drop(self, table: str) -> None:
        """Leave a table out of the file, as if it had not been captured."""
        self.sql(f'DROP TABLE IF EXISTS "{table}"')

    def sql(self, statement: str) -> None:
        """Run a statement on the finished file: for whatever no method says."""
        self._sql.append(statement)

    def close(self) -> Path:
        """Write the file and return its path."""
        self._describe()
        self.path.unlink(missing_ok=True)
        base = sqlite3.connect(self.path)
        try:
            # A new file, which is worthless unless complete: nothing to roll back to, nothing to save from a crash.
            base.execute("PRAGMA journal_mode = OFF")
            base.execute("PRAGMA synchronous = OFF")
            for table, rows in self._rows.items():
                if rows and table not in self.uncaptured and has_table(table, self.version):
                    known = columns(table, self.version)
                    base.execute(f'CREATE TABLE "{table}" ({", ".join(c.sql for c in known)})')
                    marks = ", ".join("?" * len(known))
                    full = ([row.get(c.name, c.default) for c in known] for row in rows)
                    base.executemany(f'INSERT INTO "{table}" VALUES ({marks})', full)
            for statement in self._sql:
                base.execute(statement)
            base.commit()
        finally:
            base.close()
        return self.path

    def __enter__(self) -> Self:
        """Return the export itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the file unless the block failed."""
        if kind is None:
            self.close()

    def _add_process(self, process: Process, uuid: str | None, gpu: int) -> None:
        uuid = uuid or _uuid(f"{self.node}/gpu{gpu}")
        self.row("PROCESSES", globalPid=process.gpid, pid=process.pid, name="python3")
        self.row(
            "TARGET_INFO_CUDA_DEVICE",
            gpuId=gpu,
            cudaId=process.device,
            pid=process.pid,
            uuid=uuid,
            numMultiprocessors=132,
        )
        self.row(
            "TARGET_INFO_GPU",
            vmId=self.machine << 48,
            id=gpu,
            name="NVIDIA H200",
            isDiscrete=1,
            busLocation=f"0000:{gpu + 6:02x}:00.0",
            smCount=132,
            pwGpuId=gpu,
            uuid=uuid,
            chipName="GH100",
        )

    def _describe(self) -> None:
        """Add the rows about the file itself."""
        env: dict[str, Value] = {"devStateName": "Local (CLI)", "globalVid": self.machine << 48}
        self.row("TARGET_INFO_SYSTEM_ENV", **env, name="CpuCores", nameEnum=1, value="64")
        self.row("TARGET_INFO_SYSTEM_ENV", **env, name="Hostname", nameEnum=619, value=self.node)
        self.row(
            "ANALYSIS_DETAILS",
            globalVid=self.machine << 48,
            duration=self._last_ns,
            startTime=5_000_000_000,
            stopTime=5_000_000_000 + self._last_ns,
        )
        if self.utc_ns is not None:
            text = datetime.fromtimestamp(self.utc_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            self.row(
                "TARGET_INFO_SESSION_START_TIME",
                utcEpochNs=self.utc_ns,
                utcTime=text,
                localTime=text,
                systemClockNs=self.utc_ns - EPOCH + 86_400_000_000_000,
            )
        for kind, table in (("NvtxEvents", "NVTX_EVENTS"), ("Cuda", ""), ("OSRuntime", "OSRT_API")):
            if table not in self.uncaptured:
                self.capture("CAPTURE_EVENT_TYPE", kind)
        self.capture("DEVICE_DISPLAY_NAME", self.node)
        self.capture("PROFILING_SESSION_UUID", self.session)
        self.capture("PROCESS_0:COMMAND", "python3")
        for name, value in self.env.items():
            self.capture("PROCESS_0:ENVIRONMENT_VARIABLE", f'{name}="{value}"')
        exported = {"EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems", "EXPORT_PRODUCT_VERSION": "2026.1.1.0"}
        if self.version:
            exported["EXPORT_SCHEMA_VERSION"] = self.version
            for part, number in zip(("MAJOR", "MINOR", "MICRO"), version_tuple(self.version), strict=True):
                exported[f"EXPORT_SCHEMA_VERSION_{part}"] = str(number)
        exported["EXPORT_PARAM_TIME_NORMALIZE"] = str(self.shift_ns == self.utc_ns).lower()
        exported["EXPORT_CONFIG_TIME_SHIFT"] = str(self.shift_ns)
        for table in ("EXPORT_META_DATA", "META_DATA_EXPORT"):
            for name, value in exported.items():
                self.row(table, name=name, value=value)
        self.row("StringIds", id=0, value="[Unknown]")
        for value, number in self._strings.items():
            self.row("StringIds", id=number, value=value)


def _uuid(seed: str) -> str:
    return str(uuid.UUID(bytes=hashlib.blake2b(seed.encode(), digest_size=16).digest()))
