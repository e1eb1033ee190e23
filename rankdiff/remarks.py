"""What a reader should know besides the verdict: warnings about captures, counts and clocks."""

from __future__ import annotations

from collections.abc import Sequence

from rankdiff.digest import Digest
from rankdiff.job import Job
from rankdiff.matching import Communicator, Matching
from rankdiff.notes import Note, rank_words
from rankdiff.reports.identity import Identity


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
                f"rank {identity.label}: no NCCL kernels; kernels seen: {top} (name those that communicate "
                "with --comm-regex)",
                (identity.rank,),
            )
        )
    if info.background_loading:
        notes.append(
            Note(
                "background_loading",
                f"rank {identity.label}: data loading runs only in threads or processes that launch no GPU work: "
                "background loading, overlap with idle time is not proof of blocking",
                (identity.rank,),
            )
        )
    return notes


def no_data_range(pairs: Sequence[tuple[Identity, Digest]]) -> list[Note]:
    """Say which NVTX names there are when none of them is data loading."""
    named = [(i, d) for i, d in pairs if d.info.top_nvtx]
    if not named or any(d.info.data_ranges or d.info.background_loading for _, d in pairs):
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


def other_run_note(job: Job, strangers: Sequence[int]) -> Note:
    """Name the reports of another run."""
    names = ", ".join(job.ranks[r].identity.claims.report for r in strangers)
    return Note(
        "other_run",
        f"{names}: captured minutes apart from the others and sharing no communicator with them, so of another run; "
        "left out",
        tuple(job.ranks[r].identity.rank for r in strangers),
    )


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


def counts_notes(job: Job, matching: Matching) -> list[Note]:
    """Name the ranks whose collectives differ in number from the others', per communicator.

    The profiler's own warnings about lost events stand in complete captures as well: they count only for a rank
    that lacks what the others have.
    """
    out = []
    for c in matching.communicators:
        found: dict[tuple[str, int, bool], list[int]] = {}
        for r, missing, extra in zip(c.members.tolist(), c.missing.tolist(), c.extra.tolist(), strict=True):
            told = bool(job.ranks[r].digest.info.lost_events)
            parts = r in c.minority
            if missing:
                found.setdefault(("events_lost" if told else "counts_differ", -missing, parts), []).append(r)
            if extra:
                found.setdefault(("counts_differ", extra, parts), []).append(r)
        out += [_counts_note(job, c, *key, members) for key, members in found.items()]
    return out


def _counts_note(
    job: Job, c: Communicator, code: str, more: int, parts: bool, members: Sequence[int]
) -> Note:
    """One sentence on ranks that have so many collectives `more` than most others; `parts`: they are the first to."""
    ranks = tuple(job.ranks[r].identity.rank for r in members)
    n = abs(more)
    verb = ("has" if more > 0 else "lacks") if len(ranks) == 1 else ("have" if more > 0 else "lack")
    first = f", from operation {c.first_divergence} on" if parts else ""
    why = (
        ", and the profiler says that events may be missing there: possible event loss"
        if code == "events_lost"
        else ": events were lost, or the ranks issued other collectives"
    )
    return Note(
        code,
        f"{rank_words(ranks)} {verb} {n} collective{'s' * (n > 1)} that most others "
        f"{'lack' if more > 0 else 'have'} on communicator {c.id} ({c.members.size} ranks){first}{why}",
        ranks,
    )


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
    known = {op for _, d in pairs for op in d.collectives["op_class"].unique()}
    if not job.ranks and "unknown" in known:
        return "unknown_operations", (
            "the names of the NCCL kernels in these reports do not tell what they do, and NCCL's NVTX ranges are not "
            "there to tell it: capture with nsys profile -t cuda,nvtx,osrt"
        )
    if not job.ranks and known:
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
