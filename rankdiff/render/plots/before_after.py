"""Before and after: the delay that each rank caused in both captures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from rankdiff.differences import rows as difference_rows
from rankdiff.differences.difference import Difference
from rankdiff.render.plots import style
from rankdiff.render.plots.gutter import gutter_px, label_rows
from rankdiff.render.plots.rows import Row, worst
from rankdiff.render.plots.sheet import Entry, Plot, Sheet
from rankdiff.units import duration, share

F64 = NDArray[np.float64]

_MOST = 30
_TOP_PX = 24
_RIGHT_PX = 24
_NUMBER_PX = 66  # for the number at the end of the longest bar
_BEFORE: style.Patch = {"facecolor": "#D3D7DD", "edgecolor": style.FAINT, "linewidth": 0.6}
_AFTER: style.Patch = {"facecolor": style.PART_COLOURS["compute"], "edgecolor": "none", "linewidth": 0.0}
_RANGE: style.Patch = {"color": style.INK, "linewidth": 1.2}
_READING = "Mean delay caused per step. Had a rank not changed, its bar of before would end within its range of after."


@style.styled
def draw(d: Difference) -> Plot | None:
    """Draw the delay caused per rank before and after; None when no rank has both.

    Parameters
    ----------
    d : Difference

    Returns
    -------
    Plot or None
        Its data, by row: ``ranks``, ``before_ns``, ``after_ns``, ``low_ns`` and ``high_ns`` (of after less before), nan
        where not measured.
    """
    found = {r.rank: r for r in d.ranks if r.rank is not None}
    if all(r.change_ns is None for r in found.values()):
        return None
    order = {node: n for n, node in enumerate(dict.fromkeys(str(r.node) for r in d.ranks))}
    everyone = [
        Row(style.name(d.after.member(n).label, 8), style.name(str(r.node)), (n,), r.changed)
        for n, r in sorted(found.items(), key=lambda x: (order[str(x[1].node)], x[0]))
    ]
    weight = {n: abs(r.change_ns or 0.0) for n, r in found.items()}
    rows = worst(everyone, weight, _MOST)
    shown = [found[r.ranks[0]] for r in rows]
    drawn = {what: _values(shown, what) for what in ("before_ns", "after_ns", "low_ns", "high_ns")}
    reach = drawn["before_ns"] + drawn["high_ns"]
    most = float(np.nanmax([*drawn["before_ns"], *drawn["after_ns"], *reach, 1.0]))
    scale, unit = style.unit_of(most)
    row_px = 40 if len(rows) <= 16 else 30
    left, high = gutter_px(rows), row_px * len(rows)
    wide = style.WIDTH - left - _RIGHT_PX
    notes = []
    if len(rows) < len(everyone):
        notes = [f"Showing {len(rows)} of {len(everyone)} ranks: those that changed most."]
    title = _title(d)
    sheet = Sheet(title, _READING, _legend(shown), _TOP_PX + high + 48, notes)
    ax = sheet.axes(left, _TOP_PX, wide, high)
    ax.set(xlim=(0.0, most / scale * wide / (wide - _NUMBER_PX)), ylim=(len(rows) - 0.5, -0.5))
    for n, r in enumerate(shown):
        _bars(ax, n, r, scale)
    ax.set_yticks([])
    ax.xaxis.set_major_locator(MaxNLocator(9))
    ax.xaxis.set_major_formatter(FuncFormatter(style.number))
    ax.set_xlabel(f"delay caused, mean per step [{unit}]")
    label_rows(sheet, rows, left, _TOP_PX, row_px)
    return Plot(
        "before_after", title, _caption(d), sheet.figure, {"ranks": [r.ranks[0] for r in rows], **drawn}
    )


def _values(rows: Sequence[difference_rows.Row], what: str) -> F64:
    found = [getattr(r, what) for r in rows]
    return np.array([np.nan if x is None else x for x in found], np.float64)


def _bars(ax: Axes, n: int, r: difference_rows.Row, scale: float) -> None:
    for value, place, patch in ((r.before_ns, n - 0.19, _BEFORE), (r.after_ns, n + 0.19, _AFTER)):
        if value is None:
            ax.add_patch(Rectangle((0, place - 0.17), ax.get_xlim()[1], 0.34, **style.NOT_MEASURED))
            continue
        ax.barh(place, value / scale, 0.34, **patch)
        end = value
        if patch is _AFTER and r.high_ns is not None and r.before_ns is not None:
            end = max(value, r.before_ns + r.high_ns)
        ax.annotate(
            duration(value),
            (end / scale, place),
            (4, 0),
            textcoords="offset points",
            ha="left",
            va="center",
            annotation_clip=False,
            fontproperties=style.font(style.SMALL, r.changed and patch is _AFTER),
        )
    if r.before_ns is not None and r.low_ns is not None and r.high_ns is not None:
        # The interval of the change, laid from the bar of before. No delay is below zero.
        ends = [max(0.0, r.before_ns + x) / scale for x in (r.low_ns, r.high_ns)]
        ax.plot(ends, [n + 0.19, n + 0.19], solid_capstyle="butt", zorder=4, **_RANGE)


def _legend(shown: Sequence[difference_rows.Row]) -> list[Entry]:
    out = [Entry("before", _BEFORE), Entry("after", _AFTER)]
    if any(r.low_ns is not None for r in shown):
        out.append(Entry("range of after (95%)", _RANGE, is_line=True))
    if any(r.change_ns is None for r in shown):
        out.append(Entry("not measured", style.NOT_MEASURED))
    return out


def _title(d: Difference) -> str:
    step = d.step
    if d.status in ("faster", "slower"):
        word = "less" if d.status == "faster" else "more"
        times = f"{duration(step.before_ns)} before, {duration(step.after_ns)} after"
        return f"The step takes {share(abs(step.change_share or 0.0))} {word}: {times}"
    return {
        "too_small": "The step time is practically the same",
        "not_distinguishable": "The step times cannot be told apart",
    }.get(d.status, "The step times could not be compared")


def _caption(d: Difference) -> str:
    moved = difference_rows.changed(d.ranks)
    if not moved:
        return "No rank's delay changed by more than can be told from chance."
    first = moved[0]
    more = f"; {len(moved) - 1} more changed" if len(moved) > 1 else "; no other rank's delay changed"
    return (
        f"Rank {first.rank} caused {duration(first.before_ns)} of delay a step before and {duration(first.after_ns)} "
        f"after{more}."
    )
