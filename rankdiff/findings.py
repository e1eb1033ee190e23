"""Findings: what rankdiff holds against a rank, a node or the job, with the numbers that carry it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

MAJOR_SHARE = 0.10
MINOR_SHARE = 0.02
PERSISTENT_SHARE = 0.60


@dataclass(frozen=True)
class Twin:
    """What the durations of collectives, which need no clock, say of a finding."""

    delay_ns_per_step: float
    p_value: float | None  # None: an event, which the test cannot see
    agrees: bool


@dataclass(frozen=True)
class WhatIf:
    """What the job would gain if the ranks of a finding were typical; or why that cannot be said.

    Attributes
    ----------
    step_ns : float or None
        Mean step that would be left.
    gain_ns_per_step : float or None
    speedup : float or None
        Old step / new step - 1: how much faster the job would run.
    gpu_hours_per_hour : float or None
        GPU time that the job loses: share of the step lost times its GPUs.
    replay_error : float
        What the replay of the unmodified trace errs by, as a share of the measured time.
    refused : str or None
        Why there is no prediction; the figures before `replay_error` are None then.
    """

    step_ns: float | None
    gain_ns_per_step: float | None
    speedup: float | None
    gpu_hours_per_hour: float | None
    replay_error: float
    refused: str | None = None


@dataclass(frozen=True)
class Finding:
    """One finding; ns per step unless the name says otherwise. None: does not apply or is not known."""

    kind: str  # late_rank, late_node, rotating, startup, ...
    severity: str  # major, minor or note
    pattern: str | None  # persistent, intermittent, one_off, startup, rotating
    rank: int | None = None
    node: str | None = None
    ranks: tuple[int, ...] = ()  # all ranks it concerns
    delay_ns_per_step: float | None = None
    delay_share: float | None = None  # of the summed step time
    delay_ci95_ns: tuple[float, float] | None = None
    p_value: float | None = None  # None: an event, which the test cannot see
    steps_late: int | None = None
    steps: int | None = None
    first_step: str | None = None
    first_ns: int | None = None  # ns since the job's origin: start of the first late step
    period_steps: int | None = None
    cause: str | None = None  # None: not analysed
    cause_detail: dict[str, Any] = field(default_factory=dict)
    late_mask: tuple[bool, ...] = ()  # per included step
    advice: str | None = None
    evidence: tuple[str, ...] = ()
    lowered_for: tuple[str, ...] = ()  # codes of what made its severity fall, see `downgrade`
    carried_by_step: str | None = None  # label of the step without which it would not stand
    twin: Twin | None = None  # what the durations say of it; None: a note, or no late rank or node
    what_if: WhatIf | None = None  # gain if its ranks were typical; None: as for `twin`


def is_loud(f: Finding) -> bool:
    """Whether a finding accuses a rank or node of lateness (a note does not)."""
    return f.kind in ("late_rank", "late_node") and f.severity != "note"


def late_steps(delta: F64, step_ns: float, threshold_ns: float, minor: bool) -> Mask:
    """Steps in which a flagged unit is late: half of its own mean, and a share of the step.

    Parameters
    ----------
    delta : (k,) float64, ns
        Delay share of the unit in every step.
    step_ns : float
        Median step.
    threshold_ns : float
        Materiality threshold; the floor for minor findings, whose share is below a tenth of the step.
    minor : bool
    """
    floor = threshold_ns if minor else MAJOR_SHARE * step_ns
    return np.asarray((delta >= 0.5 * delta.mean()) & (delta >= floor))


def pattern_of(late: Mask) -> tuple[str, int | None]:
    """Name how lateness is spread over the steps, and its period when it comes back regularly.

    Returns
    -------
    pattern : str
        persistent (60 % of the steps or more), one_off (a single step) or intermittent.
    period : int or None
        Steps from one late step to the next, when at least four of five distances are equal.
    """
    count = int(late.sum())
    if late.size and count >= PERSISTENT_SHARE * late.size:
        return "persistent", None
    if count <= 1:
        return "one_off", None
    apart = np.diff(np.flatnonzero(late))
    values, counts = np.unique(apart, return_counts=True)
    usual = int(values[np.argmax(counts)])
    regular = apart.size >= 2 and usual > 1 and counts.max() >= 0.8 * apart.size
    return "intermittent", usual if regular else None
