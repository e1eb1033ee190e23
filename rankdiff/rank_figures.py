"""What the comparison says of each rank, and where its time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankdiff.bottleneck import Bottleneck, Pattern, find_bottleneck, parts_of, patterns
from rankdiff.clocks import Clock
from rankdiff.court import Island
from rankdiff.downgrade import NOT_CARRIED
from rankdiff.findings import is_loud
from rankdiff.job import Job
from rankdiff.makeup import PARTS, make_up
from rankdiff.significance import interval95, resampled_sums
from rankdiff.verdict import Judgement
from rankdiff.waits import Waits

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class RankFigures:
    """What the comparison says of one rank, over the steps judged; None: not assessed."""

    collectives: int  # matched N x N instances, warm-up included
    wait_ns: int | None
    imposed_wait_ns: int | None
    delay_ns: float | None
    delay_ci95_ns: tuple[float, float] | None  # of delay_ns
    delay_share: float | None
    lateness_ns_median: float | None  # median over steps of its largest lateness in the step
    last_count: int | None
    make_up_ns: dict[str, int] | None  # per part, summed over the steps judged that have a length


def rank_figures(
    job: Job, clock: Clock, island: Island, waited: Sequence[Waits], judgement: Judgement
) -> tuple[dict[int, RankFigures], dict[str, I64]]:
    """Figures of the ranks of an island.

    Returns
    -------
    figures : dict of int to RankFigures
        By rank number, over the steps judged.
    parts : dict of str to (k,) int64, ns
        Make-up of every step of the island, summed over its ranks.
    """
    out = {}
    together = np.zeros((len(PARTS), island.steps.size), np.int64)
    assessed = judgement.status != "not_assessed" or judgement.reason in ("missing_ranks", NOT_CARRIED)
    included = island.included
    intervals = _intervals(island)
    sums = _sums(island, waited)
    made = make_up(job, clock, island.ranks, island.timed, waited, island.steps)
    for i, (r, parts) in enumerate(zip(island.ranks, made, strict=True)):
        together += parts
        late = sums.late[i, included & (sums.late[i] > _NEVER)]
        delay = float(island.delta[i, included].sum())
        out[job.ranks[r].identity.rank] = RankFigures(
            collectives=int(sums.count[i]),
            wait_ns=int(sums.wait[i]),
            imposed_wait_ns=int(sums.imposed[i]),
            delay_ns=delay if assessed else None,
            delay_ci95_ns=intervals[i] if assessed and intervals else None,
            delay_share=delay / island.measured_ns if assessed and island.measured_ns > 0 else None,
            lateness_ns_median=float(np.median(late)) if late.size else None,
            last_count=int(sums.last[i]),
            make_up_ns={p: int(x) for p, x in zip(PARTS, parts[:, included].sum(axis=1), strict=True)},
        )
    return out, dict(zip(PARTS, together, strict=True))


@dataclass(frozen=True)
class _Sums:
    """What the instances say of each rank of an island; but for `count` and `late` over the steps judged."""

    count: I64  # (n,) instances
    wait: I64  # (n,) ns
    imposed: I64  # (n,) ns
    last: I64  # (n,) instances in which it was the last to arrive
    late: I64  # (n, k) ns: its largest lateness in the step, _NEVER where it has none


def _sums(island: Island, waited: Sequence[Waits]) -> _Sums:
    n, k = len(island.ranks), island.steps.size
    at = {r: i for i, r in enumerate(island.ranks)}
    count, wait, imposed, last = (np.zeros(n, np.int64) for _ in range(4))
    late = np.full((n, k), _NEVER)
    for t, w in zip(island.timed, waited, strict=True):
        rows = np.array([at[r] for r in t.comm.members.tolist()])
        keep = island.included[t.step]
        count[rows] += t.step.size
        wait[rows] += np.add.reduce(w.wait, axis=0, where=keep[:, None])
        imposed[rows] += w.imposed_by(keep)
        last[rows] += np.bincount(w.last[keep], minlength=rows.size)
        order = np.argsort(t.step, kind="stable")
        steps, first = np.unique(t.step[order], return_index=True)
        largest = np.maximum.reduceat(w.lateness[order], first, axis=0)
        cells = np.ix_(rows, steps)
        late[cells] = np.maximum(late[cells], largest.T)
    return _Sums(count, wait, imposed, last, late)


def _intervals(island: Island) -> list[tuple[float, float]]:
    """Bootstrap intervals of the ranks' summed delays; empty when no step was judged."""
    if not island.included.any():
        return []
    found = interval95(resampled_sums(island.delta[:, island.included]))
    return [(float(low), float(high)) for low, high in found]


def node_intervals(job: Job, islands: Sequence[Island]) -> dict[str, tuple[float, float]]:
    """Bootstrap interval of the summed delay of each node's ranks, over the steps judged, in ns.

    Islands are resampled alike, and a node's ranks in several of them are added up.
    """
    draws: dict[str, F64] = {}
    for island in islands:
        if not island.included.any():
            continue
        nodes = [job.ranks[r].node for r in island.ranks]
        names = {name: n for n, name in enumerate(dict.fromkeys(nodes))}
        sums = np.zeros((len(names), int(island.included.sum())))
        np.add.at(sums, [names[n] for n in nodes], island.delta[:, island.included])
        for name, row in zip(names, resampled_sums(sums), strict=True):
            draws[name] = draws.get(name, 0.0) + row
    found = {name: interval95(row[None, :])[0] for name, row in draws.items()}
    return {name: (float(low), float(high)) for name, (low, high) in found.items()}


def time_spent(
    job: Job,
    made: Sequence[tuple[Island, tuple[Waits, ...]]],
    judgements: Sequence[Judgement],
    figures: dict[int, RankFigures],
    absent: bool,
) -> tuple[Bottleneck | None, dict[int, Bottleneck], tuple[Pattern, ...]]:
    """Bottleneck of the job and of each rank, and the patterns, over the steps that have a length.

    With ranks `absent`, a transfer that they hold up looks like a slow one: no word on the network then.
    """
    parts: dict[int, dict[str, float]] = {}
    somebody = any(is_loud(f) for j in judgements for f in j.findings)
    seen: list[Pattern] = []
    for (island, _), judgement in zip(made, judgements, strict=True):
        steps = int((island.included & ~np.isnan(island.steps.step_ns)).sum())
        if not steps:
            continue
        ranks = [job.ranks[r] for r in island.ranks]
        numbers = [r.identity.rank for r in ranks]
        digests = [r.digest for r in ranks]
        made_up = [figures[n].make_up_ns for n in numbers]
        for n, d, m in zip(numbers, digests, made_up, strict=True):
            if m is not None:
                parts[n] = parts_of(d, m, steps)
        late = frozenset(r for f in judgement.findings if is_loud(f) for r in f.ranks)
        seen += patterns(numbers, digests, made_up, steps, island.step_ns, late, absent)
    each = {n: find_bottleneck([p], somebody, absent) for n, p in parts.items()}
    whole = find_bottleneck(list(parts.values()), somebody, absent) if parts else None
    return whole, each, tuple(seen)
