"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

# Compiling a kernel takes longer than any deadline, and a suite that guards a release must give the same
# answer twice: the examples are derived from the tests, not from the clock.
hypothesis.settings.register_profile(
    "rankdiff",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("rankdiff")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real captures and foreign exports that lies beside the repository."""
    folder = Path(os.environ.get("RANKDIFF_SHARED", ROOT.parent / "shared"))
    if not (folder / "captures").is_dir():
        pytest.skip(f"no real captures: {folder} is absent (set RANKDIFF_SHARED)")
    return folder


@pytest.fixture(scope="session")
def captures(shared: Path) -> Path:
    """The real captures with injected faults, one folder a job."""
    return shared / "captures"


@pytest.fixture(scope="session")
def public(shared: Path) -> Path:
    """Exports published by others, of versions from 2020 on."""
    folder = shared / "public"
    if not folder.is_dir():
        pytest.skip(f"no public exports: {folder} is absent")
    return folder
