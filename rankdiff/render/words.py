"""Sentences that text, JSON and ticket share."""

from __future__ import annotations

from rankdiff.comparison import Comparison
from rankdiff.findings import Finding, is_loud
from rankdiff.units import duration, share, utc

_PATTERNS = {
    "persistent": "in {late} of {steps} steps",
    "intermittent": "in {late} of {steps} steps",
    "one_off": "in 1 of {steps} steps",
}


def summary(c: Comparison) -> str:
    """The verdict in one sentence."""
    v = c.verdict
    loud = [f for f in v.findings if is_loud(f)]
    if v.status == "straggler" and loud:
        captured = f" ({_among(c)})" if _among(c) else ""
        more = f"; also {', '.join(_inside(f) for f in loud[1:4])}" if len(loud) > 1 else ""
        f = loud[0]
        return f"{who(f)} made the others wait{captured}: {cost(f)}, {how_often(f)}{because(f)}{more}."
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
        captured = f" {_among(c)}" if _among(c) else ""
        return f"Nobody was late{captured}.{lost}{_margin(c)}"
    return f"Not assessed: {v.message}." if v.message else "Not assessed."


def _margin(c: Comparison) -> str:
    """The smallest delay that would have been found, as one or two sentences."""
    m = c.verdict.margin
    if m is None or m.rank is None:
        return ""
    if m.node is not None:
        node = f", a node by {duration(m.node)}"
    else:
        node = "; there are too few steps to see a late node" if m.nodes_judged else ""
    return f" A rank late by {duration(m.rank)} a step would have been seen{node}."


def _among(c: Comparison) -> str:
    """Which ranks the verdict is about, where these are not all; empty where they are."""
    if c.missing:
        return "among the captured ranks"
    return "among the ranks that could be compared" if c.quality.apart else ""


def who(f: Finding) -> str:
    """Rank and node of a finding."""
    if f.kind == "late_node":
        return (
            f"Node {f.node} (ranks {', '.join(map(str, f.ranks[:16]))}{', ...' if len(f.ranks) > 16 else ''})"
        )
    return f"Rank {f.rank} on {f.node}"


def _inside(f: Finding) -> str:
    """`who` in the middle of a sentence."""
    text = who(f)
    return text[0].lower() + text[1:]


def cost(f: Finding) -> str:
    """What a finding costs per step."""
    return f"{duration(f.delay_ns_per_step)} a step ({share(f.delay_share)} of the time)"


def how_often(f: Finding) -> str:
    """In how many steps, and how regularly."""
    words = _PATTERNS.get(f.pattern or "", "in {late} of {steps} steps").format(
        late=f.steps_late, steps=f.steps
    )
    return f"{words}, every {f.period_steps} steps" if f.period_steps else words


def certainty(f: Finding) -> str:
    """Test, interval, and what the durations say; empty where there is none of them."""
    parts = [f"p = {f.p_value:.4f}"] if f.p_value is not None else []
    if f.delay_ci95_ns is not None:
        low, high = f.delay_ci95_ns
        parts.append(f"95% interval {duration(low)} to {duration(high)} a step")
    if f.twin is not None:
        parts.append(f"by durations alone {duration(f.twin.delay_ns_per_step)}")
    return "; ".join(parts)


def what_if(f: Finding) -> str:
    """What the job would gain without a finding, or why that is not said; empty for a note."""
    w = f.what_if
    if w is None:
        return ""
    if w.refused is not None:
        return f"no prediction: {w.refused}"
    whose = "the node's ranks were" if f.kind == "late_node" else f"rank {f.rank} were"
    old = (w.step_ns or 0.0) + (w.gain_ns_per_step or 0.0)
    return (
        f"the job would run {share(w.speedup)} faster if {whose} typical ({duration(w.step_ns)} a step instead of "
        f"{duration(old)}); it loses {w.gpu_hours_per_hour:.2f} GPU-hours an hour; replay error {share(w.replay_error)}"
    )


def spent(c: Comparison) -> str:
    """Where the median rank's step goes, largest part first; empty when no step has a length."""
    b = c.bottleneck
    if b is None:
        return ""
    step = sum(b.parts_ns.values())
    parts = ", ".join(
        f"{k.replace('_', ' ')} {share(x / step)}" for k, x in b.parts_ns.items() if step and x >= 0.01 * step
    )
    main = f"{b.kind} ({share(b.share)} of the step)" if b.share is not None else f"{b.kind} things"
    return f"{main}: {parts}. {b.advice[0].upper()}{b.advice[1:]}"


def since(c: Comparison, f: Finding) -> str:
    """When it was first seen, in UTC, so that it can be held against system logs."""
    if f.first_ns is None:
        return ""
    when = utc(c.job.origin_utc_ns + f.first_ns) if c.job.origin_utc_ns is not None else "unknown time"
    return f"first in step {f.first_step}, {when}"


_CAUSES = {
    "data_load": "data loading",
    "io": "file operations",
    "os_wait": "waiting in the OS",
    "sync": "synchronising CUDA calls",
    "alloc": "GPU memory allocation",
    "host": "host code",
    "preempted": "its thread was scheduled out",
    "launch": "kernel launches",
    "copy": "copies",
    "gpu_work": "more GPU work than its peers",
    "gpu_slow": "a slower GPU at equal work",
    "profiler": "the profiler itself",
    "inherited": "somebody else's delay passed on",
    "mixed": "several things at once",
    "unknown": "cause unknown",
}


def because(f: Finding) -> str:
    """The cause in words, with its range and call; empty when it was not analysed."""
    if f.cause is None:
        return ""
    named = [
        x for x in (f.cause_detail.get("range"), f.cause_detail.get("osrt"), f.cause_detail.get("cuda")) if x
    ]
    where = f" ({', '.join(named)})" if named else ""
    return f"; {_CAUSES.get(f.cause, f.cause)}{where}"
