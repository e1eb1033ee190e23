"""The main job as one call: report files in, Comparison out."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from rankdiff.claims import Claims
from rankdiff.clipping import clip
from rankdiff.comparison import Comparison, compare_digests
from rankdiff.digest import Digest
from rankdiff.errors import RankdiffError, ReportError
from rankdiff.gathering import ReadOptions, find, identify, make
from rankdiff.notes import Note, rank_words
from rankdiff.reports.discover import DIGEST, NSYS_REP, Report
from rankdiff.reports.engine import usable_cpus
from rankdiff.reports.identity import Identity, missing_ranks
from rankdiff.reports.names import natural_key
from rankdiff.reports.temporary import private_folder
from rankdiff.untrusted import shown
from rankdiff.workers import Progress, Workers, local_workers

_MANY = 20  # ranks named in one note


@dataclass(frozen=True)
class CompareOptions(ReadOptions):
    """What a user can set.

    Attributes
    ----------
    skip_steps : int
        Steps to leave out at the beginning.
    steps : tuple of (int, int) or None
        First and last step to compare, by the numbers in the names of their ranges.
    jobs : int or None
        Reports read at the same time, each by a process of its own; None: as many as is worth it.
    dask : str or None
        Address of the scheduler of a Dask cluster that reads the reports, or ``local``.
    """

    skip_steps: int = 0
    steps: tuple[int, int] | None = None
    jobs: int | None = 1
    dask: str | None = None


@dataclass(frozen=True)
class Outcome:
    """A comparison and what happened on the way to it."""

    comparison: Comparison
    problems: tuple[ReportError, ...]  # reports left out, one line each
    notes: tuple[Note, ...]  # warnings of finding and identifying the reports
    absent: tuple[str, ...] = ()  # ranks and nodes that were asked for and have no report, in words


@dataclass(frozen=True)
class Readings:
    """The digests of a job's reports with their ranks."""

    identities: tuple[Identity, ...]
    digests: tuple[Digest, ...]  # in the order of `identities`
    missing: tuple[int, ...]  # ranks of the job without a report
    problems: tuple[ReportError, ...]
    notes: tuple[Note, ...]
    absent: tuple[str, ...]  # ranks and nodes that were asked for and have no report, in words


def read(
    paths: Sequence[str], options: CompareOptions | None = None, progress: Progress | None = None
) -> Readings:
    """Find, identify and digest the reports of one job, `jobs` of them in memory at a time.

    Raises
    ------
    RankdiffError
        As `compare`.
    """
    options = options or CompareOptions()
    with ExitStack() as stack:
        found = find(paths, options)
        workers = stack.enter_context(_workers(found.reports, options))
        gathered = identify(found, options, workers)
        folder = None
        if workers.elsewhere:
            folder = private_folder()
            atexit.register(shutil.rmtree, folder, ignore_errors=True)  # digests are read from it to the end
        made = make(gathered, options, workers, folder, progress)
    digests, problems = list(made.digests), [*gathered.problems, *made.problems]
    wanted = [i for i in gathered.identities if options.wanted(i)]
    if not digests:
        if problems:
            raise _nothing_usable(problems, told=options.on_problem is not None)
        there = (
            f"they hold {rank_words([i.rank for i in gathered.identities])} on {_nodes(gathered.identities)}"
        )
        raise RankdiffError(
            f"none of the ranks asked for is in these reports: {there}", "Check --ranks and --nodes"
        )
    by_claims = {_key(i.claims): i for i in wanted}
    identities = [by_claims[_key(d.info.claims)] for d in digests]
    order = sorted(range(len(digests)), key=lambda n: identities[n].rank)
    # A rank whose report could not be read is as good as not captured: nothing acquits it.
    unread = {i.rank for i in wanted} - {i.rank for i in identities}
    missing = tuple(sorted({*missing_ranks(gathered.identities), *unread}))
    if options.ranks is not None:
        missing = tuple(r for r in missing if r in options.ranks)
    if options.nodes is not None:
        # Of a rank that is not there nobody knows the node.
        missing = tuple(sorted(unread))
    identities, digests = [identities[n] for n in order], [digests[n] for n in order]
    absent = _absent(gathered.identities, options)
    return Readings(
        identities=tuple(identities),
        digests=tuple(digests),
        missing=missing,
        problems=tuple(problems),
        notes=(
            *gathered.notes,
            *made.notes,
            *_reading_notes(identities, digests),
            *_version_notes(identities, digests),
            *(Note("not_found", f"{what} asked for, but in none of the reports") for what in absent),
        ),
        absent=absent,
    )


def compare(
    paths: Sequence[str], options: CompareOptions | None = None, progress: Progress | None = None
) -> Outcome:
    """Compare the ranks of one job.

    Parameters
    ----------
    paths : sequence of str
        One export per rank, or per node with several ranks in it; the order does not matter.
    options : CompareOptions, optional
    progress : callable, optional
        Called with (reports done, reports in all, name of the next one).

    Returns
    -------
    Outcome

    Raises
    ------
    RankdiffError
        No report can be used, two claim the same rank, or `strict` and one cannot be used.
    """
    options = options or CompareOptions()
    found = read(paths, options, progress)
    digests, notes = found.digests, found.notes
    if options.steps is not None:
        first, last = options.steps
        digests = tuple(clip(digests, first, last))
        message = (
            f"compared are steps {first} to {last}; idle time, its causes and the counts of a report are still those of "
            "the whole report"
        )
        notes = (*notes, Note("steps_only", message))
    comparison = compare_digests(digests, found.identities, found.missing, options.skip_steps)
    return Outcome(comparison, found.problems, notes, found.absent)


def _absent(there: Sequence[Identity], options: CompareOptions) -> tuple[str, ...]:
    """Ranks and nodes that were asked for and are in no report, in words."""
    ranks = (options.ranks or frozenset()) - {i.rank for i in there}
    nodes = (options.nodes or frozenset()) - {i.node for i in there}
    return (*([rank_words(sorted(ranks))] if ranks else []), *(f"node {shown(n)}" for n in sorted(nodes)))


def _nodes(identities: Sequence[Identity]) -> str:
    nodes = list(dict.fromkeys(i.node for i in identities))
    return ", ".join(nodes[:_MANY]) + (", ..." if len(nodes) > _MANY else "")


def _workers(reports: Sequence[Report], options: CompareOptions) -> Workers:
    todo = [r for r in reports if r.form not in (DIGEST, NSYS_REP)]
    if options.dask is not None:
        from rankdiff.dask_workers import DaskWorkers  # an optional dependency

        # Never more processes than reports, however many are asked for.
        return DaskWorkers(
            options.dask, max(1, min(options.jobs or usable_cpus(), len(todo))), options.on_note
        )
    return local_workers(options.jobs, todo)


def _reading_notes(identities: Sequence[Identity], digests: Sequence[Digest]) -> list[Note]:
    """What had to be done to read the reports, once each, with the ranks that it concerns."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for identity, digest in zip(identities, digests, strict=True):
        for note in dict.fromkeys(digest.info.notes):
            ranks.setdefault((note.code, note.message), []).append(identity.rank)
    return [Note(code, message, tuple(found)) for (code, message), found in ranks.items()]


def _version_notes(identities: Sequence[Identity], digests: Sequence[Digest]) -> list[Note]:
    """Say where exports are of different versions, or do not tell theirs."""
    ranks: dict[str | None, list[int]] = {}
    for identity, digest in zip(identities, digests, strict=True):
        ranks.setdefault(digest.info.schema_version, []).append(identity.rank)
    unknown = ranks.pop(None, [])
    notes = []
    if len(ranks) > 1:
        told = "; ".join(
            f"{version} in rank {_listed(ranks[version])}" for version in sorted(ranks, key=_order)
        )
        message = f"the exports have different schema versions: {told}"
        notes.append(
            Note("mixed_versions", message, tuple(sorted(r for found in ranks.values() for r in found)))
        )
    if unknown:
        message = (
            f"rank {_listed(unknown)}: the export does not tell its version (a version of Nsight Systems before "
            "2022, or --tables left META_DATA_EXPORT out); its tables are taken by their columns"
        )
        notes.append(Note("no_export_metadata", message, tuple(unknown)))
    return notes


def _order(version: str | None) -> tuple[tuple[int, int, str], ...]:
    return natural_key(version or "")


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:_MANY])) + (", ..." if len(ranks) > _MANY else "")


def _key(c: Claims) -> tuple[str, int, int]:
    return c.path, c.pid, c.device


def _nothing_usable(problems: Sequence[ReportError], told: bool) -> RankdiffError:
    """One line: the reason itself, unless `on_problem` has given it already."""
    if told:
        return RankdiffError("no report can be used")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return RankdiffError(f"no report can be used{more}: {problems[0]}")
