"""Sentences about a difference that text, Markdown, HTML and JSON share."""

from __future__ import annotations

from rankdiff.differences.difference import Difference, Fate
from rankdiff.differences.places import GONE, WITH_BOTH, WITH_PLACE, WITH_RANK, Move
from rankdiff.differences.rows import Row, changed
from rankdiff.differences.side import Side
from rankdiff.findings import Finding
from rankdiff.notes import rank_words
from rankdiff.render.words import because, cost, who
from rankdiff.units import duration, share
from rankdiff.untrusted import shown

_MOST_NAMED = 8


def title(d: Difference) -> str:
    """The answer in three words."""
    return {
        "faster": "The step became faster",
        "slower": "The step became slower",
        "too_small": "The step time is the same within 1%",
        "not_distinguishable": "No change of the step time can be seen",
    }.get(d.status, "Not assessed")


def summary(d: Difference) -> str:
    """Did it help: step time first, then who holds the job up no longer, or now."""
    doubt = ["The two captures should not be compared: see below."] if d.refused else []
    return " ".join([_step_sentence(d), *_rank_sentences(d), *doubt])


def _step_sentence(d: Difference) -> str:
    step = d.step
    if step.verdict is None:
        return f"Not assessed: {d.reason}."
    values = (
        f"{duration(step.before_ns)} before, {duration(step.after_ns)} after, a change of {signed(step.change_ns)} "
        f"(95% interval {interval(step)})"
    )
    relative = share(abs(step.change_share or 0.0))
    if d.status == "faster":
        return f"The step takes {relative} less: {values}."
    if d.status == "slower":
        return f"The step takes {relative} more: {values}."
    if d.status == "too_small":
        return f"The step time is practically the same: {values}."
    return f"The step times cannot be told apart: {values}."


def _rank_sentences(d: Difference) -> list[str]:
    """Who changed, and by what; or that nobody did."""
    compared = [r for r in d.ranks if r.verdict is not None]
    if not compared:
        return []
    moved = changed(d.ranks)
    if not moved:
        return ["No change can be seen in any rank's delay."] if d.step.verdict is not None else []
    out = []
    for row in moved[:3]:
        why = [r for r in changed(d.rank_causes) if r.rank == row.rank and _same_way(r, row)]
        cause = (
            f", {why[0].key} from {duration(why[0].before_ns)} to {duration(why[0].after_ns)}" if why else ""
        )
        out.append(
            f"rank {row.rank} from {duration(row.before_ns)} to {duration(row.after_ns)} a step{cause}"
        )
    more = f"; {len(moved) - 3} more ranks changed" if len(moved) > 3 else ""
    rest = len(compared) - len(moved)
    others = f" No change can be seen in the delay of the other {rest}." if rest else ""
    return [f"Delay caused: {'; '.join(out)}{more}.{others}"]


def _same_way(a: Row, b: Row) -> bool:
    return ((a.change_ns or 0.0) > 0) == ((b.change_ns or 0.0) > 0)


def fates(d: Difference) -> list[tuple[str, str]]:
    """Findings that are gone, new or still there: what became of each, and the finding."""
    return [(f.what, _fate(f)) for f in d.fates]


def _fate(f: Fate) -> str:
    if f.before is not None and f.after is not None:
        return f"{who_of(f.before)}: {cost(f.before)} before{because(f.before)}; {cost(f.after)} after{because(f.after)}"
    return "; ".join(
        f"{who_of(one)}: {cost(one)}{because(one)}" if one.delay_ns_per_step is not None else who_of(one)
        for one in (f.before, f.after)
        if one is not None
    )


def who_of(f: Finding) -> str:
    """Whom a finding concerns."""
    if f.kind in ("late_rank", "late_node"):
        return who(f)
    if f.kind == "rotating":
        return f"Lateness rotates among {len(f.ranks)} ranks"
    text = {
        "common_stall": "All ranks stall together",
        "slow_transfer": f"Slow transfers with node {f.node}",
    }.get(f.kind, f.kind.replace("_", " "))
    return f"{text} ({'; '.join(f.evidence)})" if f.evidence else text


def side_line(side: Side) -> str:
    """What a side is."""
    ranks, nodes = len(side.members), len(side.nodes)
    steps = (
        f"{side.step_count} steps of {duration(side.step_ns_median)} (median; {side.step_source})"
        if side.step_source
        else "no steps found"
    )
    stored = ", from its report.json" if side.source == "report.json" else ""
    verdict = {
        "straggler": "somebody was late",
        "rotating": "lateness rotated",
        "balanced": "nobody was late",
    }.get(side.status, f"not assessed ({side.reason})" if side.reason else "not assessed")
    return f"{shown(side.name)}{stored}: {ranks} rank{'s' * (ranks != 1)} on {nodes} node{'s' * (nodes != 1)}; {steps}; {verdict}"


def hosts(d: Difference) -> str:
    """Which nodes and GPUs are in both."""
    p = d.places
    both = p.nodes_in_both
    most = max(len(p.nodes_before), len(p.nodes_after))
    named = ", ".join(both[:_MOST_NAMED]) + (", ..." if len(both) > _MOST_NAMED else "")
    nodes = f"{len(both)} of {most} in both" + (f" ({named})" if both else "")
    gpus = p.gpus_in_both
    if gpus is None or p.gpus_before is None or p.gpus_after is None:
        return f"{nodes}; GPUs: not known on both sides"
    return f"{nodes}; GPUs: {len(gpus)} of {max(len(p.gpus_before), len(p.gpus_after))} in both"


def moves(d: Difference) -> list[str]:
    """Ranks that ran elsewhere; those whose delay can be told apart from the place first."""
    told = [m for m in d.places.moves if m.delay is not None]
    rest = [m.rank for m in d.places.moves if m.delay is None]
    out = [_move(m) for m in told[:_MOST_NAMED]]
    if len(told) > _MOST_NAMED:
        out.append(f"{len(told) - _MOST_NAMED} more late ranks moved")
    if rest:
        out.append(
            f"{rank_words(rest)} ran elsewhere before: see nodes and GPUs, not ranks, for what the place does"
        )
    return out


def _move(m: Move) -> str:
    old, new = _place(m.before.node, m.before.gpu_uuid), _place(m.after.node, m.after.gpu_uuid)
    if m.before.node != m.after.node:
        old, new = m.before.node, m.after.node
    words = {
        WITH_PLACE: f"the delay stayed with {old}: whoever runs there is late",
        WITH_RANK: "the delay went with the rank: it is the rank's work or data, not the place",
        WITH_BOTH: f"both the rank and {old} are still late",
        GONE: f"neither the rank nor {old} is late any more",
    }.get(m.delay or "", f"nobody runs on {old} now: whether it was the place cannot be told")
    return f"rank {m.rank} ran on {old} before, on {new} after; {words}"


def _place(node: str, gpu: str | None) -> str:
    return f"{node} (GPU-{gpu})" if gpu else node


def interval(row: Row) -> str:
    """Ends of an interval with their signs, in one unit where they have one."""
    if row.low_ns is None or row.high_ns is None:
        return "n/a"
    low, high = signed(row.low_ns), signed(row.high_ns)
    first, _, unit = low.rpartition(" ")
    return f"{first if unit and high.endswith(f' {unit}') else low} to {high}"


def signed(ns: float | None) -> str:
    """A duration with its sign."""
    if ns is None:
        return "n/a"
    return f"+{duration(ns)}" if ns > 0 else duration(ns)
