"""The jobs that mutants are made of, with what the product says about each unmutated one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.mutation.judge import Answer, answer

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLES = ("late_rank", "healthy")  # in the tree
CAPTURES = ("data4", "tpdp4", "torchrun4", "node4", "window4", "host4", "graph2", "compute4", "after4")


@dataclass(frozen=True)
class Base:
    """A job: its reports, and the unmutated answer."""

    name: str
    reports: tuple[Path, ...]
    answer: Answer


def names() -> list[str]:
    """Jobs that are there: those in the tree, and the real captures beside it where present."""
    return [*SAMPLES, *(name for name in CAPTURES if (_captures() / name).is_dir())]


@cache
def base(name: str) -> Base:
    """Load a job and compare it, once a process."""
    folder = ROOT / "sample_reports" / name if name in SAMPLES else _captures() / name
    reports = tuple(sorted(folder.glob("*.sqlite")))
    found = answer(reports)
    assert found.report is not None, f"{folder} itself cannot be compared: {found.error}"
    return Base(name, reports, found)


def _captures() -> Path:
    return Path(os.environ.get("RANKDIFF_SHARED", ROOT.parent / "shared")) / "captures"
