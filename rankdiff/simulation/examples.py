"""Small jobs with known answers, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .reports import write
from .scenario import MS, US, Job, Phase, Scenario


def synthetic(folder: Path, **settings: Any) -> Job:
    """Play a `Scenario` and write its exports into a folder, which is made when it is not there."""
    return write(folder, Scenario(**settings))


def base4(folder: Path, **settings: Any) -> Job:
    """Write BASE4: 4 ranks on 2 nodes, 10 steps of 10 ms; rank 2 computes 7.5 ms where the others take 6."""
    defaults = {
        "nodes": ("nodeA", "nodeA", "nodeB", "nodeB"),
        "step_ns": 10 * MS,
        "late": {2: 1_500_000},
        "step_ranges": None,
    }
    return synthetic(folder, **(defaults | settings))


def flat8(folder: Path, seed: int = 0, **settings: Any) -> Job:
    """Write FLAT8: 8 equal ranks, 200 steps, arrivals within +/- 20 us: nobody is to blame."""
    defaults = {"ranks": 8, "steps": 200, "step_ns": 10 * MS, "jitter_ns": 20 * US, "seed": seed}
    return synthetic(folder, **(defaults | settings))


def tp_dp(
    tp: int = 2, dp: int = 2, *, tp_ns: int = 3 * MS, dp_ns: int = 3 * MS, **settings: Any
) -> tuple[Phase, Phase]:
    """Return the phases of a step with tensor-parallel groups of neighbours, then data-parallel groups.

    Ranks 0 .. tp-1 are the first tensor-parallel group; `settings` go to both phases.
    """
    world = np.arange(tp * dp).reshape(dp, tp)
    return (
        Phase(tp_ns, world.tolist(), stream=20, **settings),
        Phase(dp_ns, world.T.tolist(), stream=30, **settings),
    )
