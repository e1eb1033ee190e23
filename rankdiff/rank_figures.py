"""What the comparison says of each rank, and where its time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankdiff.bottleneck import Bottleneck, Pattern, find_bottleneck, parts_of, patterns
from rankdiff.clocks import Clock
from rankdiff.court import Island
from rankdiff.findings import is_loud
from rankdiff.job import Job
from rankdiff.makeup import PARTS, make_up
from rankdiff.verdict import Judgement
from rankdiff.waits import Waits


@dataclass(frozen=True)
class RankFigures:
    """What the comparison says of one rank, over the steps judged; None: not assessed."""

    collectives: int  # matched N x N instances, warm-up included
    wait_ns: int | None
    imposed_wait_ns: int | None
    delay_ns: float | None
    delay_share: float | None
    lateness_ns_median: float | None  # median over steps of its largest lateness in the step
    last_count: int | None
    make_up_ns: dict[str, int] | None  # per part, summed over the steps judged that have a length


def rank_figures(
    job: Job, clock: Clock, island: Island, waited: Sequence[Waits], judgement: Judgement
) -> dict[int, RankFigures]:
    """Figures of the ranks of an island, by rank number, over the steps judged."""
    out = {}
    assessed = judgement.status != "not_assessed" or judgement.reason == "missing_ranks"
    included = island.included
    for i, r in enumerate(island.ranks):
        count = wait = imposed = last = 0
        late = np.full(island.steps.size, np.iinfo(np.int64).min)
        for t, w in zip(island.timed, waited, strict=True):
            for j in np.flatnonzero(t.comm.members == r):
                keep = included[t.step]
                count += t.step.size
                wait += int(w.wait[keep, j].sum())
                imposed += int(w.imposed[keep, j].sum())
                last += int((w.last[keep] == j).sum())
                np.maximum.at(late, t.step, w.lateness[:, j])
        late = late[included & (late > np.iinfo(np.int64).min)]
        parts = make_up(job, clock, r, island.timed, waited, island.steps)
        delay = float(island.delta[i, included].sum())
        identity = job.ranks[r].identity
        out[identity.rank] = RankFigures(
            collectives=count,
            wait_ns=wait,
            imposed_wait_ns=imposed,
            delay_ns=delay if assessed else None,
            delay_share=delay / island.measured_ns if assessed and island.measured_ns > 0 else None,
            lateness_ns_median=float(np.median(late)) if late.size else None,
            last_count=last,
            make_up_ns={p: int(parts[p][included].sum()) for p in PARTS},
        )
    return out


def time_spent(
    job: Job,
    made: Sequence[tuple[Island, tuple[Waits, ...]]],
    judgements: Sequence[Judgement],
    figures: dict[int, RankFigures],
) -> tuple[Bottleneck | None, dict[int, Bottleneck], tuple[Pattern, ...]]:
    """Bottleneck of the job and of each rank, and the patterns, over the steps that have a length."""
    parts: dict[int, dict[str, float]] = {}
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
        seen += patterns(numbers, digests, made_up, steps, island.step_ns, late)
    somebody = any(is_loud(f) for j in judgements for f in j.findings)
    each = {n: find_bottleneck([p], somebody) for n, p in parts.items()}
    whole = find_bottleneck(list(parts.values()), somebody) if parts else None
    return whole, each, tuple(seen)
