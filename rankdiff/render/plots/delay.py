"""Delay and wait: how much each rank made the others wait, and how much it waited itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rankdiff.comparison import Comparison
from rankdiff.render.plots import style
from rankdiff.render.plots.gutter import gutter_px, label_rows
from rankdiff.render.plots.rows import (
    Row,
    accused_and_peers,
    all_rows,
    assessed,
    left_out_note,
    named,
    statement,
    who,
    worst,
)
from rankdiff.render.plots.sheet import Entry, Plot, Sheet
from rankdiff.units import duration

_MOST = 40
_TOP_PX = 24
_RIGHT_PX = 24
_NUMBER_PX = 62  # for the number at the end of the longest bar
_READING = (
    "Mean per step. Who makes others wait does not wait itself: a long bar to the right and none to the left."
)


@style.styled
def draw(c: Comparison) -> Plot | None:
    """Draw delay caused and wait suffered per rank; None when no delay was assessed.

    Parameters
    ----------
    c : Comparison

    Returns
    -------
    Plot or None
        Its data, by row: ``rows`` (ranks of each), ``delay_ns`` and ``wait_ns`` per step, nan where not measured.
    """
    where = assessed(c)
    if not where:
        return None
    steps = {rank: int(c.islands[n].included.sum()) for rank, (n, _) in where.items()}
    delay = {r: (c.figures[r].delay_ns or 0.0) / steps[r] for r in where}
    wait = {r: (c.figures[r].wait_ns or 0) / steps[r] for r in where}
    everyone = all_rows(c)
    rows = worst(everyone, delay, _MOST)
    caused = np.array([delay.get(r.ranks[0], np.nan) for r in rows])
    suffered = np.array([wait.get(r.ranks[0], np.nan) for r in rows])
    scale, unit = style.unit_of(float(np.nanmax([*caused, *suffered, 0.0])))

    row_px = 26 if len(rows) <= 16 else 20
    left, high = gutter_px(rows), row_px * len(rows)
    wide = style.WIDTH - left - _RIGHT_PX
    notes = []
    if len(rows) < len(everyone):
        notes = [left_out_note(rows, everyone)]
    title = _title(c, wait)
    sheet = Sheet(title, _READING, _legend(c, rows, where), _TOP_PX + high + 48, notes)
    ax = sheet.axes(left, _TOP_PX, wide, high)
    # One scale for both sides, each as wide as its longest bar needs, and no side without room for its heading.
    reach = np.array([np.nanmax([*suffered, 0.0]), np.nanmax([*caused, c.verdict.threshold_ns or 0.0])])
    reach = np.maximum(reach, max(0.35 * reach.max(), 1.0)) / scale
    per_px = reach.sum() / (wide - 2 * _NUMBER_PX)
    low, top = -reach[0] - _NUMBER_PX * per_px, reach[1] + _NUMBER_PX * per_px
    ax.set(xlim=(low, top), ylim=(len(rows) - 0.5, -0.5))
    for n, row in enumerate(rows):
        _bars(ax, n, row, caused[n], suffered[n], scale)
    _axis(ax, c, scale, unit)
    zero = left - low / per_px
    sheet.text(zero - 10, 8, "waited for others", ha="right", bold=True)
    sheet.text(zero + 10, 8, "made others wait", ha="left", bold=True)
    label_rows(sheet, rows, left, _TOP_PX, row_px)
    data = {"rows": [r.ranks for r in rows], "delay_ns": caused, "wait_ns": suffered}
    return Plot("delay", title, _caption(c, delay, wait), sheet.figure, data)


def _bars(ax: Axes, n: int, row: Row, caused: float, suffered: float, scale: float) -> None:
    if np.isnan(caused):
        low, top = ax.get_xlim()
        ax.add_patch(Rectangle((low, n - 0.3), top - low, 0.6, **style.NOT_MEASURED))
        return
    ax.barh(n, caused / scale, 0.68, color=style.CULPRIT if row.flagged else style.OTHERS)
    ax.barh(n, -suffered / scale, 0.68, **style.WAIT)
    for value, side in ((caused, 1), (suffered, -1)):
        ax.annotate(
            duration(value),
            (side * value / scale, n),
            (side * 3, 0),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            va="center",
            annotation_clip=False,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
            fontproperties=style.font(style.SMALL, row.flagged and side > 0),
            color=style.CULPRIT if row.flagged and side > 0 else style.INK,
        )


def _axis(ax: Axes, c: Comparison, scale: float, unit: str) -> None:
    ax.axvline(0, color=style.INK, linewidth=0.8)
    ax.spines["left"].set_visible(False)
    ax.set_yticks([])
    ax.xaxis.set_major_locator(MaxNLocator(9))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: style.number(abs(x))))
    ax.set_xlabel(f"mean per step [{unit}]")
    if c.verdict.threshold_ns is not None:
        ax.axvline(
            c.verdict.threshold_ns / scale, color=style.INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0.5
        )


def _legend(c: Comparison, rows: Sequence[Row], where: dict[int, tuple[int, int]]) -> list[Entry]:
    out = []
    if any(r.flagged for r in rows):
        out.append(Entry("flagged rank", {"facecolor": style.CULPRIT}))
    if any(r.ranks[0] not in where for r in rows):
        out.append(Entry("not captured or not measured", style.NOT_MEASURED))
    if c.verdict.threshold_ns is not None:
        line = {"color": style.INK, "linewidth": 0.8, "linestyle": (0, (4, 3))}
        out.append(Entry(f"less than {duration(c.verdict.threshold_ns)} is not reported", line, is_line=True))
    return out


def _title(c: Comparison, wait: dict[int, float]) -> str:
    """Who waits and who does not."""
    first, own, peers = accused_and_peers(c)
    if first is None or not peers or first.pattern == "one_off":
        return statement(c)
    mine, usual = float(np.mean([wait[r] for r in own])), float(np.median([wait[r] for r in peers]))
    short = f"node {style.name(first.node or '?')}" if first.kind == "late_node" else f"rank {first.rank}"
    return f"The others wait {duration(usual)} a step, {short} waits {duration(mine)}"


def _caption(c: Comparison, delay: dict[int, float], wait: dict[int, float]) -> str:
    first, own, peers = accused_and_peers(c)
    if first is not None and peers:
        return (
            f"{who(first)} caused {duration(sum(delay[r] for r in own))} of delay a step and waited "
            f"{duration(float(np.mean([wait[r] for r in own])))}; the ranks not flagged waited "
            f"{duration(float(np.median([wait[r] for r in peers])))} (median)."
        )
    most = max(delay, key=lambda r: (delay[r], -r))
    return (
        f"Most delay came from {named([most])}: {duration(delay[most])} a step; the median rank waited "
        f"{duration(float(np.median(list(wait.values()))))} a step."
    )
