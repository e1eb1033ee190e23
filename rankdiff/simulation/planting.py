"""From settings and faults to the `Scenario` that is played."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .faults import Fault
from .layout import phases, work_ns
from .scenario import US, Scenario
from .settings import SCHEMAS, Settings

_END_JITTER_NS = 5 * US  # members leave a collective so far apart (sigma)


def plan(settings: Settings, faults: Sequence[Fault]) -> Scenario:
    """Return the scenario of some settings with these faults (and none of the settings' own).

    Parameters
    ----------
    settings : Settings
        Checked ones.
    faults : sequence of Fault
    """
    nodes = settings.rank_nodes
    uncaptured = (() if settings.nvtx else ("NVTX_EVENTS",)) + (() if settings.osrt else ("OSRT_API",))
    export = {"version": SCHEMAS[settings.schema], "uncaptured": uncaptured}
    return Scenario(
        ranks=settings.ranks,
        nodes=nodes,
        steps=settings.steps,
        phases=phases(settings),
        jitter=settings.jitter,
        jitter_share=settings.jitter_share,
        seed=settings.seed,
        end_jitter_ns=_END_JITTER_NS,
        offset_ns={clock.node: clock.offset_ns for clock in settings.clocks},
        drift_ppm={clock.node: clock.drift_ppm for clock in settings.clocks},
        clock_steps={clock.node: clock.steps for clock in settings.clocks},
        cut_steps={rank: (w.skip, w.end) for w in settings.windows for rank in w.ranks},
        payload=settings.payloads,
        nccl_ranges=settings.nvtx,
        options=dict.fromkeys(range(settings.ranks), export),
        **_planted(settings, faults),
    )


def extra_ns(settings: Settings, fault: Fault, rank: int) -> int:
    """Return the time that a fault adds to a rank's own work in each step that has it."""
    if fault.kind in ("gpu_slow", "gpu_grid") and not fault.ns:
        return round(work_ns(settings, rank) * (fault.factor - 1))
    return 0 if fault.kind in ("network", "startup", "lost_events") else fault.ns


def _planted(settings: Settings, faults: Sequence[Fault]) -> dict[str, Any]:
    nodes, steps = settings.rank_nodes, settings.steps
    late: dict[int, list[dict[str, int]]] = {}
    factors: dict[str, dict[int, list[float]]] = {"gpu_slow": {}, "gpu_grid": {}}
    slow_nodes: dict[str, list[float]] = {}
    lost: dict[int, float] = {}

    def add(rank: int, step: int, kind: str, ns: int) -> None:
        extras = late.setdefault(rank, [{} for _ in range(steps)])[step]
        extras[kind] = extras.get(kind, 0) + ns

    for fault in faults:
        ranks, hit = fault.on(nodes), fault.steps(steps)
        if fault.kind == "network":
            for node in fault.nodes:
                for step in hit:
                    slow_nodes.setdefault(node, [1.0] * steps)[step] *= fault.factor
        elif fault.kind in factors:
            for rank in ranks:
                more = extra_ns(settings, fault, rank) / work_ns(settings, rank)
                for step in hit:
                    factors[fault.kind].setdefault(rank, [1.0] * steps)[step] += more
        elif fault.kind == "rotate":
            for step in hit:
                add(ranks[step % len(ranks)], step, "os_wait", fault.ns)
        elif fault.kind == "startup":
            for rank, ns in zip(ranks, startup_ns(settings, fault), strict=True):
                add(rank, 0, "begin", ns)
        elif fault.kind == "lost_events":
            lost |= {rank: 1 - (1 - lost.get(rank, 0.0)) * (1 - fault.share) for rank in ranks}
        else:
            kind = f"host:{fault.range}" if fault.kind == "host" else fault.kind
            for rank in ranks:
                for step in hit:
                    add(rank, step, kind, fault.ns)
    return {
        "late": late,
        "stretch": factors["gpu_slow"],
        "grow": factors["gpu_grid"],
        "slow_nodes": slow_nodes,
        "lost_share": lost,
    }


def startup_ns(settings: Settings, fault: Fault) -> list[int]:
    """Return how much later than at once each rank of a ``startup`` begins: all the time for one of them."""
    ranks = fault.on(settings.rank_nodes)
    draws = np.random.default_rng([settings.seed, 4]).random(len(ranks))
    return [round(fault.ns * float(x / draws.max())) for x in draws]
