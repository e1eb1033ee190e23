"""Paths to reports: what can be read, and for everything else why not, in one line each."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from rankdiff.errors import ReportError
from rankdiff.notes import Note
from rankdiff.reports.names import natural_key

_EXPORT = "Export it: nsys export --type sqlite --include-blobs=true {}"


@dataclass(frozen=True)
class Report:
    """One export file.

    Attributes
    ----------
    path : str
        As the user gave it.
    name : str
        File name without folders: what messages and results show.
    size_bytes : int
    """

    path: str
    name: str
    size_bytes: int


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
        Files that were given twice.
    """

    reports: tuple[Report, ...]
    problems: tuple[ReportError, ...]
    notes: tuple[Note, ...]


def discover(paths: Iterable[str | os.PathLike[str]]) -> Discovery:
    """Sort out what each path is.

    Parameters
    ----------
    paths : iterable of str or path
        Files as given on the command line.

    Returns
    -------
    Discovery
        Nothing is raised: one bad path must not stop the others.
    """
    reports: list[Report] = []
    problems: list[ReportError] = []
    notes: list[Note] = []
    seen: dict[tuple[int, int], str] = {}
    given = {os.fspath(path) for path in paths}
    for path in sorted(given, key=lambda text: (natural_key(os.path.basename(text)), len(text), text)):
        try:
            found = _look(path)
        except ReportError as error:
            problems.append(error)
            continue
        file = (found.st_dev, found.st_ino)
        if file in seen:
            notes.append(Note("same_file", f"{path} is the same file as {seen[file]}; counted once"))
            continue
        seen[file] = path
        reports.append(Report(path, os.path.basename(path), found.st_size))
    return Discovery(tuple(reports), tuple(problems), tuple(notes))


def _look(path: str) -> os.stat_result:
    """Return the status of a file that may be an SQLite export.

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
        if path.rstrip("/").endswith(("_pqtdir", "_arwdir")):
            raise ReportError(
                f"{path}: a directory of Parquet or Arrow files, not supported yet in this version",
                _EXPORT.format("REPORT.nsys-rep"),
            )
        raise ReportError(
            f"{path}: a directory, expected an export file",
            f"Give the files in it: {path.rstrip('/')}/*.sqlite",
        )
    if not stat.S_ISREG(found.st_mode):
        raise ReportError(f"{path}: not a regular file")
    if path.endswith((".nsys-rep", ".qdrep")):
        raise ReportError(
            f"{path}: a report of Nsight Systems that has not been exported", _EXPORT.format(path)
        )
    if found.st_size == 0:
        raise ReportError(
            f"{path}: empty (0 bytes)", "The export or the copy failed; " + _EXPORT.format("REPORT.nsys-rep")
        )
    try:
        with open(path, "rb") as file:
            head = file.read(16)
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror})", "Check its permissions") from error
    if head.startswith(b"SQLite format 3\x00"):
        return found
    if head.startswith(b"\x1f\x8b"):
        raise ReportError(f"{path}: compressed with gzip", f"Unpack it first: gunzip -k {path}")
    if head.startswith(b"PAR1"):
        raise ReportError(
            f"{path}: a Parquet file, expected an SQLite export", _EXPORT.format("REPORT.nsys-rep")
        )
    raise ReportError(
        f"{path}: expected an SQLite export, found {_kind(head)}", _EXPORT.format("REPORT.nsys-rep")
    )


def _kind(head: bytes) -> str:
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return "a file compressed with zstd"
    if head.startswith(b"PK\x03\x04"):
        return "a zip archive"
    return "another kind of file"
