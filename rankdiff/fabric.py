"""Transfers: bus bandwidth per communicator, and the node whose communicators are slow while nobody is late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankdiff.findings import MAJOR_SHARE, Finding
from rankdiff.instances import Timed
from rankdiff.job import Job
from rankdiff.units import duration, share
from rankdiff.waits import Waits

F64 = NDArray[np.float64]

_SLOWER = 1.5  # ratio of transfers that is more than scatter between equal communicators
_IN_STEPS = 0.8  # share of the steps in which it must show


@dataclass(frozen=True)
class Transfer:
    """Transfers of one operation of one size on one communicator.

    Attributes
    ----------
    comm : str
    op : str
    bytes : int or None
        Message size as NCCL counts it: per rank for all-gather and reduce-scatter; None: no payload.
    count : int
    transfer_ns : float
        Median time from the last arrival to the end.
    slowdown : float
        Median transfer over its 10th percentile: 1 when all are alike.
    bus_gbps : float or None
        Bus bandwidth in GB/s; None without bytes.
    """

    comm: str
    op: str
    bytes: int | None
    count: int
    transfer_ns: float
    slowdown: float
    bus_gbps: float | None


def bus_bandwidth(op: str, size: int, ranks: int, ns: float) -> float | None:
    """Bus bandwidth in GB/s as nccl-tests define it (PERFORMANCE.md there).

    Parameters
    ----------
    op : str
    size : int
        Bytes as NCCL counts them (per rank for all-gather and reduce-scatter).
    ranks : int
    ns : float
    """
    if ns <= 0 or ranks < 2:
        return None
    if op == "all_reduce":
        moved = 2 * (ranks - 1) / ranks * size
    elif op in ("all_gather", "reduce_scatter"):
        moved = (ranks - 1) * size
    elif op == "all_to_all":
        moved = (ranks - 1) / ranks * size
    else:
        return None
    return moved / ns


def transfers(job: Job, timed: Sequence[Timed], waited: Sequence[Waits]) -> list[Transfer]:
    """Transfers of all communicators by operation and size, in the communicators' order."""
    out = []
    for t, w in zip(timed, waited, strict=True):
        for op, size, at in _kinds(job, t):
            x = w.transfer[at].astype(np.float64)
            middle = float(np.median(x))
            low = float(np.quantile(x, 0.1))
            bandwidth = bus_bandwidth(op, size, t.comm.members.size, middle) if size is not None else None
            out.append(
                Transfer(
                    t.comm.id, op, size, int(x.size), middle, middle / low if low > 0 else 1.0, bandwidth
                )
            )
    return out


def _kinds(job: Job, t: Timed) -> list[tuple[str, int | None, NDArray[np.int64]]]:
    """Instances of a communicator by operation and bytes."""
    rank = job.ranks[int(t.comm.members[0])]
    table = rank.digest.columns("collectives", "op", "bytes")[
        rank.row[t.comm.positions[:, 0]]
    ].with_row_index("at")
    out = []
    for (op, size), part in sorted(
        table.group_by("op", "bytes", maintain_order=True),
        key=lambda g: (str(g[0][0]), -1 if g[0][1] is None else g[0][1]),
    ):
        out.append((str(op), None if size is None else int(size), part["at"].to_numpy().astype(np.int64)))
    return out


@dataclass(frozen=True)
class _Series:
    """Transfers of one operation of one size on one communicator, per step."""

    nodes: frozenset[str]
    usual_ns: float  # median
    mostly_ns: float  # what they take at least in most steps
    steps: int


def slow_transfers(
    job: Job,
    parts: Sequence[tuple[Timed, Waits, NDArray[np.bool_]]],
    step_ns: float,
    threshold_ns: float,
    late: Iterable[int],
) -> list[Finding]:
    """Node whose communicators transfer slowly, against equal communicators without it.

    Only communicators of the same size, on as many nodes, with the same operation and bytes are compared: what
    crosses nodes is slower than what does not. Communicators and nodes with a late rank are left out, because a
    late rank explains their time. Never concluded from one communicator alone: there is
    nothing to compare it with.

    Parameters
    ----------
    parts : sequence of (Timed, Waits, (k,) bool)
        Every communicator of the job with the steps of its island that are judged.
    step_ns, threshold_ns : float
        Median step and materiality threshold.
    late : iterable of int
        Job rank indices with a finding.

    Returns
    -------
    list of Finding
        None or one: the node with the largest excess. A communicator of a slow node is slow for its other
        nodes too, so several are named only as its evidence.
    """
    guilty = set(late)
    series: dict[tuple[str, int, int, int], list[_Series]] = {}
    for t, w, judged in parts:
        if guilty & {int(r) for r in t.comm.members}:
            continue
        nodes = frozenset(job.ranks[int(r)].node for r in t.comm.members)
        for op, size, at in _kinds(job, t):
            if size is None:  # of unknown size, nothing is equal
                continue
            per_step = np.zeros(judged.size)
            np.add.at(per_step, t.step[at], w.transfer[at])
            used = np.zeros(judged.size, np.bool_)
            used[t.step[at]] = True
            known = per_step[judged & used]
            if known.size:
                # The slow ones must be slow in most steps, not once.
                mostly = float(np.quantile(known, 1 - _IN_STEPS))
                one = _Series(nodes, float(np.median(known)), mostly, int(known.size))
                series.setdefault((op, size, t.comm.members.size, len(nodes)), []).append(one)
    blamed = {r.node for r in job.ranks if r.index in guilty}
    found = [
        f
        for node in job.nodes
        if node not in blamed
        if (f := _against_others(job, node, list(series.values()), step_ns, threshold_ns))
    ]
    worst = sorted(found, key=lambda f: -(f.delay_ns_per_step or 0.0))[:1]
    return [replace(f, evidence=(*f.evidence, *_company(f, found))) for f in worst]


def _company(f: Finding, found: Sequence[Finding]) -> tuple[str, ...]:
    """Name the other nodes that show the same: of two nodes on one slow communicator either may be the cause."""
    alike = [
        g.node for g in found if g is not f and (g.delay_ns_per_step or 0) > 0.8 * (f.delay_ns_per_step or 0)
    ]
    return (
        (f"the same shows on {', '.join(str(n) for n in alike[:4])}, which share communicators",)
        if alike
        else ()
    )


def _against_others(
    job: Job,
    node: str,
    series: Sequence[Sequence[_Series]],
    step_ns: float,
    threshold_ns: float,
) -> Finding | None:
    excess, ratios, steps = 0.0, [], 0
    for kind in series:
        inside = [x for x in kind if node in x.nodes]
        outside = [x for x in kind if node not in x.nodes]
        if not inside or not outside:
            continue
        usual = float(np.median([x.usual_ns for x in outside]))
        here = float(np.median([x.usual_ns for x in inside]))
        mostly = float(np.median([x.mostly_ns for x in inside]))
        if usual > 0 and mostly >= _SLOWER * usual:
            ratios.append(here / usual)
            excess += here - usual
            steps = max(steps, *(x.steps for x in inside))
    if not ratios or excess < threshold_ns:
        return None
    ratio = max(ratios)
    return Finding(
        kind="slow_transfer",
        severity="major" if excess >= MAJOR_SHARE * step_ns else "minor",
        pattern="persistent",
        node=node,
        ranks=tuple(r.identity.rank for r in job.ranks if r.node == node),
        delay_ns_per_step=excess,
        delay_share=excess / step_ns,
        steps=steps,
        cause="slow_transfer",
        cause_detail={"ratio": round(ratio, 3)},
        evidence=(
            f"collectives that include node {node} take {ratio:.1f} times as long to transfer as equal ones without it, "
            f"{duration(excess)} a step ({share(excess / step_ns)}), while none of their ranks is late",
        ),
    )
