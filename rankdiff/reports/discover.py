"""Paths to reports: what can be read, and for everything else why not, in one line each."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rankdiff.errors import ReportError
from rankdiff.notes import Note, counted
from rankdiff.reports.names import natural_key, report_stem
from rankdiff.reports.nsys_export import not_exported, nsys_program
from rankdiff.untrusted import argument, shown

SQLITE, PARQUET, ARROW, NSYS_REP, DIGEST = "sqlite", "parquet", "arrow", "nsys-rep", "digest"
# Of several forms of one report the first is read: the others say the same.
FORMS = (DIGEST, SQLITE, PARQUET, ARROW, NSYS_REP)
ENDINGS = {PARQUET: (".parquet",), ARROW: (".arrow", ".arrows")}
_TABLE_ENDINGS = frozenset(ending for endings in ENDINGS.values() for ending in endings)

_EXPORT = "Export it: nsys export --type sqlite --include-blobs=true {}"
_FOLDERS = {PARQUET: "_pqtdir", ARROW: "_arwdir"}
# What is a report among the files of a folder that is given as a whole.
_IN_FOLDER = re.compile(
    r"[^.].*(?:\.sqlite3?|\.nsys-rep|\.qdrep|_(?:pqt|arw)dir|\.digest\.parquet)", re.IGNORECASE | re.DOTALL
)
# A folder of another name is an export if it has a table that every export may have.
_TABLE = re.compile(r"StringIds|NVTX_EVENTS|OSRT_API|CUPTI_ACTIVITY_KIND_\w+|TARGET_INFO_\w+|META_DATA_\w+")


@dataclass(frozen=True)
class Report:
    """One report: an export, or what `nsys` can export.

    Attributes
    ----------
    path : str
        As the user gave it.
    name : str
        File name without folders: what messages and results show.
    size_bytes : int
        Of the file, or of the files in the folder.
    form : str
        One of FORMS.
    changed_ns : int
        When it, or the last of its files, was written; 0: not known.
    """

    path: str
    name: str
    size_bytes: int
    form: str = SQLITE
    changed_ns: int = 0

    def __post_init__(self) -> None:
        """Make the name fit to be shown; it may hold any byte but a slash."""
        object.__setattr__(self, "name", shown(self.name))


@dataclass(frozen=True)
class Discovery:
    """What the paths came to.

    Attributes
    ----------
    reports : tuple of Report
        In natural order of their names, whatever the order of the arguments.
    problems : tuple of ReportError
        One for each path that is not a report, in the same order.
    notes : tuple of Note
        Files that were given twice, and reports given in several forms.
    """

    reports: tuple[Report, ...]
    problems: tuple[ReportError, ...]
    notes: tuple[Note, ...]


def discover(
    paths: Iterable[str | os.PathLike[str]],
    need_reports: bool = False,
    unusable: Callable[[Report], bool] | None = None,
) -> Discovery:
    """Sort out what each path is.

    Parameters
    ----------
    paths : iterable of str or path
        Files and folders of files as given on the command line.
    need_reports : bool
        Digests will not do: there are things that they do not hold.
    unusable : callable, optional
        Asked about a digest that lies beside its report: whether the report must be read instead.

    Returns
    -------
    Discovery
        Nothing is raised: one bad path must not stop the others.
    """
    reports: list[Report] = []
    problems: dict[str, ReportError] = {}
    notes: list[Note] = []
    seen: dict[tuple[int, int], str] = {}
    given = {each for path in paths for each in _expanded(os.fspath(path))}
    ordered = sorted(given, key=lambda text: (natural_key(os.path.basename(text)), len(text), text))
    for path in ordered:
        try:
            report, file = _look(path)
        except ReportError as error:
            problems[path] = error
            continue
        if file in seen:
            message = f"{report.name} is the same file as {seen[file]}; counted once"
            notes.append(Note("same_file", message))
            continue
        seen[file] = report.name
        reports.append(report)
    reports = _one_form_each(reports, notes, need_reports, unusable)
    if need_reports:
        problems |= {report.path: _not_in_digests(report) for report in reports if report.form == DIGEST}
        reports = [report for report in reports if report.form != DIGEST]
    if nsys_program() is None:
        problems |= {report.path: not_exported(report.path) for report in reports if report.form == NSYS_REP}
        reports = [report for report in reports if report.form != NSYS_REP]
    told = tuple(problems[path] for path in ordered if path in problems)
    return Discovery(tuple(reports), told, tuple(notes))


def _expanded(path: str) -> list[str]:
    """The reports in a folder; a path that is something else as it is."""
    if not os.path.isdir(path):
        return [path]
    try:
        names = os.listdir(path)
    except OSError:
        return [path]  # `_look` says why it cannot be read
    if os.path.basename(os.path.abspath(path)).endswith(tuple(_FOLDERS.values())) or any(
        map(_is_table, names)
    ):
        return [path]  # itself an export
    return [os.path.join(path, name) for name in names if _IN_FOLDER.fullmatch(name)] or [path]


def _is_table(file: str) -> bool:
    stem, ending = os.path.splitext(file)
    return ending in _TABLE_ENDINGS and _TABLE.fullmatch(stem) is not None


def _not_in_digests(report: Report) -> ReportError:
    return ReportError(
        f"{report.path}: a digest, which does not hold the single events that this command shows",
        "Give the report that it was made of",
    )


def _one_form_each(
    reports: list[Report],
    notes: list[Note],
    need_reports: bool,
    unusable: Callable[[Report], bool] | None,
) -> list[Report]:
    """Of each report the form that is read best; a digest unless the report has been written since, or it is unusable."""
    best: dict[tuple[str, str], Report] = {}
    digests = {_report_key(r.path): r for r in reports if r.form == DIGEST}
    unfit = {
        key
        for r in reports
        if r.form != DIGEST
        and (key := _report_key(r.path)) in digests
        and (
            need_reports
            or r.changed_ns > digests[key].changed_ns
            or (unusable is not None and unusable(digests[key]))
        )
    }
    for report in sorted(reports, key=lambda each: FORMS.index(each.form)):
        if report.form != DIGEST or _report_key(report.path) not in unfit:
            best.setdefault(_report_key(report.path), report)
    kept, twice = [], []
    for report in reports:
        used = best[_report_key(report.path)]
        if used.form == report.form:
            kept.append(report)
        else:
            message = f"{report.name} is the same report as {used.name}, which is read"
            twice.append(Note("already_exported", message))
    notes += counted(twice, "reports are given in several forms")
    return kept


def _report_key(path: str) -> tuple[str, str]:
    """Folder and name of a report, without its form."""
    folder, name = os.path.split(os.path.abspath(path))
    return folder, report_stem(name)


def _look(path: str) -> tuple[Report, tuple[int, int]]:
    """Return the report that a path is, with device and number of its file.

    Raises
    ------
    ReportError
        With what the path is instead.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise ReportError(f"{path}: a link to a file that does not exist") from None
        raise ReportError(
            f"{path}: no such file", "Check the path; quote patterns only if the shell shall not expand them"
        ) from None
    except (OSError, ValueError) as error:
        raise ReportError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if stat.S_ISDIR(found.st_mode):
        report = _folder(path)
    elif stat.S_ISREG(found.st_mode):
        form = _file_form(path, found.st_size)
        report = Report(path, os.path.basename(path), found.st_size, form, found.st_mtime_ns)
    else:
        raise ReportError(f"{path}: not a regular file")
    return report, (found.st_dev, found.st_ino)


def _folder(path: str) -> Report:
    """Return the export that a folder is."""
    name = os.path.basename(os.path.abspath(path))
    try:
        entries = list(os.scandir(path))
        files = {entry.name: entry.stat() for entry in entries if entry.is_file()}
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror})", "Check its permissions") from error
    for form, endings in ENDINGS.items():
        mine = {file: state for file, state in files.items() if file.endswith(endings)}
        known = any(_TABLE.fullmatch(os.path.splitext(file)[0]) for file in mine)
        if known or (mine and name.endswith(_FOLDERS[form])):
            size, changed = sum(s.st_size for s in mine.values()), max(s.st_mtime_ns for s in mine.values())
            return Report(path, name, size, form, changed)
    if name.endswith(tuple(_FOLDERS.values())):
        raise ReportError(
            f"{path}: no tables in it, expected files like StringIds.parquet",
            "The export or the copy failed; export it again: nsys export --type parquetdir "
            "--include-blobs=true REPORT.nsys-rep",
        )
    raise ReportError(
        f"{path}: a directory without a report in it (*.sqlite, *_pqtdir, *.nsys-rep, *.digest.parquet)",
        f"Give the files themselves: {argument(path.rstrip('/'))}/FILE",
    )


def _file_form(path: str, size: int) -> str:
    """Return the form of a report that a file is."""
    if size == 0:
        raise ReportError(
            f"{path}: empty (0 bytes)", "The export or the copy failed; " + _EXPORT.format("REPORT.nsys-rep")
        )
    try:
        with open(path, "rb") as file:
            head = file.read(16)
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror})", "Check its permissions") from error
    if head.startswith(b"SQLite format 3\x00"):
        return SQLITE
    if path.endswith((".nsys-rep", ".qdrep")):
        return NSYS_REP
    if head.startswith(b"\x1f\x8b"):
        raise ReportError(f"{path}: compressed with gzip", f"Unpack it first: gunzip -k {argument(path)}")
    if head.startswith(b"PAR1"):
        return DIGEST  # or a single table of an export, which only its reader can tell
    raise ReportError(
        f"{path}: expected an SQLite export, found {_kind(head)}", _EXPORT.format("REPORT.nsys-rep")
    )


def _kind(head: bytes) -> str:
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return "a file compressed with zstd"
    if head.startswith(b"PK\x03\x04"):
        return "a zip archive"
    return "another kind of file"
