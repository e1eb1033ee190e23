"""Writes a simulated job into a folder, with the truth about it beside the reports."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankdiff.errors import RankdiffError

from .planting import plan
from .reports import write
from .settings import Settings
from .truth import truth_of

TRUTH = "truth.json"
_REPORT = re.compile(r"prof_n\d+_\d+\.sqlite")


@dataclass(frozen=True)
class Simulated:
    """What was written: the reports in order of rank, truth.json, and its contents."""

    reports: tuple[Path, ...]
    truth_file: Path
    truth: dict[str, Any]


def simulate(folder: Path, settings: Settings, *, force: bool = False) -> Simulated:
    """Write a synthetic job: one report a rank, and ``truth.json``.

    Parameters
    ----------
    folder : Path
        Made when it is not there.
    settings : Settings
    force : bool
        Replace the simulated job that lies in the folder; other files in it stay.

    Returns
    -------
    Simulated

    Raises
    ------
    RankdiffError
        The settings contradict themselves, the folder is not empty, or it cannot be written. Nothing is left
        behind then.
    """
    settings.check()
    check_folder(folder, force)
    try:
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            job = write(staging, plan(settings, settings.faults))
            truth = truth_of(settings, job)
            text = json.dumps(truth, indent=1, ensure_ascii=False)
            (staging / TRUTH).write_text(text + "\n", encoding="utf-8")
            names = [path.name for path in job.paths]
            _publish(staging, folder)
        finally:
            if staging.exists():
                shutil.rmtree(staging)
    except OSError as error:
        raise RankdiffError(
            f"{folder}: cannot be written: {error.strerror}", "Choose another folder"
        ) from None
    return Simulated(tuple(folder / name for name in names), folder / TRUTH, truth)


def check_folder(folder: Path, force: bool) -> None:
    """Refuse a folder that holds something, unless `force`.

    Raises
    ------
    RankdiffError
        It exists and is not empty, or is no folder, or lies in none.
    """
    if os.path.lexists(folder) and not folder.is_dir():
        raise RankdiffError(f"{folder}: exists and is no folder", "Choose another name")
    if not folder.absolute().parent.is_dir():
        raise RankdiffError(f"{folder.parent}: no such folder", "Make it first, or choose another name")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise RankdiffError(
            f"{folder}: exists and is not empty",
            "Choose another name, or --force to replace its simulated job",
        )


def _publish(staging: Path, folder: Path) -> None:
    # mkdtemp makes folders for the owner alone; the reports are to be read by others.
    mask = os.umask(0)
    os.umask(mask)
    staging.chmod(0o777 & ~mask)
    if not folder.exists():
        staging.rename(folder)
        return
    # Reports of a larger job before this one would be taken for ranks of it.
    for old in folder.iterdir():
        if _REPORT.fullmatch(old.name):
            old.unlink()
    for new in sorted(staging.iterdir()):
        os.replace(new, folder / new.name)
