"""What a right analysis should say of a job, from what was planted and what it costs.

The rules are those that the documentation states, written down a second time: a delay is worth a finding
from 2 % of the step on, a node is late when three quarters of its ranks are, and what comes in few steps
must be as long as a step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .faults import Fault
from .layout import alike, meeting, phases
from .planting import extra_ns, startup_ns
from .settings import Settings

_FINDING = 0.02  # of the step
_MAJOR = 0.10
_HEAVY = 0.05  # jitter that costs so much of the step may be taken for lateness that rotates
_FLOOR_NS = 50_000
_CARRIED = 0.75  # of a node's ranks
_CAUSE = 0.60  # of the extra time
_PERSISTENT = 0.60  # of the steps
_CHANCE = 0.005
# What the extra time of a fault is called, where all that tells it was captured.
_CAUSES = {
    kind: kind
    for kind in ("data_load", "io", "os_wait", "host", "alloc", "sync", "copy", "gpu_slow", "gpu_work")
} | {"gpu_grid": "gpu_work"}


@dataclass(frozen=True)
class _Unit:
    """A rank, or a node, that is to be called late."""

    node: str | None
    ranks: tuple[int, ...]
    faults: tuple[Fault, ...]


def expected(
    settings: Settings,
    costs: Sequence[int | None],
    jitter_cost: int | None,
    step_ns: tuple[float, float],
) -> dict[str, Any]:
    """Return the expected verdict.

    Parameters
    ----------
    settings : Settings
    costs : sequence of int or None
        By how much a mean step is longer with each fault alone; None without N x N collectives.
    jitter_cost : int or None
        By how much it is longer with the jitter.
    step_ns : (float, float)
        Median and mean step of the job.

    Returns
    -------
    dict
        status, status_or, reason, late_ranks, late_nodes and findings, as in truth.json.
    """
    reason = _unjudged(settings)
    findings: list[dict[str, Any]] = []
    if reason is None:
        known = {f.text: c or 0 for f, c in zip(settings.faults, costs, strict=True)}
        findings = _late(settings, known, step_ns)
        if not findings:
            findings += [
                _finding("rotating", ranks=f.on(settings.rank_nodes), pattern="rotating")
                for f in settings.faults
                if f.kind == "rotate" and _rotates(settings, f, known[f.text], step_ns)
            ]
        findings += [
            _finding("slow_transfer", node=node, cause="slow_transfer")
            for node in _slow_nodes(settings, step_ns[0])
        ]
        findings += _notes(settings, known, step_ns[0])
    kinds = {f["kind"] for f in findings if not f["note"]}
    loud = kinds & {"late_rank", "late_node"}
    status = "straggler" if loud else "rotating" if "rotating" in kinds else "balanced"
    shaky = (jitter_cost or 0) >= _HEAVY * step_ns[1]
    return {
        "status": "not_assessed" if reason else status,
        "status_or": "rotating" if shaky and not reason and status == "balanced" else None,
        "reason": reason,
        "late_ranks": [f["rank"] for f in findings if f["kind"] == "late_rank" and not f["note"]],
        "late_nodes": [f["node"] for f in findings if f["kind"] == "late_node"],
        "findings": findings,
    }


def _finding(kind: str, *, note: bool = False, **known: Any) -> dict[str, Any]:
    keys = ("rank", "node", "ranks", "cause", "pattern", "period_steps", "range")
    return {"kind": kind, "note": note} | dict.fromkeys(keys) | known


def _late(settings: Settings, known: Mapping[str, int], step_ns: tuple[float, float]) -> list[dict[str, Any]]:
    """Late ranks and nodes whose lateness is worth a finding."""
    units = _units(settings)
    found = []
    for unit in units:
        sharing = {f.text: sum(f in other.faults for other in units) for f in unit.faults}
        cost = sum(known[f.text] / sharing[f.text] for f in unit.faults)
        if cost >= max(_FINDING * step_ns[0], _FLOOR_NS) and _seen(settings, unit, step_ns):
            found.append(_described(settings, unit))
    return found


def _notes(settings: Settings, known: Mapping[str, int], step_ns: float) -> list[dict[str, Any]]:
    """What should be mentioned and held against nobody: the profiler itself, and a skewed first step."""
    out = []
    nodes = settings.rank_nodes
    for fault in settings.faults:
        ranks = fault.on(nodes)
        if fault.kind == "profiler" and len(ranks) == 1 and known[fault.text] >= _FINDING * step_ns:
            steps = fault.steps(settings.steps)
            many = len(steps) >= _PERSISTENT * settings.steps
            pattern = "persistent" if many else None
            out.append(
                _finding(
                    "late_rank", note=True, rank=ranks[0], node=nodes[ranks[0]], ranks=ranks, cause="profiler"
                )
                | {"pattern": pattern}
            )
        elif fault.kind == "startup" and fault.ns >= 3 * step_ns and not _windows(settings)[0]:
            skews = startup_ns(settings, fault)
            last = ranks[skews.index(max(skews))]
            out.append(
                _finding("startup", note=True, rank=last, node=nodes[last], ranks=[last], pattern="startup")
            )
    return out


def _windows(settings: Settings) -> tuple[int, int]:
    """First step that all windows hold, and how many at the end some do not."""
    return (
        max([0, *(window.skip for window in settings.windows)]),
        max([0, *(window.end for window in settings.windows)]),
    )


def _judged_steps(settings: Settings) -> list[int]:
    """Steps that all windows hold, without a skewed first one."""
    first, end = _windows(settings)
    skewed = first == 0 and any(f.kind == "startup" for f in settings.faults)
    return list(range(first + skewed, settings.steps - end))


def _unjudged(settings: Settings) -> str | None:
    """Why nobody can be judged in this job."""
    together = meeting(settings)
    if together < 2:
        return "no_nxn_collectives"
    fewest = 1 + math.ceil(math.log(100) / math.log(together))
    return "too_few_steps" if len(_judged_steps(settings)) < fewest else None


def _units(settings: Settings) -> list[_Unit]:
    """Nodes most of whose ranks have a fault, and the other ranks that have one."""
    nodes = settings.rank_nodes
    own: dict[int, tuple[Fault, ...]] = {}
    for fault in settings.faults:
        if fault.kind in _CAUSES:
            for rank in fault.on(nodes):
                own[rank] = (*own.get(rank, ()), fault)
    units: list[_Unit] = []
    for node in dict.fromkeys(nodes):
        ranks = [rank for rank in range(settings.ranks) if nodes[rank] == node]
        hit = [rank for rank in ranks if rank in own]
        if settings.nodes > 1 and len(ranks) > 1 and len(hit) >= _CARRIED * len(ranks):
            faults = tuple(dict.fromkeys(f for rank in hit for f in own[rank]))
            units.append(_Unit(node, tuple(hit), faults))
        else:
            units += [_Unit(None, (rank,), own[rank]) for rank in hit]
    return units


def _hit(settings: Settings, unit: _Unit) -> list[int]:
    judged = set(_judged_steps(settings))
    return sorted({step for f in unit.faults for step in f.steps(settings.steps)} & judged)


def _seen(settings: Settings, unit: _Unit, step_ns: tuple[float, float]) -> bool:
    """Whether lateness in these steps is beyond chance, or so long that it needs no test."""
    hit = _hit(settings, unit)
    if hit and meeting(settings) ** (1 - len(hit)) <= _CHANCE:
        return True
    each = sum(extra_ns(settings, f, unit.ranks[0]) for f in unit.faults)
    return each >= step_ns[0] and each * len(hit) >= _MAJOR * step_ns[1] * len(_judged_steps(settings))


def _described(settings: Settings, unit: _Unit) -> dict[str, Any]:
    hit = _hit(settings, unit)
    pattern, period = "intermittent", None
    if len(hit) >= _PERSISTENT * len(_judged_steps(settings)):
        pattern = "persistent"
    elif len(hit) == 1:
        pattern = "one_off"
    elif len(hit) > 2 and len({b - a for a, b in itertools.pairwise(hit)}) == 1 and hit[1] - hit[0] > 1:
        period = hit[1] - hit[0]
    amounts: dict[str, int] = {}
    for fault in unit.faults:
        cause = _cause(settings, fault)
        planted = extra_ns(settings, fault, unit.ranks[0]) * len(fault.steps(settings.steps))
        amounts[cause] = amounts.get(cause, 0) + planted
    top = max(amounts, key=lambda cause: amounts[cause])
    cause = top if amounts[top] >= _CAUSE * sum(amounts.values()) else "mixed"
    ranges = {_range(f) for f in unit.faults} if settings.nvtx and cause != "mixed" else set()
    return _finding(
        "late_node" if unit.node else "late_rank",
        rank=None if unit.node else unit.ranks[0],
        node=unit.node or settings.node_of(unit.ranks[0]),
        ranks=list(unit.ranks),
        cause=cause,
        pattern=pattern,
        period_steps=period,
        range=ranges.pop() if len(ranges) == 1 else None,
    )


def _cause(settings: Settings, fault: Fault) -> str:
    """What the extra time looks like in what was captured."""
    cause = _CAUSES[fault.kind]
    if cause == "data_load" and not settings.nvtx:
        cause = "io"
    return "host" if cause in ("io", "os_wait") and not settings.osrt else cause


def _range(fault: Fault) -> str | None:
    return {"host": fault.range, "data_load": "data_load"}.get(fault.kind)


def _rotates(settings: Settings, fault: Fault, cost: int, step_ns: tuple[float, float]) -> bool:
    many = len(fault.on(settings.rank_nodes)) >= 3 and len(fault.steps(settings.steps)) >= 3
    return many and fault.ns >= _MAJOR * step_ns[0] and cost >= _MAJOR * step_ns[1]


def _slow_nodes(settings: Settings, step_ns: float) -> list[str]:
    """Nodes with slow transfers that other communicators, equal but for the node, have to be compared with."""
    nodes, play = settings.rank_nodes, phases(settings)
    found = []
    for fault in settings.faults:
        if fault.kind != "network" or len(fault.steps(settings.steps)) < 0.8 * settings.steps:
            continue
        for node in fault.nodes:
            excess = 0.0
            for groups in alike(settings):
                spans = [{nodes[rank] for rank in group} for group in groups]
                slow = [i for i, span in enumerate(spans) if node in span and len(span) > 1]
                if any(len(spans[i]) == len(o) and node not in o for i in slow for o in spans):
                    one = list(groups[slow[0]])
                    mine = [p.transfer_ns for p in play if one in [list(g) for g in p.groups or ()]]
                    excess += sum(mine) * (fault.factor - 1)
            if fault.factor >= 1.5 and excess >= max(_FINDING * step_ns, _FLOOR_NS):
                found.append(node)
    return found
