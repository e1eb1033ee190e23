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

from rankdiff.job import Job
from rankdiff.kernels.clocks import best_step, theil_sen_slope
from rankdiff.matching import Communicator
from rankdiff.notes import Note

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

MAD_TO_SIGMA = 1.4826  # for the normal distribution
# Theil-Sen forms all pairs; longer series are first reduced to medians of this many blocks.
_MOST_POINTS = 1_500
# Server oscillators keep within 50 ppm of their frequency: two clocks cannot part faster than twice that.
_MOST_RATE = 100e-6
# A single device's constant end difference above this is no device clock: the session start was inexact.
_LARGE_SKEW_NS = 500_000


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
    notes: tuple[Note, ...] = field(default=())

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
        n = self.nodes[int(job.node_of[rank])]
        x = t.astype(np.float64)
        error = n.offset_ns + self.end_skew_ns[rank] + n.drift_ppm * 1e-6 * (x - self.centre_ns)
        if n.step_at_ns is not None:
            error = error + n.step_ns * (x >= n.step_at_ns)
        return t - np.rint(error).astype(np.int64)


@dataclass(frozen=True)
class _Fit:
    """d(t) = offset + rate (t - centre) + step [t >= step_at]."""

    offset: float
    rate: float
    step_at: float | None
    step: float
    sigma: float
    points: int


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
    nodes, node_of = job.nodes, job.node_of
    used = []
    for c, skip in zip(communicators, warm_up, strict=True):
        keep = ~skip if (~skip).sum() >= 3 else np.ones_like(skip)
        used.append((c, c.ends(job)[keep].astype(np.float64)))
    count = sum(e.shape[0] for _, e in used)
    centre = float(np.median(np.concatenate([e.ravel() for _, e in used]))) if count else 0.0
    fits, linked = _node_fits(used, node_of, len(nodes), centre)
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
        observations=count,
    )
    if not count:
        return clock
    clock = _with_end_skew(job, clock, used)
    residuals = _residuals(job, clock, used)
    everything = np.concatenate([x for x in residuals.values() if x.size])
    clock = replace(
        clock,
        uncertainty_ns=_sigma(everything),
        nodes=tuple(
            replace(
                n,
                residual_ns=_sigma(
                    np.concatenate([residuals[r.index] for r in job.ranks if r.node == n.node])
                ),
            )
            for n in clock.nodes
        ),
    )
    return replace(clock, notes=_notes(job, clock, linked))


def _node_fits(
    used: list[tuple[Communicator, F64]], node_of: I64, n_nodes: int, centre: float
) -> tuple[list[_Fit], list[int]]:
    """Fit every node; `linked` numbers the sets of nodes that collectives connect."""
    edges = []
    for c, ends in used:
        here = node_of[c.members]
        present = np.unique(here)
        if present.size < 2:
            continue
        by_node = np.stack([np.median(ends[:, here == h], axis=1) for h in present], axis=1)
        hub = int(np.argmax([(here == h).sum() for h in present]))
        for j in range(present.size):
            if j != hub:
                d = by_node[:, j] - by_node[:, hub]
                edges.append((int(present[hub]), int(present[j]), _fit(by_node[:, hub], d, centre)))
    linked = _sets(n_nodes, [(p, q) for p, q, _ in edges])
    offsets = _solve(
        n_nodes, linked, [(p, q, f.offset, f.points / max(f.sigma, 1_000.0) ** 2) for p, q, f in edges]
    )
    rates = _solve(
        n_nodes, linked, [(p, q, f.rate, f.points / max(f.sigma, 1_000.0) ** 2) for p, q, f in edges]
    )
    fits = [_Fit(float(o), float(b), None, 0.0, 0.0, 0) for o, b in zip(offsets, rates, strict=True)]
    for (
        p,
        q,
        f,
    ) in edges:  # a jump seen on an edge belongs to its outer node, unless the hub shows it everywhere
        if f.step_at is not None:
            same_hub = [g for a, _, g in edges if a == p]
            hub_jumps = len(same_hub) > 1 and all(g.step_at is not None for g in same_hub)
            h, sign = (p, -1.0) if hub_jumps else (q, 1.0)
            fits[h] = replace(fits[h], step_at=f.step_at, step=sign * f.step)
    for _ in range(3):
        fits = _refine(used, node_of, fits, centre, linked)
    return fits, linked


def _refine(
    used: list[tuple[Communicator, F64]], node_of: I64, fits: list[_Fit], centre: float, linked: list[int]
) -> list[_Fit]:
    """Move every node to the median of all nodes, where three or more meet: one node's noise is not the reference."""
    times: dict[int, list[F64]] = {}
    diffs: dict[int, list[F64]] = {}
    for c, ends in used:
        here = node_of[c.members]
        present = np.unique(here)
        if present.size < 3:
            continue
        by_node = np.stack(
            [_undo(np.median(ends[:, here == h], axis=1), fits[h], centre) for h in present], axis=1
        )
        middle = np.median(by_node, axis=1)
        for j, h in enumerate(present):
            times.setdefault(int(h), []).append(middle)
            diffs.setdefault(int(h), []).append(by_node[:, j] - middle)
    out = list(fits)
    for h in times:
        more = _fit(np.concatenate(times[h]), np.concatenate(diffs[h]), centre)
        out[h] = replace(fits[h], offset=fits[h].offset + more.offset, rate=fits[h].rate + more.rate)
    for s in set(linked):  # the first node of each set keeps its own clock
        inside = [h for h in range(len(out)) if linked[h] == s]
        zero = out[inside[0]]
        for h in inside:
            out[h] = replace(out[h], offset=out[h].offset - zero.offset, rate=out[h].rate - zero.rate)
    return out


def _undo(t: F64, f: _Fit, centre: float) -> F64:
    out = t - f.offset - f.rate * (t - centre)
    return out - f.step * (t >= f.step_at) if f.step_at is not None else out


def _fit(t: F64, d: F64, centre: float) -> _Fit:
    """Robust line through clock differences, with one jump when that explains them far better."""
    order = np.argsort(t, kind="stable")
    t, d = t[order], d[order]
    if t.size > _MOST_POINTS:
        parts = np.array_split(np.arange(t.size), _MOST_POINTS)
        scale = float(np.sqrt(t.size / _MOST_POINTS))
        t = np.array([np.median(t[p]) for p in parts])
        d = np.array([np.median(d[p]) for p in parts])
    else:
        scale = 1.0
    line = _line(t, d, centre)
    at, step = best_step(d, max(5, t.size // 20))
    if at > 0 and abs(step) > 100_000.0:
        jump = np.where(np.arange(d.size) >= at, step, 0.0)
        stepped = _line(t, d - jump, centre)
        if stepped.sigma < 0.4 * line.sigma and abs(step) > 6 * stepped.sigma:
            middle = float((t[at - 1] + t[at]) / 2)
            return replace(stepped, step_at=middle, step=float(step), sigma=stepped.sigma * scale)
    return replace(line, sigma=line.sigma * scale)


def _line(t: F64, d: F64, centre: float) -> _Fit:
    n = t.size
    rate = float(theil_sen_slope(t, d)) if n >= 4 else 0.0
    spread = float(np.std(t))
    rest = d - rate * (t - centre)
    # Standard error of a Theil-Sen slope is that of least squares within a few percent.
    if (
        not spread
        or abs(rate) < 3.0 * _sigma(rest) / (spread * np.sqrt(_independent(rest)))
        or abs(rate) > _MOST_RATE
    ):
        rate = 0.0
    rest = d - rate * (t - centre)
    return _Fit(float(np.median(rest)), rate, None, 0.0, _sigma(rest), n)


def _independent(rest: F64) -> float:
    """Number of independent points a residual series is worth: n (1 - r) / (1 + r) with lag-1 correlation r.

    Collectives of one step end alike, so neighbours are correlated and a slope looks surer than it is.
    """
    clipped = np.clip(rest - np.median(rest), -3 * _sigma(rest), 3 * _sigma(rest))
    power = float((clipped**2).sum())
    r = float((clipped[1:] * clipped[:-1]).sum()) / power if power else 0.0
    return max(2.0, rest.size * (1 - r) / (1 + r)) if r > 0 else float(rest.size)


def _sigma(x: F64) -> float:
    return MAD_TO_SIGMA * float(np.median(np.abs(x - np.median(x)))) if x.size else 0.0


def _sets(n: int, pairs: list[tuple[int, int]]) -> list[int]:
    """Number of the connected set of each of n things: the lowest member."""
    label = list(range(n))
    changed = True
    while changed:
        changed = False
        for p, q in pairs:
            low = min(label[p], label[q])
            if label[p] != low or label[q] != low:
                label[p] = label[q] = low
                changed = True
    return label


def _solve(n: int, linked: list[int], edges: list[tuple[int, int, float, float]]) -> F64:
    """Least squares for node values from weighted differences; the first node of each set is zero."""
    rows = []
    values = []
    for p, q, value, weight in edges:
        row = np.zeros(n)
        row[q], row[p] = np.sqrt(weight), -np.sqrt(weight)
        rows.append(row)
        values.append(value * np.sqrt(weight))
    out = np.zeros(n)
    free = [h for h in range(n) if linked[h] != h]
    if free:
        solution, *_ = np.linalg.lstsq(np.array(rows)[:, free], np.array(values), rcond=None)
        out[free] = solution
    return out


def _with_end_skew(job: Job, clock: Clock, used: list[tuple[Communicator, F64]]) -> Clock:
    """Take a rank's constant end difference as its device's clock, where it exceeds its own uncertainty."""
    skew = []
    residuals = _residuals(job, clock, used, own_part=True)
    ranks_on = {n: sum(r.node == n for r in job.ranks) for n in job.nodes}
    for r in job.ranks:
        x = residuals[r.index]
        if x.size < 3 or ranks_on[r.node] < 2:  # alone on its node, a device cannot be told from the node
            skew.append(0.0)
            continue
        middle = float(np.median(x))
        error = 1.25 * _sigma(x) / np.sqrt(x.size)  # of a median
        skew.append(middle if abs(middle) > max(3 * error, 1_000.0) else 0.0)
    return replace(clock, end_skew_ns=tuple(skew))


def _residuals(
    job: Job, clock: Clock, used: list[tuple[Communicator, F64]], own_part: bool = False
) -> dict[int, F64]:
    """Per rank: end less the median end of the *other* members, on the common clock.

    The median of all members would be the rank itself in one of three cases when three meet, and hide its
    scatter. With `own_part`, the part of that difference that is the rank's own: of two ranks, half.
    """
    out: dict[int, list[F64]] = {r.index: [] for r in job.ranks}
    for c, ends in used:
        common = np.stack(
            [clock.common(job, int(r), ends[:, j].astype(np.int64)) for j, r in enumerate(c.members)], axis=1
        ).astype(np.float64)
        n = c.members.size
        rest = (common - _median_of_others(common)) * ((n - 1) / n if own_part else 1.0)
        for j, r in enumerate(c.members):
            out[int(r)].append(rest[:, j])
    return {r: np.concatenate(x) if x else np.empty(0) for r, x in out.items()}


def _median_of_others(x: F64) -> F64:
    """(m, n) median of each row without the element itself; n >= 2."""
    n = x.shape[1]
    order = np.argsort(x, axis=1, kind="stable")
    place = np.argsort(order, axis=1, kind="stable")
    ranked = np.take_along_axis(x, order, axis=1)
    low, high = (n - 2) // 2, (n - 1) // 2  # of the n - 1 others

    def other(k: int) -> F64:
        return np.where(place > k, ranked[:, [k]], ranked[:, [k + 1]])

    return np.asarray((other(low) + other(high)) / 2)


def _reference(nodes: list[str], linked: list[int], node_of: I64) -> str | None:
    if not nodes:
        return None
    sizes = [sum(1 for x in linked if x == h) for h in range(len(nodes))]
    return nodes[int(np.argmax(sizes))]


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
                    tuple(r.identity.rank for r in job.ranks if r.node == n.node),
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
