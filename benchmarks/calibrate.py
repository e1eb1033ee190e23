"""How often rankdiff is right: error rates over thousands of played jobs, as the tables of docs/accuracy.md.

    python -m benchmarks.calibrate             print the tables (a quarter of an hour on two quiet cores)
    python -m benchmarks.calibrate --write     and put them into docs/accuracy.md
    python -m benchmarks.calibrate --scale 0.1  a smaller sample

Every job has its own seed, counted up from 0 within a table, so that a figure can be looked into:
the job of a setting and a seed is always the same.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.planted import faults, planted_jobs, score
from benchmarks.plays import FAMILIES, Play, Played, perform
from rankdiff.comparison import Comparison, compare_digests
from rankdiff.findings import is_loud

RANKS = (2, 4, 8, 16, 32, 64)
STEPS = (10, 50, 200)
JITTERS = (0.01, 0.05, 0.10)
PAGE = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"
_HEALTHY_JOBS = 13  # of each of the 162 settings: 2,106 jobs
_JOBS = 100
_PLANTED_JOBS = 20

P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Answer:
    """What rankdiff said of one job."""

    status: str
    loud: tuple[tuple[str, str, tuple[int, ...]], ...]  # kind, severity, ranks
    margin_ns: float | None


def answer(c: Comparison) -> Answer:
    """Boil a comparison down to what the tables count."""
    loud = tuple((f.kind, f.severity, f.ranks) for f in c.verdict.findings if is_loud(f))
    return Answer(c.verdict.status, loud, c.verdict.threshold_ns)


def judge(play: Play) -> Answer:
    """Play a job and compare its ranks."""
    return answer(_compared(perform(play)))


def _compared(played: Played) -> Comparison:
    return compare_digests(played.digests, played.identities, ())


# Healthy jobs ----------------------------------------------------------------------------------------------


def healthy_plays(jobs: int) -> list[Play]:
    """Jobs in which nobody is late: every size, length, family and width of jitter."""
    settings = itertools.product(RANKS, STEPS, FAMILIES, JITTERS)
    return [
        Play(
            ranks=n,
            per_node=1 if n == 2 else max(2, n // 4),
            steps=k,
            family=family,
            jitter_share=share,
            seed=1000 * i + job,
        )
        for i, (n, k, family, share) in enumerate(settings)
        for job in range(jobs)
    ]


def false_alarms(plays: Sequence[Play], answers: Sequence[Answer]) -> list[str]:
    """Table of what healthy jobs are called, by jitter."""
    rows = [
        "| jitter | width (share of the step) | jobs | a late rank or node | of these major | rotating | not assessed |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    both = list(zip(plays, answers, strict=True))
    for family, share in itertools.product(FAMILIES, JITTERS):
        mine = [a for p, a in both if p.family == family and p.jitter_share == share]
        rows.append(f"| {family} | {share:.0%} | {_counts(mine)} |")
    rows.append(f"| **all** | | {_counts(list(answers))} |")
    return rows


def _counts(answers: Sequence[Answer]) -> str:
    n = len(answers)
    late = sum(bool(a.loud) for a in answers)
    major = sum(any(s == "major" for _, s, _ in a.loud) for a in answers)
    rotating = sum(a.status == "rotating" for a in answers)
    unknown = sum(a.status == "not_assessed" for a in answers)
    return " | ".join([str(n), *(_share(x, n) for x in (late, major, rotating, unknown))])


def _share(x: int, n: int) -> str:
    return f"{x} ({x / n:.1%})" if n else "0"


def by_size(plays: Sequence[Play], answers: Sequence[Answer]) -> list[str]:
    """The same, by ranks and steps."""
    rows = [
        "| ranks | steps | jobs | a late rank or node | of these major | rotating | not assessed |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for n, k in itertools.product(RANKS, STEPS):
        mine = [a for p, a in zip(plays, answers, strict=True) if (p.ranks, p.steps) == (n, k)]
        rows.append(f"| {n} | {k} | {_counts(mine)} |")
    return rows


# Late ranks ------------------------------------------------------------------------------------------------

_LATE = (0.02, 0.03, 0.05, 0.10, 0.20)


def late_plays(jobs: int) -> list[Play]:
    """Eight ranks, 50 steps; one rank late by a share of the step, jitter half of that."""
    return [
        Play(
            late={(seed * 5) % 8: share * 100e6},
            family=family,
            jitter_share=share / 2,
            seed=50_000 + seed,
        )
        for family, share, seed in itertools.product(FAMILIES, _LATE, range(jobs))
    ]


def power(plays: Sequence[Play], answers: Sequence[Answer]) -> list[str]:
    """Table of how late ranks are found."""
    rows = [
        "| jitter | late by (share of the step) | jobs | that rank and nobody else | its node instead | others accused | nobody |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for family, share in itertools.product(FAMILIES, _LATE):
        mine = [
            (p, a)
            for p, a in zip(plays, answers, strict=True)
            if p.family == family and p.jitter_share == share / 2
        ]
        right = sum(_named(a) == {("late_rank", tuple(p.late))} for p, a in mine)
        node = sum(any(k == "late_node" and set(p.late) <= set(r) for k, _, r in a.loud) for p, a in mine)
        other = sum(any(not set(p.late) & set(r) for _, _, r in a.loud) for p, a in mine)
        nobody = sum(not a.loud for _, a in mine)
        n = len(mine)
        counts = " | ".join(_share(x, n) for x in (right, node, other, nobody))
        rows.append(f"| {family}, half as wide | {share:.0%} | {n} | {counts} |")
    return rows


def _named(a: Answer) -> set[tuple[str, tuple[int, ...]]]:
    return {(kind, ranks) for kind, _, ranks in a.loud}


# Clocks ----------------------------------------------------------------------------------------------------


def clock_plays(jobs: int) -> list[Play]:
    """Two nodes, 60 s, ends that scatter by 60 us; one clock 3.5 ms ahead and 8 ppm fast."""
    return [
        Play(
            steps=600,
            end_jitter_ns=60e3,
            offset_ns={1: 3.5e6},
            drift_ppm={1: 8.0},
            jitter_share=0.02,
            family=family,
            seed=60_000 + seed,
        )
        for family, seed in itertools.product(FAMILIES, range(jobs))
    ]


def clock_errors(play: Play) -> tuple[float, float]:
    """Errors of a fitted offset (ns) and rate (ppm) of node 1 against node 0."""
    played = perform(play)
    clock = _compared(played).clock
    a, b = clock.nodes[0], clock.nodes[1]
    true = play.offset_ns[1] + play.drift_ppm[1] * 1e-6 * clock.centre_ns
    return b.offset_ns - a.offset_ns - true, b.drift_ppm - a.drift_ppm - play.drift_ppm[1]


def clocks(errors: Sequence[tuple[float, float]]) -> list[str]:
    """Table of clock errors."""
    offset, rate = np.abs(np.array(errors, np.float64)).T
    return [
        "| figure | jobs | median error | 95 % below | largest |",
        "|---|---:|---:|---:|---:|",
        f"| offset, µs | {offset.size} | {_three(offset / 1e3)} |",
        f"| rate, ppm | {rate.size} | {_three(rate)} |",
    ]


def _three(x: np.ndarray) -> str:
    return f"{np.median(x):.3f} | {np.quantile(x, 0.95):.3f} | {x.max():.3f}"


# Matching --------------------------------------------------------------------------------------------------


def window_plays(jobs: int) -> list[Play]:
    """Windows that begin up to 200 collectives apart, one event in a hundred lost."""
    out = []
    for payloads, tensor, lost, seed in itertools.product((True, False), (1, 2), (0.0, 0.01), range(jobs)):
        draws = np.random.default_rng([70_000, seed, tensor])
        shift = {r: int(draws.integers(0, 201)) for r in range(8)}
        short = {r: int(draws.integers(0, 101)) for r in range(8)}
        out.append(
            Play(
                steps=150,
                tensor=tensor,
                shift=shift,
                short=short,
                lost_share=lost,
                payloads=payloads,
                jitter_share=0.02,
                offset_ns={1: 3.5e6},
                family=FAMILIES[seed % 3],
                seed=70_000 + seed,
            )
        )
    return out


def matched(play: Play) -> tuple[int, int, int]:
    """Instances that could be matched, matched rightly, and matched wrongly."""
    played = perform(play)
    c = _compared(played)
    right = wrong = 0
    for comm in c.matching.communicators:
        rows = [played.true_index[c.job.ranks[int(r)].identity.rank] for r in comm.members]
        true = np.stack([row[comm.positions[:, j]] for j, row in enumerate(rows)], axis=1)
        same = (true == true[:, :1]).all(axis=1)
        right += int(same.sum())
        wrong += int((~same).sum())
    return _possible(play, played), right, wrong


def _possible(play: Play, played: Played) -> int:
    """Instances that all members of their communicator recorded."""
    m = play.steps * play.per_step
    seen = np.zeros((m, play.ranks), np.bool_)
    for r, index in enumerate(played.true_index):
        seen[index, r] = True
    if play.tensor == 1:
        return int(seen.all(axis=1).sum())
    last = np.arange(m) % play.per_step == play.per_step - 1
    groups = seen.reshape(m, -1, play.tensor)
    return int(groups[~last].all(axis=2).sum() + groups[last].all(axis=1).sum())


def windows(plays: Sequence[Play], counts: Sequence[tuple[int, int, int]]) -> list[str]:
    """Table of matching."""
    rows = [
        "| payloads | communicators | events lost | jobs | instances all members have | matched rightly | wrongly |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for payloads, tensor, lost in itertools.product((True, False), (1, 2), (0.0, 0.01)):
        mine = [
            x
            for p, x in zip(plays, counts, strict=True)
            if (p.payloads, p.tensor, p.lost_share) == (payloads, tensor, lost)
        ]
        possible, right, wrong = np.array(mine).sum(axis=0)
        kinds = "one over all ranks" if tensor == 1 else "4 tensor-parallel pairs, 2 data-parallel groups"
        rows.append(
            f"| {'yes' if payloads else 'no'} | {kinds} | {lost:.0%} | {len(mine)} | {possible:,} | "
            f"{right / possible:.3%} | {wrong / max(right + wrong, 1):.3%} |"
        )
    return rows


# ------------------------------------------------------------------------------------------------------------


def spread(work: Callable[[P], R], items: Sequence[P], workers: int) -> list[R]:
    """Map over processes, in order."""
    if workers == 1:
        return [work(x) for x in items]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(work, items, chunksize=4))


def tables(scale: float, workers: int, say: Callable[[str], None]) -> dict[str, list[str]]:
    """Make all tables; `scale` 1 is the documented sample."""

    def count(full: int) -> int:
        return max(1, round(full * scale))

    out = {}
    plays = healthy_plays(count(_HEALTHY_JOBS))
    # The long ones first, so that the last worker does not end alone; the order of the results stays.
    order = sorted(range(len(plays)), key=lambda i: -plays[i].ranks * plays[i].steps)
    found = dict(zip(order, spread(judge, [plays[i] for i in order], workers), strict=True))
    answers = [found[i] for i in range(len(plays))]
    out["false alarms"] = false_alarms(plays, answers)
    out["false alarms by size"] = by_size(plays, answers)
    say(f"{len(plays)} healthy jobs")
    plays = late_plays(count(_JOBS))
    out["power"] = power(plays, spread(judge, plays, workers))
    say(f"{len(plays)} jobs with a late rank")
    jobs = planted_jobs(count(_PLANTED_JOBS))
    out["faults"] = faults(jobs, spread(score, jobs, workers))
    say(f"{len(jobs)} jobs with planted faults")
    plays = clock_plays(count(_JOBS // 3))
    out["clocks"] = clocks(spread(clock_errors, plays, workers))
    say(f"{len(plays)} jobs for the clocks")
    plays = window_plays(count(_JOBS // 5))
    out["matching"] = windows(plays, spread(matched, plays, workers))
    say(f"{len(plays)} jobs for matching")
    return out


def put_into(page: str, made: dict[str, list[str]]) -> str:
    """Replace the tables between their marks in a page.

    Raises
    ------
    ValueError
        When a mark is missing.
    """
    for name, rows in made.items():
        mark = rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)"
        page, n = re.subn(
            mark, lambda m, rows=rows: m[1] + "\n".join(rows) + "\n" + m[2], page, flags=re.DOTALL
        )
        if n != 1:
            raise ValueError(f"the page has {n} places for table {name!r}, expected 1")
    return page


def main(arguments: Iterable[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="share of the documented sample")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help=f"put the tables into docs/{PAGE.name}")
    given = parser.parse_args(None if arguments is None else list(arguments))
    made = tables(given.scale, given.workers, lambda text: print(text, file=sys.stderr, flush=True))
    for name, rows in made.items():
        print(f"\n{name}\n" + "\n".join(rows))
    if given.write:
        PAGE.write_text(put_into(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main()
