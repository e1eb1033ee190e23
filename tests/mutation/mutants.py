"""From a base and a seed to a mutant: the same two give the same files, on any machine."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.mutation.bases import Base
from tests.mutation.cells import CELLS, Rng
from tests.mutation.judge import Answer, accused, answer, check, run_commands
from tests.mutation.pages import PAGES
from tests.mutation.rows import ROWS, keep_window


@dataclass(frozen=True)
class Mutant:
    """A mutated job.

    Attributes
    ----------
    touched : frozenset of str
        Names of the reports in which evidence was changed.
    effect : str
        The strongest of: ``removed`` (evidence went), ``labels`` (other values in columns that hold no time,
        rows that come twice), ``times`` (times or anything else may be another).
    story : tuple of str
        What was done, in words.
    """

    reports: tuple[Path, ...]
    touched: frozenset[str]
    effect: str
    story: tuple[str, ...]


def make(base: Base, seed: int, folder: Path) -> Mutant:
    """Make a mutant; `folder` is empty and its name holds ``mutant``, by which the digests' cache knows it."""
    rng = np.random.default_rng([seed, *base.name.encode()])
    reports = list(base.reports)
    kind = rng.random()
    if kind < 0.03:
        gone = int(rng.integers(len(reports)))
        name = reports.pop(gone).name
        return Mutant(tuple(reports), frozenset([name]), "removed", (f"{name} missing",))
    if kind < 0.06:
        return _exchange(base, rng, folder)
    which = rng.choice(len(reports), int(rng.choice([1, 1, 1, 1, 2, len(reports)])), replace=False)
    effects, story = {"removed"}, []
    for n in sorted(int(x) for x in which):
        copy = folder / reports[n].name
        shutil.copyfile(reports[n], copy)
        for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
            effect, words = _mutate(copy, rng)
            effects.add(effect)
            story.append(f"{copy.name}: {words}")
        reports[n] = copy
    touched = frozenset(base.reports[int(n)].name for n in which)
    effect = next(e for e in ("times", "labels", "removed") if e in effects)
    return Mutant(tuple(reports), touched, effect, tuple(story))


def judge(base: Base, seed: int, folder: Path, commands: bool = False) -> Mutant:
    """Make a mutant and check all that must hold; an AssertionError or any other exception is a fault.

    With `commands` every command is run on it as well.

    The verdict: where evidence of some ranks was removed, or values that are no times are other ones, nobody is
    named but those that the unmutated job names and, for changed values, the changed ranks themselves.

    Two things soften it, both for physical reasons. A rank whose first or last collectives went leaves a shorter
    common window, and what holds for all 40 steps of a job need not hold for 18 of them (`healthy` has a stretch
    in which one node is late): there the unmutated job is cut to that window on all ranks and may name the same.
    And changed *times* of a rank can make the others late with all the signs of it: a kernel that is said to have
    started 20 ms earlier is what waiting for 20 ms looks like, and nothing else in the files contradicts it. There
    only all other rules hold.
    """
    mutant = make(base, seed, folder)
    found = answer(mutant.reports)
    assert base.answer.report is not None
    check(found, base.answer.report)
    if found.report is not None and mutant.effect != "times":
        named = accused(base.answer.report)
        more = accused(found.report) - named
        if mutant.effect == "labels":
            more = {who for who in more if who[0] not in mutant.touched}
        if more:
            more -= _named_in_window(base, found, folder)
        assert not more, f"names {sorted(more)}, unmutated {sorted(named)}"
    if commands:
        run_commands(mutant.reports, folder)
    return mutant


def _named_in_window(base: Base, found: Answer, folder: Path) -> set[tuple[str, int]]:
    """Whom the unmutated job names in the window that the mutant's ranks have in common."""
    spans = []
    for digest in found.comparison.digests:
        start = digest.info.session_start_utc_ns
        table = digest.collectives
        if start is not None and table.height:
            spans.append((start + table["start_ns"].min(), start + table["end_ns"].max()))
    low, high = max(s[0] for s in spans), min(s[1] for s in spans)
    cut = folder / "mutant-window"
    cut.mkdir()
    reports = []
    for report in base.reports:
        copy = cut / report.name
        shutil.copyfile(report, copy)
        with closing(sqlite3.connect(copy)) as db, db:
            utc = db.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()[0]
            keep_window(db, low - utc, high - utc)
        reports.append(copy)
    whole = answer(reports)
    return accused(whole.report) if whole.report is not None else set()


def _mutate(path: Path, rng: Rng) -> tuple[str, str]:
    """One mutation of one file; a file that is broken already is broken further by its bytes."""
    if rng.random() < 0.8:
        group = CELLS if rng.random() < 0.55 else ROWS
        change = group[int(rng.integers(len(group)))]
        try:
            with closing(sqlite3.connect(path)) as db:
                with db:
                    effect, words = change(db, rng)
                db.execute("PRAGMA journal_mode").fetchone()
            return effect, words
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the file was garbled before
            return "times", f"{change.__name__} ended with {error}"
    if path.stat().st_size < 20_000:
        return "removed", "nothing, the file is too short"
    return PAGES[int(rng.integers(len(PAGES)))](path, rng)


def _exchange(base: Base, rng: Rng, folder: Path) -> Mutant:
    """Two ranks' files under each other's names, or a rank's file twice."""
    reports = list(base.reports)
    a, b = (int(x) for x in rng.choice(len(reports), 2, replace=False))
    touched = frozenset([reports[a].name, reports[b].name])
    first, second = folder / reports[a].name, folder / reports[b].name
    shutil.copyfile(reports[b], first)
    shutil.copyfile(reports[a], second)
    if rng.random() < 0.5:
        reports[a], reports[b] = first, second
        return Mutant(tuple(reports), touched, "labels", (f"{first.name} and {second.name} exchanged",))
    reports[b] = second
    return Mutant(tuple(reports), touched, "labels", (f"{second.name} is a copy of {reports[a].name}",))
