"""Numbers as report.json writes them: integers of ns, shares, UTC; null for what is not known."""

from __future__ import annotations

import numpy as np

from rankdiff.comparison import Comparison


def whole(x: float | None) -> int | None:
    """Nanoseconds, rounded."""
    return None if x is None or np.isnan(x) else round(float(x))


def interval(x: tuple[float, float] | None) -> list[int | None] | None:
    """Ends of an interval in ns, rounded."""
    return [whole(x[0]), whole(x[1])] if x is not None else None


def share(x: float | None) -> float | None:
    """A share to six digits: enough for any reader, and not the last bits of a floating-point sum."""
    return None if x is None or np.isnan(x) else round(float(x), 6)


def utc(c: Comparison, ns: int | None) -> int | None:
    """UTC of a time in ns since the job's origin."""
    return None if ns is None or c.job.origin_utc_ns is None else c.job.origin_utc_ns + int(ns)
