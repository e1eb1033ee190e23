"""Kernels by signature before and after: what takes longer, what is launched more often, what is new."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rankdiff.differences.rows import LEAST_KERNEL_RATIO, LEAST_STEP_SHARE, Pair, Row, family
from rankdiff.differences.side import Side

F64 = NDArray[np.float64]

_MOST = 40  # signatures that are compared: those that take most time on either side
_SAME_COUNT = 0.01  # launches that count as equally many
_BY = ["kernel", "grid", "block"]


@dataclass(frozen=True)
class KernelRow:
    """A kernel signature before and after.

    Attributes
    ----------
    row : Row
        Time a step, mean over the ranks; `key` is the kernel's name.
    grid, block : str or None
    count_before, count_after : float
        Launches of a rank in a step.
    kind : str
        ``longer`` or ``shorter`` (as many launches, of another duration), ``more`` or ``fewer`` launches, ``new``,
        ``gone``; what it did if the row changed.
    """

    row: Row
    grid: str | None
    block: str | None
    count_before: float
    count_after: float
    kind: str

    @property
    def duration_before_ns(self) -> float | None:
        """Mean duration of a launch."""
        return (self.row.before_ns or 0.0) / self.count_before if self.count_before else None

    @property
    def duration_after_ns(self) -> float | None:
        """Mean duration of a launch."""
        return (self.row.after_ns or 0.0) / self.count_after if self.count_after else None


def compare_kernels(
    before: Side, after: Side, floor_ns: float, step_ns: float
) -> tuple[KernelRow, ...] | None:
    """Compare the kernels that take most time on either side.

    Parameters
    ----------
    before, after : Side
    floor_ns : float
        Less than that a step is never called a change.
    step_ns : float
        The shorter median step.

    Returns
    -------
    tuple of KernelRow or None
        The largest change first; None where a side does not tell its kernels by step.
    """
    if before.kernels is None or after.kernels is None:
        return None
    top = _top(before, after)
    old, new = _series(before, before.kernels, top), _series(after, after.kernels, top)
    pairs = []
    for n, name in enumerate(top["kernel"]):
        b, a = old[0][n], new[0][n]
        own = LEAST_KERNEL_RATIO * min(x for x in (b.mean(), a.mean(), np.inf) if x > 0)
        least = max(floor_ns, LEAST_STEP_SHARE * step_ns, own)
        pairs.append(Pair(Row(name, least_ns=float(least)), b, a))
    rows = family(pairs)
    found = [
        KernelRow(row, grid, block, float(c0), float(c1), _kind(row, float(c0), float(c1)))
        for row, grid, block, c0, c1 in zip(rows, top["grid"], top["block"], old[1], new[1], strict=True)
    ]
    return tuple(sorted(found, key=lambda k: (not k.row.changed, -abs(k.row.change_ns or 0.0), k.row.key)))


def _top(before: Side, after: Side) -> pl.DataFrame:
    """Signatures that take most time a step on either side."""
    means = [
        s.kernels.group_by(_BY).agg(ns=pl.col("ns").sum() / max(s.step_count * len(s.members), 1))
        for s in (before, after)
        if s.kernels is not None
    ]
    ranked = pl.concat(means).group_by(_BY).agg(pl.col("ns").max())
    return ranked.sort("ns", *_BY, descending=[True, False, False, False], nulls_last=True).head(_MOST)


def _series(side: Side, kernels: pl.DataFrame, top: pl.DataFrame) -> tuple[list[F64], F64]:
    """Time of each signature in every step, and its launches a step; means over the ranks."""
    numbered = top.select(_BY).with_row_index("signature")
    rows = kernels.join(numbered, on=_BY, how="inner", nulls_equal=True)
    ns = np.zeros((top.height, side.step_count))
    count = np.zeros(top.height)
    at = rows["signature"].to_numpy().astype(np.int64)
    np.add.at(ns, (at, rows["step"].to_numpy()), rows["ns"].to_numpy())
    np.add.at(count, at, rows["count"].to_numpy())
    ranks = max(len(side.members), 1)
    return list(ns / ranks), count / (ranks * max(side.step_count, 1))


def _kind(row: Row, before: float, after: float) -> str:
    if not before or not after:
        return "new" if after else "gone"
    if abs(after - before) > _SAME_COUNT * max(before, after):
        return "more" if after > before else "fewer"
    return "longer" if (row.change_ns or 0.0) > 0 else "shorter"
