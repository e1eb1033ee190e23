"""The main job as one call: report files in, Comparison out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rankdiff.claims import Claims
from rankdiff.comparison import Comparison, compare_digests
from rankdiff.digest import Digest, DigestOptions, make_digests
from rankdiff.errors import RankdiffError, ReportError
from rankdiff.notes import Note
from rankdiff.reports.discover import Report, discover
from rankdiff.reports.identity import Identity, assign, claims, missing_ranks

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
    """

    rank_regex: str | None = None
    digest: DigestOptions = field(default_factory=DigestOptions)
    ranks: frozenset[int] | None = None
    skip_steps: int = 0
    strict: bool = False
    on_problem: Callable[[ReportError], None] | None = None

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
    missing = missing_ranks(gathered.identities)
    if options.ranks is not None:
        missing = tuple(r for r in missing if r in options.ranks)
    return Readings(
        identities=tuple(identities[n] for n in order),
        digests=tuple(digests[n] for n in order),
        missing=missing,
        problems=tuple(problems),
        notes=(*gathered.notes, *(note for n in order for note in digests[n].info.notes)),
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


def _key(c: Claims) -> tuple[str, int, int]:
    return c.path, c.pid, c.device


def _nothing_usable(problems: Sequence[ReportError], told: bool) -> RankdiffError:
    """One line: the reason itself, unless `on_problem` has given it already."""
    if told:
        return RankdiffError("no report can be used")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return RankdiffError(f"no report can be used{more}: {problems[0]}")
