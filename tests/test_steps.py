"""Step ranges: which name is the step, and where steps begin and end."""

from __future__ import annotations

import polars as pl
import pytest

from rankdiff.digest import DigestOptions, make_digests
from rankdiff.reports.discover import discover
from rankdiff.reports.identity import claims
from rankdiff.schema import STEPS
from rankdiff.simulation import Export
from rankdiff.steps import step_at


def steps(path, **options):
    (report,) = discover([path]).reports
    (digest,) = make_digests(report, claims(report), DigestOptions(**options))
    return digest.info.step_source, digest.steps.select("step", "number", "name", "start_ns", "end_ns").rows()


def test_steps_of_any_thread(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 100, "gemm")
        export.nvtx(50, 90, "step 12", tid=7001)
        export.nvtx(0, 40, "step 11", tid=7001, as_text_id=True)
        export.nvtx(5, 20, "step_function_x")
        export.nvtx(5, None, "step 99", type=34)
        export.process(99, 0).nvtx(0, 30, "step 1")
    assert steps(export.path) == ("nvtx:step", [(0, 11, "step 11", 0, 40), (1, 12, "step 12", 50, 90)])


def test_no_steps(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 100, "gemm")
        export.nvtx(0, 40, "batch_norm")
    assert steps(export.path) == (None, [])


def test_the_outermost_name_is_the_step(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 100, "gemm")
        export.nvtx(-5, 2000, "batch")  # the whole run
        for k in range(3):
            export.nvtx(100 * k, 100 * k + 90, f"iteration {k}")
            for micro in range(4):
                export.nvtx(100 * k + 20 * micro, 100 * k + 20 * micro + 10, f"step {micro}")
    source, rows = steps(export.path)
    assert source == "nvtx:iteration"
    assert [row[1] for row in rows] == [0, 1, 2]


def test_side_by_side_the_more_frequent_name_is_the_step(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 100, "gemm")
        for k in range(6):
            export.nvtx(100 * k, 100 * k + 40, "step")
        for k in range(2):
            export.nvtx(300 * k + 50, 300 * k + 90, "batch")
    source, rows = steps(export.path)
    assert source == "nvtx:step"
    assert [row[:2] for row in rows] == [(k, None) for k in range(6)]


def test_a_step_marked_twice_is_one(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 100, "gemm")
        for k in range(3):
            export.nvtx(100 * k, 100 * k + 80, f"step {k}")
            export.nvtx(100 * k + 5, 100 * k + 70, f"step {k}", tid=7001)
    assert len(steps(export.path)[1]) == 3


def test_an_open_step_ends_with_the_capture(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 500, "gemm")
        export.nvtx(0, 100, "step 1", type=60)
        export.nvtx(100, None, "step 2", type=60)
    assert [row[3:] for row in steps(export.path)[1]] == [(0, 100), (100, 500)]


def test_a_users_pattern(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 100, "gemm")
        for k in range(3):
            export.nvtx(100 * k, 100 * k + 80, f"my work {k + 7}")
        export.nvtx(0, 90, "step 1")
    source, rows = steps(export.path, step_range="my work")
    assert source == "nvtx:my work"
    assert [row[1] for row in rows] == [7, 8, 9]


def test_session_times(tmp_path):
    epoch = 1_779_630_000_000_000_000
    with Export(tmp_path / "prof_a_0.sqlite", shift_ns=epoch) as export:
        export.kernel(0, 100, "gemm")
        export.nvtx(0, 41, "step 1")
    assert steps(export.path)[1][0][3:] == (0, 41)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], [None] * 8),
        ([(-5, 0), (0, 10), (20, 30)], [0, 1, 1, None, None, 2, None, None]),
        ([(0, 12), (10, 22), (21, 40)], [None, 0, 0, 1, 1, 2, 2, None]),  # crossing: the one that began last
    ],
)
def test_the_step_of_a_moment(spans, expected):
    columns = {"step": range(len(spans)), "start_ns": [a for a, _ in spans], "end_ns": [b for _, b in spans]}
    steps = pl.DataFrame(columns, schema={name: STEPS[name] for name in columns})
    moments = pl.Series([-1, 0, 9, 10, 12, 29, 30, None], dtype=pl.Int64)
    assert step_at(steps, moments).to_list() == expected
