"""One result file: whole or not at all, and never over what was there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rankdiff.errors import RankdiffError


def check_new(path: Path, force: bool) -> None:
    """Refuse a name that is taken, unless `force`.

    Raises
    ------
    RankdiffError
        It exists, or is a folder, or lies in no folder or in one that cannot be looked into.
    """
    try:
        _check_new(path, force)
    except OSError as error:
        raise RankdiffError(f"{path}: cannot be used: {error.strerror}", "Choose another name") from None


def _check_new(path: Path, force: bool) -> None:
    if path.is_dir():
        raise RankdiffError(f"{path}: a folder, expected the name of a file", "Choose another name")
    if not path.parent.is_dir():
        raise RankdiffError(f"{path.parent}: no such folder", "Make it first, or choose another name")
    if os.path.lexists(path) and not force:
        raise RankdiffError(f"{path}: exists", "Choose another name, or --force to replace it")


@contextmanager
def new_file(path: Path, force: bool) -> Iterator[BinaryIO]:
    """Write a file under another name beside it and give it its own when it is complete.

    Parameters
    ----------
    path : Path
    force : bool
        Replace a file of that name.

    Yields
    ------
    BinaryIO

    Raises
    ------
    RankdiffError
        As `check_new`, or the file cannot be written. Whatever is raised, nothing is left behind.
    """
    # Not tempfile: its files are for the owner alone, a result is to be read by others.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with staged(path, force) as staging, os.fdopen(os.open(staging, flags, 0o666), "wb") as file:
        yield file


@contextmanager
def staged(path: Path, force: bool, beside: Sequence[str] = ()) -> Iterator[Path]:
    """Give a name to write to, and the file its own name when it is complete: as `new_file`, for other writers.

    Parameters
    ----------
    path : Path
    force : bool
        Replace a file of that name.
    beside : sequence of str
        Endings of files that the writer may leave beside its own.

    Yields
    ------
    Path
        A name in the same folder that is free.

    Raises
    ------
    RankdiffError
        As `new_file`.
    """
    check_new(path, force)
    # Without the name of the file: that may be as long as names can be.
    staging = path.with_name(f".rankdiff-{secrets.token_hex(8)}.part")
    try:
        yield staging
        check_new(path, force)  # somebody may have been faster
        os.replace(staging, path)
    except OSError as error:
        raise RankdiffError(f"{path}: cannot be written: {error.strerror}", "Choose another folder") from None
    finally:
        for ending in ("", *beside):
            with suppress(FileNotFoundError):
                Path(f"{staging}{ending}").unlink()
