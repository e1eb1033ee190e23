"""Where rankdiff may put files of its own: never beside the user's, and never in the working directory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from rankdiff.errors import RankdiffError


def temporary_place() -> str:
    """The first of ``RANKDIFF_TMP``, ``SLURM_TMPDIR`` and the system's temporary folder."""
    return os.environ.get("RANKDIFF_TMP") or os.environ.get("SLURM_TMPDIR") or tempfile.gettempdir()


def private_folder() -> str:
    """Make a folder that only this user can read; who asks for it removes it.

    Raises
    ------
    RankdiffError
        When there is no place for it.
    """
    place = temporary_place()
    try:
        os.makedirs(place, exist_ok=True)
        return tempfile.mkdtemp(prefix="rankdiff-", dir=place)
    except OSError as error:
        raise RankdiffError(
            f"{place}: no temporary folder can be made ({error.strerror})",
            "Point RANKDIFF_TMP at a folder with room",
        ) from error


@contextmanager
def temporary_file(path: str) -> Iterator[BinaryIO]:
    """Write a file in a private folder.

    Raises
    ------
    RankdiffError
        It cannot be written, mostly because the disk is full.
    """
    try:
        with open(path, "wb") as file:
            yield file
    except OSError as error:
        raise RankdiffError(
            f"{path}: cannot be written ({error.strerror or error})",
            "Point RANKDIFF_TMP at a folder with room",
        ) from None


def usual_mode(made_for: int) -> int:
    """Permissions that the user's umask leaves of `made_for` (0o666 for a file, 0o777 for a folder).

    Temporary files and folders are made for their owner alone; what becomes of them is to be read by others.
    """
    mask = os.umask(0)
    os.umask(mask)
    return made_for & ~mask
