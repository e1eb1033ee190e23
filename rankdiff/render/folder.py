"""Results in a folder: whole or not at all, and never over what was there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rankdiff.errors import RankdiffError
from rankdiff.reports.temporary import usual_mode


def check_free(folder: Path, force: bool) -> None:
    """Refuse a folder that holds something, unless `force`.

    Raises
    ------
    RankdiffError
        It exists and is not empty, or is no folder, or its parent does not exist or cannot be looked into.
    """
    try:
        _check_free(folder, force)
    except OSError as error:
        raise RankdiffError(f"{folder}: cannot be used: {error.strerror}", "Choose another name") from None


def _check_free(folder: Path, force: bool) -> None:
    if folder.is_symlink() and not folder.exists():
        raise RankdiffError(f"{folder}: a dangling link", "Choose another name")
    if folder.exists() and not folder.is_dir():
        raise RankdiffError(f"{folder}: exists and is no folder", "Choose another name")
    if not folder.parent.is_dir():
        raise RankdiffError(f"{folder.parent}: no such folder", "Make it first, or choose another name")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise RankdiffError(
            f"{folder}: exists and is not empty",
            "Choose another name, or --force to replace the files of a ticket",
        )


def write_folder(folder: Path, files: Mapping[str, bytes], force: bool) -> None:
    """Write files into a folder, all of them or none.

    Parameters
    ----------
    folder : Path
    files : mapping of str to bytes
        By relative path with forward slashes.
    force : bool
        Replace files of the same names; other files in the folder stay.

    Raises
    ------
    RankdiffError
        As `check_free`, or the folder cannot be written.
    """
    check_free(folder, force)
    try:
        # Without the name of the folder: that may be as long as names can be.
        staging = Path(tempfile.mkdtemp(prefix=".rankdiff-", dir=folder.parent))
    except OSError as error:
        raise RankdiffError(
            f"{folder.parent}: cannot be written: {error.strerror}", "Choose another folder"
        ) from None
    try:
        for name, data in files.items():
            target = staging / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        staging.chmod(usual_mode(0o777))
        if not folder.exists():
            staging.rename(folder)
            return
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / name, folder / name)
    except OSError as error:
        raise RankdiffError(
            f"{folder}: cannot be written: {error.strerror}", "Choose another folder"
        ) from None
    finally:
        if staging.exists():
            shutil.rmtree(staging)
