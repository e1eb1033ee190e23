"""A cheap look into one report: which GPU processes it holds, and what it says about who they are."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from rankdiff.claims import Claims
from rankdiff.errors import IdentityError, ReportError
from rankdiff.reports.capture import RANK_VARIABLES, Capture, pid_of, read_capture
from rankdiff.reports.columns import give_back
from rankdiff.reports.discover import Report
from rankdiff.reports.names import file_identity, is_nccl_kernel
from rankdiff.reports.nsys import GPU_TABLES, NOT_UVM, no_gpu_work, unnamed_pid
from rankdiff.reports.opening import open_reader
from rankdiff.reports.reader import INTEGER, Reader

_KNOWN_MAJOR = 3
_COLUMNS = dict.fromkeys(("globalPid", "deviceId", "shortName", "start", "end"), INTEGER)


@dataclass
class _Unit:
    """GPU work of one (process, device)."""

    ns: int = 0
    nccl: int = 0
    graphs: int = 0


def claims(report: Report, rank_regex: str | None = None, comm_regex: str | None = None) -> list[Claims]:
    """What a report says about each rank in it.

    Parameters
    ----------
    report : Report
    rank_regex : str, optional
        With named groups ``rank`` and ``node``, searched in the file name, then in the whole path.
    comm_regex : str, optional
        Names of further kernels that communicate.

    Returns
    -------
    list of Claims
        One per (process, device) that is a rank, sorted by (device, pid). A process that communicates is one
        rank on each device where it does; otherwise it is one rank on its busiest device. Where some process
        communicates, others are ranks only if graphs may hide their communication.

    Raises
    ------
    ReportError
        When the report cannot be read, is of an unknown schema, or holds no GPU work.
    IdentityError
        When `rank_regex` is not a regular expression with one of the groups.
    """
    pattern = compile_rank_regex(rank_regex) if rank_regex else None
    extra = re.compile(comm_regex) if comm_regex else None
    with open_reader(report) as reader:
        capture = read_capture(reader)
        major = (capture.schema_version or "").split(".")[0]
        if major.isdigit() and int(major) > _KNOWN_MAJOR:
            raise ReportError(
                f"{report.name}: schema version {capture.schema_version}, expected {_KNOWN_MAJOR}.x or older",
                "Export it with an older version of Nsight Systems, or use a newer rankdiff",
            )
        units = _ranks(_units(reader, extra))
        if not units:
            raise no_gpu_work(reader)
    give_back()
    return [_claim(report, capture, unit, len(units), pattern) for unit in units]


def compile_rank_regex(text: str) -> re.Pattern[str]:
    """Compile ``--rank-regex``.

    Raises
    ------
    IdentityError
        When it is no regular expression or has neither of the groups ``rank`` and ``node``.
    """
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise IdentityError(f"--rank-regex {text!r} is not a regular expression ({error})") from error
    if not {"rank", "node"} & set(pattern.groupindex):
        raise IdentityError(
            f"--rank-regex {text!r} has no group named rank or node",
            r"For example: --rank-regex '(?P<node>[^_]+)_(?P<rank>\d+)\.sqlite'",
        )
    return pattern


def _units(reader: Reader, extra: re.Pattern[str] | None) -> dict[tuple[int, int], _Unit]:
    units: dict[tuple[int, int], _Unit] = {}
    for kind, table in GPU_TABLES.items():
        there = reader.columns(table)
        if not reader.has(table) or not {"start", "end", "deviceId"} <= set(there):
            continue
        filters = (NOT_UVM,) if kind == "memcpy" and "copyKind" in there else ()
        rows = _summed(reader.read(table, _COLUMNS, filters=filters))
        found = reader.strings([row[2] for row in rows if row[2] is not None] if kind == "kernel" else [])
        texts = dict(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))
        for global_pid, device, name_id, count, ns in rows:
            pid = unnamed_pid(reader) if global_pid is None else pid_of(global_pid)
            unit = units.setdefault((pid, device), _Unit())
            text = texts.get(name_id) or ""
            unit.ns += int(ns)
            unit.graphs += count if kind == "graph" else 0
            unit.nccl += count if is_nccl_kernel(text) or (extra and extra.search(text)) else 0
    return units


def _summed(rows: pa.Table) -> list[tuple[int | None, int, int | None, int, float]]:
    """Process, device, name, number and summed length of the operations that take time."""
    # As floats: broken times add up to more than 64 bits hold.
    length = pl.col("end").cast(pl.Float64) - pl.col("start").cast(pl.Float64)
    taking_time = pl.DataFrame(rows).filter(pl.col("end") > pl.col("start"), pl.col("deviceId").is_not_null())
    grouped = taking_time.group_by("globalPid", "deviceId", "shortName", maintain_order=True)
    return grouped.agg(count=pl.len(), ns=length.sum()).rows()


def _ranks(units: dict[tuple[int, int], _Unit]) -> list[tuple[int, int]]:
    communicates = any(unit.nccl for unit in units.values())
    ranks = []
    for pid in {pid for pid, _ in units}:
        mine = {device: unit for (owner, device), unit in units.items() if owner == pid}
        devices = [device for device, unit in mine.items() if unit.nccl]
        if not devices and (not communicates or any(unit.graphs for unit in mine.values())):
            devices = [min(mine, key=lambda device: (-mine[device].ns, device))]
        ranks += [(pid, device) for device in devices]
    return sorted(ranks, key=lambda unit: (unit[1], unit[0]))


def _claim(
    report: Report,
    capture: Capture,
    unit: tuple[int, int],
    gpu_processes: int,
    pattern: re.Pattern[str] | None,
) -> Claims:
    env = tuple((name, value) for name in RANK_VARIABLES if (value := capture.integer(name)) is not None)
    # A launcher's task count is the job's size only where each task is one rank.
    world = capture.integer("SLURM_NTASKS") if gpu_processes == 1 else None
    if gpu_processes == 1 and world is None:
        world = capture.integer("WORLD_SIZE")
    found = Claims(
        report=report.name,
        path=report.path,
        pid=unit[0],
        device=unit[1],
        gpu_processes=gpu_processes,
        env_rank=env[0][1] if env else None,
        env_rank_name=env[0][0] if env else None,
        env_local_rank=capture.integer("LOCAL_RANK"),
        env_node=capture.variables.get("SLURMD_NODENAME") or None,
        mpi_rank=capture.mpi_ranks.get(unit[0]),
        hostname=capture.hostname,
        world_size=world,
        job_id=capture.variables.get("SLURM_JOB_ID") or None,
        session_uuid=capture.session_uuid,
        size_bytes=report.size_bytes,
        env_ranks=env,
    )
    return named(found, report.name, report.path, pattern)


def named(claim: Claims, name: str, path: str, pattern: re.Pattern[str] | None) -> Claims:
    """A claim with what the name of its report says; `pattern` is searched in the name, then in the path."""
    file_node, file_rank = file_identity(name)
    found = (pattern.search(name) or pattern.search(path)) if pattern else None
    groups: dict[str, str | None] = found.groupdict() if found else {}
    rank = groups.get("rank")
    return replace(
        claim,
        report=name,
        path=path,
        file_node=file_node,
        file_rank=file_rank,
        regex_node=groups.get("node") or None,
        regex_rank=int(rank) if rank and rank.isdigit() else None,
        regex_given=pattern is not None,
    )
