"""One side of a difference: a job boiled down to values per step, out of its reports or out of a report.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rankdiff.findings import Finding
from rankdiff.makeup import PARTS
from rankdiff.schema import CLASSES

F64 = NDArray[np.float64]

REPORTS, STORED = "reports", "report.json"
# Why a series is absent.
NOT_STORED = "not in report.json"
NOT_CAPTURED = "not captured"
NOT_ASSESSED = "not assessed"
NO_STEPS = "no step ranges"

# What the time before collectives holds. `nccl` is left out: it is another rank's delay, or a transfer.
BEFORE_COLLECTIVES = tuple(c for c in CLASSES if c != "nccl")

# Kernels of all ranks by step: one row per (step, signature). Grain and sums as schema.SIGNATURES, `step` counted
# from 0 over the steps judged.
KERNELS = pl.Schema(
    {
        "step": pl.Int64,
        "kernel": pl.String,
        "grid": pl.String,  # null: not in the export
        "block": pl.String,  # null as above
        "count": pl.Int64,  # over all ranks
        "ns": pl.Int64,  # over all ranks
    }
)


@dataclass(frozen=True)
class Member:
    """A rank and where it ran."""

    rank: int
    label: str
    node: str
    gpu_uuid: str | None
    gpu_name: str | None
    session_uuid: str | None


@dataclass(frozen=True)
class Side:
    """A job as one side of a difference.

    Series hold a value per step judged, in ns, and an absent one has its reason in `why`, by name. Values of the
    whole job are means over the ranks, so that the parts of a step add up to it.

    Attributes
    ----------
    name : str
        What the user gave, without folders.
    source : str
        REPORTS or STORED.
    status, reason, message : str or None
        The verdict on it; why nothing could be assessed, as a code and in words.
    members : tuple of Member
        By rank.
    missing : tuple of int
        Ranks of the job without a report.
    step_source : str or None
        None: nothing matched.
    step_count : int
        Steps judged.
    operations : dict of str to float, or None
        N x N collectives of a rank in a step by operation, mean over ranks and steps; None: nothing matched.
    bytes_per_step : float or None
        Message bytes of these; None: the payloads do not tell.
    uncertainty_ns : float
        Of the clock, 0 where nothing was fitted.
    step : (k,) float64
        Step time; steps without a length are left out.
    wait : (k,) float64 or None
        Time in which somebody waited for somebody.
    parts : dict of str to (k,) float64, or None
        Make-up of the step, by `makeup.PARTS`; steps without a length are left out.
    before : dict of str to (k,) float64, or None
        Time before collectives by class, of those of BEFORE_COLLECTIVES that were captured on all ranks.
    delay : dict of int to (k,) float64
        By rank number; a rank that is not there was not assessed.
    before_by_rank : dict of int to dict of str to (k,) float64
        `before` of each rank.
    kernels : polars.DataFrame or None
        KERNELS.
    """

    name: str
    source: str
    status: str
    reason: str | None
    message: str | None
    findings: tuple[Finding, ...]
    members: tuple[Member, ...]
    missing: tuple[int, ...]
    step_source: str | None
    step_count: int
    step_ns_median: float | None
    window_ns: float | None
    operations: Mapping[str, float] | None
    bytes_per_step: float | None
    uncertainty_ns: float
    step: F64
    wait: F64 | None
    parts: Mapping[str, F64] | None
    before: Mapping[str, F64] | None
    delay: Mapping[int, F64]
    before_by_rank: Mapping[int, Mapping[str, F64]]
    kernels: pl.DataFrame | None
    why: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # reports that were left out

    @property
    def nodes(self) -> list[str]:
        """Node names in the order of their lowest rank."""
        return list(dict.fromkeys(m.node for m in self.members))

    def member(self, rank: int) -> Member:
        """Return the rank of a number."""
        return next(m for m in self.members if m.rank == rank)

    @property
    def exposed_communication(self) -> F64 | None:
        """Time of a step in NCCL that is not hidden under compute."""
        return None if self.parts is None else self.parts[PARTS[1]] + self.parts[PARTS[2]]


def aligned(sums: Sequence[tuple[F64, int]]) -> F64:
    """Sums over the ranks of several islands to the mean over all ranks, step by step.

    Pipeline stages take the same steps; where one has fewer judged (a warm-up left out) the last ones of each count.

    Parameters
    ----------
    sums : sequence of ((k,) float64, int)
        Of each island the sum and the number of ranks.
    """
    shortest = min((x.size for x, _ in sums if x.size), default=0)
    ranks = sum(n for x, n in sums if x.size)
    return sum((x[x.size - shortest :] for x, _ in sums if x.size), np.zeros(shortest)) / max(ranks, 1)
