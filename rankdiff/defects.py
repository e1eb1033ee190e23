"""What is wrong with the captures of a job: one sentence a kind, with the option that would cure it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rankdiff.cures import CURES
from rankdiff.digest import Digest
from rankdiff.notes import Note, rank_words
from rankdiff.quality import CALLS, KERNELS, OS_CALLS, RANGES, JobQuality, Pair, RankQuality
from rankdiff.units import duration, share

# A rank whose window starts later or ends earlier than the others' by this share of it is worth a line.
_WINDOW = 0.10
# Few kernels were launched before the window began; where more lack their launch, something else took it away.
_LAUNCHES = 0.05
# Ends that scatter by this factor more than those of the median rank, and by so much at least.
_SCATTER = 3.0
_SCATTER_NS = 50_000.0
_MOST_NAMES = 8

# Diagnostics that dropped events alone cause; the others stand in complete captures as well.
_DROPPED = frozenset({"buffer_full", "cuda_dropped", "events_dropped"})

TABLE_WORDS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "kernels",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "copies",
    "CUPTI_ACTIVITY_KIND_MEMSET": "sets",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "graph launches",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "CUDA calls",
    "NVTX_EVENTS": "NVTX events",
    "OSRT_API": "OS calls",
    "PROFILER_OVERHEAD": "times of the profiler itself",
}

_Test = Callable[[RankQuality, Digest], bool]


@dataclass(frozen=True)
class Defect:
    """One thing wrong with the captures.

    Attributes
    ----------
    code : str
        Stable identifier, snake case; that of the warning where there is one.
    message : str
        One sentence for people, ranks named.
    ranks : tuple of int
        The ranks it concerns; empty when it concerns the job.
    cure : str or None
        The option of ``nsys profile`` or ``nsys export`` that would cure it, or what else would.
    """

    code: str
    message: str
    ranks: tuple[int, ...] = ()
    cure: str | None = None


def defects(quality: JobQuality, pairs: Sequence[Pair], notes: Iterable[Note]) -> list[Defect]:
    """All that is wrong with some captures, the gravest first, nothing twice.

    Parameters
    ----------
    quality : JobQuality
    pairs : sequence of (Identity, Digest)
        All captured ranks.
    notes : iterable of Note
        Warnings of reading and comparing; those that say the same as a defect are left out.
    """
    noted = sorted(set(notes), key=lambda n: (n.code, n.ranks, n.message))
    survey = _Survey(quality, pairs)
    found = [
        Defect(code, message, tuple(ranks), CURES[code])
        for part in (_missing, _tables, _windows, _events, _clocks, _names)
        for code, ranks, message in part(survey)
    ]
    if any(n.code == "inferred_communicators" for n in noted):
        found = [d for d in found if d.code != "no_payloads"]  # the warning says what follows from it as well
    said = {d.code for d in found}
    merged: dict[tuple[str, str], set[int]] = {}
    for n in noted:
        if n.code not in said:
            merged.setdefault((n.code, n.message), set()).update(n.ranks)
    found += [Defect(code, text, tuple(sorted(r)), CURES.get(code)) for (code, text), r in merged.items()]
    order = {code: n for n, code in enumerate(CURES)}
    return sorted(found, key=lambda d: order.get(d.code, len(order)))


@dataclass(frozen=True)
class _Survey:
    """The captures while they are looked through."""

    quality: JobQuality
    pairs: Sequence[Pair]

    def where(self, test: _Test) -> list[int]:
        """Ranks for which a test holds."""
        return [q.rank for q, (_, d) in zip(self.quality.ranks, self.pairs, strict=True) if test(q, d)]

    def who(self, ranks: Iterable[int]) -> str:
        """Ranks in words."""
        return rank_words(list(ranks), len(self.pairs))


_Found = Iterator[tuple[str, Iterable[int], str]]


def _missing(s: _Survey) -> _Found:
    missing, captured = s.quality.missing, len(s.pairs)
    if missing:
        yield (
            "missing_ranks",
            missing,
            f"no report that can be used: {rank_words(missing)} of {captured + len(missing)}; whoever holds the others may be "
            "among them",
        )


def _tables(s: _Survey) -> _Found:
    for code, test, text in (
        (
            "no_kernels",
            lambda q, d: q.tables[KERNELS] is None and not d.info.hidden_by_graphs,
            "kernels not captured ({}): no collectives to compare",
        ),
        (
            "collectives_in_graphs",
            lambda q, d: d.info.hidden_by_graphs,
            "CUDA graphs were traced whole ({}): collectives inside them are not visible",
        ),
        (
            "events_dropped",
            lambda q, d: not _DROPPED.isdisjoint(q.lost_events or ()),
            "the profiler says that it dropped events ({})",
        ),
        (
            "no_cuda_calls",
            lambda q, d: q.tables[CALLS] is None,
            "CUDA calls not captured ({}): no launches, and no cause on the host's side",
        ),
        (
            "no_nvtx",
            lambda q, d: q.tables[RANGES] is None,
            "NVTX ranges not captured ({}): no named steps and no data-loading time",
        ),
        (
            "no_os_calls",
            lambda q, d: q.tables[OS_CALLS] is None,
            "OS calls not captured ({}): no system call to blame",
        ),
        (
            "no_payloads",
            lambda q, d: q.payloads is False,
            "no NCCL payloads ({}): communicators and sizes are unknown",
        ),
        (
            "no_steps",
            lambda q, d: d.info.step_source is None and q.tables[RANGES] is not None,
            "no step ranges ({}): steps are told by what repeats",
        ),
    ):
        ranks = s.where(test)
        if ranks:
            yield code, ranks, text.format(s.who(ranks))


def _names(s: _Survey) -> _Found:
    """Where the names that are looked for did not come up: with those that did."""
    silent = s.where(
        lambda q, d: bool(q.tables[KERNELS]) and not d.info.nccl_kernels and not d.info.hidden_by_graphs
    )
    if silent:
        seen = _most(s, silent, lambda d: d.info.top_kernels)
        yield "no_collectives", silent, f"no NCCL kernels ({s.who(silent)}); kernels seen: {seen}"
    unloaded = s.where(lambda q, d: q.tables[RANGES] is not None and not d.info.data_ranges)
    if unloaded:
        seen = _most(s, unloaded, lambda d: d.info.top_nvtx)
        text = f"no NVTX range is known as data loading ({s.who(unloaded)}); the most frequent: {seen}"
        yield "no_data_range", unloaded, text


def _most(s: _Survey, ranks: Sequence[int], names: Callable[[Digest], Iterable[str]]) -> str:
    """Most frequent names of some ranks."""
    these = set(ranks)
    found = dict.fromkeys(name for i, d in s.pairs if i.rank in these for name in names(d))
    return ", ".join(list(found)[:_MOST_NAMES]) or "none at all"


def _windows(s: _Survey) -> _Found:
    windows = [q.window_ns for q in s.quality.ranks if q.window_ns is not None]
    usual = float(np.median([end - start for start, end in windows])) if windows else 0.0
    for code, verb, by in (
        ("starts_late", "starts later", {q.rank: q.starts_late_ns for q in s.quality.ranks}),
        ("ends_early", "ends earlier", {q.rank: q.ends_early_ns for q in s.quality.ranks}),
    ):
        found = {rank: ns for rank, ns in by.items() if ns is not None and ns > _WINDOW * usual}
        if found:
            most = max(found.values())
            yield (
                code,
                found,
                f"the capture {verb} on {s.who(found)} than on the others, by {_up_to(found)}{duration(most)} "
                f"({share(most / usual)} of the usual window); only the common part is compared",
            )


def _events(s: _Survey) -> _Found:
    bad: dict[str, dict[int, int]] = {}
    for q in s.quality.ranks:
        for table, count in q.unusable_events.items():
            bad.setdefault(table, {})[q.rank] = count
    if bad:
        listed = "; ".join(
            f"{sum(counts.values())} {TABLE_WORDS.get(table, table)} ({s.who(counts)})"
            for table, counts in sorted(bad.items())
        )
        ranks = sorted({rank for counts in bad.values() for rank in counts})
        text = (
            f"left out for their times (no start, no end, the end before the start, or years off): {listed}"
        )
        yield "unusable_times", ranks, text
    opened = {q.rank: q.open_ranges for q in s.quality.ranks if q.open_ranges}
    if opened:
        count = sum(opened.values())
        text = (
            f"{count} NVTX range(s) without an end ({s.who(opened)}): taken to last to the end of the capture"
        )
        yield "open_ranges", opened, text
    cut = {
        q.rank: q.kernels_without_launch / q.kernels
        for q in s.quality.ranks
        if q.kernels_without_launch and q.kernels_without_launch > _LAUNCHES * q.kernels
    }
    if cut:
        text = (
            f"{_up_to(cut)}{share(max(cut.values()))} of the kernels on {s.who(cut)} have no launch in the export: their "
            "steps and causes are unknown"
        )
        yield "launches_missing", cut, text


def _clocks(s: _Survey) -> _Found:
    known = {q.rank: q.residual_ns for q in s.quality.ranks if q.residual_ns is not None}
    usual = float(np.median(list(known.values()))) if len(known) > 2 else float("inf")
    wide = {rank: ns for rank, ns in known.items() if ns > max(_SCATTER * usual, _SCATTER_NS)}
    if wide:
        text = (
            f"the ends of {s.who(wide)} scatter by {_up_to(wide)}{duration(max(wide.values()))} on the common clock, those "
            f"of the median rank by {duration(usual)}: lateness below that is not claimed of them"
        )
        yield "clock_residual", wide, text
    dateless = s.where(lambda q, d: d.info.session_start_utc_ns is None)
    if dateless:
        text = f"no session start in the export ({s.who(dateless)}): no UTC, and the clock rests on collectives alone"
        yield "no_session_start", dateless, text
    shifted = s.where(lambda q, d: d.info.user_shift_ns != 0)
    if shifted:
        yield "ts_shift", shifted, f"exported with --ts-shift ({s.who(shifted)}): taken out again"


def _up_to(found: Mapping[int, float]) -> str:
    return "up to " if len(set(found.values())) > 1 else ""
