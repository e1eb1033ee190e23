"""Writes what was played: an export for each rank, told by the clock of its node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .clocks import linear_clock
from .export import EPOCH, Export
from .play import Timeline, main_thread, play
from .process import Process
from .scenario import MS, Job, Scenario

# What nsys itself says when it knows that events are missing.
LOST = "Not all CUDA events might have been collected."


def write(folder: Path, scenario: Scenario) -> Job:
    """Play a scenario and write its exports into a folder, which is made when it is not there.

    Parameters
    ----------
    folder : Path
    scenario : Scenario

    Returns
    -------
    Job
    """
    folder.mkdir(parents=True, exist_ok=True)
    timelines, instances = play(scenario)
    wanted = range(scenario.ranks) if scenario.written is None else scenario.written
    nodes = {rank: scenario.node(rank) for rank in wanted}
    reports: dict[int, Path] = {}
    recorded: dict[int, list[bool]] = {}
    exports: dict[str, Export] = {}
    for rank in wanted:
        node, timeline = nodes[rank], timelines[rank]
        key = node if scenario.torchrun else f"{node}/{rank}"
        process: Process
        if key in exports:
            process = exports[key].process(
                main_thread(rank), _local(scenario, rank), gpu=_local(scenario, rank)
            )
        else:
            process = exports[key] = _open(folder, scenario, rank, timeline)
        gone = _lost(scenario, rank, timeline)
        _tell(process, timeline, frozenset(scenario.lost.get(rank, ())), gone)
        if rank in scenario.lost_share:
            exports[key].diagnostic(LOST, process=process)
        reports[rank] = exports[key].path
        recorded[rank] = _recorded(exports[key], scenario, rank, timeline, gone)
        if not scenario.torchrun:
            _close(exports.pop(key), scenario, rank)
    for export in exports.values():
        _close(export, scenario, next(r for r, path in reports.items() if path == export.path))
    return Job(reports, nodes, instances, recorded)


def _close(export: Export, scenario: Scenario, rank: int) -> None:
    if scenario.edit:
        scenario.edit(rank, export)
    export.close()


def _open(folder: Path, scenario: Scenario, rank: int, timeline: Timeline) -> Export:
    node = scenario.node(rank)
    clock = linear_clock(
        scenario.offset_ns.get(node, 0), scenario.drift_ppm.get(node, 0.0), scenario.clock_steps.get(node, ())
    )
    settings: dict[str, Any] = {"clock": clock, "blobs": scenario.payload}
    begin = scenario.session_start_ns.get(rank)
    if rank in scenario.cut:
        head, tail = scenario.cut[rank]
        low = timeline.spans[head - 1][1] if head else min(s for s, _ in timeline.spans) - 3600 * 1000 * MS
        settings["window"] = low, timeline.spans[len(timeline.spans) - 1 - tail][1]
    elif rank in scenario.cut_steps:
        head, tail = scenario.cut_steps[rank]
        settings["window"] = timeline.steps[head][0], timeline.steps[len(timeline.steps) - 1 - tail][1]
        begin = settings["window"][0] if begin is None else begin
    if begin is not None:
        zero = clock(begin)
        settings |= {"clock": lambda time_ns: clock(time_ns) - zero, "utc_ns": EPOCH + zero}
    name = f"prof_{node}.sqlite" if scenario.torchrun else scenario.pattern.format(node=node, rank=rank)
    local = _local(scenario, rank)
    settings |= {
        "node": node,
        "pid": main_thread(rank),
        "gpu": local,
        "env": _environment(scenario, rank) if scenario.environment else None,
        "nccl_ranges": scenario.nccl_ranges,
    }
    return Export(folder / name, **(settings | dict(scenario.options.get(rank, {}))))


def _lost(scenario: Scenario, rank: int, timeline: Timeline) -> frozenset[int]:
    """Return the places of the kernels that the profiler lost."""
    share = scenario.lost_share.get(rank, 0.0)
    if not share:
        return frozenset()
    kernels = [place for place, (method, _, _) in enumerate(timeline.events) if method in ("kernel", "nccl")]
    draws = np.random.default_rng([scenario.seed, 2, rank])
    drawn = draws.choice(len(kernels), max(1, round(share * len(kernels))), replace=False)
    return frozenset(kernels[i] for i in drawn)


def _tell(process: Process, timeline: Timeline, missing: frozenset[int], gone: frozenset[int]) -> None:
    """Write all events but for the collectives `missing` by number and the kernels `gone` by place."""
    untold = {timeline.collectives[index] for index in missing}
    for place, (method, args, kwargs) in enumerate(timeline.events):
        if place in untold:
            continue
        if place not in gone:
            getattr(process, method)(*args, **kwargs)
        elif method == "nccl":
            process.nccl(*args, **kwargs, lost=True)  # NVTX is recorded by other means


def _recorded(
    export: Export, scenario: Scenario, rank: int, timeline: Timeline, gone: frozenset[int]
) -> list[bool]:
    """Say for each of a rank's collectives whether its kernel is in the file."""
    missing = set(scenario.lost.get(rank, ()))
    low, high = export.window or (-(1 << 62), 1 << 62)
    return [
        number not in missing and place not in gone and low <= start and end <= high
        for number, (place, (start, end)) in enumerate(zip(timeline.collectives, timeline.spans, strict=True))
    ]


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
