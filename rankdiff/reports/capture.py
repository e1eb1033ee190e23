"""What an export says about its capture: versions, clock, host, GPUs, and the few variables we may read.

These tables also hold the whole environment of the profiled process, with whatever keys and tokens it had.
Values are therefore chosen by the engine that reads them, by exact name, and nothing else ever leaves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rankdiff.reports.reader import INTEGER, Reader, quote, unless_damaged
from rankdiff.untrusted import shown

# By precedence of the rank variables first. Exact names: a prefix would let keys through
# (SLURM_SPANK_SHIFTER_SSH_PUBKEY, PMI_SHARED_SECRET).
RANK_VARIABLES = ("SLURM_PROCID", "RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
VARIABLES = (
    *RANK_VARIABLES,
    "SLURM_NODEID",
    "SLURM_LOCALID",
    "SLURM_NTASKS",
    "SLURM_JOB_ID",
    "SLURMD_NODENAME",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "CUDA_VISIBLE_DEVICES",
)

_EXPORT_NAMES = (
    "EXPORT_PRODUCT_VERSION",
    "EXPORT_SCHEMA_VERSION",
    "EXPORT_CONFIG_TIME_SHIFT",
    "EXPORT_PARAM_TIME_SHIFT",
)

# Diagnostics about lost events, by code. The first three also stand in complete captures: they are evidence
# only where counts diverge.
_LOST = (
    ("cuda_incomplete", "Not all CUDA events might have been collected%"),
    ("nvtx_incomplete", "Not all NVTX events might have been collected%"),
    ("osrt_incomplete", "Not all OS runtime libraries events might have been collected%"),
    ("cuda_dropped", "%CUPTI%dropped%"),
    ("cuda_dropped", "%CUDA%events%lost%"),
    ("events_dropped", "%events%dropped%"),
    ("buffer_full", "%buffer%full%"),
)

LATEST_UTC_NS = 4_102_444_800 * 10**9  # the year 2100; later times of the day are broken ones
_LONGEST_COUNT = 6  # digits of a rank or world size
_TIDS = 24  # bits of the thread id at the bottom of a global id
_PID_MASK = 0xFFFFFF


def pid_of(global_id: int) -> int:
    """Process id inside a globalTid or globalPid (hardware 8, VM 8, process 24, thread 24 bits)."""
    return (global_id >> _TIDS) & _PID_MASK


@dataclass(frozen=True)
class Gpu:
    """A physical GPU as far as the export tells it; None means it does not."""

    uuid: str | None = None
    name: str | None = None
    bus: str | None = None
    number: int | None = None  # its index on the node, which GPU metrics count by


@dataclass(frozen=True)
class Capture:
    """The metadata of one export.

    Attributes
    ----------
    time_shift_ns : int or None
        Shift that the export applied to every event time; None when the export does not say.
    user_shift_ns : int
        The part of it that somebody asked for with ``--ts-shift``.
    lost : tuple of (str, int or None)
        Codes of diagnostics about lost events, with the process they concern (None: the whole capture).
    has_diagnostics : bool
        The export holds the profiler's diagnostics, and they can be read.
    """

    product_version: str | None = None
    schema_version: str | None = None
    time_shift_ns: int | None = None
    user_shift_ns: int = 0
    session_start_utc_ns: int | None = None
    session_uuid: str | None = None
    hostname: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    mpi_ranks: Mapping[int, int] = field(default_factory=dict)
    gpus: Mapping[tuple[int, int], Gpu] = field(default_factory=dict)
    lost: tuple[tuple[str, int | None], ...] = ()
    has_diagnostics: bool = False

    def integer(self, name: str) -> int | None:
        """Value of a variable that counts ranks; None when it is absent, not a number or absurdly large."""
        text = self.variables.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST_COUNT else None


def read_capture(reader: Reader) -> Capture:
    """Read the metadata of an export; what is not there is None or empty."""
    export: dict[str, str] = unless_damaged(reader, _export_metadata, {})
    lost: tuple[tuple[str, int | None], ...] | None = unless_damaged(reader, _lost, None)
    return Capture(
        product_version=export.get("EXPORT_PRODUCT_VERSION"),
        schema_version=export.get("EXPORT_SCHEMA_VERSION"),
        time_shift_ns=_shift(export.get("EXPORT_CONFIG_TIME_SHIFT")),
        user_shift_ns=_shift(export.get("EXPORT_PARAM_TIME_SHIFT")) or 0,
        session_start_utc_ns=unless_damaged(reader, _session_start, None),
        session_uuid=unless_damaged(reader, _session_uuid, None),
        hostname=unless_damaged(reader, _hostname, None),
        variables=unless_damaged(reader, _variables, {}),
        mpi_ranks=unless_damaged(reader, _mpi_ranks, {}),
        gpus=unless_damaged(reader, _gpus, {}),
        lost=lost or (),
        has_diagnostics=lost is not None and reader.has("DIAGNOSTIC_EVENT"),
    )


def _has(reader: Reader, table: str, *columns: str) -> bool:
    return reader.has(table) and set(columns) <= set(reader.columns(table))


def _shift(text: str | None) -> int | None:
    """A shift of event times in ns; None where it is no number, or larger than the time of the day can be."""
    try:
        shift = int(text) if text is not None else None
    except ValueError:
        return None
    return shift if shift is not None and abs(shift) <= LATEST_UTC_NS else None


def _export_metadata(reader: Reader) -> dict[str, str]:
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if _has(reader, table, "name", "value"):
            marks = ",".join("?" * len(_EXPORT_NAMES))
            rows = reader.query(
                f'SELECT "name", "value" FROM {reader.source(table)} WHERE "name" IN ({marks})',
                _EXPORT_NAMES,
                table,
            )
            return {name: shown(str(value)) for name, value in rows if value is not None}
    return {}


def _session_start(reader: Reader) -> int | None:
    table = "TARGET_INFO_SESSION_START_TIME"
    if not _has(reader, table, "utcEpochNs"):
        return None
    known = reader.read(table, {"utcEpochNs": INTEGER})["utcEpochNs"].drop_null()
    start = known[0].as_py() if len(known) else -1
    return start if 0 <= start <= LATEST_UTC_NS else None


def _session_uuid(reader: Reader) -> str | None:
    table = "META_DATA_CAPTURE"
    if not _has(reader, table, "name", "value"):
        return None
    sql = f'SELECT "value" FROM {reader.source(table)} WHERE "name" = ? LIMIT 1'
    rows = reader.query(sql, ("PROFILING_SESSION_UUID",), table)
    return shown(str(rows[0][0])) if rows and rows[0][0] else None


def _hostname(reader: Reader) -> str | None:
    table = "TARGET_INFO_SYSTEM_ENV"
    if not _has(reader, table, "name", "value"):
        return None
    sql = f'SELECT "value" FROM {reader.source(table)} WHERE "name" = ? LIMIT 1'
    rows = reader.query(sql, ("Hostname",), table)
    return shown(str(rows[0][0]).strip()) or None if rows and rows[0][0] is not None else None


def _variables(reader: Reader) -> dict[str, str]:
    table = "META_DATA_CAPTURE"
    if not _has(reader, table, "name", "value"):
        return {}
    marks = ",".join("?" * len(VARIABLES))
    rows = reader.query(
        """SELECT substr("value", 1, instr("value", '=') - 1) AS variable, """
        f"""substr("value", instr("value", '=') + 1) FROM {reader.source(table)} """
        f"""WHERE "name" = 'PROCESS_0:ENVIRONMENT_VARIABLE' AND variable IN ({marks})""",
        VARIABLES,
        table,
    )
    return {str(name): shown(str(value).strip().strip('"')) for name, value in rows}


def _mpi_ranks(reader: Reader) -> dict[int, int]:
    table = "MPI_RANKS"
    if not _has(reader, table, "globalTid", "rank"):
        return {}
    rows = reader.query(f'SELECT DISTINCT "globalTid", "rank" FROM {reader.source(table)}', (), table)
    ranks: dict[int, set[int]] = {}
    for thread, rank in rows:
        if isinstance(thread, int) and isinstance(rank, int):
            ranks.setdefault(pid_of(thread), set()).add(rank)
    return {pid: found.pop() for pid, found in ranks.items() if len(found) == 1}


def _gpus(reader: Reader) -> dict[tuple[int, int], Gpu]:
    """Physical GPU by (process, CUDA ordinal); nothing is assumed about the order of either table."""
    listed: dict[int, Gpu] = {}
    table = "TARGET_INFO_GPU"
    if _has(reader, table, "id"):
        there = reader.columns(table)
        wanted = ["id", *(c if c in there else None for c in ("uuid", "name", "busLocation"))]
        sql = ", ".join(quote(c) if c else "NULL" for c in wanted)
        for number, uuid, name, bus in reader.query(f"SELECT {sql} FROM {reader.source(table)}", (), table):
            if isinstance(number, int):
                listed[number] = Gpu(_uuid(uuid), _text(name), _text(bus), number)
    table = "TARGET_INFO_CUDA_DEVICE"
    if not _has(reader, table, "cudaId", "pid"):
        return {}
    there = reader.columns(table)
    wanted = ["pid", "cudaId", *(c if c in there else None for c in ("gpuId", "uuid"))]
    sql = ", ".join(quote(c) if c else "NULL" for c in wanted)
    gpus = {}
    for pid, device, number, uuid in reader.query(f"SELECT {sql} FROM {reader.source(table)}", (), table):
        if isinstance(pid, int) and isinstance(device, int):
            known = number if isinstance(number, int) else None
            gpu = Gpu() if known is None else listed.get(known, Gpu())
            gpus[pid, device] = Gpu(_uuid(uuid) or gpu.uuid, gpu.name, gpu.bus, known)
    return gpus


def _uuid(value: object) -> str | None:
    text = value.hex() if isinstance(value, bytes) else str(value or "")
    return shown(text) if text.strip("0-") else None  # zeros in exports of 2020


def _text(value: object) -> str | None:
    return shown(value) or None if isinstance(value, str) else None


def _lost(reader: Reader) -> tuple[tuple[str, int | None], ...]:
    table = "DIAGNOSTIC_EVENT"
    if not _has(reader, table, "text"):
        return ()
    there = reader.columns(table)
    # LIKE minds the case in DuckDB and not in SQLite.
    cases = " ".join("""WHEN lower("text") LIKE ? THEN ?""" for _ in _LOST)
    parameters = [word for code, pattern in _LOST for word in (pattern.lower(), code)]
    process = '"globalPid"' if "globalPid" in there else "NULL"
    where = '"severity" >= 2' if "severity" in there else "1 = 1"
    rows = reader.query(
        f"SELECT DISTINCT CASE {cases} END AS code, {process} FROM {reader.source(table)} "
        f"WHERE {where} AND code IS NOT NULL",
        parameters,
        table,
    )
    # The analysis itself reports under a process of 0.
    found = {(str(code), pid_of(pid) or None if isinstance(pid, int) else None) for code, pid in rows}
    return tuple(sorted(found, key=lambda item: (item[0], item[1] or 0)))
