"""One result file: whole or not at all, and never over what was there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rankdiff.errors import RankdiffError


def check_new(path: Path, force: bool) -> None:
    """Refuse a name that is taken, unless `force`.

    Raises
    ------
    RankdiffError
        It exists, or is a folder, or lies in no folder.
    """
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
    check_new(path, force)
    staging = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        # Not tempfile: its files are for the owner alone, a result is to be read by others.
        file = os.fdopen(os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")
    except OSError as error:
        raise RankdiffError(f"{path}: cannot be written: {error.strerror}", "Choose another folder") from None
    try:
        with file:
            yield file
        check_new(path, force)  # somebody may have been faster
        os.replace(staging, path)
    except OSError as error:
        raise RankdiffError(f"{path}: cannot be written: {error.strerror}", "Choose another folder") from None
    finally:
        with suppress(FileNotFoundError):
            staging.unlink()
