"""Durations, shares and times as people read them."""

from __future__ import annotations

import datetime as dt


def duration(ns: float | None) -> str:
    """Nanoseconds with a unit and three significant digits: ``39.0 ms``; ``n/a`` for None.

    >>> duration(39_012_345)
    '39.0 ms'
    >>> duration(0)
    '0'
    """
    if ns is None or ns != ns:
        return "n/a"
    if ns == 0:
        return "0"
    size = abs(ns)
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if size >= scale * 0.9995:
            value = ns / scale
            digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
            return f"{value:.{digits}f} {unit}"
    return f"{ns:.0f} ns"


def share(x: float | None) -> str:
    """A share in percent: ``68%``, below ten with a decimal; ``n/a`` for None."""
    if x is None or x != x:
        return "n/a"
    percent = 100 * x
    return f"{percent:.1f}%" if 0 < abs(percent) < 9.95 else f"{percent:.0f}%"


def utc(ns: int | None) -> str:
    """UTC nanoseconds as ISO 8601 with milliseconds; ``n/a`` for None."""
    if ns is None:
        return "n/a"
    seconds, rest = divmod(ns, 1_000_000_000)
    stamp = dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{stamp}.{rest // 1_000_000:03d}Z"
