"""The sample output in the tree is what the program prints, writes and draws."""

from __future__ import annotations

import json
import math

import pytest

from tests.golden import DIFFERENCE, SAMPLES, TICKET, commands, difference, folders, readme, render


@pytest.mark.parametrize("folder", [f.name for f in folders()])
def test_sample_output_is_current(folder):
    for name, data in render(SAMPLES / folder, pictures=False).items():
        kept = (SAMPLES / folder / name).read_bytes()
        if name == "plotted.json":
            assert alike(json.loads(kept), json.loads(data)), (
                f"{folder}/{name} is stale: python -m tests.golden"
            )
        else:
            assert kept.decode() == data.decode(), f"{folder}/{name} is stale: python -m tests.golden"


def test_sample_difference_is_current():
    for name, data in difference(pictures=False).items():
        kept = (DIFFERENCE / name).read_text(encoding="utf-8")
        assert kept == data.decode(), f"difference/{name} is stale: python -m tests.golden"


def alike(a, b):
    """Whether plotted values are the same but for the last digits of floating-point sums."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=2e-3, abs_tol=1e-6)
    return a == b


@pytest.mark.parametrize("folder", [f.name for f in folders()])
def test_sample_tickets_hold_their_pictures(folder):
    ticket = SAMPLES / folder / TICKET
    names = {p.stem for p in (ticket / "plots").glob("*.png")}
    assert names == {p.stem for p in (ticket / "plots").glob("*.svg")}
    assert names >= {"lateness", "delay", "arrivals", "makeup"}
    text = (ticket / "report.md").read_text(encoding="utf-8")
    assert all(f"plots/{name}.png" in text for name in names)
    assert (ticket / "report.html").read_text(encoding="utf-8").count("data:image/svg+xml") == len(names)


def test_there_is_a_late_and_a_healthy_sample():
    assert [f.name for f in folders()] == ["healthy", "late_rank"]


def test_the_command_reference_is_current(repository):
    shown = (repository / "docs" / "commands.md").read_text(encoding="utf-8")
    assert shown == commands(), "docs/commands.md is stale: python -m tests.golden"


def test_the_readme_shows_the_real_first_screen(repository):
    text = (repository / "README.md").read_text(encoding="utf-8")
    assert text == readme(text), "README.md is stale: python -m tests.golden"
