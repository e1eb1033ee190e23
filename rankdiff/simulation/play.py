"""Plays a training loop on several ranks, in true time.

The play keeps the contract of collectives: a member's kernel starts when its own work and its previous
collective on that stream are done, and no member of an N x N collective leaves before the last has arrived.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .scenario import MS, US, Instance, Phase, Scenario

_AUTOGRAD = 7  # added to the main thread's id
# What keeps the host before a step's first launch: kind, method of `Process`, name.
_ON_HOST = (
    ("io", "osrt", "fsync"),
    ("os_wait", "osrt", "nanosleep"),
    ("alloc", "api", "cudaMalloc_v3020"),
    ("profiler", "overhead", "CUPTI Buffer flush"),
    ("host", "nvtx", "checkpoint"),
)
_ITEM_NS = 50 * US  # what one `.item()` costs: a 4-byte copy, the wait for it, and the code around it
_PARETO = 2.5  # index: heavy-tailed, with a variance

Event = tuple[str, tuple[Any, ...], dict[str, Any]]  # a method of `Process` with its arguments


@dataclass
class Timeline:
    """What one rank did. Collectives carry their place, so that a window or a loss can take them away.

    Attributes
    ----------
    free, host : int, ns
        When the compute stream and the launching thread are free.
    streams : dict of int to int, ns
        End of the last collective on each stream.
    events : list of Event
    spans : list of (int, int), ns
        Start and end of the rank's collectives.
    collectives : list of int
        Their places in `events`.
    steps : list of (int, int), ns
        Begin on the host and end of everything in each step.
    """

    free: int
    host: int = 0
    streams: dict[int, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    collectives: list[int] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)

    def add(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Note an event."""
        self.events.append((method, args, kwargs))

    def launch(self) -> tuple[int, int]:
        """Launch something as soon as the thread is free; return the start and end of the call."""
        span = self.host, self.host + 5 * US
        self.host += 6 * US
        return span


def main_thread(rank: int) -> int:
    """Process id of a rank, which is also its main thread."""
    return 4000 + 10 * rank


def play(scenario: Scenario) -> tuple[list[Timeline], list[Instance]]:
    """Play a scenario; return what each rank did and the collectives as they truly happened."""
    noise = _noise(scenario)
    ends = np.random.default_rng([scenario.seed, 1])
    ranks = [Timeline(free=-(1 << 62)) for _ in range(scenario.ranks)]
    everybody = range(scenario.ranks)
    takes_part = [everybody if phase.ranks is None else frozenset(phase.ranks) for phase in scenario.phases]
    late_in = [
        next((n for n in range(scenario.late_phase, len(takes_part)) if rank in takes_part[n]), -1)
        for rank in everybody
    ]
    instances: list[Instance] = []
    for step in range(scenario.steps):
        begun = [_begin_step(scenario, ranks[rank], rank, step) for rank in everybody]
        for number, phase in enumerate(scenario.phases):
            for rank in everybody if phase.ranks is None else phase.ranks:
                extras = scenario.extras(rank, step) if number == late_in[rank] else {}
                _compute(scenario, ranks[rank], phase, int(noise[step, number, rank]), extras, (rank, step))
            for group in [everybody] if phase.groups is None else phase.groups:
                for _ in range(phase.count):
                    instances.append(_collective(scenario, ranks, phase, tuple(group), step, ends))
        for rank, timeline in enumerate(ranks):
            _end_step(scenario, timeline, begun[rank], step)
    return ranks, instances


def _noise(scenario: Scenario) -> NDArray[np.int64]:
    """Draw what is added to the compute of each (step, phase, rank)."""
    shape = (scenario.steps, len(scenario.phases), scenario.ranks)
    draws = np.random.default_rng([scenario.seed, 0])
    if scenario.jitter == "uniform":
        noise = draws.integers(-scenario.jitter_ns, scenario.jitter_ns, shape, endpoint=True)
    else:
        noise = np.rint(_draw(draws, scenario, scenario.jitter_ns, shape)).astype(np.int64)
    if scenario.jitter_share:
        draws = np.random.default_rng([scenario.seed, 3])
        of_step = _draw(draws, scenario, scenario.jitter_share, (scenario.steps, 1, scenario.ranks))
        works = np.array([phase.compute_ns for phase in scenario.phases], np.float64)
        noise = noise + np.rint(of_step * works[:, None]).astype(np.int64)
    return noise


def _draw(
    draws: np.random.Generator, scenario: Scenario, spread: float, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    if scenario.jitter == "normal":
        return draws.normal(0, spread, shape)
    if scenario.jitter == "exponential":
        return draws.exponential(spread, shape)
    if scenario.jitter == "pareto":
        return draws.pareto(_PARETO, shape) * (_PARETO - 1) * spread
    return draws.uniform(-spread, spread, shape)


def _begin_step(scenario: Scenario, timeline: Timeline, rank: int, step: int) -> int:
    """Write what the host does before a step's first launch; return when the step began on the host."""
    begin = max(scenario.origin_ns + step * scenario.step_ns, timeline.free + scenario.gap_ns)
    extras = scenario.extras(rank, step)
    loading = extras.get("data_load", 0)
    load = begin - (MS if step else 0), begin + loading - 200 * US
    if scenario.data_load and load[1] - load[0] > 100 * US:
        timeline.add("nvtx", *load, "data_load")
        if scenario.osrt:
            timeline.add("osrt", load[0] + 50 * US, load[1] - 50 * US, "read")
    ready = begin + loading
    for kind, method, name in _ON_HOST:
        if extra := extras.get(kind, 0):
            timeline.add(method, ready - 20 * US, ready + extra - 20 * US, name)
            ready += extra
    for kind, extra in extras.items():
        if kind.startswith("host:"):
            timeline.add("nvtx", ready - 20 * US, ready + extra - 20 * US, kind.removeprefix("host:"))
            ready += extra
    ready += extras.get("begin", 0)
    timeline.host = ready - 10 * US
    timeline.free = ready
    return min(load[0], begin - 20 * US, timeline.host) - 5 * US


def _compute(
    scenario: Scenario,
    timeline: Timeline,
    phase: Phase,
    jitter: int,
    extras: Mapping[str, int],
    at: tuple[int, int],
) -> None:
    rank, step = at
    if phase.after_all:
        timeline.free = max([timeline.free, *timeline.streams.values()])
    if extra := extras.get("copy", 0):
        launch = timeline.launch()
        start = max(timeline.free, launch[1] + 5 * US)
        timeline.add("memcpy", start, start + extra, size=extra * 20, launch=launch)  # 20 GB/s
        timeline.free = start + extra
    if extra := extras.get("sync", 0):
        _items(timeline, extra)
    larger = extras.get("gpu_grid", 0)
    if rank in scenario.grow:
        larger += round(phase.compute_ns * (scenario.grow[rank][step] - 1))
    usual = phase.compute_ns + jitter
    if rank in scenario.stretch:
        usual = round(usual * scenario.stretch[rank][step])
    total = max(usual + extras.get("gpu_slow", 0) + larger, phase.kernels)
    grid = round(128 * (phase.compute_ns + larger) / max(phase.compute_ns, 1))
    cuts = [total * i // phase.kernels for i in range(phase.kernels + 1)]
    works = [(phase.kernel, stop - start, grid) for start, stop in pairwise(cuts)]
    if extra := extras.get("gpu_work", 0):
        works.append((f"extra_{phase.kernel}", extra, 128))
    for name, length, size in works:
        launch = timeline.launch()
        start = max(timeline.free, launch[1] + 5 * US)
        timeline.add("kernel", start, start + length, name, launch=launch, grid=(size, 1, 1))
        timeline.free = start + length


def _items(timeline: Timeline, extra: int) -> None:
    """Read a number back from the GPU again and again: the queue runs empty each time."""
    for _ in range(max(1, extra // _ITEM_NS)):
        begin = timeline.host
        launch = timeline.launch()
        start = max(timeline.free, launch[1] + 5 * US)
        timeline.add("memcpy", start, start + 2 * US, kind=2, size=4, launch=launch, memory=(2, 1))
        timeline.free = start + 2 * US
        done = timeline.free + 3 * US
        timeline.add("sync", timeline.host, done)
        timeline.host = max(done + 6 * US, begin + _ITEM_NS)


def _collective(
    scenario: Scenario,
    ranks: list[Timeline],
    phase: Phase,
    group: tuple[int, ...],
    step: int,
    draws: np.random.Generator,
) -> Instance:
    launches = {rank: ranks[rank].launch() for rank in group}
    starts = {
        rank: max(ranks[rank].free, ranks[rank].streams.get(phase.stream, 0), launches[rank][1] + 5 * US)
        for rank in group
    }
    transfer = round(phase.transfer_ns * scenario.transfer_factor(group, step))
    ends = {}
    for rank in group:
        awaited = max(starts.values())
        if phase.op == "broadcast":
            awaited = max(starts[rank], starts[group[0]])
        noise = round(float(draws.normal(0, scenario.end_jitter_ns)))
        noise += scenario.end_stagger_ns.get(rank, 0)
        ends[rank] = max(awaited + 1, awaited + transfer + noise)
    paired = phase.op == "send_recv"
    members = tuple(sorted(group)) if paired else group
    comm = _hash(members, phase.stream)
    for place, rank in enumerate(group):
        timeline = ranks[rank]
        timeline.collectives.append(len(timeline.events))
        timeline.spans.append((starts[rank], ends[rank]))
        timeline.add(
            "nccl",
            ("send", "recv")[place] if paired else phase.op,
            starts[rank],
            ends[rank],
            comm=comm,
            size=phase.size,
            stream=phase.stream,
            launch=launches[rank],
            root=members.index(group[1 - place]) if paired else 0,  # or the peer
            name=scenario.nccl_kernel,
            tid=main_thread(rank) + _AUTOGRAD if scenario.autograd else None,
        )
        timeline.streams[phase.stream] = ends[rank]
        if not phase.overlap and not (paired and place == 0):
            timeline.free = max(timeline.free, ends[rank])
    return Instance(comm, phase.op, step, members, starts, ends)


def _end_step(scenario: Scenario, timeline: Timeline, begun: int, step: int) -> None:
    timeline.free = max([timeline.free, *timeline.streams.values()])
    last = timeline.host
    if scenario.sync:
        last = max(last, timeline.free + 10 * US)
        timeline.add("sync", timeline.host, last)
    if scenario.step_ranges:
        timeline.add("nvtx", begun, last + 5 * US, scenario.step_ranges.format(scenario.first_step + step))
    timeline.steps.append((begun, max(timeline.free, last + 5 * US)))


def _hash(group: Sequence[int], stream: int) -> int:
    text = f"{stream}:{','.join(map(str, group))}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
