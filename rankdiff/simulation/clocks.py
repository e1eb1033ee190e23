"""Clocks of nodes: what a node's clock shows at a true time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Clock = Callable[[int], int]


def linear_clock(offset_ns: int = 0, drift_ppm: float = 0.0, steps: Sequence[tuple[int, int]] = ()) -> Clock:
    """Return a clock that is fast by `offset_ns` at time 0 and gains `drift_ppm` from there on.

    Parameters
    ----------
    offset_ns : int
    drift_ppm : float
        Microseconds gained in a second.
    steps : sequence of (int, int), ns
        True times at which somebody (NTP) set the clock forward, and by how much.
    """
    rate = round(drift_ppm * 1000)  # parts per 10^9, so that the arithmetic stays in integers

    def clock(time_ns: int) -> int:
        jumps = sum(by for at, by in steps if time_ns >= at)
        return time_ns + offset_ns + time_ns * rate // 1_000_000_000 + jumps

    return clock
