"""From session times to a window on the common clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from rankdiff.kernels.intervals import I64
from rankdiff.kernels.tracks import tracks
from rankdiff.windows import Window


@dataclass(frozen=True)
class Placing:
    """Puts session times on the common clock, cuts them at the window and counts from its start.

    Attributes
    ----------
    to_common : callable
        From `windows.common_time`.
    window : Window
    """

    to_common: Callable[[I64], I64]
    window: Window

    def placed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows that touch the window, moved and cut, enclosing ones before those inside them."""
        edges = [
            self.to_common(rows[side].to_numpy()) - self.window.start_ns for side in ("start_ns", "end_ns")
        ]
        # Where a clock jumps back an end may come before its start.
        start, end = edges[0], np.maximum(edges[0], edges[1])
        inside = (end > 0) & (start < self.window.length_ns)
        start, end = np.clip(start, 0, None), np.clip(end, None, self.window.length_ns)
        moved = rows.with_columns(start_ns=pl.Series(start), end_ns=pl.Series(end)).filter(pl.Series(inside))
        return moved.sort("start_ns", -pl.col("end_ns"), maintain_order=True)


def in_tracks(rows: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    """Parts of placed rows in which any two nest or do not touch, each with its number from 0."""
    at = tracks(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
    for n in range(int(at.max(initial=-1)) + 1):
        yield n, rows.filter(pl.Series(at == n))
