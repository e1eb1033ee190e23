"""The sample output in the tree is what the program prints."""

from __future__ import annotations

import pytest

from tests.golden import SAMPLES, commands, folders, render


@pytest.mark.parametrize("folder", [f.name for f in folders()])
def test_sample_output_is_current(folder):
    for name, text in render(SAMPLES / folder).items():
        assert (SAMPLES / folder / name).read_text(encoding="utf-8") == text, (
            f"{folder}/{name} is stale: python -m tests.golden"
        )


def test_the_command_reference_is_current(repository):
    shown = (repository / "docs" / "commands.md").read_text(encoding="utf-8")
    assert shown == commands(), "docs/commands.md is stale: python -m tests.golden"


def test_the_readme_shows_the_real_first_screen(repository):
    screen = (SAMPLES / "late_rank" / "compare.txt").read_text(encoding="utf-8")
    assert screen in (repository / "README.md").read_text(encoding="utf-8")
