"""One report to its digests: everything the comparison needs of each GPU process, and nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from rankdiff import activity, collectives, figures, ranges, steps, tallies
from rankdiff.claims import Claims as Claims
from rankdiff.figures import Figures
from rankdiff.kernels.intervals import union
from rankdiff.notes import Note
from rankdiff.reports.capture import Gpu
from rankdiff.reports.discover import Report
from rankdiff.reports.names import DEFAULT_DATA_RANGE, is_graph_launch
from rankdiff.reports.nsys import RUNTIME, load
from rankdiff.reports.tables import ReportTables
from rankdiff.reports.threads import NO_CALLS, Calls, cuda_calls, off_cpu, os_calls, profiler_overhead
from rankdiff.schema import COLLECTIVES
from rankdiff.timeline import Evidence, Timeline, find_timeline


@dataclass(frozen=True)
class DigestInfo:
    """The scalars of a digest. Times are session times in ns unless the name says otherwise."""

    claims: Claims
    product_version: str | None  # of the exporter
    schema_version: str | None
    session_start_utc_ns: int | None
    time_shift_ns: int  # EXPORT_CONFIG_TIME_SHIFT, already taken out of every time
    gpu_uuid: str | None
    gpu_name: str | None
    gpu_bus: str | None
    window_start_ns: int  # first GPU start
    window_end_ns: int  # last GPU end
    # The exact figures (same definitions as an independent, slow reckoning in the tests).
    span_ns: int
    busy_ns: int
    idle_ns: int
    idle_data_load_ns: int | None  # null: no data-loading range
    idle_osrt_ns: int | None  # null: OS runtime calls not captured
    nccl_kernels: int
    nccl_ns: int
    step_source: str | None  # "nvtx:<normalised name>" or None
    has_payloads: bool
    hidden_by_graphs: bool  # graph launches were traced whole (or not at all): NCCL may be inside
    tables: dict[str, int] = field(default_factory=dict)  # rows read per table; absent: not captured
    data_ranges: int = 0  # data-loading ranges found
    open_ranges: int = 0  # ranges without an end
    background_loading: bool = False  # data-loading ranges only where no GPU work is launched
    gpu_index: int | None = None  # physical index of the GPU on its node; None: the export does not tell
    top_nvtx: tuple[str, ...] = ()  # most frequent range names, for the hint when nothing matches
    top_kernels: tuple[str, ...] = ()  # most frequent kernel names, for the hint when none is NCCL
    lost_events: tuple[str, ...] = ()  # diagnostics about lost or dropped events, by code
    has_diagnostics: bool = False  # the export holds the profiler's diagnostics at all
    unusable_events: dict[str, int] = field(default_factory=dict)  # left out for their times, per table
    kernels: int = 0  # of this process and device, NCCL's among them
    kernels_without_launch: int | None = None  # whose CUDA call is not in the export; None: no calls are
    user_shift_ns: int = 0  # the part of time_shift_ns that was asked for with --ts-shift
    unclassified_calls: tuple[str, ...] = ()  # OS calls of unknown kind, their time taken for code
    notes: tuple[Note, ...] = ()  # what had to be done to read the report


@dataclass(frozen=True)
class Digest:
    """One GPU process of one report: scalars and the tables of `rankdiff.schema`."""

    info: DigestInfo
    collectives: pl.DataFrame  # schema.COLLECTIVES
    steps: pl.DataFrame  # schema.STEPS
    work: pl.DataFrame  # schema.WORK
    lead_up: pl.DataFrame  # schema.LEAD_UP
    idle: pl.DataFrame  # schema.IDLE
    gaps: pl.DataFrame  # schema.GAPS
    signatures: pl.DataFrame  # schema.SIGNATURES
    host_calls: pl.DataFrame  # schema.HOST_CALLS
    copies: pl.DataFrame  # schema.COPIES
    clocks: pl.DataFrame  # schema.CLOCKS

    def with_info(self, info: DigestInfo) -> Digest:
        """The same tables with other scalars."""
        return replace(self, info=info)

    def columns(self, table: str, *names: str) -> pl.DataFrame:
        """Some columns of a table, which may cost less than all of them.

        Parameters
        ----------
        table : str
            One of `schema.DIGEST_TABLES`.
        names : str
            Its columns, in the order wanted.
        """
        found: pl.DataFrame = getattr(self, table)
        return found.select(names)


@dataclass(frozen=True)
class DigestOptions:
    """What the user may say about names; None means the default.

    Attributes
    ----------
    data_range, step_range : str or None
        Regular expressions for NVTX range names, anchored at their start.
    comm_regex : str or None
        Kernels that communicate besides NCCL's; searched anywhere in the short name.
    """

    data_range: str | None = None
    step_range: str | None = None
    comm_regex: str | None = None


def make_digests(
    report: Report, claims: Sequence[Claims], options: DigestOptions = DigestOptions()
) -> list[Digest]:
    """Digest one report: one digest for each of its ranks.

    Parameters
    ----------
    report : Report
    claims : sequence of Claims
        The ranks of this report, from `reports.identity.claims`.
    options : DigestOptions

    Returns
    -------
    list of Digest
        In the order of `claims`; a claim without GPU work is left out.

    Raises
    ------
    ReportError
        When the report cannot be read.
    """
    with load(report, options.comm_regex) as tables:
        by_unit = {(each.pid, each.device): each for each in claims}
        found = figures.find_figures(tables, by_unit)
        enders = figures.gap_ending_threads(found)
        callers = {unit: activity.launching_threads(tables, *unit) for unit in by_unit}
        threads = _Threads(
            cuda_calls(tables, enders.union(*callers.values())),
            os_calls(tables, enders),
            off_cpu(tables, enders),
            profiler_overhead(tables),
        )
        processes = {pid: _process(tables, pid, options, enders) for pid in {each.pid for each in found}}
        return [
            _digest(
                tables,
                by_unit[each.pid, each.device],
                each,
                processes[each.pid],
                threads,
                callers[each.pid, each.device],
            )
            for each in found
        ]


@dataclass(frozen=True)
class _Threads:
    """What the threads of a report did; see `timeline.Evidence`."""

    cuda: Calls
    os: Calls | None  # None: not captured
    off_cpu: pl.DataFrame
    profiler: pl.DataFrame


@dataclass(frozen=True)
class _Process:
    """What all ranks of one process share."""

    steps: pl.DataFrame
    step_source: str | None
    collectives: dict[int, pl.DataFrame]
    data_names: list[str]
    background_loading: bool
    ranges: ranges.Ranges


def _process(tables: ReportTables, pid: int, options: DigestOptions, threads: set[int]) -> _Process:
    step_table, source, step_names = steps.find_steps(tables, pid, options.step_range)
    data_range = options.data_range or DEFAULT_DATA_RANGE
    data_names = ranges.data_range_names(tables, pid, data_range, options.data_range is None)
    return _Process(
        steps=step_table,
        step_source=source,
        collectives=collectives.find_collectives(tables, pid, step_table),
        data_names=data_names,
        background_loading=ranges.loads_in_background(
            tables, pid, data_names, data_range, options.data_range is None
        ),
        ranges=ranges.find_ranges(tables, pid, threads, data_names, step_names),
    )


def _digest(
    tables: ReportTables,
    claim: Claims,
    found: Figures,
    process: _Process,
    threads: _Threads,
    callers: list[int],
) -> Digest:
    found = figures.with_causes(tables, found, process.data_names, threads.os)
    mine = threads.profiler.filter(pl.col("pid") == claim.pid)
    profiler = union(mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy())
    evidence = Evidence(profiler, process.ranges, threads.cuda, threads.os or NO_CALLS, threads.off_cpu)
    timeline = find_timeline(tables, found, evidence)
    table = process.collectives.get(claim.device, pl.DataFrame(schema=COLLECTIVES))
    window = int(found.busy[0][0]), int(found.busy[1][-1])
    gpu = tables.capture.gpus.get((claim.pid, claim.device), Gpu())
    clocks = activity.clocks(tables, gpu.number, window, process.steps)
    return Digest(
        info=_info(tables, claim, found, table, process, timeline),
        collectives=table,
        steps=process.steps,
        work=found.work,
        lead_up=tallies.lead_up(timeline, table, window[0]),
        idle=tallies.idle(timeline),
        gaps=tallies.gaps(timeline, found, process.steps),
        signatures=activity.signatures(tables, claim.pid, claim.device, process.steps),
        host_calls=activity.host_calls(threads.cuda, callers, process.steps),
        copies=activity.copies(tables, claim.pid, claim.device, process.steps),
        clocks=clocks,
    )


def _info(
    tables: ReportTables,
    claim: Claims,
    found: Figures,
    table: pl.DataFrame,
    process: _Process,
    timeline: Timeline,
) -> DigestInfo:
    capture = tables.capture
    gpu = capture.gpus.get((claim.pid, claim.device), Gpu())
    ranges_of = tables.nvtx_of(claim.pid)
    kernels, launched = activity.kernels_launched(tables, claim.pid, claim.device)
    return DigestInfo(
        claims=claim,
        product_version=capture.product_version,
        schema_version=capture.schema_version,
        session_start_utc_ns=tables.session_start_utc_ns,
        time_shift_ns=tables.shift_ns,
        gpu_uuid=gpu.uuid,
        gpu_name=gpu.name,
        gpu_bus=gpu.bus,
        gpu_index=gpu.number,
        window_start_ns=int(found.busy[0][0]),
        window_end_ns=int(found.busy[1][-1]),
        span_ns=found.span_ns,
        busy_ns=figures.busy_ns(found),
        idle_ns=figures.idle_ns(found),
        idle_data_load_ns=found.idle_data_load_ns,
        idle_osrt_ns=found.idle_osrt_ns,
        nccl_kernels=found.nccl_kernels,
        nccl_ns=found.nccl_ns,
        step_source=process.step_source,
        background_loading=process.background_loading,
        has_payloads=table["comm"].null_count() < table.height,
        hidden_by_graphs=_hidden_by_graphs(tables, claim),
        tables=dict(tables.rows),
        data_ranges=found.data_ranges,
        open_ranges=ranges_of["end_ns"].null_count(),
        top_nvtx=ranges.top_names(tables, claim.pid),
        top_kernels=activity.top_kernels(tables, claim.pid, claim.device),
        lost_events=tuple(sorted({code for code, pid in capture.lost if pid in (None, claim.pid)})),
        has_diagnostics=capture.has_diagnostics,
        unusable_events=tables.unusable_of(claim.pid),
        kernels=kernels,
        kernels_without_launch=kernels - launched if RUNTIME in tables.rows else None,
        user_shift_ns=capture.user_shift_ns,
        unclassified_calls=timeline.unclassified,
        notes=tuple(tables.notes),
    )


def _hidden_by_graphs(tables: ReportTables, claim: Claims) -> bool:
    """Say whether graphs ran whose kernels are not in the kernel table."""
    gpu = tables.gpu_of(claim.pid)
    if (gpu["kind"] == "graph").any():
        return True
    if gpu["graph_node"].null_count() < gpu.height:
        return False
    replays = [row for row, name in enumerate(tables.api_names) if name is not None and is_graph_launch(name)]
    mine = pl.col("thread").is_in(tables.calling_threads(claim.pid))
    return bool(replays) and not tables.api.filter(mine & pl.col("name").is_in(replays)).is_empty()
