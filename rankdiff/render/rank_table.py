"""One row per rank, the culprit first: the table that text and ticket share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankdiff.comparison import Comparison
from rankdiff.digest import Digest
from rankdiff.findings import is_loud
from rankdiff.reports.identity import Identity
from rankdiff.units import duration, share

F64 = NDArray[np.float64]

HEADER = ("rank", "node", "role", "colls", "late by", "waited", "caused", "last", "idle", "data")
NUMERIC = frozenset({0, 3, 4, 5, 6, 7, 8, 9})
LEGEND = (
    "late by: median over steps of the rank's largest lateness; waited, caused: a step; last: collectives in which "
    "it was the last; idle: of its GPU's time; data: of that, under data loading"
)
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Row:
    """A rank of the table."""

    rank: int
    cells: tuple[str, ...]  # as HEADER
    culprit: bool
    spark: str  # delay caused by judged step; empty when nothing was matched


def rows(c: Comparison, most: int) -> list[Row]:
    """The first `most` ranks: those with a finding first, then by the delay they caused."""
    blamed = {r: n for n, f in enumerate(f for f in c.verdict.findings if is_loud(f)) for r in f.ranks}

    def order(p: tuple[Identity, Digest]) -> tuple[int, float, int]:
        f = c.figures.get(p[0].rank)
        return (blamed.get(p[0].rank, len(blamed) + 1), -(f.delay_ns or 0.0) if f else 0.0, p[0].rank)

    pairs = sorted(zip(c.identities, c.digests, strict=True), key=order)[:most]
    caused = _caused(c)
    top = max((float(x.max()) for x in caused.values() if x.size), default=0.0)
    return [
        Row(i.rank, _cells(c, i, d), i.rank in blamed, sparkline(caused.get(i.rank), top)) for i, d in pairs
    ]


def _caused(c: Comparison) -> dict[int, F64]:
    """Delay share of each rank in each judged step, in ns, by rank number."""
    return {
        c.job.ranks[r].identity.rank: island.delta[n, island.included]
        for island in c.islands
        for n, r in enumerate(island.ranks)
    }


def sparkline(values: F64 | None, top: float, width: int = 60) -> str:
    """Values as bars of eight heights, at most `width` of them: the largest of neighbouring steps is shown."""
    if values is None or not values.size or top <= 0:
        return ""
    parts = np.array_split(values, min(width, values.size))
    heights = [min(len(_BARS) - 1, int(len(_BARS) * float(p.max()) / top)) for p in parts]
    return "".join(_BARS[h] for h in heights)


def role(c: Comparison, rank: int) -> str:
    """What a rank is in this verdict: late, in turn, waiting, even, or - where nothing is assessed."""
    if c.figures.get(rank) is None or c.verdict.status == "not_assessed":
        return "-"
    if any(is_loud(f) and rank in f.ranks for f in c.verdict.findings):
        return "late"
    if any(f.kind == "rotating" and rank in f.ranks for f in c.verdict.findings):
        return "in turn"
    return "waiting" if c.verdict.status == "straggler" else "even"


def _cells(c: Comparison, i: Identity, d: Digest) -> tuple[str, ...]:
    f, info = c.figures.get(i.rank), d.info
    steps = sum(
        int(island.included.sum())
        for island in c.islands
        if any(c.job.ranks[r].identity.rank == i.rank for r in island.ranks)
    )

    def per_step(ns: float | None) -> str:
        return duration(ns / steps) if ns is not None and steps else "n/a"

    under = (
        info.idle_data_load_ns / info.idle_ns if info.idle_data_load_ns is not None and info.idle_ns else None
    )
    return (
        i.label,
        i.node,
        role(c, i.rank),
        str(f.collectives) if f else "0",
        duration(f.lateness_ns_median) if f else "n/a",
        per_step(f.wait_ns) if f else "n/a",
        per_step(f.delay_ns) if f else "n/a",
        str(f.last_count) if f and f.last_count is not None else "n/a",
        share(info.idle_ns / info.span_ns) if info.span_ns else "n/a",
        share(under),
    )
