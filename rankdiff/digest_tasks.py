"""What workers do with one report: a look at who is in it, and its digests."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rankdiff import __version__
from rankdiff.claims import Claims
from rankdiff.digest import Digest, DigestOptions, make_digests
from rankdiff.digest_cache import DigestCache
from rankdiff.digest_file import Provenance, read_digests, read_provenance, write_digests
from rankdiff.errors import RankdiffError, ReportError
from rankdiff.notes import Note
from rankdiff.reports.discover import DIGEST, Report
from rankdiff.reports.fingerprint import fingerprint
from rankdiff.reports.identity import claims
from rankdiff.reports.probe import compile_rank_regex, named
from rankdiff.reports.temporary import temporary_file

# Options that decide what a digest holds, by their names in `DigestOptions`.
OPTION_FLAGS = {"data_range": "--data-range", "step_range": "--step-range", "comm_regex": "--comm-regex"}


@dataclass(frozen=True)
class LookTask:
    """One report to be looked at."""

    report: Report
    rank_regex: str | None
    options: DigestOptions
    cache: DigestCache | None


@dataclass(frozen=True)
class Looked:
    """What a look at a report found: who is in it, and the digests if they need not be made."""

    claims: list[Claims]
    digests: list[Digest] | None
    fingerprint: str | None = None  # of the report that stored digests were made of
    made_with: DigestOptions | None = None  # the options that stored digests were made with


def look(task: LookTask) -> Looked | ReportError:
    """Say who is in a report; for workers, so what cannot be read is returned, not raised."""
    report, rank_regex, options, cache = task.report, task.rank_regex, task.options, task.cache
    try:
        if report.form == DIGEST:
            return _stored(report, rank_regex, options)
        digests = cache.find(report, options) if cache is not None else None
        if digests is None:
            return Looked(claims(report, rank_regex, options.comm_regex), None)
    except ReportError as error:
        return error
    pattern = compile_rank_regex(rank_regex) if rank_regex else None
    return Looked([named(d.info.claims, report.name, report.path, pattern) for d in digests], digests)


def _stored(report: Report, rank_regex: str | None, options: DigestOptions) -> Looked:
    digests, provenance = read_digests(report.path)
    _check_options(report, options, provenance)
    found = [d.info.claims for d in digests]
    if rank_regex:
        pattern = compile_rank_regex(rank_regex)
        found = [named(c, c.report, report.path, pattern) for c in found]
    else:
        found = [replace(c, path=report.path) for c in found]
    return Looked(found, digests, provenance.fingerprint, provenance.options)


def unusable(report: Report, options: DigestOptions) -> bool:
    """Whether a file of digests cannot be read, or was made with other options than those asked for now."""
    try:
        _check_options(report, options, read_provenance(report.path))
    except ReportError:
        return True
    return False


def _check_options(report: Report, asked: DigestOptions, made: Provenance) -> None:
    """Refuse a digest that was made with other names than those asked for now."""
    for name, flag in OPTION_FLAGS.items():
        value, had = getattr(asked, name), getattr(made.options, name)
        if value is not None and value != had:
            raise ReportError(
                f"{report.path}: a digest made {f'with {flag} {had!r}' if had else f'without {flag}'}, asked for {value!r}",
                f"Make it again: rankdiff digest {flag} ... REPORT -o DIR",
            )


@dataclass(frozen=True)
class DigestTask:
    """One report to be digested.

    Attributes
    ----------
    claims : tuple of Claims
        Its ranks.
    elsewhere : bool
        The digests are made in another process and go back as a file.
    folder : str or None
        Where to put that file; None: its content goes back.
    number : int
        Of the task; names its file in `folder`.
    """

    report: Report
    claims: tuple[Claims, ...]
    options: DigestOptions
    cache: DigestCache | None
    elsewhere: bool
    folder: str | None
    number: int


@dataclass(frozen=True)
class Digested:
    """What a task returns: the digests, or the path of the file that holds them, or its content."""

    made: tuple[Digest, ...] | str | bytes
    note: Note | None = None

    def digests(self) -> Sequence[Digest]:
        """The digests, where they are not still mere content.

        Raises
        ------
        RankdiffError
            The process that made them runs another version of rankdiff.
        """
        if isinstance(self.made, bytes):
            raise TypeError("the content of a file of digests must be put into a file first")
        if not isinstance(self.made, str):
            return self.made
        digests, provenance = read_digests(self.made)
        if provenance.rankdiff_version != __version__:
            raise RankdiffError(
                f"a worker has rankdiff {provenance.rankdiff_version}, this is {__version__}",
                "Install the same version where the workers run",
            )
        return digests


def digest_report(task: DigestTask) -> Digested | ReportError:
    """Digest one report; a task for workers, so what cannot be read is returned, not raised."""
    try:
        before = fingerprint(task.report) if task.cache is not None else ""
        digests = make_digests(task.report, task.claims, task.options)
    except ReportError as error:
        return error
    note = None
    # What was written to while it was read may be half of it.
    if task.cache is not None and fingerprint(task.report) == before:
        try:
            return Digested(task.cache.keep(task.report, task.options, digests, before))
        except RankdiffError as error:
            note = Note("cache_not_written", f"{error.what}; the next run reads {task.report.name} again")
    if not task.elsewhere:
        return Digested(tuple(digests), note)
    provenance = Provenance(before, task.options)
    if task.folder is None:
        content = io.BytesIO()
        write_digests(digests, provenance, content)
        return Digested(content.getvalue(), note)
    path = os.path.join(task.folder, f"{task.number}.parquet")
    with temporary_file(path) as file:
        write_digests(digests, provenance, file)
    return Digested(path, note)
