"""The rows of a difference: one value before and after, its interval, and whether it changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankdiff.differences.bootstrap import FEWEST_STEPS, estimates

F64 = NDArray[np.float64]

CHANGED, TOO_SMALL, NOT_DISTINGUISHABLE = "changed", "too_small", "not_distinguishable"

# Chance that two captures of a job that did not change show any row as changed, shared among the families: step
# time, parts of the step, ranks with nodes and GPUs, causes of ranks, kernels.
ERROR = 0.05
FAMILIES = 5

FLOOR_NS = 50_000.0  # less than that a step is never called a change
LEAST_STEP_SHARE = 0.01  # of the step: of the step time itself, and of a kernel
LEAST_SHARE = 0.02  # of the step: of everything else
LEAST_KERNEL_RATIO = 0.03  # of a kernel's own time


@dataclass(frozen=True)
class Row:
    """One thing before and after, in ns per step. None: not measured, `reason` says why.

    Attributes
    ----------
    key : str
        What it is: ``step_time``, a part of the step, a class of time, ``delay``, a kernel's name.
    low_ns, high_ns : float or None
        Interval of after less before, which holds with that of all other rows in 95 of 100 differences.
    least_ns : float
        Smallest change that is called one.
    verdict : str or None
        CHANGED, TOO_SMALL (a difference, but below `least_ns`), NOT_DISTINGUISHABLE, or None: not compared.
    """

    key: str
    before_ns: float | None = None
    after_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    least_ns: float = FLOOR_NS
    verdict: str | None = None
    reason: str | None = None
    rank: int | None = None
    node: str | None = None
    gpu_uuid: str | None = None
    moved: bool = False  # the rank ran elsewhere before

    @property
    def change_ns(self) -> float | None:
        """After less before."""
        if self.before_ns is None or self.after_ns is None:
            return None
        return self.after_ns - self.before_ns

    @property
    def change_share(self) -> float | None:
        """Change as a share of before; None where before is 0 too."""
        change = self.change_ns
        return None if change is None or not self.before_ns else change / self.before_ns

    @property
    def changed(self) -> bool:
        """Whether it changed, by more than the least that matters."""
        return self.verdict == CHANGED


@dataclass(frozen=True)
class Pair:
    """A row to be, with its values in every step of both sides; None: that side has none."""

    row: Row
    before: F64 | None
    after: F64 | None


def family(pairs: Sequence[Pair]) -> tuple[Row, ...]:
    """Compare rows that are judged together.

    Parameters
    ----------
    pairs : sequence of Pair
        Values in ns; `row.reason` says why a side has none.

    Returns
    -------
    tuple of Row
        In the same order.
    """
    both = [
        (n, p.before, p.after) for n, p in enumerate(pairs) if p.before is not None and p.after is not None
    ]
    found = estimates([b for _, b, _ in both], [a for _, _, a in both], ERROR / FAMILIES)
    rows = [replace(p.row, before_ns=_mean(p.before), after_ns=_mean(p.after)) for p in pairs]
    for (n, _, _), e in zip(both, found, strict=True):
        if e is None:
            rows[n] = replace(rows[n], reason=f"fewer than {FEWEST_STEPS} steps")
            continue
        apart = e.low > 0 or e.high < 0
        large = abs(e.change) >= rows[n].least_ns
        verdict = (CHANGED if large else TOO_SMALL) if apart else NOT_DISTINGUISHABLE
        rows[n] = replace(rows[n], low_ns=e.low, high_ns=e.high, verdict=verdict)
    return tuple(rows)


def _mean(x: F64 | None) -> float | None:
    return float(x.mean()) if x is not None and x.size else None


def changed(rows: Iterable[Row]) -> list[Row]:
    """Rows that changed, the largest change first."""
    return sorted((r for r in rows if r.changed), key=lambda r: -abs(r.change_ns or 0.0))
