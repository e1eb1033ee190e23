"""What the tables of a difference are made of: pairs of series with their reasons, and the delays among them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankdiff.differences.places import Places
from rankdiff.differences.rows import FLOOR_NS, LEAST_SHARE, Pair, Row, family
from rankdiff.differences.side import NOT_ASSESSED, Side

F64 = NDArray[np.float64]

# A clock that is off by so much moves who waited for whom, not how long a step took.
_BY_THE_CLOCK = frozenset({"wait", "delay", "exposed_wait", "exposed_transfer"})


@dataclass(frozen=True)
class Scale:
    """What a change must exceed to matter."""

    step_ns: float  # the shorter median step
    clock_ns: float  # three times the uncertainty of the worse clock

    def least(self, key: str) -> float:
        """Smallest change of a row, by its key, that is called one."""
        floor = max(FLOOR_NS, LEAST_SHARE * self.step_ns)
        return max(floor, self.clock_ns) if key in _BY_THE_CLOCK else floor


def why_absent(before: Side, after: Side, what: str) -> str | None:
    """Why a series is absent, and on which side where it is one."""
    return said(before.why.get(what), after.why.get(what))


def said(before: str | None, after: str | None) -> str | None:
    """Reasons of both sides as one, with the side where it is only one's."""
    if before is not None and before == after:
        return before
    return f"{before} before" if before is not None else f"{after} after" if after is not None else None


def pair_of(row: Row, before: F64 | None, after: F64 | None, reason: str | None) -> Pair:
    """Pair of a row; with the reason where a side has no values."""
    absent = before is None or after is None
    return Pair(replace(row, reason=reason) if absent else row, before, after)


def delays(
    before: Side, after: Side, scale: Scale, places: Places
) -> tuple[tuple[Row, ...], tuple[Row, ...], tuple[Row, ...]]:
    """Delay by rank, by node that both sides have, and by GPU that another rank has now."""
    least = scale.least("delay")
    reason = why_absent(before, after, "delay")
    moved = {m.rank for m in places.moves}
    here = {m.rank: m for m in after.members}
    pairs = [
        pair_of(
            Row("delay", rank=m.rank, node=here[m.rank].node, least_ns=least, moved=m.rank in moved),
            before.delay.get(m.rank),
            after.delay.get(m.rank),
            reason or NOT_ASSESSED,
        )
        for m in before.members
        if m.rank in here
    ]
    n_ranks = len(pairs)
    for node in places.nodes_in_both:
        row = Row("delay", node=node, least_ns=least)
        pairs.append(
            pair_of(row, _node_delay(before, node), _node_delay(after, node), reason or NOT_ASSESSED)
        )
    n_nodes = len(pairs)
    old, new = ({m.gpu_uuid: m for m in s.members if m.gpu_uuid} for s in (before, after))
    for gpu in sorted(g for g in old if g in new and old[g].rank != new[g].rank):
        row = Row("delay", node=new[gpu].node, gpu_uuid=gpu, least_ns=least)
        there = before.delay.get(old[gpu].rank), after.delay.get(new[gpu].rank)
        pairs.append(pair_of(row, there[0], there[1], reason or NOT_ASSESSED))
    rows = family(pairs)
    return rows[:n_ranks], rows[n_ranks:n_nodes], rows[n_nodes:]


def _node_delay(side: Side, node: str) -> F64 | None:
    """Summed delay of a node's ranks in every step; None: not all were assessed."""
    ranks = [m.rank for m in side.members if m.node == node]
    if not ranks or any(r not in side.delay for r in ranks):
        return None
    shortest = min(side.delay[r].size for r in ranks)
    return np.asarray(np.sum([side.delay[r][side.delay[r].size - shortest :] for r in ranks], axis=0))
