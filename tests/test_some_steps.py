"""`compare --steps`: a job as if only some steps had been captured."""

from __future__ import annotations

import dataclasses

import polars as pl
import pytest

from rankdiff.clipping import clip
from rankdiff.errors import RankdiffError
from rankdiff.pipeline import read
from rankdiff.schema import DIGEST_TABLES
from rankdiff.simulation import Settings, parse_fault, simulate
from tests.command import called as rankdiff
from tests.jobs import late, run

US = 1_000


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs") / "job"
    return simulate(
        folder, Settings(ranks=4, nodes=2, steps=14, faults=[parse_fault("data_load:rank=2:ms=8")])
    )


@pytest.fixture(scope="module")
def whole(job):
    return list(read([str(p) for p in job.reports]).digests)


def test_all_steps_are_the_whole_but_for_what_lies_outside_of_them(whole):
    for before, after in zip(whole, clip(whole, 0, 10**6), strict=True):
        inside = before.collectives["step"].is_not_null()
        assert inside.any()
        assert after.collectives.equals(before.collectives.filter(inside))
        for name in ("steps", "signatures", "host_calls", "copies", "clocks", "gaps"):
            table = getattr(before, name)
            assert getattr(after, name).equals(table.filter(table["step"].is_not_null())), name
        assert after.idle.equals(before.idle)


def test_rows_keep_to_each_other(whole):
    numbers = [int(n) for n in whole[0].steps["number"]]
    first, last = numbers[2], numbers[5]
    for before, after in zip(whole, clip(whole, first, last), strict=True):
        assert all(getattr(after, name).schema == DIGEST_TABLES[name] for name in DIGEST_TABLES)
        assert after.steps["step"].to_list() == [0, 1, 2, 3]
        assert after.steps["number"].to_list() == numbers[2:6]
        assert after.collectives["step"].to_list() == [
            s - 2 for s in before.collectives["step"].to_list() if s is not None and 2 <= s <= 5
        ]

        def made_of(digest):
            rows = digest.collectives.with_row_index("collective").with_columns(
                pl.col("collective").cast(pl.Int64)
            )
            found = digest.lead_up.join(rows.select("collective", start="start_ns"), on="collective")
            return set(found.select("start", "class", "range", "call", "ns").rows())

        kept = set(after.collectives["start_ns"].to_list())
        assert made_of(after) == {row for row in made_of(before) if row[0] in kept} != set()
        low, high = after.info.window_start_ns, after.info.window_end_ns
        assert before.info.window_start_ns <= low < high <= before.info.window_end_ns
        assert after.work["start_ns"].min() >= low
        assert after.work["end_ns"].max() <= high


def test_delays_of_the_steps_are_those_of_the_whole_job(job):
    everything = run(job.reports)
    names = [s["step"] for s in everything["steps"]]
    chosen = run(job.reports, steps=(int(names[3]), int(names[-2])))
    assert [s["step"] for s in chosen["steps"]] == names[3:-1]
    assert late(chosen) == late(everything) == [("late_rank", 2)]
    before = {s["step"]: s["delay_ns"] for s in everything["steps"]}
    for step in chosen["steps"][1:]:  # what was before the first is not there
        assert step["delay_ns"] == pytest.approx(before[step["step"]], abs=50 * US)
    (note,) = [w["message"] for w in chosen["warnings"] if w["code"] == "steps_only"]
    assert f"steps {names[3]} to {names[-2]}" in note


def test_the_option(job):
    done = rankdiff("compare", *job.reports, "--steps", "2-7", "--format", "markdown")
    assert done.returncode == 0
    assert "--steps 2-7" in done.stdout
    assert rankdiff("compare", *job.reports, "--steps", "7-2").returncode == 2


def test_steps_that_nobody_has(whole):
    with pytest.raises(RankdiffError, match=r"no steps 900 to 910: the steps are \d+ to \d+\. Choose"):
        clip(whole, 900, 910)


def test_steps_without_numbers(whole):
    bare = whole[0].steps.with_columns(pl.lit(None, pl.Int64).alias("number"))
    with pytest.raises(RankdiffError, match="no step range with a number in its name"):
        clip([dataclasses.replace(whole[0], steps=bare)], 0, 5)
