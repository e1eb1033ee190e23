"""Idle gaps by cause over the time of the job: when each GPU had nothing to do, and what its host did instead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from rankdiff.comparison import Comparison
from rankdiff.digest import Digest
from rankdiff.gaps import longest_gaps, step_label
from rankdiff.idle import idle_by_cause
from rankdiff.instances import Steps
from rankdiff.render.plots import style
from rankdiff.render.plots.gutter import gutter_px, label_rows
from rankdiff.render.plots.idle_bins import SHORT, Lane, find_lanes, idle_in_bins, origin_utc_ns
from rankdiff.render.plots.rows import Row, accused_and_peers, all_rows, flagged, named
from rankdiff.render.plots.sheet import Entry, Plot, Sheet, text_px
from rankdiff.units import duration, share, utc

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

_MOST, _MOST_FLAGGED = 16, 12
_ROW_PX, _STRIP_PX = 40, 32
_BINS = 800
_RIGHT_PX = 30
_TOP_PX, _STEPS_PX = 20, 18
_MOST_STEPS, _LEAST_STEP_PX = 120, 6  # with more, lines between steps would hide what is drawn
_KINDS = (*style.CAUSE_COLOURS, SHORT)
_COLOURS = style.CAUSE_COLOURS | {SHORT: "#D9D9D9"}
_LABELS = style.CAUSE_LABELS | {SHORT: "short gaps, cause not kept"}
_READING = (
    "Coloured: the GPU idles, by what its host does. The height of a column is the idle share of that time."
)


@style.styled
def draw(c: Comparison) -> Plot | None:
    """Draw the idle time of the flagged and some other ranks; None when no report has GPU work.

    Parameters
    ----------
    c : Comparison

    Returns
    -------
    Plot or None
        Its data: ``rows`` (ranks), ``edges_ns`` (bins + 1, since the origin of the job), ``captured_ns`` (rows, bins),
        ``idle_ns`` by cause, each (rows, bins).
    """
    lanes = find_lanes(c)
    everyone = [r for r in all_rows(c) if r.ranks[0] in lanes]
    if not everyone:
        return None
    rows = _chosen(everyone)
    mine = [lanes[r.ranks[0]] for r in rows]
    spans = [lane.window(c) for lane in mine]
    first, last = min(s[0] for s in spans), max(s[1] for s in spans)
    left = gutter_px(rows)
    wide = style.WIDTH - left - _RIGHT_PX
    bins = min(_BINS, wide)
    edges = np.linspace(first, max(last, first + bins), bins + 1).astype(np.int64)
    captured, idle = idle_in_bins(c, mine, edges)

    high = _ROW_PX * len(rows)
    top = _TOP_PX + (_STEPS_PX if _steps(c) is not None else 0)
    notes = [] if len(rows) == len(everyone) else [_note(rows, everyone)]
    if any(lanes[r.ranks[0]].index is None for r in rows):
        notes.append("No common clock: the rows are placed by the clocks of their sessions.")
    sheet = Sheet(_title(c, lanes), _READING, _legend(idle, captured, edges), top + high + 48, notes)
    _axes_of_time(c, sheet, edges, (left, top, wide, high))  # below the strips: its lines show between them
    for n in range(len(rows)):
        ax = sheet.axes(left, top + n * _ROW_PX + (_ROW_PX - _STRIP_PX) / 2, wide, _STRIP_PX)
        _strip(ax, {k: x[n] for k, x in idle.items()}, captured[n], edges)
    label_rows(sheet, rows, left, top, _ROW_PX)
    data = {"rows": [r.ranks for r in rows], "edges_ns": edges, "captured_ns": captured, "idle_ns": idle}
    return Plot("idle", _title(c, lanes), _caption(c, lanes), sheet.figure, data)


def _chosen(rows: Sequence[Row]) -> list[Row]:
    """All; of too many, the flagged first and then others spread evenly over the job."""
    if len(rows) <= _MOST:
        return list(rows)
    accused = [r for r in rows if r.flagged][:_MOST_FLAGGED]
    rest = [r for r in rows if not r.flagged]
    room = min(len(rest), _MOST - len(accused))
    return accused + [rest[int(n)] for n in np.linspace(0, len(rest) - 1, room).round()] if room else accused


def _note(rows: Sequence[Row], everyone: Sequence[Row]) -> str:
    flags = sum(r.flagged for r in everyone)
    some = f"{sum(r.flagged for r in rows)} of {flags} flagged ranks first, then " if flags else ""
    return f"Showing {len(rows)} of {len(everyone)} ranks: {some}an even choice of the others."


def _strip(ax: Axes, idle: dict[str, I64], captured: I64, edges: I64) -> None:
    """Paint a row as an image, which stays small however many gaps there are."""
    share_of = np.cumsum([idle[k] for k in _KINDS], axis=0) / np.maximum(np.diff(edges), 1)
    upto = np.rint(share_of * _STRIP_PX).astype(int)
    picture = np.ones((_STRIP_PX, captured.size, 3))
    picture[:, captured > 0] = to_rgb(style.BUSY)
    level = np.arange(_STRIP_PX)[:, None]
    below = np.zeros(captured.size, int)
    for n, kind in enumerate(_KINDS):
        picture[(level >= below) & (level < upto[n])] = to_rgb(_COLOURS[kind])
        below = upto[n]
    extent = (0, captured.size, 0, _STRIP_PX)
    ax.imshow(picture, origin="lower", extent=extent, aspect="auto", interpolation="nearest")
    inside = np.flatnonzero(captured)
    begin, end = (int(inside[0]), int(inside[-1]) + 1) if inside.size else (captured.size, captured.size)
    for a, b in ((0, begin), (end, captured.size)):
        if b - a > 1:
            ax.add_patch(Rectangle((a, 0), b - a, _STRIP_PX, **style.NOT_MEASURED))
    ax.set(xticks=[], yticks=[], xlim=(0, captured.size), ylim=(0, _STRIP_PX))
    ax.spines[:].set_visible(False)


def _axes_of_time(c: Comparison, sheet: Sheet, edges: I64, box: tuple[float, float, float, float]) -> None:
    """Time below; steps above, with a line between two."""
    ax = sheet.axes(*box)
    ax.patch.set_visible(False)
    ax.set(xlim=(edges[0] / 1e9, edges[-1] / 1e9), ylim=(0, 1), yticks=[])
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(10))
    ax.xaxis.set_major_formatter(FuncFormatter(style.number))
    origin = origin_utc_ns(c)
    ax.set_xlabel(f"time since {utc(origin)} [s]" if origin is not None else "time [s]")
    steps = _steps(c)
    if steps is None or steps.size < 2:
        return  # one end of a step parts nothing
    px = box[2] / max(float(edges[-1] - edges[0]), 1.0)
    if np.median(np.diff(steps.last_end)) * px >= _LEAST_STEP_PX:
        for end in steps.last_end:
            ax.axvline(end / 1e9, color=style.FAINT, linewidth=0.6)
    sheet.text(box[0] - 6, 8, "step", ha="right", color=style.FAINT)
    labels = [style.name(x, 8) for x in steps.labels]
    middles = box[0] + ((steps.last_end[1:] + steps.last_end[:-1]) / 2 - edges[0]) * px
    apart = max(text_px(x) for x in labels) + 10
    for every in (1, 2, 5, 10, 20, 50, 100):
        shown = [
            n for n in range(1, steps.size) if (int(labels[n]) if labels[n].isdecimal() else n) % every == 0
        ]
        if len(shown) < 2 or np.diff(middles[np.array(shown) - 1]).min() >= apart:
            break
    for n in shown:
        sheet.text(float(middles[n - 1]), 8, labels[n], ha="center", color=style.FAINT)


def _steps(c: Comparison) -> Steps | None:
    """Steps to mark: those of the island with the most, unless they are too many."""
    known = [i.steps for i in c.islands if i.steps.source != "collective" and i.steps.size <= _MOST_STEPS]
    return max(known, key=lambda s: s.size, default=None)


def _legend(idle: dict[str, I64], captured: I64, edges: I64) -> list[Entry]:
    seen = [k for k in _KINDS if idle[k].sum() > 0.001 * sum(x.sum() for x in idle.values())]
    out = [Entry(_LABELS[k], {"facecolor": _COLOURS[k]}) for k in seen]
    out.append(Entry("GPU busy", {"facecolor": style.BUSY, "edgecolor": style.RULE, "linewidth": 0.5}))
    if (captured == 0).any():
        out.append(Entry("not captured", style.NOT_MEASURED))
    return out


def _main_cause(d: Digest) -> str:
    known = {k: n for k, n in idle_by_cause(d).items() if n}
    return style.CAUSE_WORDS[max(known, key=lambda k: known[k])] if known else "for a cause not known"


def _part(d: Digest) -> float:
    return d.info.idle_ns / d.info.span_ns if d.info.span_ns else 0.0


def _title(c: Comparison, lanes: dict[int, Lane]) -> str:
    first, accused, others = accused_and_peers(c)
    if first is not None and others:
        d = lanes[accused[0]].digest
        usual = float(np.median([_part(lanes[r].digest) for r in others]))
        whose = f"Rank {accused[0]}'s GPU idles"
        if _part(d) < usual + 0.02:
            return f"{whose} no more than the others': {share(_part(d))} of the time"
        return f"{whose} {share(_part(d))} of the time, most {_main_cause(d)}; others {share(usual)}"
    parts = {r: _part(x.digest) for r, x in lanes.items()}
    most = max(parts, key=lambda r: (parts[r], -r))
    least = share(min(parts.values()))
    return (
        f"GPUs idle {f'{least} to ' if least != share(parts[most]) else ''}{share(parts[most])} of the time; "
        f"most on rank {most}, {_main_cause(lanes[most].digest)}"
    )


def _caption(c: Comparison, lanes: dict[int, Lane]) -> str:
    accused = [r for r in lanes if r in flagged(c)] or list(lanes)
    best = None
    for r in accused:
        for gap in longest_gaps(lanes[r].digest, 1, 1).iter_rows(named=True):
            if best is None or gap["end_ns"] - gap["start_ns"] > best[1]["end_ns"] - best[1]["start_ns"]:
                best = r, gap
    if best is None:
        return "No GPU is ever idle in its window."
    rank, gap = best
    step = step_label(lanes[rank].digest, gap["step"])
    where = ", ".join(style.name(x) for x in (gap["range"], gap["call"]) if x)
    return (
        f"The longest gap of {named(accused)} is {duration(gap['end_ns'] - gap['start_ns'])} on rank {rank}"
        f"{f' before work of step {step}' if step is not None else ''}: {style.CAUSE_LABELS[gap['class']]}"
        f"{f' ({where})' if where else ''}. A spinning NCCL kernel counts as busy: ranks that wait look busy here."
    )
