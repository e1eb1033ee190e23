"""Where the ranks of both sides ran: shared nodes and GPUs, ranks that moved, and what became of their delay."""

from __future__ import annotations

from dataclasses import dataclass

from rankdiff.differences.side import Member, Side
from rankdiff.findings import Finding, is_loud

# What became of the delay of a rank that moved.
WITH_PLACE, WITH_RANK, WITH_BOTH, GONE, UNKNOWN = "with_place", "with_rank", "with_both", "gone", "unknown"


@dataclass(frozen=True)
class Move:
    """A rank that ran elsewhere before.

    Attributes
    ----------
    rank : int
    before, after : Member
    delay : str or None
        For a rank that was late before: WITH_PLACE (whoever runs there now is late), WITH_RANK (it is late where it
        runs now), WITH_BOTH, GONE (neither), UNKNOWN (nobody runs there now, and the rank is not late). None: it was not.
    """

    rank: int
    before: Member
    after: Member
    delay: str | None


@dataclass(frozen=True)
class Places:
    """Nodes and GPUs of both sides; GPUs None where a report does not tell one."""

    nodes_before: tuple[str, ...]
    nodes_after: tuple[str, ...]
    gpus_before: tuple[str, ...] | None
    gpus_after: tuple[str, ...] | None
    moves: tuple[Move, ...]

    @property
    def nodes_in_both(self) -> tuple[str, ...]:
        """Nodes that both sides ran on."""
        return tuple(n for n in self.nodes_before if n in set(self.nodes_after))

    @property
    def gpus_in_both(self) -> tuple[str, ...] | None:
        """GPUs that both sides ran on; None: not known."""
        if self.gpus_before is None or self.gpus_after is None:
            return None
        return tuple(g for g in self.gpus_before if g in set(self.gpus_after))


def find_places(before: Side, after: Side) -> Places:
    """Hold the nodes and GPUs of two sides against each other."""
    ranks = {m.rank for m in after.members}
    pairs = [(m, after.member(m.rank)) for m in before.members if m.rank in ranks]
    return Places(
        tuple(before.nodes),
        tuple(after.nodes),
        _gpus(before),
        _gpus(after),
        tuple(Move(b.rank, b, a, _delay(before, after, b)) for b, a in pairs if _elsewhere(b, a)),
    )


def _gpus(side: Side) -> tuple[str, ...] | None:
    found = [m.gpu_uuid for m in side.members]
    known = [g for g in found if g is not None]
    return tuple(dict.fromkeys(known)) if known and len(known) == len(found) else None


def _elsewhere(before: Member, after: Member) -> bool:
    if before.node != after.node:
        return True
    both = before.gpu_uuid is not None and after.gpu_uuid is not None
    return both and before.gpu_uuid != after.gpu_uuid


def _late(side: Side) -> set[int]:
    return {r for f in side.findings if is_loud(f) for r in f.ranks}


def _same_cause(a: Finding, b: Finding) -> bool:
    """Whether two findings may be one and the same trouble."""
    return a.cause is None or b.cause is None or a.cause == b.cause


def _delay(before: Side, after: Side, who: Member) -> str | None:
    """What became of the delay of a rank that was late before."""
    if who.rank not in _late(before):
        return None
    was = next(f for f in before.findings if is_loud(f) and who.rank in f.ranks)
    # A late rank's place is its GPU, if that is still there; a late node's is the node.
    there = [m for m in after.members if m.gpu_uuid is not None and m.gpu_uuid == who.gpu_uuid]
    if was.kind == "late_node" or (not there and after.member(who.rank).node != who.node):
        there = [m for m in after.members if m.node == who.node]
    late = {r for f in after.findings if is_loud(f) and _same_cause(was, f) for r in f.ranks}
    place = any(m.rank in late for m in there if m.rank != who.rank)
    rank = who.rank in late
    if place or rank:
        return WITH_BOTH if place and rank else WITH_PLACE if place else WITH_RANK
    return GONE if there else UNKNOWN
