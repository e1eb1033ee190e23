"""Common stalls: all ranks idle at the same time, so that nobody is late and the time is lost all the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rankdiff.clocks import Clock
from rankdiff.findings import MAJOR_SHARE, Finding
from rankdiff.idle import idle_by_cause
from rankdiff.instances import Steps
from rankdiff.job import Job
from rankdiff.kernels.intervals import overlap_each, union
from rankdiff.units import duration, share

I64 = NDArray[np.int64]

_SAME_CAUSE = 0.5  # share of a rank's idle time that must lie in the cause


def common_stall(
    job: Job, clock: Clock, ranks: Sequence[int], steps: Steps, included: Sequence[int], step_ns: float
) -> Finding | None:
    """Find time in which no rank of an island does anything, for the same reason on all.

    Parameters
    ----------
    ranks : sequence of int
        Job rank indices of the island.
    included : sequence of int
        Steps judged.
    step_ns : float
        Median step.

    Returns
    -------
    Finding or None
        None below a tenth of the step, or when the ranks idle for different reasons.
    """
    starts, ends = [], []
    for r in ranks:
        d = job.ranks[r].digest
        for table in (d.work, d.columns("collectives", "start_ns", "end_ns")):
            shift = job.ranks[r].origin_shift_ns
            starts.append(clock.common(job, r, table["start_ns"].to_numpy() + shift))
            ends.append(clock.common(job, r, table["end_ns"].to_numpy() + shift))
    busy = union(np.concatenate(starts), np.concatenate(ends))
    inside = [k for k in included if k > 0]
    if not inside:
        return None
    begin, end = steps.last_end[np.array(inside) - 1], steps.last_end[np.array(inside)]
    idle = (end - begin) - overlap_each(begin, end, *busy)
    per_step = float(idle.mean())
    if per_step < MAJOR_SHARE * step_ns:
        return None
    causes = []
    for r in ranks:
        known = {c: n for c, n in idle_by_cause(job.ranks[r].digest).items() if n}
        total = sum(known.values())
        causes.append({c: n / total for c, n in known.items()} if total else {})
    shared = {c: min(x.get(c, 0.0) for x in causes) for x in causes for c in x}
    if not shared or max(shared.values()) < _SAME_CAUSE:
        return None
    cause = max(sorted(shared), key=lambda c: shared[c])
    return Finding(
        kind="common_stall",
        severity="major",
        pattern="persistent",
        ranks=tuple(job.ranks[r].identity.rank for r in ranks),
        delay_ns_per_step=per_step,
        delay_share=per_step / step_ns,
        steps=len(inside),
        steps_late=int((idle >= MAJOR_SHARE * step_ns).sum()),
        cause=cause,
        cause_detail={"share": round(shared[cause], 4)},
        evidence=(
            f"all {len(ranks)} GPUs idle together {duration(per_step)} a step ({share(per_step / step_ns)}), "
            f"at least {share(shared[cause])} of every rank's idle time in {cause}",
        ),
    )
