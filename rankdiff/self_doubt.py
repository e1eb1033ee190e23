"""What a verdict owes to chance: the margin of an acquittal, and findings that hang on a single step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankdiff.court import Court, Island
from rankdiff.findings import MAJOR_SHARE, Finding, is_loud
from rankdiff.significance import fewest_steps, p_value
from rankdiff.units import duration
from rankdiff.waits import delay_shares

# The margin is known to this factor: it is the first of a ladder of delays that is found.
_RUNG = 1.25
# Arrivals that are enough to find the margin by, where each trial has to follow them through several communicators.
_MOST_ARRIVALS = 1 << 20
_LEAST_STEPS = 50


@dataclass(frozen=True)
class Margin:
    """Smallest lateness that would have been found, in ns per step.

    Attributes
    ----------
    rank : float or None
        By which a typical rank would have had to be late in every step; None: no lateness would have been found.
    node : float or None
        The same of all ranks of a typical node together; None: nodes were not judged, or as for `rank`.
    nodes_judged : bool
    """

    rank: float | None
    node: float | None
    nodes_judged: bool


def margin(court: Court) -> Margin:
    """Find the margin of an acquittal by planting lateness and judging again.

    What a rank adds to its delay share is less than what it is late by, since others are late at times as well, and
    it takes from their shares: no formula on the shares as they are gives the lateness that would have been found.
    It starts at what is material, below which nothing is claimed. Of a very large island with several communicators,
    where every trial takes long, the first steps have to do: with fewer steps less is found, so that the margin is
    rather too wide.
    """
    court = _shortened(court)
    ranks, nodes = court.delta.sum(axis=1), court.node_means(court.delta).sum(axis=1)
    rank = _typical(ranks)

    def rank_found(trial: Court) -> bool:
        return any(f.ranks == accused for f in trial.late_ranks(set()))

    accused = (court.job.ranks[court.island.ranks[rank]].identity.rank,)
    among = np.ones(ranks.size, np.bool_)

    def rank_passes(delta: NDArray[np.float64]) -> bool:
        material = float(delta[rank].mean()) >= court.threshold
        return material and p_value(delta, rank, among) <= court.alpha

    of_rank = _least_found(court, [rank], ranks.size, rank_found, rank_passes)
    if not court.judge_nodes:
        return Margin(of_rank, None, nodes_judged=False)
    node = _typical(nodes)

    def node_found(trial: Court) -> bool:
        return any(f.node == court.node_names[node] for f in trial.late_nodes())

    rows = np.flatnonzero(court.node_at == node).tolist()
    return Margin(of_rank, _least_found(court, rows, nodes.size, node_found), nodes_judged=True)


def _shortened(court: Court) -> Court:
    """The court over the first steps of an island that is too large to be judged many times."""
    island = court.island
    size = sum(t.start.size for t in island.timed)
    keep = max(_LEAST_STEPS, island.steps.size * _MOST_ARRIVALS // max(size, 1))
    if len(island.timed) == 1 or keep >= island.steps.size:
        return court
    timed = tuple(
        replace(
            t,
            comm=replace(t.comm, positions=t.comm.positions[t.step < keep]),
            start=t.start[t.step < keep],
            end=t.end[t.step < keep],
            duration=t.duration[t.step < keep],
            step=t.step[t.step < keep],
        )
        for t in island.timed
    )
    steps = replace(
        island.steps,
        labels=island.steps.labels[:keep],
        last_end=island.steps.last_end[:keep],
        step_ns=island.steps.step_ns[:keep],
    )
    short = replace(
        island,
        timed=timed,
        steps=steps,
        delta=island.delta[:, :keep],
        included=island.included[:keep],
        unmatched_ns=island.unmatched_ns[:, :keep],
        transfer_ns=island.transfer_ns[:keep],
    )
    return Court(court.job, short, court.threshold, court.uncertainty)


def _typical(sums: NDArray[np.float64]) -> int:
    """The unit of median sum, the lower of two."""
    return int(np.argsort(sums, kind="stable")[(sums.size - 1) // 2])


def _least_found(
    court: Court,
    rows: list[int],
    units: int,
    found: Callable[[Court], bool],
    passes: Callable[[NDArray[np.float64]], bool] | None = None,
) -> float | None:
    """First lateness of the ladder that is found when these rows of the island have it; None: none up to a step.

    `passes` tells by the shares alone, (n, k) ns, whether it might be found: where that is nearly all that counts, it
    saves trials.
    """
    if court.k < fewest_steps(units, court.alpha):
        return None
    ladder = [court.threshold]
    while ladder[-1] < court.step_ns:
        ladder.append(ladder[-1] * _RUNG)
    # What is found stays so when it is later, and each rung that is tried costs a verdict. By halves; or the one that
    # should be the first by the shares of the last one tried, and then the one below it.
    low, high = 0, len(ladder)
    known, at_ns = court.delta, 0.0
    while low < high:
        rung = (low + high) // 2
        if passes is not None:
            rung = min(_likely(known, at_ns, rows, ladder, low, high, passes), high - 1)
        island = planted(court.island, rows, ladder[rung])
        trial = Court(court.job, island, court.threshold, court.uncertainty)
        if found(trial):
            high = rung
        else:
            low = rung + 1
        known, at_ns = trial.delta, ladder[rung]
    return ladder[low] if low < len(ladder) else None


def _likely(
    delta: NDArray[np.float64],
    at_ns: float,
    rows: list[int],
    ladder: Sequence[float],
    low: int,
    high: int,
    passes: Callable[[NDArray[np.float64]], bool],
) -> int:
    """First rung from `low` on that should be found, `high` at most, by the shares with rows that are `at_ns` late."""
    while low < high:
        middle = (low + high) // 2
        more = delta.copy()
        # Of what a late rank is later still, it is charged with the most part.
        more[rows] += (ladder[middle] - at_ns) / len(rows)
        if passes(more):
            high = middle
        else:
            low = middle + 1
    return low


def planted(island: Island, rows: Sequence[int], late_ns: float) -> Island:
    """The island with some of its ranks later, once in every step.

    Parameters
    ----------
    island : Island
    rows : sequence of int
        Rows of the island.
    late_ns : float
        Added to the arrival at a rank's first instance of each step.
    """
    ranks = [island.ranks[n] for n in rows]
    first = {r: np.full(island.steps.size, np.iinfo(np.int64).max) for r in ranks}
    for t in island.timed:
        for j, r in enumerate(t.comm.members.tolist()):
            if r in first:
                np.minimum.at(first[r], t.step, t.start[:, j])
    timed = []
    for t in island.timed:
        late = [(j, r) for j, r in enumerate(t.comm.members.tolist()) if r in first]
        if not late:
            timed.append(t)
            continue
        start = t.start.copy()
        for j, r in late:
            start[:, j] += np.where(start[:, j] == first[r][t.step], round(late_ns), 0)
        timed.append(replace(t, start=start, near=t.order))
    return replace(island, timed=tuple(timed), delta=delay_shares(timed, island.ranks, island.steps.size))


def widest(margins: Sequence[Margin]) -> Margin | None:
    """Margin of several islands: what would have been found in each of them; None: of none."""
    if not margins:
        return None
    ranks = [m.rank for m in margins]
    nodes = [m.node for m in margins if m.nodes_judged]
    return Margin(_largest(ranks), _largest(nodes), nodes_judged=bool(nodes))


def _largest(values: Sequence[float | None]) -> float | None:
    known = [x for x in values if x is not None]
    return max(known) if known and len(known) == len(values) else None


def carried_by_step(court: Court, f: Finding, accused: Iterable[int]) -> Finding:
    """Say so where a finding would not stand without its largest step.

    Parameters
    ----------
    court : Court
    f : Finding
    accused : iterable of int
        Job rank indices of all findings: not those to compare with.
    """
    if not is_loud(f) or court.k < 2:
        return f
    rows = court.indices(f)
    own = court.delta[rows].sum(axis=0)
    if f.p_value is None:
        own = np.where(np.array(f.late_mask, np.bool_), own, 0.0)
    largest = int(own.argmax())
    rest = np.delete(own, largest)
    if f.p_value is None:
        # An event is loud by what its steps cost together.
        stands = rest.sum() >= MAJOR_SHARE * court.island.measured_ns
        left = f"{duration(float(rest.mean()))} a step are left"
    else:
        delta, unit, among = court.compared(f, accused)
        p = p_value(np.delete(delta, largest, axis=1), unit, among)
        stands = rest.mean() >= court.threshold
        if stands and p > court.alpha:
            # Where any other step would be missed as much, there are few steps, and it is not this one that carries.
            usual = int(np.argsort(own, kind="stable")[own.size // 2])
            stands = p_value(np.delete(delta, usual, axis=1), unit, among) > court.alpha
        left = f"{duration(float(rest.mean()))} a step are left, p = {p:.4f}"
    if stands:
        return f
    step = court.labels[largest]
    most = rest.sum() >= 0.5 * own.sum()
    lead = f"this finding hangs on step {step}" if most else f"step {step} alone carries this finding"
    words = f"{lead}: without it {left}"
    return replace(f, carried_by_step=step, evidence=(*f.evidence, words))
