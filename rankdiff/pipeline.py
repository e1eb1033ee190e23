"""The main job as one call: report files in, Comparison out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rankdiff.claims import Claims
from rankdiff.comparison import Comparison, compare_digests
from rankdiff.digest import Digest, DigestOptions, make_digests
from rankdiff.errors import RankdiffError, ReportError
from rankdiff.notes import Note
from rankdiff.reports.discover import NSYS_REP, Report, discover
from rankdiff.reports.identity import Identity, assign, claims, missing_ranks
from rankdiff.reports.names import natural_key

_MANY = 20  # ranks named in one note

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class CompareOptions:
    """What a user can set.

    Attributes
    ----------
    rank_regex : str or None
        Regular expression on the file name with the named groups ``rank`` and ``node``.
    digest : DigestOptions
    ranks : frozenset of int or None
        Compare these ranks only.
    skip_steps : int
        Steps to leave out at the beginning.
    strict : bool
        A report that cannot be used is an error, not a warning.
    on_problem : callable or None
        Called at once with the error of each report that is left out.
    on_note : callable or None
        Called at once with what the user should know while waiting: reports that are being exported.
    """

    rank_regex: str | None = None
    digest: DigestOptions = field(default_factory=DigestOptions)
    ranks: frozenset[int] | None = None
    skip_steps: int = 0
    strict: bool = False
    on_problem: Callable[[ReportError], None] | None = None
    on_note: Callable[[Note], None] | None = None

    def left_out(self, error: ReportError) -> ReportError:
        """Take note of a report that cannot be used, or raise with `strict`."""
        if self.strict:
            raise error
        if self.on_problem is not None:
            self.on_problem(error)
        return error


@dataclass(frozen=True)
class Outcome:
    """A comparison and what happened on the way to it."""

    comparison: Comparison
    problems: tuple[ReportError, ...]  # reports left out, one line each
    notes: tuple[Note, ...]  # warnings of finding and identifying the reports


@dataclass(frozen=True)
class Gathered:
    """Reports found and their GPU processes identified, before the heavy reading."""

    reports: tuple[Report, ...]
    identities: tuple[Identity, ...]  # sorted by rank
    problems: tuple[ReportError, ...]
    notes: tuple[Note, ...]


def gather(paths: Sequence[str], options: CompareOptions | None = None) -> Gathered:
    """Find the reports and say who is who.

    Raises
    ------
    IdentityError
        Two reports claim the same rank, or the regular expression is wrong.
    ReportError
        With `strict`, the first report that cannot be used.
    """
    options = options or CompareOptions()
    found = discover(paths)
    problems, claimed = [options.left_out(p) for p in found.problems], []
    for report in found.reports:
        if report.form == NSYS_REP and options.on_note is not None:
            message = f"{report.name}: exporting with nsys to a temporary place, which may take minutes"
            options.on_note(Note("exporting_with_nsys", message))
        try:
            claimed += claims(report, options.rank_regex, options.digest.comm_regex)
        except ReportError as error:
            problems.append(options.left_out(error))
    identities, notes = assign(claimed)
    return Gathered(found.reports, tuple(identities), tuple(problems), (*found.notes, *notes))


@dataclass(frozen=True)
class Readings:
    """The digests of a job's reports with their ranks."""

    identities: tuple[Identity, ...]
    digests: tuple[Digest, ...]  # in the order of `identities`
    missing: tuple[int, ...]  # ranks of the job without a report
    problems: tuple[ReportError, ...]
    notes: tuple[Note, ...]


def read(
    paths: Sequence[str], options: CompareOptions | None = None, progress: Progress | None = None
) -> Readings:
    """Find, identify and digest the reports of one job, one report in memory at a time.

    Raises
    ------
    RankdiffError
        As `compare`.
    """
    options = options or CompareOptions()
    gathered = gather(paths, options)
    problems = list(gathered.problems)
    wanted = [i for i in gathered.identities if options.ranks is None or i.rank in options.ranks]
    of_report: dict[str, list[Identity]] = {}
    for identity in wanted:
        of_report.setdefault(identity.claims.path, []).append(identity)
    digests: list[Digest] = []
    todo = [r for r in gathered.reports if r.path in of_report]
    for n, report in enumerate(todo):
        if progress is not None:
            progress(n, len(todo), report.name)
        try:
            digests += make_digests(report, [i.claims for i in of_report[report.path]], options.digest)
        except ReportError as error:
            problems.append(options.left_out(error))
    if progress is not None:
        progress(len(todo), len(todo), "")
    if not digests:
        if problems:
            raise _nothing_usable(problems, told=options.on_problem is not None)
        raise RankdiffError("none of the ranks asked for is in these reports", "Check --ranks")
    by_claims = {_key(i.claims): i for i in wanted}
    identities = [by_claims[_key(d.info.claims)] for d in digests]
    order = sorted(range(len(digests)), key=lambda n: identities[n].rank)
    # A rank whose report could not be read is as good as not captured: nothing acquits it.
    unread = {i.rank for i in wanted} - {i.rank for i in identities}
    missing = tuple(sorted({*missing_ranks(gathered.identities), *unread}))
    if options.ranks is not None:
        missing = tuple(r for r in missing if r in options.ranks)
    identities, digests = [identities[n] for n in order], [digests[n] for n in order]
    return Readings(
        identities=tuple(identities),
        digests=tuple(digests),
        missing=missing,
        problems=tuple(problems),
        notes=(*gathered.notes, *_reading_notes(identities, digests), *_version_notes(identities, digests)),
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
    comparison = compare_digests(found.digests, found.identities, found.missing, options.skip_steps)
    return Outcome(comparison, found.problems, found.notes)


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
