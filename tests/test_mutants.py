"""500 mutants of real captures: no traceback, no hang, no impossible figure, nobody accused for missing evidence.

A failure names its base and seed; ``python -m tests.mutation BASE SEED`` makes and judges that mutant alone. The
jobs in the tree are always used, the real captures beside it where they are there; the number is the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.bases import base, names
from tests.mutation.mutants import judge, make

CHUNKS, MUTANTS = 25, 20
COMMANDS_EVERY = 100  # mutants on which every command runs, pictures and all


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_mutants(chunk: int, tmp_path: Path) -> None:
    job = base(names()[chunk % len(names())])
    for seed in range(chunk * MUTANTS, (chunk + 1) * MUTANTS):
        folder = tmp_path / f"mutant-{seed}"
        folder.mkdir()
        try:
            judge(job, seed, folder, commands=seed % COMMANDS_EVERY == 7)
        except Exception as error:
            again = tmp_path / f"mutant-{seed}-again"
            again.mkdir()
            story = "; ".join(make(job, seed, again).story)
            raise AssertionError(
                f"python -m tests.mutation {job.name} {seed}: {type(error).__name__} after: {story}"
            ) from error


def test_a_seed_gives_the_same_mutant(tmp_path: Path) -> None:
    job = base(names()[0])
    for seed in range(8):
        made = []
        for turn in ("mutant-a", "mutant-b"):
            folder = tmp_path / f"{turn}-{seed}"
            folder.mkdir()
            mutant = make(job, seed, folder)
            made.append((mutant.story, [report.read_bytes() for report in mutant.reports]))
        assert made[0] == made[1]
        assert made[0][1] != [report.read_bytes() for report in job.reports] or "order" in str(made[0][0])
