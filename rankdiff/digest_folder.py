"""A folder of digests that many tasks may fill at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rankdiff import __version__
from rankdiff.digest import DigestOptions, make_digests
from rankdiff.digest_cache import write_whole
from rankdiff.digest_file import ENDING, Provenance, read_provenance
from rankdiff.errors import RankdiffError, ReportError
from rankdiff.notes import Note
from rankdiff.reports.discover import NSYS_REP, Report, discover
from rankdiff.reports.fingerprint import fingerprint
from rankdiff.reports.identity import claims
from rankdiff.reports.names import report_stem
from rankdiff.reports.probe import compile_rank_regex
from rankdiff.workers import Progress, local_workers, run_all


@dataclass(frozen=True)
class Done:
    """What came of digesting reports into a folder; paths of digests."""

    written: tuple[str, ...]
    unchanged: tuple[str, ...]  # were there, of the same reports
    problems: tuple[RankdiffError, ...]


@dataclass(frozen=True)
class _Task:
    report: Report
    path: str
    rank_regex: str | None
    options: DigestOptions
    force: bool


def write_folder(
    paths: Sequence[str],
    folder: str,
    options: DigestOptions,
    *,
    rank_regex: str | None = None,
    jobs: int | None = 1,
    strict: bool = False,
    force: bool = False,
    progress: Progress | None = None,
    on_note: Callable[[Note], None] | None = None,
) -> Done:
    """Digest reports into a folder, a file for each.

    Parameters
    ----------
    paths : sequence of str
        Reports, or folders of reports.
    folder : str
        Made if need be. The file of a report has its name and the ending ``.digest.parquet``.
    options : DigestOptions
    rank_regex : str, optional
        As for `reports.identity.claims`.
    jobs : int or None
        As for `workers.local_workers`.
    strict : bool
        The first report that cannot be digested ends it.
    force : bool
        Replace the digest of another report of the same name.

    Raises
    ------
    RankdiffError
        The folder cannot be made, or `strict`.
    """
    if rank_regex:
        compile_rank_regex(rank_regex)
    found = discover(paths, need_reports=True)
    problems: list[RankdiffError] = list(found.problems)
    if strict and problems:
        raise problems[0]
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise RankdiffError(f"{folder}: cannot be made ({error.strerror})", "Choose another folder") from None
    tasks = _tasks(found.reports, folder, rank_regex, options, force, problems)
    if strict and problems:
        raise problems[0]
    written, unchanged = [], []
    failed: dict[str, RankdiffError] = {}
    if on_note is not None:
        exported = sum(t.report.form == NSYS_REP and not _done(t) for t in tasks)
        message = (
            f"{exported} of the reports are exported with nsys to a temporary place, which may take minutes"
        )
        if exported:
            on_note(Note("exporting_with_nsys", message))
    with local_workers(jobs, [t.report for t in tasks if t.report.form != NSYS_REP]) as workers:
        for count, (n, result) in enumerate(run_all(workers, _digest, tasks), 1):
            if progress is not None:
                progress(count, len(tasks), tasks[n].report.name)
            if isinstance(result, RankdiffError):
                if strict:
                    raise result
                failed[tasks[n].path] = result
            elif result:
                written.append(tasks[n].path)
            else:
                unchanged.append(tasks[n].path)
    # In the order of the reports, whoever was done first.
    problems += [failed[t.path] for t in tasks if t.path in failed]
    return Done(tuple(written), tuple(unchanged), tuple(problems))


def _tasks(
    reports: Sequence[Report],
    folder: str,
    rank_regex: str | None,
    options: DigestOptions,
    force: bool,
    problems: list[RankdiffError],
) -> list[_Task]:
    """One for each report; two of one name would be one file."""
    by_path: dict[str, _Task] = {}
    for report in reports:
        path = os.path.join(folder, report_stem(os.path.basename(os.path.abspath(report.path))) + ENDING)
        if path in by_path:
            other = by_path[path].report.path
            problems.append(
                RankdiffError(
                    f"{report.path}: the same name as {other}, and so the same digest {os.path.basename(path)}",
                    "Digest one of them into another folder; compare takes several",
                )
            )
        else:
            by_path[path] = _Task(report, path, rank_regex, options, force)
    return list(by_path.values())


def _digest(task: _Task) -> bool | RankdiffError:
    """Write a digest and say whether that was necessary; for workers, so errors are returned."""
    try:
        before = fingerprint(task.report)
        state = _there(task, before)
        if state == "same":
            return False
        if state == "other" and not task.force:
            raise _taken(task)
        found = claims(task.report, task.rank_regex, task.options.comm_regex)
        digests = make_digests(task.report, found, task.options)
        if fingerprint(task.report) != before:
            # Half of it may be old. A digest that is younger than its report would be taken for all of it.
            raise ReportError(
                f"{task.report.path}: changed while it was read; is it still being written?",
                "Digest it again when it is complete",
            )
        provenance = Provenance(before, task.options)
        if not write_whole(digests, provenance, task.path, replace=state != "none" or task.force):
            # Somebody else was faster; with the same report that is as good.
            if _there(task, before) != "same":
                raise _taken(task)
            return False
    except RankdiffError as error:
        return error
    return True


def _done(task: _Task) -> bool:
    """Whether a digest is there already."""
    try:
        return _there(task, fingerprint(task.report)) == "same"
    except ReportError:
        return False  # which the task will say


def _there(task: _Task, print_: str) -> str:
    """What stands where the digest is to be: none, same, other, or old or damaged, which are replaced."""
    if not os.path.lexists(task.path):
        return "none"
    try:
        made = read_provenance(task.path)
    except ReportError:
        return "damaged" if _cut_short(task.path) else "other"
    if (made.fingerprint, made.options) != (print_, task.options):
        return "other"
    return "same" if made.rankdiff_version == __version__ else "old"


def _cut_short(path: str) -> bool:
    """Whether a file that is no whole digest may be the beginning of one: empty, or without its end."""
    try:
        with open(path, "rb") as file:
            head = file.read(4)
            file.seek(-min(4, file.seek(0, os.SEEK_END)), os.SEEK_END)
            return not head or (head == b"PAR1" and file.read(4) != b"PAR1")
    except OSError:
        return False


def _taken(task: _Task) -> RankdiffError:
    return RankdiffError(
        f"{task.path}: holds something else, as the digest of another report, of another state of {task.report.name}, "
        "or with other options",
        "Choose another folder, or --force to replace it",
    )
