"""The tests on one island of ranks: nodes, ranks, single events, rotation, start-up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankdiff.findings import MAJOR_SHARE, Finding, late_steps, pattern_of
from rankdiff.instances import Steps, Timed
from rankdiff.job import Job
from rankdiff.significance import ALPHA, mean_ci95, p_value
from rankdiff.units import duration
from rankdiff.waits import delay_shares

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

# A node is late when most of its ranks carry the delay: otherwise it is one of its ranks.
CARRIED_BY = 0.75


@dataclass(frozen=True)
class Island:
    """Ranks that meet in N x N collectives, with everything a verdict on them needs."""

    ranks: tuple[int, ...]  # job rank indices
    timed: tuple[Timed, ...]
    steps: Steps
    delta: F64  # (n, k) ns: delay share of each rank in each step
    included: Mask  # (k,) False: the warm-up step
    unmatched_ns: NDArray[np.int64]  # (n, k) NCCL time outside matched N x N instances
    transfer_ns: F64  # (k,) summed transfer of a rank's instances, mean over ranks

    @property
    def step_ns(self) -> float:
        """Median step time of the included steps; nan when no step has a time."""
        known = self.steps.step_ns[self.included]
        known = known[~np.isnan(known)]
        return float(np.median(known)) if known.size else float("nan")

    @property
    def measured_ns(self) -> float:
        """Summed step time of the included steps; a first step without a start counts as a median one."""
        return float(
            np.where(np.isnan(self.steps.step_ns), self.step_ns, self.steps.step_ns)[self.included].sum()
        )


class Court:
    """The tests on one island; nothing here outlives a call of `judge`."""

    def __init__(self, job: Job, island: Island, threshold: float, uncertainty: float) -> None:
        self.job, self.island = job, island
        self.threshold, self.uncertainty = threshold, uncertainty
        self.delta = island.delta[:, island.included]
        self.k = self.delta.shape[1]
        self.step_ns = island.step_ns
        self.labels = [x for x, keep in zip(island.steps.labels, island.included, strict=True) if keep]
        nodes = [job.ranks[r].node for r in island.ranks]
        self.node_names = list(dict.fromkeys(nodes))
        index = {name: h for h, name in enumerate(self.node_names)}
        self.node_at = np.array([index[n] for n in nodes])
        # With one node, or one rank a node, only ranks can be judged, and get the whole error rate.
        self.judge_nodes = 1 < len(self.node_names) < len(nodes)
        self.alpha = ALPHA / 2 if self.judge_nodes else ALPHA

    def indices(self, f: Finding) -> list[int]:
        """Rows of the island that a finding concerns."""
        return [i for i, r in enumerate(self.island.ranks) if self.job.ranks[r].identity.rank in f.ranks]

    def compared(self, f: Finding, accused: Iterable[int]) -> tuple[F64, int, Mask]:
        """What a late rank or node is tested in.

        Parameters
        ----------
        f : Finding
        accused : iterable of int
            Job rank indices of all findings.

        Returns
        -------
        delta : (n, k) float64, ns
            Delay share of every unit (rank, or mean of a node's ranks).
        unit : int
            The finding's.
        among : (n,) bool
            Itself and the units of which no other finding accuses a rank.
        """
        rows = self.indices(f)
        others = np.setdiff1d(np.flatnonzero(np.isin(self.island.ranks, list(accused))), rows)
        node = f.kind == "late_node"
        delta = self.node_means(self.delta) if node else self.delta
        unit = int(self.node_at[rows[0]]) if node else rows[0]
        among = np.ones(delta.shape[0], np.bool_)
        among[self.node_at[others] if node else others] = False
        among[unit] = True
        return delta, unit, among

    def late_nodes(self) -> list[Finding]:
        """Nodes that pass the test and are carried by most of their ranks, most delayed first."""
        if not self.judge_nodes:
            return []
        nodes = np.arange(len(self.node_names))
        per_node = self.node_means(self.delta)
        sums = np.stack([self.delta[self.node_at == h].sum(axis=0) for h in nodes])
        among = np.ones(nodes.size, np.bool_)
        found: list[Finding] = []
        for h in sorted(nodes, key=lambda h: -per_node[h].sum()):
            if sums[h].mean() < self.threshold:
                continue
            p = p_value(per_node, int(h), among)
            if p > self.alpha:
                break
            members = np.flatnonzero(self.node_at == h)
            # Jitter gives every rank of the job a share; what makes the node late is what its ranks have beyond it.
            usual = float(np.median(self.delta[self.node_at != h].sum(axis=1)))
            own = self.delta[members].sum(axis=1) - usual
            carried = own >= 0.5 * own.mean()
            carried_by_most = members.size > 1 and carried.mean() >= CARRIED_BY
            if carried_by_most and self._late_without_its_worst(int(h), members, per_node, among):
                moved = self._moved(members)
                p_moved = p_value(self.node_means(moved), int(h), among)
                if p_moved <= self.alpha and moved[members].sum(axis=0).mean() >= self.threshold:
                    found.append(self._finding("late_node", members, sums[h], max(p, p_moved)))
            among[h] = False  # explained, by the node or by one of its ranks
            if among.sum() < 2:
                break
        return found

    def _late_without_its_worst(self, h: int, members: NDArray[np.int64], per_node: F64, among: Mask) -> bool:
        """Whether a node passes the test without its most delayed rank: else it is that rank, and chance."""
        worst = members[np.argmax(self.delta[members].sum(axis=1))]
        rest = per_node.copy()
        rest[h] = self.delta[members[members != worst]].mean(axis=0)
        return p_value(rest, h, among) <= self.alpha

    def late_ranks(self, taken: set[int]) -> list[Finding]:
        """Ranks that pass the test, most delayed first; `taken` rows are out of the comparison."""
        among = np.array([i not in taken for i in range(self.delta.shape[0])])
        found: list[Finding] = []
        for i in sorted(np.flatnonzero(among), key=lambda i: -self.delta[i].sum()):
            if self.delta[i].mean() < self.threshold or among.sum() < 2:
                break
            p = p_value(self.delta, int(i), among)
            if p > self.alpha:
                break
            finding = self._late_rank(int(i), among, p)
            if finding is not None:
                found.append(finding)
            among[i] = False
        return found

    def worst_of(self, f: Finding) -> Finding | None:
        """The most delayed rank of a late node, judged without its neighbours; None: it does not pass the test."""
        members = self.indices(f)
        worst = max(members, key=lambda i: self.delta[i].sum())
        among = np.array([i == worst or i not in members for i in range(self.delta.shape[0])])
        p = p_value(self.delta, worst, among)
        late = p <= self.alpha and self.delta[worst].mean() >= self.threshold
        return self._late_rank(worst, among, p) if late else None

    def _late_rank(self, i: int, among: Mask, p: float) -> Finding | None:
        """A rank that passes the test, unless it does so by the clock's uncertainty alone."""
        moved = self._moved(np.array([i]))
        p_moved = p_value(moved, i, among)
        if p_moved > self.alpha or moved[i].mean() < self.threshold:
            return None
        return self._finding("late_rank", np.array([i]), self.delta[i], max(p, p_moved))

    def inherited(self, f: Finding) -> Finding:
        """Lower a finding to a note when the delay lies in NCCL work that could not be matched.

        Such a rank sat in send/recv, or in a communicator with members that were not captured: somebody
        else's delay passed through it.
        """
        rows = self.indices(f)
        late = np.array(f.late_mask)
        peers = [i for i in range(self.delta.shape[0]) if i not in rows]
        if not late.any() or not peers:
            return f
        outside = self.island.unmatched_ns[:, self.island.included]
        excess = outside[rows][:, late].mean(axis=0) - np.median(outside[peers][:, late], axis=0)
        own = self.delta[rows][:, late].sum(axis=0)
        if excess.sum() < 0.6 * own.sum():
            return f
        return replace(
            f,
            severity="note",
            cause="inherited",
            evidence=(
                f"{excess.mean() / 1e6:.1f} ms a late step lie in NCCL kernels outside matched collectives "
                "(send/recv, or members not captured)",
            ),
        )

    def events(self, accused: set[int], rotating: bool) -> list[Finding]:
        """Single steps that one rank delays by a step or more, which a test over all steps cannot see."""
        total = self.delta.sum(axis=0)
        top = self.delta.argmax(axis=0)
        held = self.delta[top, np.arange(self.k)]
        big = (held >= 0.5 * total) & (held >= self.step_ns) & (held >= 3 * self.uncertainty)
        out = []
        for i in sorted(set(top[big].tolist()) - accused):
            mine = big & (top == i)
            heavy = held[mine].sum() >= MAJOR_SHARE * self.island.measured_ns
            f = self._finding("late_rank", np.array([i]), np.where(mine, self.delta[i], 0.0), None, mine)
            # The first captured step holds the profiler's start-up, also where it is not out of proportion.
            only_first = bool(self.island.included[0] and mine[0] and mine.sum() == 1)
            loud = heavy and not rotating and not only_first
            out.append(
                replace(
                    f, severity="major" if loud else "note", pattern="startup" if only_first else f.pattern
                )
            )
        return out

    def rotating(self) -> Finding | None:
        """Lateness that moves from rank to rank: large, but nobody's."""
        total = self.delta.sum(axis=0)
        top = self.delta.argmax(axis=0)
        held = self.delta[top, np.arange(self.k)]
        on = (held >= 0.5 * total) & (held >= MAJOR_SHARE * self.step_ns) & (held > 0)
        who = sorted(set(top[on].tolist()))
        if len(who) < 3 or held[on].sum() < MAJOR_SHARE * self.island.measured_ns:
            return None
        # What one rank holds for the most part does not move from rank to rank: it is that rank's event.
        if np.bincount(top[on], held[on]).max() > 0.5 * held[on].sum():
            return None
        ranks = tuple(self.job.ranks[self.island.ranks[i]].identity.rank for i in who)
        first = int(np.flatnonzero(on)[0])
        return Finding(
            kind="rotating",
            severity="major",
            pattern="rotating",
            ranks=ranks,
            delay_ns_per_step=float(held[on].sum() / self.k),
            delay_share=float(held[on].sum() / self.island.measured_ns),
            steps_late=int(on.sum()),
            steps=self.k,
            first_step=self.labels[first],
            first_ns=self._start_of(first),
            late_mask=tuple(on.tolist()),
            evidence=(
                f"{len(who)} ranks take turns: in {int(on.sum())} of {self.k} steps one of them holds the rest",
            ),
        )

    def startup(self) -> list[Finding]:
        """A note on the warm-up step that was left out."""
        if self.island.included.all():
            return []
        first = self.island.delta[:, 0]
        i = int(first.argmax())
        r = self.job.ranks[self.island.ranks[i]]
        return [
            Finding(
                kind="startup",
                severity="note",
                pattern="startup",
                rank=r.identity.rank,
                node=r.node,
                ranks=(r.identity.rank,),
                delay_ns_per_step=float(first[i]),
                steps_late=1,
                steps=1,
                first_step=self.island.steps.labels[0],
                evidence=(
                    f"the first captured step ({self.island.steps.labels[0]}) lost {duration(first.sum())}; "
                    "profiler start-up and first calls fall into it, so it is left out",
                ),
            )
        ]

    def node_means(self, delta: F64) -> F64:
        """Mean share of each node's ranks, (nodes, k) ns: sums would favour nodes with more ranks."""
        return np.stack([delta[self.node_at == h].mean(axis=0) for h in range(len(self.node_names))])

    def _moved(self, rows: NDArray[np.int64]) -> F64:
        """Delay shares with the clock of these ranks moved earlier by its uncertainty in every instance."""
        earlier = {self.island.ranks[int(i)]: self.uncertainty for i in rows}
        moved = delay_shares(self.island.timed, self.island.ranks, self.island.steps.size, earlier)
        return moved[:, self.island.included]

    def _finding(
        self, kind: str, rows: NDArray[np.int64], delta: F64, p: float | None, late: Mask | None = None
    ) -> Finding:
        minor = delta.mean() < MAJOR_SHARE * self.step_ns
        if late is None:
            late = late_steps(delta, self.step_ns, self.threshold, bool(minor))
        pattern, period = pattern_of(late)
        identities = [self.job.ranks[self.island.ranks[int(i)]].identity for i in rows]
        first = int(np.flatnonzero(late)[0]) if late.any() else None
        return Finding(
            kind=kind,
            severity="minor" if minor else "major",
            pattern=pattern,
            rank=identities[0].rank if kind == "late_rank" else None,
            node=identities[0].node,
            ranks=tuple(i.rank for i in identities),
            delay_ns_per_step=float(delta.mean()),
            delay_share=float(delta.sum() / self.island.measured_ns),
            delay_ci95_ns=mean_ci95(delta),
            p_value=p,
            steps_late=int(late.sum()),
            steps=self.k,
            first_step=self.labels[first] if first is not None else None,
            first_ns=self._start_of(first) if first is not None else None,
            period_steps=period,
            late_mask=tuple(late.tolist()),
        )

    def _start_of(self, at: int) -> int:
        """Start of an included step: the last end of the step before, or its own less its length."""
        k = int(np.flatnonzero(self.island.included)[at])
        ends = self.island.steps.last_end
        return int(ends[k - 1]) if k > 0 else int(ends[0] - round(self.step_ns))
