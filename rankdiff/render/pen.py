"""Boxes and words on a time axis, as fine as pixels allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from numpy.typing import ArrayLike

from rankdiff.kernels.intervals import I64, overlap_each, union
from rankdiff.render.plots import style
from rankdiff.render.plots.sheet import text_px

_COLUMNS = 2  # a pixel
_PADDING_PX = 6  # beside words, together


class Pen:
    """Draws into axes: x in ns from their left edge, y in px from their top.

    Parameters
    ----------
    ax : Axes
    length_ns : int
        Length of the time axis.
    width, height : float
        Size of the axes in px.
    """

    def __init__(self, ax: Axes, length_ns: int, width: float, height: float) -> None:
        self.ax, self.length_ns, self.ns_per_px = ax, length_ns, length_ns / width
        edges = np.linspace(0, length_ns, round(_COLUMNS * width) + 1)
        self._edges = np.unique(np.rint(edges).astype(np.int64))
        ax.set(xlim=(0, length_ns), ylim=(height, 0), yticks=[])
        ax.spines["left"].set_visible(False)

    def boxes(self, start: I64, end: I64, top: float, height: float, **settings: Any) -> None:
        """Draw boxes, at least a pixel wide."""
        end = np.maximum(end, start + round(self.ns_per_px))
        self.exact(*union(start, end), top, top + height, **settings)

    def shares(self, layers: Sequence[tuple[str, tuple[I64, I64]]], top: float, height: float) -> None:
        """Draw disjoint layers upon each other, each as high as its share of the time of a column.

        However many events there are, a layer has at most one box a column.
        """
        low, high = self._edges[:-1], self._edges[1:]
        under = np.zeros(low.size)
        for colour, (start, end) in layers:
            over = np.minimum(under + overlap_each(low, high, start, end) / (high - low), 1.0)
            # Columns that look alike are one box.
            first = np.flatnonzero((np.diff(under, prepend=-1.0) != 0) | (np.diff(over, prepend=-1.0) != 0))
            last = np.append(first[1:], low.size) - 1
            seen = over[first] > under[first]
            first, last = first[seen], last[seen]
            y0, y1 = (top + height * (1 - share[first]) for share in (over, under))
            self.exact(low[first], high[last], y0, y1, facecolor=colour, linewidth=0.0)
            under = over

    def exact(self, x0: I64, x1: I64, y0: ArrayLike, y1: ArrayLike, **settings: Any) -> None:
        """Draw boxes as they are."""
        if x0.size:
            y0, y1 = np.broadcast_to(y0, x0.shape), np.broadcast_to(y1, x0.shape)
            corners = np.stack([x0, y0, x0, y1, x1, y1, x1, y0], axis=1).reshape(-1, 4, 2)
            self.ax.add_collection(PolyCollection(list(corners), **settings), autolim=False)

    def words(
        self, start: float, end: float, top: float, height: float, texts: Sequence[str], **settings: Any
    ) -> float | None:
        """Write the first of some texts that fits, and return where it ends; None when none does."""
        room = (end - start) / self.ns_per_px - _PADDING_PX
        for text in texts:
            if text and (width := text_px(text)) <= room:
                middle = (start + end) / 2
                where = {"ha": "center", "va": "center", "clip_on": True}
                font = style.font(style.SMALL)
                y = top + height / 2 + 0.5
                self.ax.text(middle, y, text, fontproperties=font, **{**where, **settings})
                return middle + width / 2 * self.ns_per_px
        return None
