"""The verdict over one island of ranks: who is late beyond chance and by a margin that matters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rankdiff.court import Court, Island
from rankdiff.findings import MAJOR_SHARE, MINOR_SHARE, Finding, is_loud
from rankdiff.job import Job
from rankdiff.notes import Note
from rankdiff.self_doubt import Margin, margin
from rankdiff.significance import fewest_steps
from rankdiff.units import duration
from rankdiff.units import share as percent

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

_FLOOR_NS = 50_000.0
_MOSTLY_UNRESOLVED = 0.5  # share of collectives on no communicator from which on nobody is acquitted


@dataclass(frozen=True)
class Judgement:
    """What is concluded about an island."""

    status: str  # straggler, rotating, balanced or not_assessed
    reason: str | None  # code, for not_assessed
    message: str | None  # the reason in words, with the remedy
    findings: tuple[Finding, ...]
    threshold_ns: float | None  # smallest mean delay per step that would have been reported
    margin: Margin | None = None  # of an acquittal
    notes: tuple[Note, ...] = field(default=())


def warm_up_step(delta: F64) -> Mask:
    """Steps to judge by: all but a first one whose delay is out of all proportion.

    Profiler start-up and NCCL's first call skew the first captured step; it is left out when its total delay
    exceeds three times the median of the others.
    """
    included = np.ones(delta.shape[1], np.bool_)
    total = delta.sum(axis=0)
    if total.size > 2 and total[0] > 3 * np.median(total[1:]):
        included[0] = False
    return included


Explain = Callable[[Court, Finding, Iterable[int]], Finding]


def judge(
    job: Job,
    island: Island,
    uncertainty_ns: float,
    missing: Sequence[int],
    explain: Explain | None = None,
    skew_scale_ns: float = 0.0,
) -> Judgement:
    """Judge one island.

    Parameters
    ----------
    job : Job
    island : Island
    uncertainty_ns : float
        Of the common clock; lateness below three times this is not claimed.
    missing : sequence of int
        Ranks of the job that were not captured.
    skew_scale_ns : float
        Largest constant end difference that was taken as clock; lateness below it is not claimed.
    explain : callable, optional
        Gives a finding its cause, from the court, the finding and the job rank indices of all findings; it may
        lower a finding to a note.
    """
    delta = island.delta[:, island.included]
    step_ns, k = island.step_ns, delta.shape[1]
    if len(island.ranks) < 2:
        return Judgement("not_assessed", "one_rank", "only one rank", (), None)
    threshold = max(MINOR_SHARE * step_ns, 3.0 * uncertainty_ns, skew_scale_ns, _FLOOR_NS)
    court = Court(job, island, threshold, uncertainty_ns)
    need = fewest_steps(len(island.ranks), court.alpha)
    if k < need or np.isnan(step_ns) or step_ns <= 0:
        words = f"{k} step(s) captured, {need} needed to tell {len(island.ranks)} ranks apart: capture a longer window"
        return Judgement("not_assessed", "too_few_steps", words, (), None)
    findings = court.late_nodes()
    findings += court.late_ranks({r for f in findings for r in court.indices(f)})
    findings = [court.inherited(f) for f in findings]
    accused = {r for f in findings for r in court.indices(f)}
    if explain is not None:
        guilty = [island.ranks[i] for i in sorted(accused)]
        findings = [explain(court, f, guilty) for f in findings]
    rotating = court.rotating() if not any(f.severity != "note" for f in findings) else None
    events = court.events(accused, rotating is not None)
    if explain is not None:
        guilty = [island.ranks[i] for i in sorted(accused | {i for f in events for i in court.indices(f)})]
        events = [explain(court, f, guilty) for f in events]
    findings += events
    if rotating is not None:
        findings.append(rotating)
    findings += court.startup()
    quiet = tuple(f for f in findings if f.severity == "note")
    if any(is_loud(f) for f in findings):
        return Judgement("straggler", None, None, tuple(findings), threshold)
    if threshold > MAJOR_SHARE * step_ns:
        words = (
            f"lateness below {threshold / 1e6:.2f} ms a step cannot be told from clock error here, and that is more "
            f"than a tenth of the {step_ns / 1e6:.2f} ms step: capture a longer window"
        )
        return Judgement("not_assessed", "clock_too_coarse", words, quiet, threshold)
    if rotating is not None:
        return Judgement("rotating", None, None, tuple(findings), threshold)
    share = float(island.transfer_ns[island.included].mean()) / step_ns
    if missing and share >= MAJOR_SHARE:
        words = (
            f"{_ranks(missing)} not captured or could not be compared; nobody else is late, yet all spend "
            f"{duration(share * step_ns)} a step ({percent(share)}) in collectives after the last of them has arrived: an "
            "uncaptured rank or the network. Capture every rank"
        )
        return Judgement("not_assessed", "missing_ranks", words, quiet, threshold)
    return Judgement("balanced", None, None, tuple(findings), threshold, margin(court))


def unless_unresolved(found: Judgement, share: float) -> Judgement:
    """Acquit nobody where most collectives could not be assigned to a communicator, and so were not compared."""
    if found.status != "balanced" or share < _MOSTLY_UNRESOLVED:
        return found
    words = (
        f"{percent(share)} of the collectives could not be assigned to a communicator, and in the rest nobody was late: "
        "export with --include-blobs=true, and capture with -t nvtx"
    )
    return replace(found, status="not_assessed", reason="unresolved_collectives", message=words)


def _ranks(missing: Sequence[int]) -> str:
    """Name missing ranks with the verb that fits."""
    shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    return f"rank {shown} was" if len(missing) == 1 else f"ranks {shown} were"
