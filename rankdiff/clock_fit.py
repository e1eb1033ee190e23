"""Fits of the nodes' clocks: a robust line with at most one jump per pair of nodes, solved over all pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankdiff.kernels.clocks import best_step, group_medians, theil_sen_slope
from rankdiff.matching import Communicator

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

MAD_TO_SIGMA = 1.4826  # for the normal distribution
# Theil-Sen forms all pairs; longer series are first reduced to medians of this many blocks.
_MOST_POINTS = 600
# Server oscillators keep within 50 ppm of their frequency: two clocks cannot part faster than twice that.
_MOST_RATE = 100e-6


@dataclass(frozen=True)
class Fit:
    """d(t) = offset + rate (t - centre) + step [t >= step_at]."""

    offset: float
    rate: float
    step_at: float | None
    step: float
    sigma: float
    points: int


def node_fits(
    used: list[tuple[Communicator, I64]], node_of: I64, n_nodes: int, centre: float
) -> tuple[list[Fit], list[int]]:
    """Fit every node.

    Parameters
    ----------
    used : list of (Communicator, (n, m) int64)
        With the ends of the instances to fit on, ns on the session clocks; rows are members.
    node_of : (ranks,) int64
        Clock of each job rank.
    n_nodes : int
    centre : float
        Time at which offsets are told, ns.

    Returns
    -------
    fits : list of Fit
        Per clock.
    linked : list of int
        Number of the set of clocks that collectives connect, per clock.
    """
    met = [_by_node(c, ends, node_of) for c, ends in used]
    edges = []
    for present, sizes, by_node in met:
        if present.size < 2:
            continue
        hub = int(np.argmax(sizes))
        for j in range(present.size):
            if j != hub:
                d = by_node[:, j] - by_node[:, hub]
                edges.append(
                    (
                        int(present[hub]),
                        int(present[j]),
                        _fit(by_node[:, hub], d, centre, _surety(present.size - 1)),
                    )
                )
    linked = _sets(n_nodes, [(p, q) for p, q, _ in edges])
    offsets = _solve(
        n_nodes, linked, [(p, q, f.offset, f.points / max(f.sigma, 1_000.0) ** 2) for p, q, f in edges]
    )
    rates = _solve(
        n_nodes, linked, [(p, q, f.rate, f.points / max(f.sigma, 1_000.0) ** 2) for p, q, f in edges]
    )
    fits = [Fit(float(o), float(b), None, 0.0, 0.0, 0) for o, b in zip(offsets, rates, strict=True)]
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
        fits = _refine(met, fits, centre, linked)
    return fits, linked


def _by_node(c: Communicator, ends: I64, node_of: I64) -> tuple[I64, I64, F64]:
    """The clocks that meet in a communicator, their members, and (m, clocks) the median end of these."""
    present, here = np.unique(node_of[c.members], return_inverse=True)
    return present, np.bincount(here), group_medians(ends, here, present.size)


def _refine(met: list[tuple[I64, I64, F64]], fits: list[Fit], centre: float, linked: list[int]) -> list[Fit]:
    """Move every node to the median of all nodes, where three or more meet: one node's noise is not the reference."""
    times: dict[int, list[F64]] = {}
    diffs: dict[int, list[F64]] = {}
    for present, _, raw in met:
        if present.size < 3:
            continue
        by_node = np.stack([_undo(raw[:, j], fits[h], centre) for j, h in enumerate(present)], axis=1)
        middle = np.median(by_node, axis=1)
        for j, h in enumerate(present):
            times.setdefault(int(h), []).append(middle)
            diffs.setdefault(int(h), []).append(by_node[:, j] - middle)
    out = list(fits)
    for h in times:
        more = _fit(np.concatenate(times[h]), np.concatenate(diffs[h]), centre, _surety(len(times)))
        out[h] = replace(fits[h], offset=fits[h].offset + more.offset, rate=fits[h].rate + more.rate)
    for s in set(linked):  # the first node of each set keeps its own clock
        inside = [h for h in range(len(out)) if linked[h] == s]
        zero = out[inside[0]]
        for h in inside:
            out[h] = replace(out[h], offset=out[h].offset - zero.offset, rate=out[h].rate - zero.rate)
    return out


def _undo(t: F64, f: Fit, centre: float) -> F64:
    out = t - f.offset - f.rate * (t - centre)
    return out - f.step * (t >= f.step_at) if f.step_at is not None else out


def _surety(nodes: int) -> float:
    """Standard errors that a rate must exceed: three, and more the more nodes are tried."""
    return float(np.sqrt(9.0 + 2.0 * np.log(max(nodes, 1))))


def _fit(t: F64, d: F64, centre: float, surety: float) -> Fit:
    """Robust line through clock differences, with one jump when that explains them far better."""
    order = np.argsort(t, kind="stable")
    t, d = t[order], d[order]
    block = -(-t.size // _MOST_POINTS)
    scale = float(np.sqrt(block))
    if block > 1:
        t, d = _block_medians(t, block), _block_medians(d, block)
    line = _line(t, d, centre, surety)
    at, step = best_step(d, max(5, t.size // 20))
    if at > 0 and abs(step) > 100_000.0:
        jump = np.where(np.arange(d.size) >= at, step, 0.0)
        stepped = _line(t, d - jump, centre, surety)
        # Mean deviations, not medians: a jump near an end of the window moves a minority only.
        before, after = _deviation(t, d, centre, line), _deviation(t, d - jump, centre, stepped)
        if after < 0.4 * before and abs(step) > 6 * stepped.sigma:
            middle = float((t[at - 1] + t[at]) / 2)
            return replace(stepped, step_at=middle, step=float(step), sigma=stepped.sigma * scale)
    return replace(line, sigma=line.sigma * scale)


def _deviation(t: F64, d: F64, centre: float, line: Fit) -> float:
    """Mean absolute deviation from a line."""
    return float(np.abs(d - line.offset - line.rate * (t - centre)).mean())


def _block_medians(x: F64, size: int) -> F64:
    """Medians of consecutive blocks; the last may be shorter."""
    whole = x.size - x.size % size
    out = np.median(x[:whole].reshape(-1, size), axis=1)
    return np.append(out, np.median(x[whole:])) if whole < x.size else out


def _line(t: F64, d: F64, centre: float, surety: float) -> Fit:
    n = t.size
    rate = float(theil_sen_slope(t, d)) if n >= 4 else 0.0
    spread = float(np.std(t))
    rest = d - rate * (t - centre)
    # Standard error of a Theil-Sen slope is that of least squares within a few percent.
    if (
        not spread
        or abs(rate) < surety * robust_sigma(rest) / (spread * np.sqrt(_independent(rest)))
        or abs(rate) > _MOST_RATE
    ):
        rate = 0.0
    rest = d - rate * (t - centre)
    return Fit(float(np.median(rest)), rate, None, 0.0, robust_sigma(rest), n)


def _independent(rest: F64) -> float:
    """Number of independent points a residual series is worth: n (1 - r) / (1 + r) with lag-1 correlation r.

    Collectives of one step end alike, so neighbours are correlated and a slope looks surer than it is.
    """
    clipped = np.clip(rest - np.median(rest), -3 * robust_sigma(rest), 3 * robust_sigma(rest))
    power = float((clipped**2).sum())
    r = float((clipped[1:] * clipped[:-1]).sum()) / power if power else 0.0
    return max(2.0, rest.size * (1 - r) / (1 + r)) if r > 0 else float(rest.size)


def robust_sigma(x: F64) -> float:
    """1.4826 times the median absolute deviation from the median; 0 for no values."""
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
