"""The picture of a step: what the GPU and the launching thread of some ranks did, lane by lane on one clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import polars as pl
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rankdiff.comparison import Comparison
from rankdiff.encounters import Meetings
from rankdiff.lanes import Lanes, lanes_of, united
from rankdiff.render import lane_words as words
from rankdiff.render.lane_words import DATA_RANGE, OTHER_CALL, RANGE, UNMATCHED
from rankdiff.render.pen import Pen
from rankdiff.render.plots import style
from rankdiff.render.plots.sheet import Plot, Sheet, text_px
from rankdiff.reports.identity import Identity
from rankdiff.spans import RankSpans
from rankdiff.windows import Window

MOST_RANKS = 16  # fit a picture that fits a ticket

_LANES = {"GPU": 18, "NCCL": 18, "copies": 11, "NVTX": 16, "calls": 16}  # px
_GAP_PX, _RANK_GAP_PX, _HEAD_PX, _AXIS_PX, _RIGHT_PX = 2, 14, 20, 46, 24
_HIGH_PX = sum(px + _GAP_PX for px in _LANES.values()) + _RANK_GAP_PX
_APART_PX = 3  # red lines closer than this are one


@style.styled
def draw(c: Comparison, window: Window, spans: Iterable[tuple[Identity, RankSpans]]) -> Plot:
    """Draw the lanes of some ranks.

    Parameters
    ----------
    c : Comparison
    window : Window
    spans : iterable of (Identity, RankSpans)
        In the order in which the ranks are to stand; taken one at a time.

    Returns
    -------
    Plot
        Its data: ``window``, ``ranks``, ``lanes`` (per rank the ns of each kind in the window) and ``late`` (ns
        since the window's start at which a rank arrived late).
    """
    meetings = Meetings(c, window, frozenset())
    lanes: list[Lanes] = []
    late: set[int] = set()
    for i, found in spans:
        met = meetings.of(i.rank)
        lanes.append(lanes_of(c, window, i, found, met))
        late.update(met.late["at_ns"].to_list())
    title = words.title_of(c, window)
    high = _HIGH_PX * len(lanes)
    notes = words.notes(c, window, [x.identity.rank for x in lanes])
    sheet = Sheet(title, words.READING, words.legend(lanes), _HEAD_PX + high + _AXIS_PX, notes)
    labels = [words.labels(c, window, x.identity) for x in lanes]
    widest = max((text_px(text, size, bold) for each in labels for text, size, bold, _ in each), default=0.0)
    left = round(style.MARGIN + widest + 14 + max(map(text_px, _LANES)) + 8)
    width = style.WIDTH - left - _RIGHT_PX
    pen = Pen(sheet.axes(left, _HEAD_PX, width, high), window.length_ns, width, high)
    for n, (x, label) in enumerate(zip(lanes, labels, strict=True)):
        _gutter(sheet, n, label, left)
        _rank(pen, x, n * _HIGH_PX)
    _steps(sheet, pen, window, left)
    _axis(pen, window)
    _late(pen, sorted(late))
    data = {
        "window": window,
        "ranks": tuple(x.identity.rank for x in lanes),
        "lanes": {x.identity.rank: x.summed() for x in lanes},
        "late": sorted(late),
    }
    return Plot("timeline", title, words.READING, sheet.figure, data)


@style.styled
def save(plot: Plot, out: BinaryIO, ending: str) -> None:
    """Write a picture; equal pictures give equal bytes.

    Parameters
    ----------
    plot : Plot
    out : BinaryIO
    ending : str
        png or svg.
    """
    metadata = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}[ending]
    plot.figure.savefig(out, format=ending, metadata=metadata)


def _places(top: float) -> Iterator[tuple[str, float, float]]:
    """Name, top and height of the lanes of a rank, in px."""
    for name, px in _LANES.items():
        yield name, top, px
        top += px + _GAP_PX


def _gutter(sheet: Sheet, n: int, label: Sequence[words.Line], left: float) -> None:
    """What stands left of the lanes of the n-th rank."""
    top = _HEAD_PX + n * _HIGH_PX
    if n:
        x = (style.MARGIN, style.WIDTH - _RIGHT_PX)
        sheet.line(x, (top - _RANK_GAP_PX / 2,) * 2, color=style.RULE, linewidth=0.7)
    for row, (text, size, bold, colour) in enumerate(label):
        sheet.text(style.MARGIN, top + 9 + 17 * row, text, size, bold=bold, color=colour)
    for name, y, px in _places(top):
        sheet.text(left - 8, y + px / 2, name, ha="right", color=style.FAINT)


def _rank(pen: Pen, x: Lanes, top: float) -> None:
    at = {name: (y, px) for name, y, px in _places(top)}
    causes = [(style.CAUSE_COLOURS[name], rows) for name, rows in x.idle.items()]
    pen.shares([(style.PART_COLOURS["compute"], x.compute), *causes], *at["GPU"])
    _collectives(pen, x, *at["NCCL"])
    pen.boxes(*x.copies, *at["copies"], facecolor=style.PART_COLOURS["copy"], linewidth=0.0)
    _named(pen, x.phases, *at["NVTX"], "loads_data", lambda loads: DATA_RANGE if loads else RANGE)
    if x.calls is None:
        pen.words(0, pen.length_ns, *at["calls"], ("OS calls were not captured",), color=style.FAINT)
    else:
        _named(pen, x.calls, *at["calls"], "class", lambda kind: style.CAUSE_COLOURS.get(kind, OTHER_CALL))


def _collectives(pen: Pen, x: Lanes, top: float, height: float) -> None:
    matched = pl.col("matched")
    for keep, colour in ((~matched, UNMATCHED), (matched, style.PART_COLOURS["exposed_transfer"])):
        pen.shares([(colour, united(x.nccl.filter(keep)))], top, height)
    start, end = x.waits
    seen = end - start >= pen.ns_per_px
    pen.boxes(start[seen], end[seen], top, height, **style.WAIT)
    around = {"facecolor": style.WAIT["facecolor"], "edgecolor": "none", "boxstyle": "square,pad=0.15"}
    free = 0.0  # no word upon another where collectives overlap
    for begin, stop, op, waited, last, _ in x.nccl.iter_rows():
        leave = begin if waited is None else max(waited, begin)
        texts = (f"waits for rank {last}", f"for rank {last}")
        free = pen.words(max(begin, free), leave, top, height, texts, bbox=around) or free
        free = pen.words(max(leave, free), stop, top, height, (style.name(op),)) or free


def _named(
    pen: Pen, rows: pl.DataFrame, top: float, height: float, by: str, colour: Callable[[Any], str]
) -> None:
    """Named boxes; those too small to be seen alone by their share of the time."""
    wide = pl.col("end_ns") - pl.col("start_ns") >= 2 * pen.ns_per_px
    for keep in (~wide, wide):
        parts = rows.filter(keep).partition_by(by, as_dict=True)
        for (key,), part in sorted(parts.items(), key=str):
            if keep is wide:
                edges = part["start_ns"].to_numpy(), part["end_ns"].to_numpy()
                pen.exact(*edges, top, top + height, facecolor=colour(key), edgecolor="white", linewidth=0.6)
            else:
                pen.shares([(colour(key), united(part))], top, height)
    for row in rows.filter(wide).iter_rows(named=True):
        ink = style.ink_on(colour(row[by]))
        room = round((row["end_ns"] - row["start_ns"]) / pen.ns_per_px / 7)  # letters
        texts = [style.name(row["name"], cut) for cut in (40, max(room, 4))]
        pen.words(row["start_ns"], row["end_ns"], top, height, texts, color=ink)


def _steps(sheet: Sheet, pen: Pen, window: Window, left: float) -> None:
    """Where steps begin and end."""
    for label, begin, end in window.steps:
        edges = begin - window.start_ns, end - window.start_ns
        for edge in edges:
            pen.ax.axvline(edge, color=style.FAINT, linewidth=0.8, linestyle=(0, (4, 3)))
        text = f"step {style.name(label)}"
        low, high = max(edges[0], 0), min(edges[1], window.length_ns)
        if text_px(text, style.TEXT) < (high - low) / pen.ns_per_px:
            middle = left + (low + high) / 2 / pen.ns_per_px
            sheet.text(middle, 8, text, style.TEXT, ha="center", color=style.FAINT)


def _axis(pen: Pen, window: Window) -> None:
    """Time since the step began, or around the moment."""
    zero = window.zero_ns - window.start_ns
    scale, unit = style.unit_of(window.length_ns)
    ticks = MaxNLocator(10).tick_values(-zero / scale, (window.length_ns - zero) / scale)
    inside = [t * scale + zero for t in ticks if 0 <= t * scale + zero <= window.length_ns]
    pen.ax.set_xticks(inside)
    pen.ax.xaxis.set_major_formatter(FuncFormatter(lambda t, _: style.number(round((t - zero) / scale, 6))))
    pen.ax.set_xlabel(f"since {words.zero_of(window)} [{unit}]", labelpad=2)


def _late(pen: Pen, moments: Sequence[int]) -> None:
    shown = float("-inf")
    for moment in moments:
        if moment - shown > _APART_PX * pen.ns_per_px:
            shown = moment
            pen.ax.axvline(moment, color=style.CULPRIT, linewidth=0.9)
