"""One clock for the job: offset and rate per node, fitted on the *ends* of N x N collectives.

No member of an N x N collective leaves before the last arrives, and all leave together within the time of
the last transfer, so ends tell how the clocks differ; starts tell who was late. An offset is what a session
clock reads beyond the common clock, and is subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rankdiff.clock_fit import node_fits, robust_sigma
from rankdiff.job import Job
from rankdiff.matching import Communicator
from rankdiff.notes import Note
from rankdiff.units import duration

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

# A single device's constant end difference above this is no device clock: the session start was inexact.
_LARGE_SKEW_NS = 500_000
# Instances whose medians are taken at once.
_COLUMNS = 512


@dataclass(frozen=True)
class NodeClock:
    """Clock of one node against the job's."""

    node: str
    offset_ns: float  # session clock less common clock, at the middle of the observations
    drift_ppm: float  # rate of the node's clock less the common rate; 0 when below its own uncertainty
    residual_ns: float | None  # 1.4826 MAD of end differences after correction; None: not observed
    step_at_ns: float | None = None  # where the node's clock jumped, ns since the job's origin
    step_ns: float = 0.0  # by how much


@dataclass(frozen=True)
class Clock:
    """The fitted clocks of a job."""

    method: str
    reference: str | None  # node whose clock is left as it is
    centre_ns: float
    uncertainty_ns: float | None  # 1.4826 MAD of all residuals; None: nothing to fit on
    nodes: tuple[NodeClock, ...]
    end_skew_ns: tuple[float, ...]  # per job rank: constant end difference, taken as its device's clock
    observations: int
    rank_residual_ns: tuple[float | None, ...] = ()  # per job rank, as a node's; None: not observed
    notes: tuple[Note, ...] = field(default=())

    @property
    def skew_scale_ns(self) -> float:
        """Largest constant end difference taken as a device's clock: lateness below it is not claimed.

        A tree that always finishes some ranks later looks the same. Differences too large for that are clocks.
        """
        return max((abs(s) for s in self.end_skew_ns if abs(s) <= _LARGE_SKEW_NS), default=0.0)

    def common(self, job: Job, rank: int, t: I64) -> I64:
        """Times of a rank on the common clock.

        Parameters
        ----------
        job : Job
        rank : int
            Job rank index.
        t : (k,) int64, ns since the job's origin on the session clock

        Returns
        -------
        (k,) int64, ns since the job's origin on the common clock
        """
        n = self.nodes[int(job.clock_of[rank])]
        x = t.astype(np.float64)
        error = n.offset_ns + self.end_skew_ns[rank] + n.drift_ppm * 1e-6 * (x - self.centre_ns)
        if n.step_at_ns is not None:
            error = error + n.step_ns * (x >= n.step_at_ns)
        return t - np.rint(error).astype(np.int64)


def fit_clocks(
    job: Job, communicators: Sequence[Communicator], warm_up: Sequence[NDArray[np.bool_]]
) -> Clock:
    """Fit offset and rate per node.

    Parameters
    ----------
    job : Job
    communicators : sequence of Communicator
    warm_up : sequence of (m,) bool
        Instances of each communicator to leave out; a communicator left with none is used whole.

    Returns
    -------
    Clock
    """
    nodes, node_of = job.clocks, job.clock_of
    used = []
    for c, skip in zip(communicators, warm_up, strict=True):
        keep = ~skip if (~skip).sum() >= 3 else np.ones_like(skip)
        used.append((c, np.ascontiguousarray(c.by_member(job, "end")[:, keep])))
    count = sum(e.shape[1] for _, e in used)
    centre = _middle([e for _, e in used]) if count else 0.0
    fits, linked = node_fits(used, node_of, len(nodes), centre)
    clock = Clock(
        method="ends of N x N collectives, Theil-Sen offset and rate per node"
        if count
        else "session clocks only",
        reference=_reference(nodes, linked, node_of),
        centre_ns=centre,
        uncertainty_ns=None,
        nodes=tuple(
            NodeClock(n, f.offset, f.rate * 1e6, None, f.step_at, f.step)
            for n, f in zip(nodes, fits, strict=True)
        ),
        end_skew_ns=(0.0,) * len(job.ranks),
        rank_residual_ns=(None,) * len(job.ranks),
        observations=count,
    )
    if not count:
        return clock
    clock = _with_end_skew(job, clock, used)
    residuals = _residuals(job, clock, used)
    clock = replace(
        clock,
        uncertainty_ns=robust_sigma(np.concatenate([x for x in residuals.values() if x.size])),
        rank_residual_ns=tuple(
            robust_sigma(residuals[r.index]) if residuals[r.index].size else None for r in job.ranks
        ),
        nodes=tuple(
            replace(
                n,
                residual_ns=robust_sigma(np.concatenate([residuals[int(r)] for r in of_node])),
            )
            for n, of_node in zip(clock.nodes, _members(node_of, len(nodes)), strict=True)
        ),
    )
    if clock.skew_scale_ns:
        clock = replace(
            clock,
            method=f"{clock.method}; constant end differences of ranks (up to {duration(clock.skew_scale_ns)}) count as "
            "clock, and lateness below that is not claimed",
        )
    return replace(clock, notes=_notes(job, clock, linked))


def _with_end_skew(job: Job, clock: Clock, used: list[tuple[Communicator, I64]]) -> Clock:
    """Take a rank's constant end difference as its device's clock, where it exceeds its own uncertainty."""
    skew = []
    residuals = _residuals(job, clock, used, own_part=True)
    ranks_on = np.bincount(job.clock_of)
    for r in job.ranks:
        x = residuals[r.index]
        if (
            x.size < 3 or ranks_on[job.clock_of[r.index]] < 2
        ):  # alone on its node, a device cannot be told from the node
            skew.append(0.0)
            continue
        middle = float(np.median(x))
        error = 1.25 * robust_sigma(x) / np.sqrt(x.size)  # of a median
        skew.append(middle if abs(middle) > max(3 * error, 1_000.0) else 0.0)
    return replace(clock, end_skew_ns=tuple(skew))


def _residuals(
    job: Job, clock: Clock, used: list[tuple[Communicator, I64]], own_part: bool = False
) -> dict[int, F64]:
    """Per rank: end less the median end of the *other* members, on the common clock.

    The median of all members would be the rank itself in one of three cases when three meet, and hide its
    scatter. With `own_part`, the part of that difference that is the rank's own: of two ranks, half.
    """
    out: dict[int, list[F64]] = {r.index: [] for r in job.ranks}
    for c, ends in used:
        members = c.members.tolist()
        common = np.stack([clock.common(job, r, ends[j]) for j, r in enumerate(members)])
        n = len(members)
        rest = (common - _median_of_others(common)) * ((n - 1) / n if own_part else 1.0)
        for j, r in enumerate(members):
            out[r].append(rest[j])
    return {r: (x[0] if len(x) == 1 else np.concatenate(x)) if x else np.empty(0) for r, x in out.items()}


def _median_of_others(x: I64) -> F64:
    """(n, m) median of each column without the element itself; n >= 2."""
    n, m = x.shape
    low, high = (n - 2) // 2, (n - 1) // 2  # of the n - 1 others
    at = sorted({low, low + 1, high, high + 1})
    out = np.empty((n, m))
    for a in range(0, m, _COLUMNS):
        part = x[:, a : a + _COLUMNS]
        ranked = np.partition(part.T, at, axis=1)

        def other(k: int, part: I64 = part, ranked: I64 = ranked) -> I64:
            # Without an element, those above it move down by one.
            return np.where(part > ranked[:, k], ranked[:, k], ranked[:, k + 1])

        out[:, a : a + _COLUMNS] = (other(low) + other(high)) / 2
    return out


def _middle(ends: Sequence[I64]) -> float:
    """Median of all ends."""
    return float(np.median(np.concatenate([e.ravel() for e in ends]), overwrite_input=True))


def _members(node_of: I64, nodes: int) -> list[I64]:
    """Job rank indices on each clock."""
    order = np.argsort(node_of, kind="stable")
    return np.split(order, np.searchsorted(node_of[order], np.arange(1, nodes)))


def _reference(nodes: list[str], linked: list[int], node_of: I64) -> str | None:
    if not nodes:
        return None
    return nodes[int(np.argmax(np.bincount(linked, minlength=len(nodes))))]


def _notes(job: Job, clock: Clock, linked: list[int]) -> tuple[Note, ...]:
    notes = []
    if clock.observations < 3:
        notes.append(
            Note("weak_clock", f"the clocks rest on {clock.observations} collective(s): alignment is weak")
        )
    for n in clock.nodes:
        if n.step_at_ns is not None:
            notes.append(
                Note(
                    "clock_step",
                    f"the clock of node {n.node} jumped by {n.step_ns / 1e6:.2f} ms during the capture; corrected",
                    tuple(r.identity.rank for r in job.ranks if r.clock == n.node),
                )
            )
    large = [r.identity for r in job.ranks if abs(clock.end_skew_ns[r.index]) > _LARGE_SKEW_NS]
    if large:
        notes.append(
            Note(
                "end_skew",
                "ranks end their collectives at a constant distance from others of their node: "
                + ", ".join(f"{i.label}" for i in large)
                + "; taken as a clock difference",
                tuple(i.rank for i in large),
            )
        )
    if len(set(linked)) > 1:
        notes.append(
            Note(
                "nodes_not_linked",
                f"the nodes form {len(set(linked))} sets that share no N x N collective; no lateness is claimed "
                "between them",
            )
        )
    return tuple(notes)
