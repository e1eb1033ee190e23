"""A gate on the step time: passed, met or not assessable, for a job that runs every night."""

from __future__ import annotations

from dataclasses import dataclass

from rankdiff.differences.difference import Difference
from rankdiff.gates import MET, NOT_ASSESSABLE, PASSED, Answer
from rankdiff.units import share


@dataclass(frozen=True)
class Gate(Answer):
    """What the gate says.

    Attributes
    ----------
    threshold : float
        Growth of the step time that is not accepted, as a share.
    """

    threshold: float


def regression(d: Difference, threshold: float) -> Gate:
    """Judge the growth of the step time.

    Met: it grew by more than `threshold`, and the interval of the change lies above zero. Passed: the growth, or the
    whole interval, stays at or below the threshold, and the interval is fine enough to have shown such a growth. Not
    assessable: all the rest, and whatever should not have been compared.

    Parameters
    ----------
    d : Difference
    threshold : float
        As a share of the step time before.
    """
    limit = share(threshold)

    def cannot(why: str) -> Gate:
        return Gate(NOT_ASSESSABLE, f"a growth of {limit} cannot be assessed: {why}", threshold)

    step = d.step
    if d.refused:
        return cannot("the two sides should not be compared")
    if step.change_share is None or step.low_ns is None or step.high_ns is None or not step.before_ns:
        return cannot(str(d.reason))
    grown, low, high = step.change_share, step.low_ns / step.before_ns, step.high_ns / step.before_ns
    found = f"the step time changed by {_signed(grown)} (95% interval {_signed(low)} to {_signed(high)})"
    if grown > threshold:
        if low > 0:
            return Gate(MET, f"{found}, more than {limit}", threshold)
        return cannot(f"{found}, which cannot be told from nothing; capture more steps")
    if high > threshold and high - grown > threshold:
        return cannot(f"{found}, too coarse to see it; capture more steps")
    return Gate(PASSED, f"{found}, not more than {limit}", threshold)


def _signed(x: float) -> str:
    return f"{'+' if x > 0 else ''}{share(x)}"
