"""A gate on the findings of one job: a nightly job fails when somebody is late, and never passes unassessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankdiff.comparison import Comparison
from rankdiff.notes import rank_words
from rankdiff.units import duration, share

SEVERITIES = ("major", "minor")
# Of the step: a capture that would not have shown a rank late by so much acquits nobody. Some twenty steps of a sound
# job show a rank that is late by 5 to 15%.
COARSEST_SHARE = 0.25
PASSED, MET, NOT_ASSESSABLE = "passed", "met", "not_assessable"


@dataclass(frozen=True)
class Answer:
    """What a gate says: PASSED, MET or NOT_ASSESSABLE, and a sentence."""

    status: str
    message: str


def findings_gate(c: Comparison, severity: str, left_out: int = 0, not_found: Sequence[str] = ()) -> Answer:
    """Judge a job by the severity of its findings.

    Parameters
    ----------
    c : Comparison
    severity : str
        ``major``: only these; ``minor``: these and major ones.
    left_out : int
        Reports that could not be read.
    not_found : sequence of str
        Ranks and nodes that were asked for and have no report, in words.

    Returns
    -------
    Answer
        MET where there is such a finding, whatever else could not be assessed; NOT_ASSESSABLE where any part of the
        job, a rank or a pipeline stage say, could not be, or not finely enough.
    """
    wanted = SEVERITIES[: SEVERITIES.index(severity) + 1]
    found = [f for f in c.verdict.findings if f.severity in wanted]
    if found:
        count = f"{len(found)} finding{'s' * (len(found) > 1)}"
        kinds = ", ".join(dict.fromkeys(f.kind.replace("_", " ") for f in found))
        return Answer(MET, f"{count} of severity {' or '.join(wanted)}: {kinds}")
    unassessed = [j for j in c.judgements if j.status == "not_assessed"]
    if c.verdict.status == "not_assessed" or unassessed:
        reason = c.verdict.reason or (unassessed[0].reason if unassessed else None) or "unknown"
        part = "" if c.verdict.status == "not_assessed" else "a part of "
        return Answer(NOT_ASSESSABLE, f"{part}the job could not be assessed ({reason})")
    absent = sorted({*c.missing, *c.quality.apart})
    if absent:
        return Answer(NOT_ASSESSABLE, f"{rank_words(absent)} not captured, or not comparable with the others")
    if c.verdict.status == "balanced" and (why := _too_coarse(c)) is not None:
        return Answer(NOT_ASSESSABLE, why)
    if not_found:
        return Answer(NOT_ASSESSABLE, f"{', '.join(not_found)} asked for, but in none of the reports")
    if left_out:
        return Answer(NOT_ASSESSABLE, f"{left_out} report{'s' * (left_out > 1)} left out")
    return Answer(PASSED, f"no finding of severity {' or '.join(wanted)}")


def _too_coarse(c: Comparison) -> str | None:
    """Why an acquittal is worth nothing; None where it is."""
    seen = None if c.verdict.margin is None else c.verdict.margin.rank
    if seen is None:
        return "nobody is late, but no lateness would have been seen: capture more steps"
    of_step = seen / max(island.step_ns for island in c.islands)
    if of_step <= COARSEST_SHARE:
        return None
    return (
        f"nobody is late, but less than {duration(seen)} a step ({share(of_step)}) would not have been seen: capture more "
        "steps"
    )
