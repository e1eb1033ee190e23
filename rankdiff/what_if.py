"""What if: the gain of a job whose late rank or node were typical (METHOD: what if)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankdiff.clocks import Clock
from rankdiff.court import Island
from rankdiff.findings import Finding, WhatIf, is_loud
from rankdiff.job import Job
from rankdiff.kernels.replay import beyond_others, instance_medians
from rankdiff.makeup import all_unmatched_spans
from rankdiff.replay import Played, lay_out, step_times
from rankdiff.units import duration, share

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

# A replay of the trace as it is that errs by more than this share of the time is no ground for a prediction.
WORST_ERROR = 0.02
# A finding whose removal gains less than this share of the delay that it is charged with is no finding.
_WORTH = 0.10
# A node whose worst rank alone accounts for this share of what the node costs, and for well more than an equal
# share, is that rank: of ranks that are late alike, one alone gains nothing but what jitter makes of it.
_ALIKE = 0.50


def with_what_if(
    job: Job, clock: Clock, island: Island, findings: Sequence[Finding], gpus: int
) -> tuple[Finding, ...]:
    """Give every finding that accuses somebody what the job would gain without it.

    Parameters
    ----------
    job : Job
    clock : Clock
    island : Island
    findings : sequence of Finding
        About ranks of the island.
    gpus : int
        Of the whole job.
    """
    if not any(is_loud(f) for f in findings):
        return tuple(findings)
    return replayed_without(Loop(job, clock, island, gpus), findings)


def replayed_without(loop: Loop, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """As `with_what_if`, of a loop that is laid out already."""
    accused = {rank for f in findings if is_loud(f) for rank in f.ranks}
    return tuple(replace(f, what_if=loop.without(f, accused)) if is_loud(f) else f for f in findings)


def gains_nothing(loop: Callable[[], Loop], f: Finding, accused: set[int]) -> Finding:
    """Lower a finding to a note when the job would be as slow without the excess of its ranks.

    What they are charged with is then no delay that they add: they pass on another's (a partner that was held up, a
    slow transfer), or it hides under compute that the others have to do anyway. The less late of two ranks
    gains nothing either, while it hides behind the other: it stays when the job gains by that other and its own time
    explains its delay. Single events are not weighed: they are not judged by their mean either.

    Parameters
    ----------
    loop : callable
        Gives the loop, where it is needed.
    f : Finding
    accused : set of int
        Rank numbers of all findings: no peers, unless nobody else is left.
    """
    if not is_loud(f) or f.p_value is None or not f.delay_ns_per_step:
        return f
    gain, worth = loop().without(f, accused).gain_ns_per_step, _WORTH * f.delay_ns_per_step
    if gain is None or gain >= worth:
        return f
    if f.cause not in (None, "unknown", "inherited") and loop().gain_of_others(f, accused) >= worth:
        return f
    return replace(
        f,
        severity="note",
        cause="inherited",
        evidence=(
            *f.evidence,
            f"a replay without its excess gains {duration(max(0.0, gain))} a step of these "
            f"{duration(f.delay_ns_per_step)}: it passes on what it waits for itself, or compute hides it",
        ),
    )


def gains_alike(loop: Loop, node: Finding, rank: Finding, accused: set[int]) -> bool:
    """Say whether a job gains as much without the excess of one rank as without that of its whole node.

    Then the node is late because its ranks wait for that one (a tensor-parallel group that fills a node). Where
    they are late by themselves, they stay so without it.
    """
    whole = loop.without(node, accused).gain_ns_per_step
    one = loop.without(rank, accused).gain_ns_per_step
    if whole is None or one is None or whole < _WORTH * (node.delay_ns_per_step or 0.0):
        return False
    return one >= max(_ALIKE, 1.5 / len(node.ranks)) * whole


class Loop:
    """The loop of an island, to be played again.

    Parameters
    ----------
    job : Job
    clock : Clock
    island : Island
    gpus : int
        Of the whole job.
    """

    def __init__(self, job: Job, clock: Clock, island: Island, gpus: int) -> None:
        self.island, self.gpus = island, gpus
        self.ranks = np.array([job.ranks[r].identity.rank for r in island.ranks])
        self.played = lay_out(island, all_unmatched_spans(job, clock, island.ranks, island.timed))
        self.counted = island.included & ~np.isnan(island.steps.step_ns)
        self.measured_ns = float(island.steps.step_ns[self.counted].sum())
        self.as_it_is_ns = self._time(self.played.segment)
        self.error = abs(self.as_it_is_ns - self.measured_ns) / self.measured_ns

    def _time(self, segment: I64) -> float:
        """Summed time of the counted steps in a replay."""
        return float(step_times(self.played, segment, self.island.steps.size)[self.counted].sum())

    def gain_of_others(self, f: Finding, accused: set[int]) -> float:
        """What the job gains per step when all other accused ranks are typical, ns."""
        blamed = np.isin(self.ranks, list(accused))
        others = blamed & ~np.isin(self.ranks, f.ranks)
        peer = ~blamed if not blamed.all() else ~others
        if not others.any() or not peer.any():
            return 0.0
        steps = self.island.included
        changed = without_excess(self.played, others, peer, steps, steps)
        return (self.as_it_is_ns - self._time(changed)) / int(self.counted.sum())

    def without(self, f: Finding, accused: set[int]) -> WhatIf:
        """Replay with the excess of a finding's ranks taken out in the steps where it is late.

        In all judged steps where it is persistent. The ranks `accused` by any finding are no peers, unless nobody
        else is left.
        """
        if self.error > WORST_ERROR:
            reason = f"a replay of the trace as it is errs by {share(self.error)} of the time"
            return WhatIf(None, None, None, None, self.error, reason)
        own = np.isin(self.ranks, f.ranks)
        blamed = np.isin(self.ranks, list(accused))
        peer = ~blamed if not blamed.all() else ~own
        late = self.island.included.copy()
        if f.pattern != "persistent":
            # Who is late all the time is so in the steps too in which jitter hides it: taking those alone out in
            # which jitter adds to it would promise too much.
            late[late] = f.late_mask
        gain = self.as_it_is_ns - self._time(
            without_excess(self.played, own, peer, late, self.island.included)
        )
        left, steps = self.measured_ns - gain, int(self.counted.sum())
        return WhatIf(
            step_ns=left / steps,
            gain_ns_per_step=gain / steps,
            speedup=self.measured_ns / left - 1,
            gpu_hours_per_hour=gain / self.measured_ns * self.gpus,
            replay_error=self.error,
        )


def without_excess(p: Played, own: Mask, peer: Mask, late: Mask, included: Mask) -> I64:
    """Segments in which the `own` ranks are typical, in the steps that are `late`; no segment grows.

    A typical segment is the median over the peers in the same instance, and what a typical rank has beyond it: the
    median alone would be better than typical, never the last in anything. A rank's segments beyond the median and
    the peers' are matched by their order, at each place of the step. Where a rank meets no peer (a communicator
    inside a late node), the median is over the peers' segments that have the same place in the step.
    What others waited for them in NCCL kernels that were not matched (send/recv of a ring) goes as well: the
    time beyond that of the rank which spent least there, and never more than was taken from the late ranks.

    Parameters
    ----------
    p : Played
    own, peer : (n,) bool
        By row of the island.
    late, included : (k,) bool
        Steps of the finding, and steps to know the peers by.

    Returns
    -------
    (e,) int64, ns
    """
    out = p.segment.copy()
    step, place = p.step_of, p.place
    anchored = p.anchor >= 0
    them = peer[p.row] & anchored
    todo = own[p.row] & late[step] & anchored
    mine = np.flatnonzero(todo)
    usual = instance_medians(p.first, them, p.segment)[p.instance[mine]]
    lonely = np.isnan(usual)
    if lonely.any():
        key = _key(p)
        usual[lonely] = _medians(key[them], p.segment[them], int(key.max()) + 1)[key[mine[lonely]]]
    mine, usual = mine[~np.isnan(usual)], usual[~np.isnan(usual)]
    known = them & included[step]
    del todo, them, anchored
    beyond = _beyond_others(p, known)
    known &= ~np.isnan(beyond)
    beyond, known_at = beyond[known], place[known]
    del known  # these are as large as all collectives of the job
    pools = _by_place(known_at, beyond)
    del beyond, known_at
    for r in np.flatnonzero(own):
        its = np.flatnonzero(p.row[mine] == r)
        for at, found in _by_place(place[mine[its]], its).items():
            found = found[np.argsort(p.segment[mine[found]] - usual[found], kind="stable")]
            extra = np.zeros(found.size)
            if at in pools:
                extra = _quantiles(pools[at], (np.arange(found.size) + 0.5) / found.size)
            typical = np.rint(usual[found] + np.maximum(extra, 0.0)).astype(np.int64)
            out[mine[found]] = np.minimum(out[mine[found]], typical)
    if p.elsewhere.any():
        out -= _waited_elsewhere(p, own, p.segment - out)
    return out


def _quantiles(x: F64, q: F64) -> F64:
    """What np.quantile gives, to the bit; that takes as long for each of many quantiles as for one."""
    x = np.sort(x)
    at = q * (x.size - 1)
    low = np.floor(at).astype(np.int64)
    a, b, t = x[low], x[np.minimum(low + 1, x.size - 1)], at - low
    return np.where(t < 0.5, a + (b - a) * t, b - (b - a) * (1 - t))


def _key(p: Played) -> I64:
    """(e,) int64: number of each element's place in its step."""
    return p.step_of.astype(np.int64) * (int(p.place.max()) + 1) + p.place


def _by_place(place: I32, value: NDArray[Any]) -> dict[int, NDArray[Any]]:
    """Values of each place."""
    order = np.argsort(place, kind="stable")
    place, value = place[order], value[order]
    del order
    if not place.size:
        return {}
    first = (
        np.flatnonzero(place[1:] != place[:-1]) + 1
    )  # np.unique would sort again, and take three times the memory
    return dict(zip(place[np.append(0, first)].tolist(), np.split(value, first), strict=True))


def _beyond_others(p: Played, known: Mask) -> F64:
    """(e,) what each known element has beyond the median of the other known ones of its instance.

    One that has no others is compared with its own rank's at the same place before; nan for the first of these, and
    for elements that are not known.
    """
    out = beyond_others(p.first, known, p.segment)
    alone = np.flatnonzero(known & np.isnan(out))
    if alone.size:
        alone = alone[np.lexsort((alone, p.place[alone], p.row[alone]))]
        again = (np.diff(p.row[alone]) == 0) & (np.diff(p.place[alone]) == 0)
        out[alone[1:][again]] = np.diff(p.segment[alone])[again]
    return out


def _waited_elsewhere(p: Played, own: Mask, taken: I64) -> I64:
    """(e,) ns that others waited in unmatched NCCL kernels for what is taken from the `own` ranks.

    `taken` is per element.
    """
    key = _key(p)
    least = np.full(int(key.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, key, p.elsewhere)
    step = p.step_of
    size = own.size, int(step.max()) + 1
    of_late, of_others = np.zeros(size), np.zeros(size)
    np.add.at(of_late, (p.row, step), taken)
    waited = np.where(own[p.row], 0, p.elsewhere - least[key])
    np.add.at(of_others, (p.row, step), waited)
    most = of_late.max(axis=0)
    kept = np.minimum(1.0, np.divide(most[None, :], of_others, out=np.zeros(size), where=of_others > 0))
    return np.asarray(np.floor(waited * kept[p.row, step]).astype(np.int64))


def _medians(key: I64, value: I64, size: int) -> F64:
    """Median of the values of each key; nan where there is none."""
    order = np.lexsort((value, key))
    counts = np.bincount(key, minlength=size)
    start = np.cumsum(counts) - counts
    ranked = value[order].astype(np.float64)
    out = np.full(size, np.nan)
    has = counts > 0
    low, high = (start + (counts - 1) // 2)[has], (start + counts // 2)[has]
    out[has] = (ranked[low] + ranked[high]) / 2
    return out
