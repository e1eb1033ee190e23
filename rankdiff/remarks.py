"""What a reader should know besides the verdict: warnings about captures, counts and clocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankdiff.court import Island
from rankdiff.digest import Digest
from rankdiff.findings import is_loud
from rankdiff.job import Job
from rankdiff.matching import Matching
from rankdiff.notes import Note
from rankdiff.reports.identity import Identity
from rankdiff.verdict import Judgement
from rankdiff.waits import Waits


def rank_notes(identity: Identity, digest: Digest) -> list[Note]:
    """Warnings about one rank's capture that limit what can be said of it."""
    info, notes = digest.info, []
    if info.hidden_by_graphs:
        notes.append(
            Note(
                "collectives_in_graphs",
                f"rank {identity.label}: CUDA graphs were traced whole, collectives inside them are not visible "
                "(capture with --cuda-graph-trace=node)",
                (identity.rank,),
            )
        )
    elif not info.nccl_kernels:
        top = ", ".join(info.top_kernels[:10]) or "none at all"
        notes.append(
            Note(
                "no_collectives",
                f"rank {identity.label}: no NCCL kernels; kernels seen: {top}",
                (identity.rank,),
            )
        )
    return notes


def no_data_range(pairs: Sequence[tuple[Identity, Digest]]) -> list[Note]:
    """Say which NVTX names there are when none of them is data loading."""
    named = [(i, d) for i, d in pairs if d.info.top_nvtx]
    if not named or any(d.info.data_ranges for _, d in pairs):
        return []
    top = list(dict.fromkeys(name for _, d in named for name in d.info.top_nvtx))[:8]
    return [
        Note(
            "no_data_range",
            f"no NVTX range is known as data loading (choose with --data-range); the most frequent are: {', '.join(top)}",
        )
    ]


def unclassified_calls(pairs: Sequence[tuple[Identity, Digest]]) -> list[Note]:
    """Name the OS calls of unknown kind that time was spent in: it counts as host code."""
    names = sorted({name for _, d in pairs for name in d.info.unclassified_calls})
    if not names:
        return []
    ranks = tuple(i.rank for i, d in pairs if d.info.unclassified_calls)
    shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    return [Note("unclassified_calls", f"OS calls of unknown kind count as host code: {shown}", ranks)]


def not_compared(
    pairs: Sequence[tuple[Identity, Digest]], job: Job, matching: Matching, strangers: Sequence[int]
) -> list[int]:
    """Ranks that were captured but share no matched collective with anybody: nothing acquits them.

    Ranks of another run (`strangers`) count as well: in their place a rank of this job is missing.
    """
    met = {job.ranks[int(r)].identity.rank for c in matching.communicators for r in c.members}
    return sorted({i.rank for i, _ in pairs if i.rank not in met} | set(strangers)) if met else []


def apart_notes(apart: Sequence[int], pairs: Sequence[tuple[Identity, Digest]]) -> list[Note]:
    """Name the ranks that could not be compared with the rest."""
    if not apart:
        return []
    reports = ", ".join(i.claims.report for i, _ in pairs if i.rank in apart)
    return [
        Note(
            "not_compared",
            f"rank {', '.join(map(str, apart))} ({reports}) could not be compared: no collective matched with the other "
            "ranks (a report of another job, collectives hidden or lost, or no overlap of the windows)",
            tuple(apart),
        )
    ]


def lost_notes(job: Job, matching: Matching) -> list[Note]:
    """The profiler's own warnings, where counts diverge; complete captures carry the same words."""
    short = {int(r) for c in matching.communicators for r, n in zip(c.members, c.lost, strict=True) if n}
    short |= {r for c in matching.communicators for r in c.minority}
    out = []
    told = [job.ranks[r].identity for r in sorted(short) if job.ranks[r].digest.info.lost_events]
    if told:
        out.append(
            Note(
                "events_lost",
                f"rank {', '.join(i.label for i in told)}: collectives differ in number from the others', and the "
                "profiler says that events may be missing: possible event loss",
                tuple(i.rank for i in told),
            )
        )
    return out


def twin_notes(job: Job, island: Island, waited: Sequence[Waits], judgement: Judgement) -> list[Note]:
    """Check the verdict without any clock: who makes others wait has the shortest collectives itself."""
    notes = []
    for f in judgement.findings:
        if not is_loud(f):
            continue
        rows = [r for r in island.ranks if job.ranks[r].identity.rank in f.ranks]
        late = np.flatnonzero(island.included)[np.array(f.late_mask)]
        own, others = [], []
        for t, w in zip(island.timed, waited, strict=True):
            mine = np.isin(t.comm.members, rows)
            keep = np.isin(t.step, late)
            if mine.any() and not mine.all():
                own.append(w.clock_free[keep][:, mine].sum() / mine.sum())
                others.append(w.clock_free[keep][:, ~mine].sum() / (~mine).sum())
        if own and sum(own) >= sum(others):
            notes.append(
                Note(
                    "clock_suspect",
                    f"{'node ' + str(f.node) if f.kind == 'late_node' else f'rank {f.rank}'} arrives last on the "
                    "fitted clocks, but its collectives are not shorter than the others': the clocks are suspect",
                    f.ranks,
                )
            )
    return notes


def why_nothing(pairs: Sequence[tuple[Identity, Digest]], job: Job) -> tuple[str, str]:
    """Code and words of why no island of ranks could be formed."""
    if len(pairs) == 1:
        return "one_rank", (
            "only one rank was captured: one report per rank is needed. If several were expected, their names may "
            "have overwritten each other (nsys profile -o prof_%h_%q{SLURM_PROCID})"
        )
    if any(d.info.hidden_by_graphs and not d.info.nccl_kernels for _, d in pairs):
        return "collectives_in_graphs", (
            "the NCCL kernels are hidden inside CUDA graphs that were traced whole: capture with "
            "--cuda-graph-trace=node"
        )
    if not job.ranks and any(d.info.nccl_kernels for _, d in pairs):
        return "no_nxn_collectives", (
            "the NCCL kernels in these reports are point-to-point or rooted; only operations in which all members "
            "wait for the last (all-reduce, all-gather, reduce-scatter) tell who is late"
        )
    if not job.ranks:
        return "no_collectives", "no NCCL kernels in any report; capture with nsys profile -t cuda,nvtx,osrt"
    if len(job.ranks) == 1:
        return "one_rank", "only one rank has usable collectives: one report per rank is needed"
    return "nothing_matched", (
        "no all-reduce or other N x N collective could be matched across the ranks: capture overlapping windows, and "
        "export with --include-blobs=true"
    )
