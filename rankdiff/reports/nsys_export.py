"""Reports of Nsight Systems itself (.nsys-rep): exported with the user's `nsys` to a temporary place.

Each is exported once per run, however often it is opened, and removed at the end. Nothing of the report's name
can be taken for an option or a command: it goes as one absolute path into a list of arguments, past any shell.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from typing import IO

from rankdiff.errors import ReportError
from rankdiff.notes import Note
from rankdiff.reports.temporary import private_folder
from rankdiff.untrusted import argument

_PATIENCE_S = 3600.0
_HELP_PATIENCE_S = 60.0
_LONGEST_WORDS = 300  # of nsys that are passed on
_TAIL_BYTES = 16_384
_BLOBS = "--include-blobs=true"
_BY_HAND = "nsys export --type sqlite --include-blobs=true {}"
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x1f\x7f-\x9f]")
_PROGRESS = re.compile(r"(?:Processing|Importing|Exporting)?.{0,40}\[?[=\- >]*\s*\d{1,3}\s*%\]?")
_FileKey = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Exported:
    """An export that `nsys` made: where it is, and what to tell of it."""

    path: str
    notes: tuple[Note, ...]


@dataclass
class _Store:
    """The exports of this process."""

    owner: int
    folder: str
    made: dict[_FileKey, Exported | ReportError]
    knows_blobs: bool = True


_stores: list[_Store] = []  # none or one


def nsys_program() -> str | None:
    """Path of `nsys`; None when it is not on PATH."""
    found = shutil.which("nsys")
    return os.path.abspath(found) if found else None


def not_exported(name: str) -> ReportError:
    """The error for a report that must be exported first, since there is no `nsys`."""
    return ReportError(
        f"{name}: a report of Nsight Systems that has not been exported, and there is no nsys on PATH",
        f"Export it: {_BY_HAND.format(argument(name))}",
    )


def exported(path: str, name: str) -> Exported:
    """Export a report to SQLite, unless this was done before.

    Parameters
    ----------
    path : str
        Of the .nsys-rep or .qdrep file.
    name : str
        How messages call it.

    Raises
    ------
    ReportError
        With the last words of `nsys` and what to do, when it fails.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        raise ReportError(f"{name}: cannot be read ({error.strerror})") from error
    # All of them: a report that was replaced in place is another one.
    key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    store = _store()
    if key not in store.made:
        try:
            store.made[key] = _export(store, os.path.abspath(path), name)
        except ReportError as error:
            store.made[key] = error
    made = store.made[key]
    if isinstance(made, ReportError):
        raise made
    return made


def remove_exports() -> None:
    """Remove all exports of this process; happens at its end by itself."""
    while _stores:
        store = _stores.pop()
        # A forked child has inherited the list, not the files.
        if store.owner == os.getpid():
            shutil.rmtree(store.folder, ignore_errors=True)


def _store() -> _Store:
    if not _stores or _stores[0].owner != os.getpid():
        _stores[:] = [_Store(os.getpid(), private_folder(), {})]
        atexit.register(remove_exports)
    return _stores[0]


def _export(store: _Store, path: str, name: str) -> Exported:
    program = nsys_program()
    if program is None:
        raise not_exported(name)
    target = os.path.join(store.folder, f"{len(store.made)}.sqlite")
    command = [program, "export", "--type", "sqlite", "--output", target]
    status, words = _run([*command, *([_BLOBS] if store.knows_blobs else []), path], name, store.folder)
    if status and store.knows_blobs and _blobs_unknown(program, words, name, store.folder):
        store.knows_blobs = False
        _remove(target)
        status, words = _run([*command, path], name, store.folder)
    if status or not _has_content(target):
        _remove(target)
        what = f"failed with status {status}" if status else "left no export"
        said = _last_words(words)
        raise ReportError(
            f"{name}: nsys export {what}" + (f": {said}" if said else ""),
            "Export it with the version of Nsight Systems that captured it, or a newer one: "
            + _BY_HAND.format(argument(name)),
        )
    notes = [Note("exported_with_nsys", f"{name}: exported with nsys to a temporary place")]
    if not store.knows_blobs:
        message = f"{name}: this version of nsys exports no payloads (--include-blobs); a newer one does"
        notes.append(Note("exported_without_blobs", message))
    return Exported(target, tuple(notes))


def _blobs_unknown(program: str, words: str, name: str, folder: str) -> bool:
    """Say whether an export failed because this `nsys` does not know the option for payloads."""
    if "include-blobs" in words:
        return True
    _, options = _run([program, "export", "--help"], name, folder, _HELP_PATIENCE_S)
    return "--include-blobs" not in options


def _run(command: list[str], name: str, folder: str, patience_s: float | None = None) -> tuple[int, str]:
    """Run a command and return its status and the end of what it wrote, errors last."""
    patience_s = _PATIENCE_S if patience_s is None else patience_s
    # Files, not pipes: a child that it leaves behind would hold a pipe open for ever.
    with open(os.path.join(folder, "out"), "w+b") as out, open(os.path.join(folder, "err"), "w+b") as err:
        try:
            process = subprocess.Popen(  # in a group of its own, so that its children can be ended with it
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder, start_new_session=True
            )
        except OSError as error:
            raise ReportError(
                f"{name}: {command[0]} cannot be run ({error.strerror})",
                f"Export it: {_BY_HAND.format(argument(name))}",
            ) from error
        try:
            status = process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise ReportError(
                f"{name}: nsys export was not done after {patience_s / 60:g} minutes and was ended",
                f"Export it beforehand: {_BY_HAND.format(argument(name))}",
            ) from None
        finally:
            _end(process)
        return status, _tail(out) + "\n" + _tail(err)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with its children, if it is not done."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL_BYTES))
    return file.read().decode("utf-8", "replace")


def _last_words(text: str) -> str:
    """The last line that says something, without what could drive a terminal."""
    for line in reversed(re.split(r"[\r\n]+", text)):
        words = " ".join(_CONTROL.sub(" ", line).split())
        if words and not _PROGRESS.fullmatch(words):
            return words if len(words) <= _LONGEST_WORDS else words[: _LONGEST_WORDS - 3] + "..."
    return ""


def _has_content(path: str) -> bool:
    try:
        return os.path.getsize(path) > 0
    except OSError:
        return False


def _remove(path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)
