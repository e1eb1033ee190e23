"""Whole jobs: `synthetic` plays a training loop on several ranks and writes an export for each.

The play keeps the contract of collectives: a member's kernel starts when its own work and its previous
collective on that stream are done, and no member of an N x N collective leaves before the last has arrived.
All times of the play are true time; each file then tells it by the clock of its node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .export import EPOCH, Export, linear_clock
from .process import Process

MS = 1_000_000
_US = 1_000
_AUTOGRAD = 7  # added to the main thread's id
_ON_HOST = (("io", "osrt", "fsync"), ("os_wait", "osrt", "nanosleep"), ("host", "nvtx", "checkpoint"))


@dataclass(frozen=True)
class Phase:
    """A stretch of a step: compute kernels, then collectives that wait for them."""

    compute_ns: int = 6 * MS
    groups: Sequence[Sequence[int]] | None = None  # communicators; None: one of all ranks
    count: int = 1  # collectives on each communicator, back to back
    kernels: int = 1  # compute kernels that share compute_ns
    op: str = "all_reduce"  # of the builder's operations; broadcast leaves one by one, from the first member
    size: int = 1 << 20  # bytes of a collective
    stream: int = 20
    transfer_ns: int = 500_000  # from the last arrival to the end
    overlap: bool = False  # the next phase's compute does not wait for these collectives


@dataclass(frozen=True)
class Instance:
    """One collective as it truly happened."""

    comm: int
    op: str
    step: int
    members: tuple[int, ...]
    starts: dict[int, int]  # true ns by rank
    ends: dict[int, int]

    @property
    def delays(self) -> dict[int, int]:
        """Each member's start after the first member's."""
        first = min(self.starts.values())
        return {rank: start - first for rank, start in self.starts.items()}


@dataclass(frozen=True)
class Job:
    """The files of a job, and what they should let one find out."""

    reports: dict[int, Path]  # by rank; ranks of one torchrun share a file
    nodes: dict[int, str]
    instances: list[Instance]  # in order of their ends within a step and phase

    @property
    def paths(self) -> list[Path]:
        """The files, each once, in order of rank."""
        return list(dict.fromkeys(self.reports[rank] for rank in sorted(self.reports)))


@dataclass(frozen=True)
class Scenario:
    """Everything that can be chosen about a synthetic job.

    `late` gives ranks extra time in every step (a number), step by step (a list, zeros where it ends), or of
    several kinds at once (a mapping of kinds to numbers). `late_as` says how the extra time shows:
    ``gpu_slow`` (same kernels, longer), ``gpu_grid`` (longer with a larger grid), ``gpu_work`` (one more
    kernel), ``data_load`` (a longer data_load range, in `read`), ``io`` (`fsync`, no range), ``os_wait``
    (`nanosleep`), ``host`` (range ``checkpoint``, plain code), ``begin`` (nothing to see; may be negative).
    """

    ranks: int = 4
    nodes: int | Sequence[str] = 2  # how many, in blocks; or the node of each rank
    steps: int = 10
    step_ns: int = 0  # grid of step starts; 0: each starts gap_ns after the last
    gap_ns: int = 1_200_000  # least idle time between steps; data loading needs 1 ms of it
    origin_ns: int = 0  # start of step 0
    phases: Sequence[Phase] = (Phase(),)
    late: Mapping[int, int | Sequence[int] | Mapping[str, int]] = field(default_factory=dict)
    late_as: str | Mapping[int, str] = "gpu_slow"
    late_phase: int = 0  # the phase whose kernels lengthen; what the host does comes before the first
    jitter_ns: int = 0  # of each rank's compute time in each phase
    jitter: str = "uniform"  # uniform (+/- jitter_ns), normal (sigma) or exponential (mean)
    seed: int = 0
    end_jitter_ns: int = 0  # sigma of a member's end
    end_stagger_ns: Mapping[int, int] = field(default_factory=dict)  # constant, by rank
    offset_ns: Mapping[str, int] = field(default_factory=dict)  # a node's clock is fast by so much
    drift_ppm: Mapping[str, float] = field(default_factory=dict)  # and gains so much
    session_start_ns: Mapping[int, int] = field(default_factory=dict)  # true time of session time 0
    cut: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # collectives before, after the window
    lost: Mapping[int, Sequence[int]] = field(default_factory=dict)  # collectives whose events were lost
    step_ranges: str | None = "step {}"  # NVTX name; {} becomes the step's number
    first_step: int = 0  # that number in the first step
    data_load: bool = True  # NVTX data_load before every step but the first
    osrt: bool = True  # a read inside data_load
    sync: bool = False  # a cudaStreamSynchronize at the end of every step
    autograd: bool = False  # NCCL is launched from a thread that has no NVTX ranges of its own
    payload: bool = True  # NVTX payloads exported
    nccl_ranges: bool = True
    nccl_kernel: str | None = None  # kernel name in place of NCCL 2.28's
    environment: bool = True  # Slurm variables captured
    torchrun: bool = False  # one file a node, several processes in it
    pattern: str = "prof_{node}_{rank}.sqlite"
    written: Sequence[int] | None = None  # ranks whose files exist; None: all
    options: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # of `Export`, by rank
    edit: Callable[[int, Export], None] | None = None  # called before a rank's file is closed

    def node(self, rank: int) -> str:
        """Return the node of a rank."""
        if isinstance(self.nodes, int):
            return f"node{chr(ord('A') + rank * self.nodes // self.ranks)}"
        return self.nodes[rank]

    def extras(self, rank: int, step: int) -> dict[str, int]:
        """Return the extra time of a rank in a step, by how it shows."""
        late = self.late.get(rank, 0)
        if isinstance(late, Mapping):
            return dict(late)
        kind = self.late_as if isinstance(self.late_as, str) else self.late_as.get(rank, "gpu_slow")
        if isinstance(late, int):
            return {kind: late}
        return {kind: late[step] if step < len(late) else 0}


def tp_dp(
    tp: int = 2, dp: int = 2, *, tp_ns: int = 3 * MS, dp_ns: int = 3 * MS, **settings: Any
) -> tuple[Phase, Phase]:
    """Return the phases of a step with tensor-parallel groups of neighbours, then data-parallel groups.

    Ranks 0 .. tp-1 are the first tensor-parallel group; `settings` go to both phases.
    """
    world = np.arange(tp * dp).reshape(dp, tp)
    return (
        Phase(tp_ns, world.tolist(), stream=20, **settings),
        Phase(dp_ns, world.T.tolist(), stream=30, **settings),
    )


# What a rank did, in true time: a method of `Process` with its arguments. Collectives carry their place in
# the rank's own order, so that a capture window or a loss can take them away.
@dataclass
class _Rank:
    free: int  # the compute stream is free
    host: int = 0  # the launching thread is free
    streams: dict[int, int] = field(default_factory=dict)  # end of the last collective on each
    events: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)  # of its collectives
    collectives: list[int] = field(default_factory=list)  # their places in `events`

    def add(self, method: str, *args: Any, **kwargs: Any) -> None:
        self.events.append((method, args, kwargs))

    def launch(self) -> tuple[int, int]:
        span = self.host, self.host + 5 * _US
        self.host += 6 * _US
        return span


def synthetic(folder: Path, **settings: Any) -> Job:
    """Play a `Scenario` and write its exports into a folder, which is made when it is not there."""
    return write(folder, Scenario(**settings))


def base4(folder: Path, **settings: Any) -> Job:
    """Write BASE4: 4 ranks on 2 nodes, 10 steps of 10 ms; rank 2 computes 7.5 ms where the others take 6."""
    defaults = {
        "nodes": ("nodeA", "nodeA", "nodeB", "nodeB"),
        "step_ns": 10 * MS,
        "late": {2: 1_500_000},
        "step_ranges": None,
    }
    return synthetic(folder, **(defaults | settings))


def flat8(folder: Path, seed: int = 0, **settings: Any) -> Job:
    """Write FLAT8: 8 equal ranks, 200 steps, arrivals within +/- 20 us: nobody is to blame."""
    defaults = {"ranks": 8, "steps": 200, "step_ns": 10 * MS, "jitter_ns": 20 * _US, "seed": seed}
    return synthetic(folder, **(defaults | settings))


def write(folder: Path, scenario: Scenario) -> Job:
    """Play a scenario and write its exports."""
    folder.mkdir(parents=True, exist_ok=True)
    timelines, instances = _play(scenario)
    wanted = range(scenario.ranks) if scenario.written is None else scenario.written
    nodes = {rank: scenario.node(rank) for rank in wanted}
    reports = {}
    exports: dict[str, Export] = {}
    for rank in wanted:
        node = nodes[rank]
        if scenario.torchrun and node in exports:
            process = exports[node].process(_pid(rank), _local(scenario, rank), gpu=_local(scenario, rank))
        else:
            process = exports[node if scenario.torchrun else f"{node}/{rank}"] = _open(
                folder, scenario, rank, timelines[rank]
            )
        _tell(process, timelines[rank], frozenset(scenario.lost.get(rank, ())))
        reports[rank] = exports[node if scenario.torchrun else f"{node}/{rank}"].path
    for export in exports.values():
        if scenario.edit:
            scenario.edit(next(r for r, path in reports.items() if path == export.path), export)
        export.close()
    return Job(reports, nodes, instances)


def _open(folder: Path, scenario: Scenario, rank: int, timeline: _Rank) -> Export:
    node = scenario.node(rank)
    clock = linear_clock(scenario.offset_ns.get(node, 0), scenario.drift_ppm.get(node, 0.0))
    settings: dict[str, Any] = {"clock": clock, "blobs": scenario.payload}
    if rank in scenario.session_start_ns:
        zero = clock(scenario.session_start_ns[rank])
        settings |= {"clock": lambda time_ns: clock(time_ns) - zero, "utc_ns": EPOCH + zero}
    if rank in scenario.cut:
        head, tail = scenario.cut[rank]
        low = timeline.spans[head - 1][1] if head else min(s for s, _ in timeline.spans) - 3600 * 1000 * MS
        settings["window"] = low, timeline.spans[len(timeline.spans) - 1 - tail][1]
    name = f"prof_{node}.sqlite" if scenario.torchrun else scenario.pattern.format(node=node, rank=rank)
    local = _local(scenario, rank)
    settings |= {
        "node": node,
        "pid": _pid(rank),
        "gpu": local,
        "env": _environment(scenario, rank) if scenario.environment else None,
        "nccl_ranges": scenario.nccl_ranges,
    }
    return Export(folder / name, **(settings | dict(scenario.options.get(rank, {}))))


def _tell(process: Process, timeline: _Rank, lost: frozenset[int]) -> None:
    gone = {timeline.collectives[index] for index in lost}
    for place, (method, args, kwargs) in enumerate(timeline.events):
        if place not in gone:
            getattr(process, method)(*args, **kwargs)


def _pid(rank: int) -> int:
    return 4000 + 10 * rank


def _local(scenario: Scenario, rank: int) -> int:
    return sum(scenario.node(other) == scenario.node(rank) for other in range(rank))


def _environment(scenario: Scenario, rank: int) -> dict[str, object]:
    if scenario.torchrun:
        return {}
    nodes = list(dict.fromkeys(scenario.node(r) for r in range(scenario.ranks)))
    local = _local(scenario, rank)
    return {
        "SLURM_JOB_ID": 4711,
        "SLURM_PROCID": rank,
        "SLURM_LOCALID": local,
        "SLURM_NODEID": nodes.index(scenario.node(rank)),
        "SLURM_NTASKS": scenario.ranks,
        "SLURMD_NODENAME": scenario.node(rank),
        "RANK": rank,
        "LOCAL_RANK": local,
        "WORLD_SIZE": scenario.ranks,
        "CUDA_VISIBLE_DEVICES": local,
    }


def _play(scenario: Scenario) -> tuple[list[_Rank], list[Instance]]:
    draws = np.random.default_rng([scenario.seed, 0])
    shape = (scenario.steps, len(scenario.phases), scenario.ranks)
    spread = scenario.jitter_ns
    if scenario.jitter == "uniform":
        noise = draws.integers(-spread, spread, shape, endpoint=True)
    elif scenario.jitter == "normal":
        noise = np.rint(draws.normal(0, spread, shape)).astype(np.int64)
    else:
        noise = np.rint(draws.exponential(spread, shape)).astype(np.int64)
    ends = np.random.default_rng([scenario.seed, 1])
    ranks = [_Rank(free=-(1 << 62)) for _ in range(scenario.ranks)]
    instances: list[Instance] = []
    for step in range(scenario.steps):
        begun = [_begin_step(scenario, ranks[rank], rank, step) for rank in range(scenario.ranks)]
        for number, phase in enumerate(scenario.phases):
            for rank, timeline in enumerate(ranks):
                extras = scenario.extras(rank, step) if number == scenario.late_phase else {}
                _compute(timeline, phase, int(noise[step, number, rank]), extras)
            for group in phase.groups or [range(scenario.ranks)]:
                for _ in range(phase.count):
                    instance = _collective(scenario, ranks, phase, tuple(group), step, ends)
                    instances.append(instance)
        for rank, timeline in enumerate(ranks):
            _end_step(scenario, timeline, begun[rank], step)
    return ranks, instances


def _begin_step(scenario: Scenario, timeline: _Rank, rank: int, step: int) -> int:
    """Write what the host does before a step's first launch; return when the step began on the host."""
    begin = max(scenario.origin_ns + step * scenario.step_ns, timeline.free + scenario.gap_ns)
    extras = scenario.extras(rank, step)
    loading = extras.get("data_load", 0)
    load = begin - (MS if step else 0), begin + loading - 200 * _US
    if scenario.data_load and load[1] - load[0] > 100 * _US:
        timeline.add("nvtx", *load, "data_load")
        if scenario.osrt:
            timeline.add("osrt", load[0] + 50 * _US, load[1] - 50 * _US, "read")
    ready = begin + loading
    for kind, method, name in _ON_HOST:
        if extra := extras.get(kind, 0):
            timeline.add(method, ready - 20 * _US, ready + extra - 20 * _US, name)
            ready += extra
    ready += extras.get("begin", 0)
    timeline.host = ready - 10 * _US
    timeline.free = ready
    return min(load[0], begin - 20 * _US, timeline.host) - 5 * _US


def _compute(timeline: _Rank, phase: Phase, jitter: int, extras: Mapping[str, int]) -> None:
    larger = extras.get("gpu_grid", 0)
    total = max(phase.compute_ns + jitter + extras.get("gpu_slow", 0) + larger, phase.kernels)
    grid = round(128 * (phase.compute_ns + larger) / max(phase.compute_ns, 1))
    cuts = [total * i // phase.kernels for i in range(phase.kernels + 1)]
    works = [("gemm", stop - start, grid) for start, stop in pairwise(cuts)]
    if extra := extras.get("gpu_work", 0):
        works.append(("extra_gemm", extra, 128))
    for name, length, size in works:
        launch = timeline.launch()
        start = max(timeline.free, launch[1] + 5 * _US)
        timeline.add("kernel", start, start + length, name, launch=launch, grid=(size, 1, 1))
        timeline.free = start + length


def _collective(
    scenario: Scenario,
    ranks: list[_Rank],
    phase: Phase,
    group: tuple[int, ...],
    step: int,
    draws: np.random.Generator,
) -> Instance:
    launches = {rank: ranks[rank].launch() for rank in group}
    starts = {
        rank: max(ranks[rank].free, ranks[rank].streams.get(phase.stream, 0), launches[rank][1] + 5 * _US)
        for rank in group
    }
    ends = {}
    for rank in group:
        awaited = max(starts.values())
        if phase.op == "broadcast":
            awaited = max(starts[rank], starts[group[0]])
        noise = round(float(draws.normal(0, scenario.end_jitter_ns)))
        noise += scenario.end_stagger_ns.get(rank, 0)
        ends[rank] = max(awaited + 1, awaited + phase.transfer_ns + noise)
    comm = _hash(group, phase.stream)
    for rank in group:
        timeline = ranks[rank]
        timeline.collectives.append(len(timeline.events))
        timeline.spans.append((starts[rank], ends[rank]))
        timeline.add(
            "nccl",
            phase.op,
            starts[rank],
            ends[rank],
            comm=comm,
            size=phase.size,
            stream=phase.stream,
            launch=launches[rank],
            name=scenario.nccl_kernel,
            tid=_pid(rank) + _AUTOGRAD if scenario.autograd else None,
        )
        timeline.streams[phase.stream] = ends[rank]
        if not phase.overlap:
            timeline.free = max(timeline.free, ends[rank])
    return Instance(comm, phase.op, step, group, starts, ends)


def _end_step(scenario: Scenario, timeline: _Rank, begun: int, step: int) -> None:
    timeline.free = max([timeline.free, *timeline.streams.values()])
    last = timeline.host
    if scenario.sync:
        last = max(last, timeline.free + 10 * _US)
        timeline.add("sync", timeline.host, last)
    if scenario.step_ranges:
        timeline.add("nvtx", begun, last + 5 * _US, scenario.step_ranges.format(scenario.first_step + step))


def _hash(group: Sequence[int], stream: int) -> int:
    text = f"{stream}:{','.join(map(str, group))}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
