"""Clocks of the nodes: how far each was off, and what scatter is left after the correction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from rankdiff.clocks import NodeClock
from rankdiff.comparison import Comparison
from rankdiff.render.plots import style
from rankdiff.render.plots.sheet import Entry, Plot, Sheet, text_px
from rankdiff.units import duration, utc

F64 = NDArray[np.float64]

_MOST_NODES = 24  # rows of offsets
_MOST_COLOURED = len(style.NODE_COLOURS)
_MOST_POINTS = 4_000
_ROW_PX, _TOP_PX, _SCATTER_PX, _AXIS_PX = 20, 24, 240, 46
_SCALE_PX, _RIGHT_PX = 80, 24
_READING = "The members of a collective leave it together: points are a node's ends less the median end of the other nodes."


@style.styled
def draw(c: Comparison) -> Plot | None:
    """Draw offsets and residuals; None when no collective spans two nodes.

    Parameters
    ----------
    c : Comparison

    Returns
    -------
    Plot or None
        Its data: ``nodes``, ``offset_ns``, ``drift_ppm``; ``time_ns`` and ``residual_ns`` by node, not thinned.
    """
    points = _residuals(c)
    if c.clock.uncertainty_ns is None or not points:
        return None
    nodes = [n for n in c.clock.nodes if n.node in points]
    shown = _chosen(c, nodes)
    most = max(c.clock.uncertainty_ns, *(abs(n.offset_ns) for n in nodes))
    notes = []
    if len(shown) < len(nodes):
        notes.append(
            f"Showing {len(shown)} of {len(nodes)} nodes: those with the largest offsets; points are of all."
        )
    names = max(text_px(style.name(n.node)) for n in shown)
    numbers = max(text_px(_told(n)) for n in shown)
    left = round(max(style.MARGIN + names + 12, _SCALE_PX))
    wide = style.WIDTH - left - _RIGHT_PX
    coloured = [n.node for n in shown] if len(nodes) <= _MOST_COLOURED else []
    limit = _limit(c, points)
    outside = sum(int((np.abs(x) > limit).sum()) for _, x in points.values())
    if outside:
        notes.append(
            f"{outside} of {sum(x.size for _, x in points.values())} points lie beyond the axis and are drawn at its edge."
        )
    title = _title(c, nodes)
    high = _ROW_PX * len(shown)
    lower = _TOP_PX + high + _AXIS_PX + _TOP_PX
    sheet = Sheet(title, _READING, _legend(c, coloured), lower + _SCATTER_PX + _AXIS_PX, notes)
    scale, unit = style.unit_of(most)
    bars = wide - numbers - 16
    ax = sheet.axes(left, _TOP_PX, bars, high)
    _offsets(ax, shown, scale, unit, coloured, c.clock.uncertainty_ns)
    for n, node in enumerate(shown):
        y = _TOP_PX + (n + 0.5) * _ROW_PX
        sheet.text(left - 8, y, style.name(node.node), ha="right")
        reference = node.node == c.clock.reference
        sheet.text(left + bars + 14, y, _told(node), color=style.FAINT if reference else style.INK)
    sheet.text(left, 8, "clock ahead of the reference", style.TEXT, bold=True)
    sheet.text(left, lower - 14, "what is left after the correction", style.TEXT, bold=True)
    ax = sheet.axes(left, lower, wide, _SCATTER_PX)
    _scatter(ax, c, points, coloured, limit)
    data = {
        "nodes": [n.node for n in nodes],
        "offset_ns": [n.offset_ns for n in nodes],
        "drift_ppm": [n.drift_ppm for n in nodes],
        "time_ns": {k: t for k, (t, _) in points.items()},
        "residual_ns": {k: x for k, (_, x) in points.items()},
    }
    return Plot("clock", title, _caption(c, nodes), sheet.figure, data)


def _residuals(c: Comparison) -> dict[str, tuple[F64, F64]]:
    """Per node: time and end less the median end of the other nodes' ranks; the first step is left out as in the fit."""
    times: dict[str, list[F64]] = {}
    rest: dict[str, list[F64]] = {}
    for island in c.islands:
        for t in island.timed:
            nodes = np.array([c.job.ranks[int(r)].node for r in t.comm.members])
            keep = t.step > 0 if (t.step > 0).sum() >= 3 else np.ones(t.step.size, np.bool_)
            end = t.end[keep].astype(np.float64)
            for node in dict.fromkeys(nodes.tolist()):
                mine = nodes == node
                if mine.all() or not end.size:
                    continue
                other = np.median(end[:, ~mine], axis=1)
                times.setdefault(node, []).append(other)
                rest.setdefault(node, []).append(np.median(end[:, mine], axis=1) - other)
    return {n: (np.concatenate(times[n]), np.concatenate(rest[n])) for n in c.job.nodes if n in times}


def _chosen(c: Comparison, nodes: Sequence[NodeClock]) -> list[NodeClock]:
    if len(nodes) <= _MOST_NODES:
        return list(nodes)
    by = sorted(nodes, key=lambda n: (n.node != c.clock.reference, -abs(n.offset_ns)))[:_MOST_NODES]
    kept = {n.node for n in by}
    return [n for n in nodes if n.node in kept]


def _told(n: NodeClock) -> str:
    drift = f", {n.drift_ppm:+.2f} ppm" if n.drift_ppm else ""
    return f"{duration(n.offset_ns)}{drift}"


def _limit(c: Comparison, points: dict[str, tuple[F64, F64]]) -> float:
    """Reach of the residuals' axis: nearly all points, unless a few would press the rest into a line."""
    everything = np.abs(np.concatenate([x for _, x in points.values()]))
    sigma = max(c.clock.uncertainty_ns or 0.0, 350.0)
    return float(np.clip(1.15 * np.percentile(everything, 99), 3.0 * sigma, 8.0 * sigma))


def _style_of(node: str, coloured: Sequence[str]) -> tuple[str, str]:
    if node not in coloured:
        return style.NODE_COLOURS[0], "o"
    n = coloured.index(node)
    return style.NODE_COLOURS[n], style.NODE_MARKERS[n]


def _offsets(
    ax: Axes,
    shown: Sequence[NodeClock],
    scale: float,
    unit: str,
    coloured: Sequence[str],
    uncertainty_ns: float,
) -> None:
    band = uncertainty_ns / scale  # also so that a microsecond does not fill the axis
    rows = np.arange(len(shown))
    values = np.array([n.offset_ns for n in shown]) / scale
    ax.hlines(rows, 0, values, color=[_style_of(n.node, coloured)[0] for n in shown], linewidth=1.6)
    for y, x, n in zip(rows, values, shown, strict=True):
        colour, marker = _style_of(n.node, coloured)
        ax.plot([x], [y], marker=marker, color=colour, markersize=5, clip_on=False)
    ax.axvline(0, color=style.INK, linewidth=0.8)
    ax.axvspan(-band, band, color=style.BUSY, linewidth=0)
    low, top = (1.05 * x for x in (min(values.min(), -band, -1e-3), max(values.max(), band, 1e-3)))
    ax.set(ylim=(len(shown) - 0.5, -0.5), yticks=[], xlim=(low, top))
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(8))
    ax.xaxis.set_major_formatter(FuncFormatter(style.number))
    ax.set_xlabel(f"offset [{unit}]")


def _scatter(
    ax: Axes, c: Comparison, points: dict[str, tuple[F64, F64]], coloured: Sequence[str], limit: float
) -> None:
    scale, unit = style.unit_of(limit)
    band = (c.clock.uncertainty_ns or 0.0) / scale
    ax.axhspan(-band, band, color=style.BUSY, linewidth=0)
    ax.axhline(0, color=style.FAINT, linewidth=0.8)
    total = sum(x.size for _, x in points.values())
    every = max(1, -(-total // _MOST_POINTS))
    for node, (t, x) in points.items():
        if len(points) == 2 and node == c.clock.reference:
            continue  # of two nodes, one is the mirror image of the other
        colour, marker = _style_of(node, coloured)
        ax.plot(
            t[::every] / 1e9,
            np.clip(x[::every], -limit, limit) / scale,
            clip_on=False,
            linestyle="none",
            marker=marker,
            markersize=3.2 if total < 1_000 else 2.0,
            color=colour,
            alpha=0.7,
            markeredgewidth=0,
        )
    for n in c.clock.nodes:
        if n.step_at_ns is not None:
            ax.axvline(n.step_at_ns / 1e9, color=style.CULPRIT, linewidth=1.0, linestyle=(0, (4, 3)))
    ax.set_ylim(-limit / scale, limit / scale)
    ax.xaxis.set_major_locator(MaxNLocator(9))
    ax.xaxis.set_major_formatter(FuncFormatter(style.number))
    ax.yaxis.set_major_formatter(FuncFormatter(style.number))
    ax.set_ylabel(f"end less the others\u2019 [{unit}]")
    origin = c.job.origin_utc_ns
    ax.set_xlabel(f"time since {utc(origin)} [s]" if origin is not None else "time [s]")


def _legend(c: Comparison, coloured: Sequence[str]) -> list[Entry]:
    out = [Entry(style.name(n), {"facecolor": style.NODE_COLOURS[i]}) for i, n in enumerate(coloured)]
    band = {"facecolor": style.BUSY, "edgecolor": style.RULE, "linewidth": 0.5}
    return [*out, Entry(f"uncertainty ±{duration(c.clock.uncertainty_ns)}", band)]


def _title(c: Comparison, nodes: Sequence[NodeClock]) -> str:
    most = max(abs(n.offset_ns) for n in nodes)
    if most <= (c.clock.uncertainty_ns or 0.0):
        return f"Clocks of the nodes agree: within {duration(most)}, where ends scatter by {duration(c.clock.uncertainty_ns)}"
    return f"Clocks differ by up to {duration(most)}; corrected, ends scatter by {duration(c.clock.uncertainty_ns)}"


def _caption(c: Comparison, nodes: Sequence[NodeClock]) -> str:
    others = sorted((n for n in nodes if n.node != c.clock.reference), key=lambda n: -abs(n.offset_ns))
    told = ", ".join(f"{style.name(n.node)} {n.offset_ns / 1e6:+.3f} ms{_drift(n)}" for n in others[:4])
    more = f" and {len(others) - 4} more nodes" if len(others) > 4 else ""
    jumps = [n for n in c.clock.nodes if n.step_at_ns is not None]
    jumped = "".join(
        f" The clock of {style.name(n.node)} jumped by {duration(n.step_ns)} (dashed)." for n in jumps
    )
    claimed = c.verdict.threshold_ns
    least = f" Delay below {duration(claimed)} a step is not claimed." if claimed is not None else ""
    return f"Against {style.name(c.clock.reference or '?')}: {told}{more}.{least}{jumped}"


def _drift(n: NodeClock) -> str:
    return f" {n.drift_ppm:+.2f} ppm" if n.drift_ppm else ""
