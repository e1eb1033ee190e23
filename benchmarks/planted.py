"""Planted faults in export files: is the right rank named, with the right cause and pattern?"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankdiff.findings import Finding, is_loud
from rankdiff.pipeline import compare
from rankdiff.simulation import Settings, parse_fault, simulate

# {rank} and {node} change from job to job.
FAULTS = (
    "",
    "data_load:rank={rank}:ms=12",
    "io:rank={rank}:ms=12",
    "os_wait:rank={rank}:ms=12",
    "host:rank={rank}:ms=12",
    "alloc:rank={rank}:ms=12",
    "sync:rank={rank}:ms=12",
    "copy:rank={rank}:ms=12",
    "gpu_slow:rank={rank}:factor=1.3",
    "gpu_work:rank={rank}:ms=9",
    "gpu_grid:rank={rank}:factor=1.3",
    "data_load:node={node}:ms=12",
    "gpu_slow:node={node}:factor=1.3",
    "host:rank={rank}:every=6:ms=60:range=save_checkpoint",
    "os_wait:rank={rank}:ms=200:first=11:last=11",
    "rotate:ms=25",
    "startup",
    "network:node={node}:factor=6",
)


@dataclass(frozen=True)
class Planted:
    """One job: a fault (empty: none) and the seed of everything else."""

    fault: str
    seed: int


@dataclass(frozen=True)
class Score:
    """What of the answer was right; None where the truth has nothing to say."""

    verdict: bool
    who: bool
    cause: bool | None
    pattern: bool | None


def planted_jobs(jobs: int) -> list[Planted]:
    """As many jobs of each fault."""
    return [Planted(fault, seed) for fault in FAULTS for seed in range(jobs)]


def score(job: Planted) -> Score:
    """Write a job, compare it, and hold the answer against the truth."""
    text = job.fault.format(rank=job.seed * 3 % 8, node=f"n{job.seed % 2 + 1:02d}")
    settings = Settings(
        steps=24,
        step_ms=30.0,
        jitter_share=0.02,
        faults=[parse_fault(text)] if text else [],
        seed=80_000 + job.seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        made = simulate(Path(folder) / "job", settings)
        found = compare([str(path) for path in made.reports]).comparison.verdict
    return _held(found.status, found.findings, made.truth["expected"])


def _held(status: str, findings: Sequence[Finding], truth: dict[str, Any]) -> Score:
    loud = [f for f in findings if is_loud(f)]
    ranks = sorted(f.rank for f in loud if f.kind == "late_rank" and f.rank is not None)
    nodes = sorted(f.node for f in loud if f.kind == "late_node" and f.node is not None)
    cause = pattern = None
    wanted = [x for x in truth["findings"] if not x["note"] and x["kind"] in ("late_rank", "late_node")]
    if wanted:
        mine = [
            f
            for f in loud
            if f.kind == wanted[0]["kind"]
            and (f.rank if f.kind == "late_rank" else f.node)
            == (wanted[0]["rank"] if f.kind == "late_rank" else wanted[0]["node"])
        ]
        cause = bool(mine) and mine[0].cause == wanted[0]["cause"]
        pattern = bool(mine) and mine[0].pattern == wanted[0]["pattern"]
    others = {x["kind"] for x in truth["findings"]} - {"late_rank", "late_node"}
    return Score(
        verdict=status in (truth["status"], truth["status_or"]),
        who=ranks == sorted(truth["late_ranks"])
        and nodes == sorted(truth["late_nodes"])
        and others <= {f.kind for f in findings},
        cause=cause,
        pattern=pattern,
    )


def faults(jobs: Sequence[Planted], scores: Sequence[Score]) -> list[str]:
    """Table of what was right, by fault."""
    rows = [
        "| planted | jobs | verdict | who, and nobody else | cause | pattern |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for fault in FAULTS:
        mine = [s for j, s in zip(jobs, scores, strict=True) if j.fault == fault]
        cells = [_right([getattr(s, what) for s in mine]) for what in ("verdict", "who", "cause", "pattern")]
        shown = fault.replace("{rank}", "R").replace("{node}", "N")
        rows.append(f"| {f'`{shown}`' if fault else 'nothing'} | {len(mine)} | {' | '.join(cells)} |")
    return rows


def _right(answers: Sequence[bool | None]) -> str:
    known = [a for a in answers if a is not None]
    return f"{sum(known) / len(known):.0%}" if known else ""
