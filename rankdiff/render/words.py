"""Sentences that text, JSON and ticket share."""

from __future__ import annotations

from rankdiff.comparison import Comparison
from rankdiff.findings import Finding
from rankdiff.units import duration, share, utc

_PATTERNS = {
    "persistent": "in {late} of {steps} steps",
    "intermittent": "in {late} of {steps} steps",
    "one_off": "in 1 of {steps} steps",
}


def summary(c: Comparison) -> str:
    """The verdict in one sentence."""
    v = c.verdict
    loud = [f for f in v.findings if f.severity != "note" and f.kind in ("late_rank", "late_node")]
    if v.status == "straggler" and loud:
        captured = " (among the captured ranks)" if c.missing else ""
        more = f"; also {', '.join(who(f) for f in loud[1:4])}" if len(loud) > 1 else ""
        f = loud[0]
        return f"{who(f)} made the others wait{captured}: {cost(f)}, {how_often(f)}{more}."
    if v.status == "rotating":
        f = next(f for f in v.findings if f.kind == "rotating")
        return (
            f"Lateness rotates: {len(f.ranks)} ranks take turns at holding the others, {cost(f)}, "
            f"{how_often(f)}; no single rank is to blame."
        )
    if v.status == "balanced":
        lost = (
            f" {duration(v.wait_ns_per_step)} a step ({share(v.wait_share_of_step)}) go into waiting for nobody in "
            "particular."
            if v.wait_ns_per_step
            else ""
        )
        seen = (
            f" A rank late by {duration(v.threshold_ns)} a step would have been seen."
            if v.threshold_ns
            else ""
        )
        captured = " among the captured ranks" if c.missing else ""
        return f"Nobody was late{captured}.{lost}{seen}"
    return f"Not assessed: {v.message}." if v.message else "Not assessed."


def who(f: Finding) -> str:
    """Rank and node of a finding."""
    if f.kind == "late_node":
        return (
            f"Node {f.node} (ranks {', '.join(map(str, f.ranks[:16]))}{', ...' if len(f.ranks) > 16 else ''})"
        )
    return f"Rank {f.rank} on {f.node}"


def cost(f: Finding) -> str:
    """What a finding costs per step."""
    return f"{duration(f.delay_ns_per_step)} a step ({share(f.delay_share)} of the time)"


def how_often(f: Finding) -> str:
    """In how many steps, and how regularly."""
    words = _PATTERNS.get(f.pattern or "", "in {late} of {steps} steps").format(
        late=f.steps_late, steps=f.steps
    )
    return f"{words}, every {f.period_steps} steps" if f.period_steps else words


def since(c: Comparison, f: Finding) -> str:
    """When it was first seen, in UTC, so that it can be held against system logs."""
    if f.first_ns is None:
        return ""
    when = utc(c.job.origin_utc_ns + f.first_ns) if c.job.origin_utc_ns is not None else "unknown time"
    return f"first in step {f.first_step}, {when}"


def next_step(c: Comparison, f: Finding) -> str:
    """Where to look next: node, GPU and a command. The cause analysis replaces it by the cause's own advice."""
    if f.advice:
        return f.advice
    uuids = [
        f"GPU-{d.info.gpu_uuid.removeprefix('GPU-')}"
        for i, d in zip(c.identities, c.digests, strict=True)
        if i.rank in f.ranks and d.info.gpu_uuid is not None
    ]
    gpu = f" and {', '.join(uuids[:4])}" if uuids else ""
    if f.kind == "rotating":
        return (
            "no node to drain; look at what all ranks share (garbage collection, CPU contention, file system)"
        )
    rank = f.ranks[0]
    return (
        f"look at node {f.node}{gpu} around that time: dmesg -T and nvidia-smi -q -d PERFORMANCE,CLOCK on it, and the "
        f"gap before the collectives of rank {rank} in its report"
    )
