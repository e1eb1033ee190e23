"""The benchmarks measure what they say: larger reports of the same job, and all processes of a command."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

import pytest

from benchmarks.calibrate import put_into
from benchmarks.measuring import Run, in_turns, run
from benchmarks.performance import PAGE
from benchmarks.tile import tile
from rankdiff.digest import make_digests
from rankdiff.reports.discover import discover
from rankdiff.reports.identity import claims
from rankdiff.simulation import Export


def digested(path):
    (report,) = discover([path]).reports
    (digest,) = make_digests(report, claims(report))
    return digest


@pytest.mark.parametrize("as_text_id", [False, True])
def test_a_tile_is_the_capture_several_times(tmp_path, as_text_id):
    reports = []
    for rank, steps in ((0, 3), (1, 2)):
        with Export(tmp_path / f"prof_a_{rank}.sqlite") as export:
            for step in range(steps):
                at = 1_000_000 * step
                export.nvtx(at, at + 900_000, f"step {step}", as_text_id=as_text_id)
                export.nvtx(at, at + 100_000, "fetch_batch")
                export.kernel(at + 100_000, at + 400_000, "gemm")
                export.osrt(at + 400_000, at + 500_000, "read")
                export.nccl("all_reduce", at + 500_000, at + 800_000, comm=0xABC)
        reports.append(export.path)
    sizes = [path.stat().st_size for path in reports]
    ones, larger = tile(reports, tmp_path / "tiles", 3 * max(sizes) / (1 << 20))
    assert [path.name for path in (ones, larger)] == ["prof_a_0.sqlite", "prof_a_1.sqlite"]
    small, large = digested(reports[0]), digested(ones)
    assert large.steps["number"].to_list() == list(range(9))
    assert large.collectives.height == 3 * small.collectives.height == 9
    assert large.collectives["step"].to_list() == list(range(9))
    assert large.collectives["launch_ns"].null_count() == 0
    assert large.info.busy_ns == 3 * small.info.busy_ns
    assert large.info.idle_data_load_ns == 8 * 100_000, "before the first kernel nothing is idle"
    # The shorter report keeps the pace of the longer one.
    period = large.steps["start_ns"][3] - large.steps["start_ns"][0]
    other = digested(larger).steps
    assert other["number"].to_list() == [0, 1, 2, 3, 4, 5]
    assert other["start_ns"][2] - other["start_ns"][0] == period > 3_000_000
    with closing(sqlite3.connect(ones)) as db:
        ids = db.execute("SELECT count(DISTINCT correlationId), count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME")
        assert len(set(ids.fetchone())) == 1


def test_memory_and_time_of_all_processes():
    child = "x = bytearray(200 << 20); import time; time.sleep(1); sum(range(3_000_000))"
    found = run(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"]
    )
    assert found.peak > 200
    assert found.wall > 1
    assert found.cpu > 0


def test_a_command_that_fails():
    command = [sys.executable, "-c", "import sys; print('why', file=sys.stderr); sys.exit(4)"]
    with pytest.raises(RuntimeError, match="why"):
        run(command)
    assert run(command, 4).output == ""


def test_medians_of_runs_in_turns():
    called = []
    times = {"a": iter([9.0, 1.0, 5.0, 2.0]), "b": iter([9.0, 3.0, 3.0, 4.0])}

    def way(name):
        called.append(name)
        seconds = next(times[name])
        return Run(seconds, 2 * seconds, int(seconds), name)

    found = in_turns({"a": lambda: way("a"), "b": lambda: way("b")}, 3)
    assert called == ["a", "b"] * 4
    assert found == {"a": Run(2.0, 4.0, 5, "a"), "b": Run(3.0, 6.0, 4, "b")}, "the first run is for warmth"


def test_the_page_has_a_place_for_every_table():
    names = ("machine", "reading", "whole", "stages", "growth", "small")
    page = put_into(PAGE.read_text(encoding="utf-8"), {name: [f"of {name}"] for name in names})
    assert all(f"<!-- table: {name} -->\nof {name}\n<!-- end -->" in page for name in names)
