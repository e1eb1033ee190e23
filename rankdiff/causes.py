"""Why a rank was late: what its time before the collectives held beyond that of its peers (METHOD: causes)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rankdiff.digest import Digest
from rankdiff.excess import Scene, Sides, enough_peers, excess_of, has_lead_up, own_steps, rows_of
from rankdiff.findings import Finding
from rankdiff.job import Job
from rankdiff.kernel_work import KernelWork, compare_kernels
from rankdiff.reports.call_names import os_class
from rankdiff.schema import CLASSES
from rankdiff.units import duration, share

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

_CARRIES = 0.60  # share of the positive excess that makes a class the cause
_EXPLAINS = 0.40  # share of the delay below which the excess explains nothing
_HOLDS = 0.50  # share of the cause's excess that makes a range or a call worth naming
# Draining the queue lays host and launch time bare: what a blocking call may cost besides itself.
_SYNC_KIN = ("sync", "launch", "host", "copy")
_EXTRA_CALLS = 5.0
_PER_CALL_NS = 1_000_000.0


def explain(job: Job, scene: Scene, finding: Finding, accused: Iterable[int]) -> Finding:
    """Give a finding its cause.

    Parameters
    ----------
    job : Job
    scene : Scene
    finding : Finding
        A late rank or node with its `late_mask` over the scene's steps.
    accused : iterable of int
        Job rank indices of all findings: no peers, unless nobody else is left.

    Returns
    -------
    Finding
        With cause, detail and evidence; lowered to a note when the cause is not the rank's own doing
        (``inherited``) or the profiler's.
    """
    own = tuple(r for r in scene.ranks if job.ranks[r].identity.rank in finding.ranks)
    guilty = set(accused) | set(own)
    peers = tuple(r for r in scene.ranks if r not in guilty) or tuple(r for r in scene.ranks if r not in own)
    own, peers = _equipped(job, own, peers)
    peers = enough_peers(scene, own, peers)
    sides = Sides(own, peers, scene.steps[np.array(finding.late_mask, np.bool_)])
    if not sides.late.size or not peers or not all(has_lead_up(job, r) for r in own):
        return finding
    excess = excess_of(job, scene, sides)
    if excess is None:
        return finding
    rows = [scene.ranks.index(r) for r in own]
    delay = float(scene.delta[rows][:, np.array(finding.late_mask, np.bool_)].sum())
    explained = float(excess[excess > 0].sum())
    kernels = _compared_kernels(job, scene, sides)
    if kernels is not None and not _graphs_traced_whole(job, sides):
        # Peers hide compute under their waits, so that equal compute lies bare on the late rank: that explains
        # where its time went, but only kernel time that the peers do not have at all is more work.
        at = CLASSES.index("gpu_work")
        excess[at] = min(excess[at], max(0.0, kernels.more_ns * sides.late.size * len(sides.own)))
    positive = {c: float(x) for c, x in zip(CLASSES, excess, strict=True) if x > 0}
    total = sum(positive.values())
    shares = {c: x / total for c, x in sorted(positive.items(), key=lambda i: -i[1])} if total > 0 else {}
    cause = _name(job, scene, sides, shares, positive, explained, delay)
    steps = sides.late.size
    detail: dict[str, Any] = {
        "range": None,
        "osrt": None,
        "cuda": None,
        "share": round(shares.get(cause, 0.0), 4) if cause in shares else None,
        "shares": {c: round(x, 4) for c, x in shares.items() if x >= 0.01},
        "excess_ns_per_step": {c: round(x / steps) for c, x in positive.items() if x / steps >= 1_000},
    }
    evidence = list(finding.evidence)
    main = {"gpu_slow": "gpu_work", "inherited": "nccl"}.get(cause, cause)
    if main in CLASSES:
        evidence += _describe(job, scene, sides, cause, main, positive.get(main, 0.0) / steps, detail)
    elif cause == "mixed":
        parts = ", ".join(
            f"{c} {duration(positive[c] / steps)} ({share(x)})" for c, x in list(shares.items())[:4]
        )
        evidence.append(f"the excess of a late step is made up of {parts}")
    else:
        evidence.append(
            f"what rank{'s' * (len(own) > 1)} {', '.join(job.ranks[r].identity.label for r in own)} did differently "
            f"before the collectives explains {share(total / delay if delay > 0 else 0.0)} of the delay"
        )
    blind = "OSRT_API" not in _tables(job, own[0])
    if cause == "host" and blind:
        evidence.append("OS calls were not captured there: this may be a system call as well as code")
    if cause == "gpu_work":
        cause, words = _kernels(job, scene, sides, kernels, detail)
        evidence += words
    severity = "note" if cause in ("inherited", "profiler") else finding.severity
    return replace(finding, cause=cause, cause_detail=detail, evidence=tuple(evidence), severity=severity)


_EVIDENCE = ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "OSRT_API")


def _tables(job: Job, rank: int) -> frozenset[str]:
    return frozenset(t for t in _EVIDENCE if t in job.ranks[rank].digest.info.tables)


def _equipped(
    job: Job, own: tuple[int, ...], peers: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranks that can say why: of those accused the best captured, and peers captured as well as they."""
    if not own or not peers:
        return own, peers
    most = max(len(_tables(job, r)) for r in own)
    best = tuple(r for r in own if len(_tables(job, r)) == most)
    alike = tuple(p for p in peers if _tables(job, p) >= _tables(job, best[0]))
    return best, alike or peers


def _name(
    job: Job,
    scene: Scene,
    sides: Sides,
    shares: dict[str, float],
    positive: dict[str, float],
    total: float,
    delay: float,
) -> str:
    """The class that carries the excess, by the rules of the method."""
    if not shares or total < _EXPLAINS * delay:
        return "unknown"
    top = next(iter(shares))
    if shares[top] >= _CARRIES:
        if top == "nccl":
            return "inherited"
        if top != "launch" and top != "host" and top != "copy":
            return top
    kin = sum(shares.get(c, 0.0) for c in _SYNC_KIN)
    if kin >= _CARRIES:
        extra = _blocking_calls(job, scene, sides.own, sides.late) - float(
            np.median([_blocking_calls(job, scene, (p,), sides.late) for p in sides.peers])
        )
        joint = sum(positive.get(c, 0.0) for c in _SYNC_KIN) / (sides.late.size * len(sides.own))
        if extra >= _EXTRA_CALLS and joint <= _PER_CALL_NS * extra:
            return "sync"
    return top if shares[top] >= _CARRIES else "mixed"


def _blocking_calls(job: Job, scene: Scene, ranks: Sequence[int], late: I64) -> float:
    """Blocking CUDA calls per step and rank, in the late steps where the rank's steps are known."""
    counts = []
    for r in ranks:
        calls = job.ranks[r].digest.host_calls.filter(pl.col("class") == "sync")
        steps = own_steps(job, scene, r, late)
        if steps is not None:
            calls = calls.filter(pl.col("step").is_in(sorted(steps)))
        counts.append(float(calls["count"].sum()) / (len(steps) if steps else max(scene.steps.size, 1)))
    return float(np.mean(counts)) if counts else 0.0


def _describe(
    job: Job, scene: Scene, sides: Sides, cause: str, main: str, excess: float, detail: dict[str, Any]
) -> list[str]:
    """Numbers of the carrying class, and the range and call that hold most of its excess."""
    steps = sides.late.size
    tables = {
        r: rows_of(job, scene, r, sides.late).filter(pl.col("class") == main)
        for r in (*sides.own, *sides.peers)
    }

    def per_step(ranks: Sequence[int], column: str | None, name: str | None) -> float:
        sums = []
        for r in ranks:
            t = tables[r] if column is None else tables[r].filter(pl.col(column) == name)
            sums.append(float(t["ns"].sum()) / steps)
        return float(np.median(sums)) if sums else 0.0

    def holder(column: str) -> tuple[str | None, float]:
        names = pl.concat([tables[r].select(column) for r in sides.own])[column].drop_nulls().unique().sort()
        best, most = None, 0.0
        for name in names:
            more = per_step(sides.own, column, name) - per_step(sides.peers, column, name)
            if more > most:
                best, most = name, more
        total = excess / len(sides.own)
        return (best, most) if total > 0 and most >= _HOLDS * total else (None, most)

    where, _ = holder("range")
    call, in_call = holder("call")
    detail["range"] = where
    if call is not None:
        detail["cuda" if call.startswith("cu") else "osrt"] = call
    here, there = per_step(sides.own, None, None), per_step(sides.peers, None, None)
    detail["here_ns_per_step"], detail["peers_ns_per_step"] = round(here), round(there)
    label = f"{main} (range {where})" if where and where != main else main
    many = "on each of its ranks" if len(sides.own) > 1 else "here"
    words = [
        f"{label} took {duration(here)} a late step {many}, {duration(there)} on the other ranks (median)"
    ]
    if call is not None:
        words.append(f"{duration(in_call)} of it more than elsewhere in {call}")
    if cause == "data_load" and call is not None and _waits(call):
        words.append(
            f"the main thread waited ({call}) for its loader's workers; what the workers did, their reads included, "
            "was not traced in that process"
        )
    if cause == "inherited":
        words = [
            f"{duration(excess / len(sides.own))} a late step more than elsewhere went into NCCL work outside matched "
            "collectives (send/recv, or members not captured): somebody else's delay passed through"
        ]
    return words


def _waits(call: str) -> bool:
    return os_class(call) == "os_wait"


def _compared_kernels(job: Job, scene: Scene, sides: Sides) -> KernelWork | None:
    """Kernels of the late steps against the peers'; None where there are none to compare."""

    def part(r: int) -> tuple[Digest, frozenset[int] | None, int]:
        steps = own_steps(job, scene, r, sides.late)
        return job.ranks[r].digest, steps, len(steps) if steps else scene.steps.size

    return compare_kernels([part(r) for r in sides.own], [part(r) for r in sides.peers])


def _graphs_traced_whole(job: Job, sides: Sides) -> bool:
    """Whether work of these ranks lies in graphs whose kernels were not captured."""
    everybody = (*sides.own, *sides.peers)
    return any("CUPTI_ACTIVITY_KIND_GRAPH_TRACE" in job.ranks[r].digest.info.tables for r in everybody)


def _kernels(
    job: Job, scene: Scene, sides: Sides, found: KernelWork | None, detail: dict[str, Any]
) -> tuple[str, list[str]]:
    """Tell more work from slower work by the kernels' signatures."""
    if found is None:
        return "gpu_work", []
    detail["top_kernels"] = found.top
    detail["duration_ratio"] = found.ratio
    words = list(found.words)
    here, there = _sm_mhz(job, scene, sides.own, sides.late), _sm_mhz(job, scene, sides.peers, sides.late)
    if here is not None and there is not None:
        detail["sm_mhz"], detail["peers_sm_mhz"] = round(here), round(there)
        words.append(f"SM clock {here:.0f} MHz here, {there:.0f} MHz on the other ranks (median)")
    return ("gpu_slow" if found.slower else "gpu_work"), words


def _sm_mhz(job: Job, scene: Scene, ranks: Sequence[int], late: I64) -> float | None:
    """Median over ranks of the mean SM clock in the late steps; None where GPU metrics were not captured."""
    means = []
    for r in ranks:
        table = job.ranks[r].digest.clocks
        steps = own_steps(job, scene, r, late)
        if steps is not None:
            table = table.filter(pl.col("step").is_in(sorted(steps)))
        samples = float(table["samples"].sum())
        if samples > 0:
            means.append(float((table["sm_mhz"] * table["samples"]).sum()) / samples)
    return float(np.median(means)) if means else None
