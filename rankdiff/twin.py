"""The clock-free twin: the verdict again from nothing but durations, which no clock error touches.

In a collective that everyone leaves together, a member's duration is what it waited plus the transfer; seen from the
common end, it arrived its duration earlier. The delay shares of those arrivals must accuse the same ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from rankdiff.court import Court, Island
from rankdiff.findings import Finding, Twin, is_loud
from rankdiff.job import Job
from rankdiff.notes import Note
from rankdiff.significance import p_value
from rankdiff.units import duration
from rankdiff.waits import delay_shares


def twin_island(island: Island) -> Island:
    """The island with every arrival placed a duration before the instance's last end.

    Only the order of instances still comes from the common clock; lateness within one does not.
    """
    timed = tuple(
        replace(t, start=t.end.max(axis=1, keepdims=True) - t.duration, near=None) for t in island.timed
    )
    return replace(island, timed=timed, delta=delay_shares(timed, island.ranks, island.steps.size))


class Durations:
    """The findings of an island, judged by durations.

    Parameters
    ----------
    job : Job
    island : Island
        On the common clock.
    """

    def __init__(self, job: Job, island: Island) -> None:
        self.job, self.island = job, twin_island(island)

    def weighed(self, court: Court, f: Finding, accused: Iterable[int]) -> Finding:
        """Give a late rank or node its twin; a note gets none.

        The durations carry it when its mean delay is at least half of what is material, and it is beyond chance
        or at least the largest of those that no other finding accuses.

        Parameters
        ----------
        court : Court
            That made the finding.
        f : Finding
        accused : iterable of int
            Job rank indices of all findings.
        """
        if not is_loud(f):
            return f
        twin = Court(self.job, self.island, court.threshold, court.uncertainty)
        delta, unit, among = twin.compared(f, accused)
        own = twin.delta[twin.indices(f)].sum(axis=0)
        if f.p_value is None:  # an event: only its own steps count
            late = np.array(f.late_mask, np.bool_)
            delta, own = np.where(late, delta, 0.0), np.where(late, own, 0.0)
        mean = float(own.mean())
        p = None if f.p_value is None else p_value(delta, unit, among)
        leads = bool(delta[unit].sum() >= delta[among].sum(axis=1).max())
        beyond = p is not None and p <= twin.alpha
        return replace(f, twin=Twin(mean, p, mean >= 0.5 * court.threshold and (beyond or leads)))

    def notes(
        self, threshold_ns: float, uncertainty_ns: float, findings: Sequence[Finding]
    ) -> tuple[Note, ...]:
        """Warn of findings that the durations do not carry, and of those that only the durations have."""
        out = [_not_carried(f, f.twin) for f in findings if f.twin is not None and not f.twin.agrees]
        known = {r for f in findings if f.kind in ("late_rank", "late_node") for r in f.ranks}
        court = Court(self.job, self.island, threshold_ns, uncertainty_ns)
        nodes = court.late_nodes()
        found = nodes + court.late_ranks({r for f in nodes for r in court.indices(f)})
        return (*out, *(_only_here(f) for f in found if not known & set(f.ranks)))


def _name(f: Finding) -> str:
    return f"node {f.node}" if f.kind == "late_node" else f"rank {f.rank}"


def _not_carried(f: Finding, twin: Twin) -> Note:
    return Note(
        "clock_suspect",
        f"{_name(f)} arrives last on the fitted clocks, by {duration(f.delay_ns_per_step)} a step, but by the durations "
        f"of its collectives, which need no clock, by {duration(twin.delay_ns_per_step)}: the clocks are suspect",
        f.ranks,
    )


def _only_here(f: Finding) -> Note:
    return Note(
        "clock_suspect",
        f"by the durations of its collectives, which need no clock, {_name(f)} makes the others wait "
        f"{duration(f.delay_ns_per_step)} a step, but on the fitted clocks it does not stand out: the clocks are suspect",
        f.ranks,
    )
