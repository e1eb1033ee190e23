"""Lateness heatmap: who delayed the job, step by step.

Shown is the delay share and not the lateness in time: lateness against the median turns half of the job pale
and half dark when a node of two is late, and blames a rank for what it inherited in another communicator. The
shares of a step sum to what the step lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse, Rectangle
from numpy.typing import NDArray

from rankdiff.comparison import Comparison
from rankdiff.findings import MAJOR_SHARE
from rankdiff.render.plots import style
from rankdiff.render.plots.gutter import gutter_px, label_rows
from rankdiff.render.plots.rows import Row, all_rows, assessed, blocks, folded, late, statement, who
from rankdiff.render.plots.sheet import Entry, Plot, Sheet, text_px
from rankdiff.units import duration

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

_MOST_ROWS, _MOST_COLUMNS = 1_100, 720
_ROOM_PX = 640  # for rows of a small job
_RIGHT_PX = 110  # colour scale and its labels
_READING = (
    "Each cell is the delay that a rank caused in a step: white is none, dark is much. The cells of a step sum to "
    "the time lost in it."
)
_LEFT_OUT: style.Patch = {
    "facecolor": "#E3E6EA",
    "edgecolor": "#B4BAC2",
    "hatch": "\\\\\\\\",
    "linewidth": 0.0,
}


@style.styled
def draw(c: Comparison) -> Plot | None:
    """Draw delay by rank and step; None when no delay was assessed.

    Parameters
    ----------
    c : Comparison

    Returns
    -------
    Plot or None
        Its data: ``delay_ns`` and ``left_out`` (rows, columns), nan where nothing is known; ``rows`` (ranks of
        each), ``steps`` (labels of the columns), ``top_ns`` (end of the colour scale).
    """
    if not assessed(c):
        return None
    everyone = all_rows(c)
    rows = folded(everyone, _MOST_ROWS)
    labels, cells, left_out = _matrix(c, rows)
    width = -(-len(labels) // _MOST_COLUMNS)  # steps a column
    firsts = range(0, len(labels), width)
    cells = np.fmax.reduceat(cells, firsts, axis=1)
    left_out = np.logical_and.reduceat(left_out, firsts, axis=1)
    top = _top(c, cells, left_out)
    beyond = bool((np.where(left_out, 0.0, cells) > top).any())

    row_px = max(1, min(34, max(_ROOM_PX, min(_MOST_ROWS, 3 * len(rows))) // len(rows)))
    left = gutter_px(rows)
    column_px = max(1, min(60, (style.WIDTH - left - _RIGHT_PX) // len(firsts)))
    high, wide = row_px * len(rows), column_px * len(firsts)
    notes = (
        [f"A row is the worst of up to {max(len(r.ranks) for r in rows)} ranks."]
        if len(rows) < len(everyone)
        else []
    )
    notes += [f"A column is the worst of {width} steps."] if width > 1 else []
    sheet = Sheet(statement(c), _READING, _legend(rows, cells, left_out, beyond), 20 + high + 48, notes)
    ax = sheet.axes(left, 20, wide, high)
    image = ax.imshow(
        np.ma.masked_invalid(cells / 1e6),
        cmap=style.DELAY_MAP,
        vmin=0,
        vmax=top / 1e6,
        aspect="auto",
        interpolation="nearest",
    )
    _overlay(ax, rows, cells, left_out, (column_px, row_px))
    _circles(ax, c, rows, labels, width, (column_px, row_px))
    _step_axis(ax, c, labels, width, column_px)
    label_rows(sheet, rows, left, 20, row_px)
    bar = sheet.axes(left + wide + 24, 20, 14, max(90, min(320, high)))
    scale = sheet.figure.colorbar(image, cax=bar, extend="max" if beyond else "neither", extendfrac=0.06)
    scale.set_label("delay caused [ms]", fontproperties=style.font(style.SMALL))
    data = {
        "delay_ns": cells,
        "left_out": left_out,
        "rows": [r.ranks for r in rows],
        "steps": labels[::width],
        "top_ns": top,
    }
    return Plot("lateness", statement(c), _caption(c, rows, cells, left_out), sheet.figure, data)


def _matrix(c: Comparison, rows: Sequence[Row]) -> tuple[list[str], F64, Mask]:
    """Steps of all islands as columns, with the delay and whether the cell is left out of the verdict."""
    where = assessed(c)
    used = sorted({n for n, _ in where.values()})
    names = {n: c.islands[n].steps.labels for n in used}
    numbered = all(x.isdecimal() for labels in names.values() for x in labels)
    keys = {
        n: [int(x) for x in labels] if numbered else list(range(len(labels))) for n, labels in names.items()
    }
    columns = sorted({k for each in keys.values() for k in each})
    at = {k: i for i, k in enumerate(columns)}
    delay = np.full((len(rows), len(columns)), np.nan)
    left_out = np.zeros(delay.shape, np.bool_)
    for i, row in enumerate(rows):
        for rank in row.ranks:
            if rank not in where:
                continue
            n, line = where[rank]
            mine = [at[k] for k in keys[n]]
            delay[i, mine] = np.fmax(delay[i, mine], c.islands[n].delta[line])
            left_out[i, mine] = ~c.islands[n].included
    longest = max(names.values(), key=len)
    return [str(k) for k in columns] if numbered else list(longest), delay, left_out


def _top(c: Comparison, cells: F64, left_out: Mask) -> float:
    """End of the colour scale in ns.

    Lateness that comes back sets it; a single spike goes beyond it. It does not fall below a tenth of the step, so
    that the noise of a healthy job stays pale.
    """
    known = np.where(left_out, np.nan, cells)
    floor = MAJOR_SHARE * max((i.step_ns for i in c.islands if i.step_ns > 0), default=1e6)
    with np.errstate(all="ignore"):
        steps = np.fmax.reduce(known, axis=0)
    steps = steps[~np.isnan(steps)]
    if not steps.size:
        return floor
    usual = float(np.percentile(steps, 95))
    return max(floor, float(steps.max()) if steps.max() <= 3 * usual else 1.25 * usual)


def _overlay(ax: Axes, rows: Sequence[Row], cells: F64, left_out: Mask, cell_px: tuple[int, int]) -> None:
    """Grey what does not count, hatch what is not known, and part the nodes."""
    column_px, row_px = cell_px
    for mask, patch in ((np.isnan(cells), style.NOT_MEASURED), (left_out & ~np.isnan(cells), _LEFT_OUT)):
        for first, last in blocks([line.tobytes() for line in mask]):
            for a, b in blocks(mask[first].tolist()):
                if mask[first, a]:
                    box = (a - 0.5, first - 0.5), b - a + 1, last - first + 1
                    ax.add_patch(Rectangle(*box, **patch, zorder=1.5))
    if row_px >= 8:
        for y in range(1, len(rows)):
            ax.axhline(y - 0.5, color="white", linewidth=0.6, zorder=1)
    if column_px >= 8:
        for x in range(1, cells.shape[1]):
            ax.axvline(x - 0.5, color="white", linewidth=0.6, zorder=1)
    colour, width = (style.FAINT, 0.8) if row_px >= 8 else (style.RULE, 0.5)
    for first, _ in blocks([r.node for r in rows])[1:]:
        ax.axhline(first - 0.5, color=colour, linewidth=width)


def _circles(
    ax: Axes, c: Comparison, rows: Sequence[Row], labels: Sequence[str], width: int, cell_px: tuple[int, int]
) -> None:
    """Circle single events, which a cell of a pixel or two would hide."""
    column_px, row_px = cell_px
    for f in c.verdict.findings:
        y = next((n for n, r in enumerate(rows) if f.rank in r.ranks), None)
        if f.pattern != "one_off" or y is None or f.first_step not in labels:
            continue
        x = labels.index(f.first_step) // width
        size = (max(22, column_px + 10) / column_px, max(22, row_px + 10) / row_px)
        ax.add_patch(Ellipse((x, y), *size, fill=False, edgecolor=style.INK, linewidth=1.3, clip_on=False))


def _step_axis(ax: Axes, c: Comparison, labels: Sequence[str], width: int, column_px: int) -> None:
    wide = max(text_px(x) for x in labels) + 14
    every = next(
        k
        for k in (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 10**9)
        if k * column_px / width >= wide or k == 10**9
    )
    numbers = [int(x) if x.isdecimal() else n for n, x in enumerate(labels)]
    # Round numbers where steps have numbers; the first one always.
    shown = [n for n, x in enumerate(numbers) if x % every == 0]
    ax.set_xticks([n // width for n in shown], [labels[n] for n in shown])
    ax.tick_params(axis="x", length=3)
    ax.set_yticks([])
    ax.spines[:].set(visible=True, color=style.RULE)
    source = c.islands[0].steps.source
    ax.set_xlabel(
        {"collective": "collective", "period": "step (period of the collectives)"}.get(source, "step")
    )


def _legend(rows: Sequence[Row], cells: F64, left_out: Mask, beyond: bool) -> list[Entry]:
    out = []
    if left_out.any():
        out.append(Entry("left out of the verdict (start of the capture)", _LEFT_OUT))
    if np.isnan(cells).any():
        missing = any(not r.captured for r in rows)
        out.append(Entry("not captured" if missing else "not measured", style.NOT_MEASURED))
    if beyond:
        out.append(Entry("beyond the scale", {"facecolor": "black"}))
    return out


_LOOKS = {
    "persistent": "stands out as a dark row",
    "intermittent": "stands out in dark cells",
    "one_off": "is the one dark cell (circled)",
}


def _caption(c: Comparison, rows: Sequence[Row], cells: F64, left_out: Mask) -> str:
    accused = late(c)
    known = np.where(left_out, np.nan, cells)
    quiet = [n for n, r in enumerate(rows) if not r.flagged and not np.isnan(known[n]).all()]
    most = max((float(np.nanmean(known[n])) for n in quiet), default=0.0)
    rest = f"; no other rank causes more than {duration(most)} a step" if quiet else ""
    if accused:
        f = accused[0]
        often = f"late in {f.steps_late} of {f.steps} steps"
        often += f", every {f.period_steps}" if f.period_steps else ""
        looks = "stands out as dark rows" if len(f.ranks) > 1 else _LOOKS.get(f.pattern or "", "stands out")
        return f"{who(f)} {looks}: {often}, first in step {f.first_step}{rest}."
    if any(f.kind == "rotating" for f in c.verdict.findings):
        return f"The dark cells change rows from step to step, and no row is dark throughout{rest}."
    spikes = [f for f in c.verdict.findings if f.pattern == "one_off"]
    seen = f" Circled: {', '.join(f'{who(f)} in step {f.first_step}' for f in spikes[:3])}." if spikes else ""
    return (
        f"No row is darker than the others: the rank that causes most causes {duration(most)} a step.{seen}"
    )
