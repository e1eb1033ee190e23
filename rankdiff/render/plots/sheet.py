"""The page a figure is drawn on: title, reading aid, legend and notes around axes placed in pixels.

Everything has its place before anything is drawn, from measured text. Layout engines of matplotlib move things
at every drawing, and two savings would differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from rankdiff.render.plots import style
from rankdiff.render.plots.style import DPI, MARGIN, WIDTH

_HEIGHTS = {style.TITLE: 28, style.TEXT: 19, style.SMALL: 17}  # px of a line of text
_SWATCH = 20  # px
_BETWEEN = 22  # px between legend entries


@dataclass(frozen=True)
class Plot:
    """One figure of the ticket.

    Attributes
    ----------
    name : str
        File name without ending.
    title : str
        What the figure shows of this job, as a statement.
    caption : str
        What to see in it, with the numbers of this job.
    figure : matplotlib.figure.Figure
    data : dict
        What is drawn: arrays and lists, times in ns.
    """

    name: str
    title: str
    caption: str
    figure: Figure
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One entry of a legend."""

    label: str
    patch: style.Patch  # how it is drawn
    is_line: bool = False


class Sheet:
    """A figure with its head and foot, and room between them.

    Parameters
    ----------
    title, reading : str
        The statement, and a line that says how to read the figure.
    legend : sequence of Entry
    body_px : int
        Height of the room for axes.
    notes : sequence of str
        Small print below: what is left out.
    """

    def __init__(
        self,
        title: str,
        reading: str,
        legend: Sequence[Entry],
        body_px: int,
        notes: Sequence[str] = (),
    ) -> None:
        width = WIDTH - 2 * MARGIN
        lines = [(line, style.TITLE, True, style.INK) for line in wrap(title, width, style.TITLE, True)]
        lines += [(line, style.TEXT, False, style.FAINT) for line in wrap(reading, width, style.TEXT)]
        below = [line for note in notes for line in wrap(note, width, style.SMALL)]
        rows = _legend_rows(legend, width)
        head = sum(_HEIGHTS[size] for _, size, _, _ in lines) + 26 * len(rows)
        self.top = MARGIN + head + 8
        self.height = self.top + body_px + 17 * len(below) + MARGIN // 2
        self.figure = Figure(figsize=(WIDTH / DPI, self.height / DPI), dpi=DPI, facecolor="white")
        FigureCanvasAgg(self.figure)
        y = MARGIN
        for line, size, bold, colour in lines:
            self._write(MARGIN, y, line, size, bold, colour)
            y += _HEIGHTS[size]
        for row in rows:
            self._legend(row, y + 5)
            y += 26
        for n, line in enumerate(below):
            self._write(MARGIN, self.top + body_px + 17 * n, line, style.SMALL, False, style.FAINT)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add axes, in px from the left edge and from the top of the body."""
        box = (left, self.height - self.top - top - height, width, height)
        ax = self.figure.add_axes(
            (box[0] / WIDTH, box[1] / self.height, box[2] / WIDTH, box[3] / self.height)
        )
        ax.spines[["top", "right"]].set_visible(False)
        return ax

    def text(self, x: float, y: float, text: str, size: float = style.SMALL, **settings: Any) -> Text:
        """Write into the body, in px from the left edge and from the top of the body."""
        bold = settings.pop("bold", False)
        return self.figure.text(
            x / WIDTH,
            1 - (self.top + y) / self.height,
            text,
            fontproperties=style.font(size, bold),
            **{"va": "center", **settings},
        )

    def line(self, x: Sequence[float], y: Sequence[float], **settings: Any) -> None:
        """Draw a line in the body, in px as `text`."""
        self.figure.add_artist(
            Line2D(
                [v / WIDTH for v in x],
                [1 - (self.top + v) / self.height for v in y],
                solid_capstyle="butt",
                **settings,
            )
        )

    def _write(self, x: float, y: float, text: str, size: float, bold: bool, colour: str) -> None:
        self.text(x, y - self.top, text, size, bold=bold, color=colour, va="top")

    def _legend(self, row: Sequence[Entry], y: float) -> None:
        x = float(MARGIN)
        for entry in row:
            if entry.is_line:
                middle = y + 6.5 - self.top
                self.line([x, x + _SWATCH], [middle, middle], **entry.patch)
                self.text(x + _SWATCH + 6, middle, entry.label, style.TEXT)
                x += _entry_px(entry)
                continue
            self.figure.add_artist(
                Rectangle(
                    (x / WIDTH, 1 - (y + 13) / self.height),
                    _SWATCH / WIDTH,
                    13 / self.height,
                    transform=self.figure.transFigure,
                    **{"linewidth": 0.0, **entry.patch},
                )
            )
            self.text(x + _SWATCH + 6, y + 6.5 - self.top, entry.label, style.TEXT)
            x += _entry_px(entry)


@cache
def _renderer() -> Any:  # a RendererAgg, whose methods have no types
    canvas: Any = FigureCanvasAgg(Figure(dpi=DPI))
    return canvas.get_renderer()


def text_px(text: str, size: float = style.SMALL, bold: bool = False) -> float:
    """Width of a text in px."""
    width, _, _ = _renderer().get_text_width_height_descent(text, style.font(size, bold), ismath=False)
    return float(width)


def wrap(text: str, width: float, size: float, bold: bool = False) -> list[str]:
    """Break a text into lines no wider than `width` px."""
    lines: list[str] = []
    for word in text.split():
        if lines and text_px(f"{lines[-1]} {word}", size, bold) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _entry_px(entry: Entry) -> float:
    return _SWATCH + 6 + text_px(entry.label, style.TEXT) + _BETWEEN


def _legend_rows(legend: Sequence[Entry], width: float) -> list[list[Entry]]:
    rows: list[list[Entry]] = []
    used = 0.0
    for entry in legend:
        if not rows or used + _entry_px(entry) - _BETWEEN > width:
            rows.append([])
            used = 0.0
        rows[-1].append(entry)
        used += _entry_px(entry)
    return rows
