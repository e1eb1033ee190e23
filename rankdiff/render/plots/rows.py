"""Rows of the figures: which ranks, in what order, and who is flagged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rankdiff.comparison import Comparison
from rankdiff.findings import Finding, is_loud
from rankdiff.render.plots import style
from rankdiff.units import duration, share

NOT_CAPTURED = "not captured"
_MOST_NAMED = 8  # ranks in one sentence


@dataclass(frozen=True)
class Row:
    """One rank as a row, or several (missing ones that follow each other; neighbours in a large job)."""

    label: str
    node: str  # as shown
    ranks: tuple[int, ...]
    flagged: bool = False
    captured: bool = True


def assessed(c: Comparison) -> dict[int, tuple[int, int]]:
    """Island and row in it of every rank whose delay means something, by rank number."""
    out: dict[int, tuple[int, int]] = {}
    for n, (island, judgement) in enumerate(zip(c.islands, c.judgements, strict=True)):
        if judgement.status != "not_assessed" or judgement.reason == "missing_ranks":
            out |= {c.job.ranks[r].identity.rank: (n, i) for i, r in enumerate(island.ranks)}
    return out


def late(c: Comparison) -> list[Finding]:
    """Findings that accuse a rank or node, the worst first."""
    return [f for f in c.verdict.findings if is_loud(f)]


def accused_and_peers(c: Comparison) -> tuple[Finding | None, list[int], list[int]]:
    """The worst finding, its ranks, and the ranks that meet them and are not flagged; without one, all ranks.

    Ranks of other islands are no peers: what they wait has nothing to do with the finding.
    """
    where = assessed(c)
    first = next(iter(late(c)), None)
    own = [r for r in first.ranks if r in where] if first is not None else []
    if first is None or not own:
        return None, [], sorted(where)
    guilty, island = flagged(c), where[own[0]][0]
    return first, own, [r for r, (n, _) in where.items() if n == island and r not in guilty]


def flagged(c: Comparison) -> frozenset[int]:
    """Ranks that a finding accuses of lateness."""
    return frozenset(r for f in late(c) for r in f.ranks)


def who(f: Finding) -> str:
    """Rank or node of a finding, its names safe to show."""
    node = style.name(f.node or "?")
    return f"Node {node} ({named(f.ranks)})" if f.kind == "late_node" else f"Rank {f.rank} on {node}"


def subject(f: Finding) -> str:
    """Rank or ranks of a finding at the beginning of a sentence."""
    words = named(f.ranks)
    return words[0].upper() + words[1:]


def named(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0–7, 12``."""
    runs = [spell(run) for run in _runs(sorted(ranks))]
    more = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(runs[:_MOST_NAMED])}{more}"


def spell(ranks: Sequence[int]) -> str:
    """Spell ranks that follow each other: ``3``, ``3, 4`` or ``3–7``."""
    if len(ranks) < 3:
        return ", ".join(map(str, ranks))
    return f"{ranks[0]}–{ranks[-1]}"


def _runs(ranks: Sequence[int]) -> list[list[int]]:
    return [[r for _, r in g] for _, g in groupby(enumerate(ranks), lambda p: p[1] - p[0])]


def all_rows(c: Comparison) -> list[Row]:
    """A row for every captured rank, nodes together in the order of their lowest rank; the missing ones last."""
    accused = flagged(c)
    order = {node: n for n, node in enumerate(dict.fromkeys(i.node for i in c.identities))}
    rows = [
        Row(style.name(i.label, 8), style.name(i.node), (i.rank,), i.rank in accused)
        for i in sorted(c.identities, key=lambda i: (order[i.node], i.rank))
    ]
    return rows + [
        Row(spell(run), NOT_CAPTURED, tuple(run), captured=False) for run in _runs(sorted(c.missing))
    ]


def worst(rows: Sequence[Row], weight: dict[int, float], most: int) -> list[Row]:
    """At most so many rows: the flagged ones, then those of most weight; the order is kept."""
    by = sorted(range(len(rows)), key=lambda n: (not rows[n].flagged, -_weight(rows[n], weight), n))
    kept = set(by[:most])
    return [row for n, row in enumerate(rows) if n in kept]


def left_out_note(rows: Sequence[Row], everyone: Sequence[Row]) -> str:
    """What `worst` left out."""
    shown, total = (sum(len(r.ranks) for r in some) for some in (rows, everyone))
    return f"Showing {shown} of {total} ranks: the flagged first, then those that caused most delay."


def _weight(row: Row, weight: dict[int, float]) -> float:
    return max(weight.get(r, 0.0) for r in row.ranks)


def folded(rows: Sequence[Row], most: int) -> list[Row]:
    """Neighbours of one node taken together until at most about `most` rows are left."""
    factor = -(-len(rows) // most)
    out: list[Row] = []
    for _, group in groupby(rows, key=lambda r: (r.node, r.captured)):
        members = list(group)
        for part in (members[n : n + factor] for n in range(0, len(members), factor)):
            ranks = tuple(r for row in part for r in row.ranks)
            label = part[0].label if len(part) == 1 else f"{part[0].label}–{part[-1].label}"
            out.append(Row(label, part[0].node, ranks, any(r.flagged for r in part), part[0].captured))
    return out


def blocks(keys: Sequence[object]) -> list[tuple[int, int]]:
    """First and last index of runs of equal keys."""
    out, first = [], 0
    for _, group in groupby(keys):
        size = sum(1 for _ in group)
        out.append((first, first + size - 1))
        first += size
    return out


def statement(c: Comparison) -> str:
    """The verdict in half a line."""
    v, accused = c.verdict, late(c)
    if accused:
        f = accused[0]
        lost = f.delay_ns_per_step or 0.0
        if f.pattern == "one_off":
            return f"{who(f)} held the job up once, in step {f.first_step}: {duration(lost * (f.steps or 1))}"
        more = f"; so does {who(accused[1])}" if len(accused) == 2 else ""
        more = f"; {len(accused) - 1} more are late" if len(accused) > 2 else more
        return (
            f"{who(f)} delays the job by {duration(lost)} a step ({share(f.delay_share)} of the time){more}"
        )
    if v.status == "not_assessed":  # and drawn all the same: the culprit may be among those not captured
        return f"No captured rank stands out; not captured: {named(c.missing)}"
    rotating = next((f for f in v.findings if f.kind == "rotating"), None)
    if rotating is not None:
        cost = f"{duration(rotating.delay_ns_per_step)} a step ({share(rotating.delay_share)} of the time)"
        return f"{len(rotating.ranks)} ranks are late in turn, {cost}"
    return f"No rank stands out; waiting costs {duration(v.wait_ns_per_step)} a step ({share(v.wait_share_of_step)} of the time)"
