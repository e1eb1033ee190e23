"""Report files to digests: found, identified, and digested by whoever does the reading."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rankdiff.claims import Claims
from rankdiff.digest import Digest, DigestOptions
from rankdiff.digest_cache import DigestCache
from rankdiff.digest_tasks import (
    OPTION_FLAGS,
    Digested,
    DigestTask,
    Looked,
    LookTask,
    digest_report,
    look,
    unusable,
)
from rankdiff.errors import ReportError
from rankdiff.notes import Note, counted, rank_words
from rankdiff.reports.discover import DIGEST, NSYS_REP, Discovery, Report, discover
from rankdiff.reports.fingerprint import fingerprint
from rankdiff.reports.identity import Identity, assign
from rankdiff.reports.temporary import temporary_file
from rankdiff.untrusted import shown
from rankdiff.workers import Progress, ThisProcess, Workers, run_all


@dataclass(frozen=True)
class ReadOptions:
    """How reports are read.

    Attributes
    ----------
    rank_regex : str or None
        Regular expression on the file name with the named groups ``rank`` and ``node``.
    digest : DigestOptions
    ranks : frozenset of int or None
        Read these ranks only.
    nodes : frozenset of str or None
        Read the ranks of these nodes only.
    strict : bool
        A report that cannot be used is an error, not a warning.
    cache : DigestCache or None
        Where digests are kept between runs.
    need_reports : bool
        The reports are read again later, so that digests will not do.
    on_problem : callable or None
        Called at once with the error of each report that is left out.
    on_note : callable or None
        Called at once with what the user should know while waiting: reports that are being exported.
    """

    rank_regex: str | None = None
    digest: DigestOptions = field(default_factory=DigestOptions)
    ranks: frozenset[int] | None = None
    nodes: frozenset[str] | None = None
    strict: bool = False
    cache: DigestCache | None = None
    need_reports: bool = False
    on_problem: Callable[[ReportError], None] | None = None
    on_note: Callable[[Note], None] | None = None

    def left_out(self, error: ReportError) -> ReportError:
        """Take note of a report that cannot be used, or raise with `strict`."""
        if self.strict:
            raise error
        if self.on_problem is not None:
            self.on_problem(error)
        return error

    def wanted(self, identity: Identity) -> bool:
        """Say whether a rank is one of those asked for."""
        return (self.ranks is None or identity.rank in self.ranks) and (
            self.nodes is None or identity.node in self.nodes
        )


@dataclass(frozen=True)
class Gathered:
    """Reports found and their GPU processes identified, before the heavy reading."""

    reports: tuple[Report, ...]
    identities: tuple[Identity, ...]  # sorted by rank
    problems: tuple[ReportError, ...]
    notes: tuple[Note, ...]
    ready: dict[str, list[Digest]]  # by path of the report: digests that need not be made


@dataclass(frozen=True)
class Made:
    """What came of reading the reports that are no digests yet."""

    digests: tuple[Digest, ...]
    problems: tuple[ReportError, ...]
    notes: tuple[Note, ...]


def find(paths: Sequence[str], options: ReadOptions) -> Discovery:
    """Find the reports; one whose digest beside it will not do is read itself."""
    return discover(paths, options.need_reports, lambda digest: unusable(digest, options.digest))


def gather(
    paths: Sequence[str], options: ReadOptions | None = None, workers: Workers | None = None
) -> Gathered:
    """Find the reports and say who is who; see `identify`."""
    options = options or ReadOptions()
    return identify(find(paths, options), options, workers or ThisProcess())


def identify(found: Discovery, options: ReadOptions, workers: Workers) -> Gathered:
    """Say who is who in the reports that were found.

    Raises
    ------
    IdentityError
        Two reports claim the same rank, or the regular expression is wrong.
    ReportError
        With `strict`, the first report that cannot be used.
    """
    problems = [options.left_out(p) for p in found.problems]
    looked: dict[str, Looked | ReportError] = {}
    tasks = [LookTask(report, options.rank_regex, options.digest, options.cache) for report in found.reports]

    def exporting(task: LookTask) -> None:
        if options.on_note is not None:
            message = f"{task.report.name}: exporting with nsys to a temporary place, which may take minutes"
            options.on_note(Note("exporting_with_nsys", message))

    for n, result in run_all(workers, look, tasks, exporting):
        looked[tasks[n].report.path] = result
    claimed: list[Claims] = []
    ready = {}
    again = _digested_as_well(found.reports, looked)
    for report in found.reports:
        if report.path in again:
            continue
        result = looked[report.path]
        if isinstance(result, ReportError):
            problems.append(options.left_out(result))
            continue
        claimed += result.claims
        if result.digests is not None:
            ready[report.path] = result.digests
    identities, notes = assign(claimed)
    wanted = [i for i in identities if options.wanted(i)]
    twice = counted([*again.values()], "reports and digests are there twice")
    told = [*found.notes, *twice, *notes, *_option_notes(wanted, looked, options.digest)]
    return Gathered(found.reports, tuple(identities), tuple(problems), tuple(told), ready)


def _digested_as_well(
    reports: Sequence[Report], looked: Mapping[str, Looked | ReportError]
) -> dict[str, Note]:
    """Reports, by path, whose digests are given too, wherever they lie; and digests that another one equals."""
    digests: dict[str, str] = {}
    alike: dict[tuple[str, DigestOptions], str] = {}
    out = {}
    for report in reports:
        found = looked[report.path]
        if isinstance(found, ReportError) or found.fingerprint is None or found.made_with is None:
            continue
        digests.setdefault(found.fingerprint, report.path)
        first = alike.setdefault((found.fingerprint, found.made_with), report.path)
        if first != report.path:
            # A folder may be the cache of one run and hold what another has digested.
            message = f"{report.name} is a digest of the same report as {_name(first)}, which is read"
            out[report.path] = Note("already_digested", message)
    for report in reports if digests else ():
        if report.form != DIGEST and (digest := digests.get(fingerprint(report))) is not None:
            message = f"{report.name} is the same report as {_name(digest)}, which is read"
            out[report.path] = Note("already_digested", message)
    return out


def _name(path: str) -> str:
    """Results are passed on: they name files, and no folders."""
    return shown(os.path.basename(os.path.abspath(path)))


def _option_notes(
    wanted: Sequence[Identity], looked: Mapping[str, Looked | ReportError], asked: DigestOptions
) -> list[Note]:
    """Say where digests were made with different options: one rank's data loading is another's host code then."""
    made = {}
    for identity in wanted:
        found = looked[identity.claims.path]
        made[identity.rank] = (found.made_with if isinstance(found, Looked) else None) or asked
    notes = []
    for name, flag in OPTION_FLAGS.items():
        ranks: dict[str | None, list[int]] = {}
        for rank, options in made.items():
            ranks.setdefault(getattr(options, name), []).append(rank)
        if len(ranks) > 1:
            told = [
                f"{f'with {flag} {value!r}' if value else f'without {flag}'} of {rank_words(found)}"
                for value, found in ranks.items()
            ]
            message = f"digests were made with different options, so ranks cannot be held against each other: {'; '.join(told)}"
            notes.append(Note("mixed_options", message, tuple(made)))
    return notes


def make(
    gathered: Gathered, options: ReadOptions, workers: Workers, folder: str | None, progress: Progress | None
) -> Made:
    """Digest the reports of the ranks that are wanted.

    Parameters
    ----------
    folder : str or None
        For digests from other processes; None where `workers` has none.
    """
    of_report: dict[str, list[Claims]] = {}
    wanted: dict[str, dict[tuple[int, int], Claims]] = {}
    for identity in gathered.identities:
        path = identity.claims.path
        of_report.setdefault(path, []).append(identity.claims)
        if options.wanted(identity):
            wanted.setdefault(path, {})[_unit(identity.claims)] = identity.claims
    done = {path: _chosen(gathered.ready[path], wanted[path]) for path in wanted if path in gathered.ready}
    todo = [r for r in gathered.reports if r.path in wanted and r.path not in done]
    tasks = [
        DigestTask(
            report,
            # Whichever ranks are wanted: what is counted of a report is the same then, and a cache holds all of it.
            tuple(of_report[report.path]),
            options.digest,
            options.cache,
            workers.elsewhere,
            folder if workers.shares_disk else None,
            n,
        )
        for n, report in enumerate(todo)
    ]
    results: dict[str, Digested | ReportError] = {}
    for task, result in _results(tasks, workers, progress):
        if isinstance(result, Digested) and isinstance(result.made, bytes):
            # A thousand of them do not fit into memory.
            path = os.path.join(folder or "", f"{task.number}.parquet")
            with temporary_file(path) as file:
                file.write(result.made)
            result = replace(result, made=path)
        results[task.report.path] = result
    problems, notes = [], []
    for report in todo:
        result = results[report.path]
        if isinstance(result, ReportError):
            problems.append(options.left_out(result))
            continue
        notes += [result.note] if result.note is not None else []
        done[report.path] = _chosen(result.digests(), wanted[report.path])
    digests = tuple(d for r in gathered.reports for d in done.get(r.path, ()))
    return Made(digests, tuple(problems), tuple(notes))


def _results(
    tasks: Sequence[DigestTask], workers: Workers, progress: Progress | None
) -> Iterator[tuple[DigestTask, Digested | ReportError]]:
    """Results as they come."""
    # In the order of `run_all`, and nothing after the last.
    following = [t.report.name for t in sorted(tasks, key=lambda t: t.report.form == NSYS_REP)] + [""]
    if progress is not None and tasks:
        progress(0, len(tasks), following[0])
    for done, (n, result) in enumerate(run_all(workers, digest_report, tasks), 1):
        yield tasks[n], result
        if progress is not None:
            progress(done, len(tasks), following[done])


def _chosen(digests: Iterable[Digest], wanted: Mapping[tuple[int, int], Claims]) -> list[Digest]:
    """Those digests of a report that are wanted, with their claims as they are now."""
    found = {_unit(d.info.claims): d for d in digests}
    return [
        found[unit].with_info(replace(found[unit].info, claims=claim))
        for unit, claim in wanted.items()
        if unit in found
    ]


def _unit(claim: Claims) -> tuple[int, int]:
    """What tells the GPU processes of a report apart."""
    return claim.pid, claim.device
