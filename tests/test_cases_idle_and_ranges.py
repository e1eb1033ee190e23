"""Situations of idle time and NVTX ranges that users met, with their right answers, by the ids of the list of cases.

Where a case and the method differ, the method holds, and the test says so.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdiff.kernels.intervals import gaps, length_ns, overlap_each, union
from rankdiff.schema import IDLE_CLASSES
from rankdiff.simulation import Export, Phase, synthetic
from tests.jobs import codes, digests, figures, inspected, late, run, warning, words

MS = 1_000_000
US = 1_000
LOADER = 7_002  # a thread that launches nothing


def idle(digest):
    """Idle time by class, in ns; classes without any are left out."""
    return dict(digest.idle.select("class", "ns").group_by("class").sum().iter_rows())


def one_gap(export, begin, end, **launch):
    """GPU work before and after one gap."""
    export.kernel(begin - 10 * MS, begin, "gemm")
    export.kernel(end, end + 10 * MS, "gemm", **launch)


def test_copies_are_no_idle_time(tmp_path):
    """B18: a copy spans the gap between two kernels; apart from the kernels it is copy time, not idle time."""
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.memcpy(0, 100 * MS)
        export.kernel(0, MS, "gemm")
        export.kernel(99 * MS, 100 * MS, "gemm")
    (digest,) = digests(export.path)
    assert (digest.info.span_ns, digest.info.idle_ns) == (100 * MS, 0)
    compute = digest.work.filter(digest.work["kind"] == "compute")
    copy = digest.work.filter(digest.work["kind"] == "copy")
    assert int((compute["end_ns"] - compute["start_ns"]).sum()) == 2 * MS
    assert int((copy["end_ns"] - copy["start_ns"]).sum()) == 100 * MS


def test_time_in_copies_alone_is_shown_apart(tmp_path):
    """B18: in every step 98 ms lie under a copy alone."""

    def edit(rank, export):
        for k in range(10):
            export.memcpy(k * 110 * MS, k * 110 * MS + 99 * MS)

    phases = (Phase(MS),)
    settings = {"step_ns": 110 * MS, "phases": phases, "late_as": "begin", "edit": edit, "data_load": False}
    report = run(synthetic(tmp_path, steps=10, **settings).paths)
    # The kernel and the all-reduce after it lie under the copy of 99 ms; the first step has no length.
    for made_up in figures(report, "make_up_ns").values():
        assert made_up["copy"] == 9 * (99 * MS - MS - 500 * US)
        assert made_up["compute"] == 9 * MS


def test_events_without_an_end(tmp_path):
    """B20: marks, domains and categories are no ranges; a range open at the end lasts to it and is counted as open."""
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 1_000, "gemm", launch=(0, 500))
        export.kernel(19_000, 20_000, "gemm", launch=(18_000, 18_500))
        export.nvtx(1_000, None, "CCCL", type=75)
        export.nvtx(2_000, None, "mark data_load", type=34)
        export.nvtx(2_500, None, "data_load", type=33)
        export.nvtx(4_000, 9_000, "data_load")
    (closed,) = digests(export.path)
    assert (closed.info.data_ranges, closed.info.open_ranges, closed.info.idle_data_load_ns) == (1, 0, 5_000)
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 1_000, "gemm", launch=(0, 500))
        export.kernel(19_000, 20_000, "gemm", launch=(18_000, 18_500))
        export.nvtx(3_000, None, "data_load")
        export.nvtx(4_000, 9_000, "data_load")
    (digest,) = digests(export.path)
    assert (digest.info.data_ranges, digest.info.open_ranges) == (2, 1)
    assert digest.info.idle_data_load_ns == 16_000  # [3,000, 19,000), where the idle time ends
    assert idle(digest)["data_load"] == 15_500  # the launch returns at 18,500; what follows waits for the GPU
    assert (digest.idle["ns"] > 0).all()


@pytest.mark.parametrize("form", ["text", "textId", "both", "no textId column", "no text column"])
def test_names_in_the_row_or_in_the_string_table(tmp_path, form):
    """B21: the same total wherever the names stand; a range without any is counted, and nothing fails."""
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        one_gap(export, 10 * MS, 50 * MS)
        for k in range(10):
            ids = form in ("textId", "no text column") or (form == "both" and k % 2 == 0)
            export.nvtx((11 + 3 * k) * MS, (12 + 3 * k) * MS, "data_load", as_text_id=ids)
        export.nvtx(0, 70 * MS, None)
        if form.startswith("no "):
            export.sql(f"ALTER TABLE NVTX_EVENTS DROP COLUMN {form.split()[1]}")
    (digest,) = digests(export.path)
    assert (digest.info.data_ranges, digest.info.idle_data_load_ns) == (10, 10 * MS)
    assert digest.info.tables["NVTX_EVENTS"] == 11


def test_spellings_of_data_loading(tmp_path):
    """B22: four of the five names are data loading; --data-range chooses others."""
    names = [
        "data_load",
        "data_load step=12",
        "DataLoader.next",
        "preload_data_loader_cfg",
        "torch:data_load",
    ]
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        one_gap(export, 10 * MS, 60 * MS)
        for k, name in enumerate(names):
            export.nvtx((12 + 5 * k) * MS, (13 + 5 * k) * MS, name)
    (digest,) = digests(export.path)
    assert (digest.info.data_ranges, digest.info.idle_data_load_ns) == (4, 4 * MS)
    (digest,) = digests(export.path, data_range="preload")
    assert (digest.info.data_ranges, digest.info.idle_data_load_ns) == (1, MS)


def test_no_range_that_loads_data(tmp_path):
    """B22: then the names that there are get listed, and the overlap is not available rather than 0 %."""
    job = synthetic(tmp_path, steps=10, data_load=False, late={2: 3 * MS}, late_as="host")
    report = run(job.paths)
    told = warning(report, "no_data_range")
    assert told.startswith("no NVTX range is known as data loading")
    assert "--data-range" in told
    assert "checkpoint" in told
    assert figures(report, "idle_data_load_ns") == dict.fromkeys(range(4))
    assert {r["idle_by_cause_ns"]["data_load"] for r in report["ranks"]} == {None}
    assert "under data loading n/a" in inspected(job.paths)


def background(path, *, own=True, process=True, thread=False):
    """A gap of 6 ms in which a worker loads all the time, and the main thread waits for it 5 ms."""
    with Export(path) as export:
        export.kernel(0, 40 * MS, "gemm")
        export.nccl("all_reduce", 46 * MS, 50 * MS)
        if own:
            export.nvtx(40 * MS, 45 * MS, "next_batch")
        if process:
            worker = export.process(5_000)
            export.nvtx(0, 1, "forward")
            worker.nvtx(0, 100 * MS, "data_load")
        if thread:
            export.nvtx(0, 100 * MS, "data_load", tid=LOADER)
            for k in range(3):
                export.nvtx(k * MS, k * MS + 1, "forward")
    return export.path


def test_the_main_threads_wait_counts_and_not_the_workers_work(tmp_path):
    """B23: 5 of the 6 ms of the gap are the main thread's wait for data."""
    (digest,) = digests(background(tmp_path / "prof_a_0.sqlite"))
    assert digest.info.idle_data_load_ns == 5 * MS
    assert idle(digest)["data_load"] == 5 * MS
    assert sum(idle(digest).values()) == 6 * MS
    assert not digest.info.background_loading


@pytest.mark.parametrize("where", ["process", "thread"])
def test_loading_in_the_background_proves_nothing(tmp_path, where):
    """B23: only a worker has ranges of data loading: the launching thread may have waited for something else."""
    places = {"own": False, "process": where == "process", "thread": where == "thread"}
    path = background(tmp_path / "prof_a_0.sqlite", **places)
    (digest,) = digests(path)
    assert digest.info.background_loading
    assert "data_load" not in idle(digest)
    report = run([path])
    assert "background loading, overlap with idle time is not proof of blocking" in warning(
        report, "background_loading"
    )
    assert "no_data_range" not in codes(report)


def test_parked_threads_take_no_blame(tmp_path):
    """B24: a helper thread polls all the time; the launching thread reads for 8 of the 10 ms."""
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        one_gap(export, 40 * MS, 50 * MS)
        export.osrt(0, 100 * MS, "poll", tid=LOADER)
        export.osrt(40 * MS, 48 * MS, "read")
        for tid in range(8_000, 8_005):
            export.osrt(40 * MS, 50 * MS, "sem_wait", tid=tid)
    (digest,) = digests(export.path)
    assert digest.info.idle_osrt_ns == 8 * MS
    assert idle(digest)["io"] == 8 * MS
    assert "os_wait" not in idle(digest)
    assert sum(idle(digest).values()) == digest.info.idle_ns == 10 * MS


def test_nested_calls_cover_a_gap_once(tmp_path):
    """B25: [0, 10) with [2, 8) inside it covers 100 %, not 160 %."""
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        one_gap(export, 10 * MS, 20 * MS, launch=(20 * MS - 1, 20 * MS))
        export.osrt(10 * MS, 20 * MS, "fread")
        export.osrt(12 * MS, 18 * MS, "read", nesting=1)
    (digest,) = digests(export.path)
    assert digest.info.idle_osrt_ns == digest.info.idle_ns == 10 * MS
    assert idle(digest) == {"io": 10 * MS}


spans = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 25)).map(lambda p: (p[0], p[0] + p[1])), max_size=12
)


def arrays(intervals):
    starts = np.array([a for a, _ in intervals], np.int64)
    return starts, np.array([b for _, b in intervals], np.int64)


@given(spans, spans)
def test_no_overlap_exceeds_its_gap(work, calls):
    """B25: 0 <= overlap <= length for every gap, and the sum over all is that of the unions."""
    idle_time = gaps(*union(*arrays(work)))
    covered = union(*arrays(calls))
    found = overlap_each(*idle_time, *covered)
    lengths = idle_time[1] - idle_time[0]
    assert (found >= 0).all()
    assert (found <= lengths).all()
    moments = {t for a, b in zip(*idle_time, strict=True) for t in range(a, b)}
    assert int(found.sum()) == len(moments & {t for a, b in calls for t in range(a, b)})
    assert length_ns(*idle_time) == len(moments)


@pytest.mark.parametrize("seed", range(3))
def test_classes_of_idle_time_add_up(tmp_path, seed):
    """B25: whatever overlaps what, each ns of the idle time has one class."""
    draw = np.random.default_rng(seed)
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        at = 0
        for _ in range(30):
            at += int(draw.integers(1, 400)) * US
            end = at + int(draw.integers(1, 200)) * US
            export.kernel(at, end, "gemm", launch=(at - int(draw.integers(1, 300)) * US, at - 500))
            at = end
        for name in ("read", "poll", "futex", "frobnicate"):
            for start in draw.integers(0, at, 25):
                export.osrt(int(start), int(start + draw.integers(1, 300 * US)), name)
        for name in ("data_load", "forward"):
            for start in draw.integers(0, at, 15):
                export.nvtx(int(start), int(start + draw.integers(1, 500 * US)), name)
        export.overhead(at // 3, at // 2)
    (digest,) = digests(export.path)
    found = idle(digest)
    assert set(found) <= set(IDLE_CLASSES)
    assert sum(found.values()) == digest.info.idle_ns > 0
    assert 0 < digest.info.idle_osrt_ns <= digest.info.idle_ns
    assert 0 < digest.info.idle_data_load_ns <= digest.info.idle_ns


def test_ranges_that_nest_and_cross_threads(tmp_path):
    """B83: push/pop [0, 10) with [2, 4) inside and start/end [8, 14) that ends on another thread: 14, not 18."""
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        one_gap(export, 0, 20 * MS)
        export.nvtx(0, 10 * MS, "data_load")
        export.nvtx(2 * MS, 4 * MS, "data_load")
        export.nvtx(8 * MS, 14 * MS, "data_load", type=60, end_tid=LOADER)
    (digest,) = digests(export.path)
    assert digest.info.data_ranges == 3
    assert digest.info.idle_data_load_ns == 14 * MS
    assert idle(digest)["data_load"] == 14 * MS


def test_all_ranks_load_alike(tmp_path):
    """B85: nobody is late; the GPUs idle 60 % of the time, 90 % of it under data loading, on all ranks."""

    def edit(rank, export):
        for k in range(1, 20):
            export.nvtx(k * 10 * MS - 5_700 * US, k * 10 * MS - 300 * US, "data_load")

    settings = {"steps": 20, "step_ns": 10 * MS, "phases": (Phase(3_500 * US),), "data_load": False}
    job = synthetic(tmp_path, **settings, jitter_ns=1_000, edit=edit)
    report = run(job.paths)
    assert report["verdict"]["status"] == "balanced"
    assert late(report, "major", "minor", "note") == []
    (stall,) = report["findings"]
    assert (stall["kind"], stall["cause"], stall["ranks"]) == ("common_stall", "data_load", [0, 1, 2, 3])
    assert stall["delay_share"] == pytest.approx(0.6, abs=0.001)
    assert report["bottleneck"]["kind"] == "data"
    assert (
        "all 4 GPUs idle together 6.00 ms a step (60%), at least 90% of every rank's idle time in data_load"
        in (words(job.paths))
    )


def test_before_the_first_and_after_the_last_kernel(tmp_path):
    """B87: idle time is between the first start and the last end; the time around it is not counted."""
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.nvtx(0, 100 * MS, "main")
        export.osrt(0, 100 * MS, "poll", tid=LOADER)
        export.kernel(40 * MS, 45 * MS, "gemm")
        export.kernel(50 * MS, 60 * MS, "gemm")
    (digest,) = digests(export.path)
    info = digest.info
    assert (info.window_start_ns, info.window_end_ns) == (40 * MS, 60 * MS)
    assert (info.span_ns, info.busy_ns, info.idle_ns) == (20 * MS, 15 * MS, 5 * MS)
    assert "window 20.0 ms of GPU activity" in inspected([export.path])


def test_windows_of_unequal_length_are_compared_where_both_are(tmp_path):
    """B87: rank 1 was captured for half of the time: the judged steps are the common ones."""
    job = synthetic(tmp_path, steps=40, cut={1: (10, 10)}, late={2: 2 * MS}, jitter_ns=50 * US)
    report = run(job.paths)
    assert report["job"]["matched_collectives"] == report["job"]["steps"] == 20
    assert late(report) == [("late_rank", 2)]
    spans_ns = figures(report, "span_ns")
    assert spans_ns[1] < 0.6 * spans_ns[0]
    waited = figures(report, "wait_ns")
    assert abs(waited[1] - waited[0]) < 20 * 100 * US


def test_no_join_of_ranges_with_gaps_in_sql(repository):
    """B62: events meet gaps in kernels that sweep over sorted arrays, never in an inequality join of tables."""
    inequality = re.compile(
        r"\bJOIN\b[^;]*?\bON\b[^;]*?\w+\.\w+\s*(?:<|>|<=|>=|BETWEEN)\s*\w+\.\w+", re.I | re.S
    )
    texts = []
    for path in sorted(Path(repository / "rankdiff").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append((path.name, node.value))
    queries = [(name, text) for name, text in texts if re.search(r"\b(FROM|JOIN)\b", text)]
    assert len(queries) > 10
    assert [name for name, text in queries if inequality.search(text)] == []


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="two million rounds of a loop need the compiler")
def test_two_million_ranges_over_two_hundred_thousand_gaps():
    """B62: one sweep; a join of the two would have 400,000 million pairs to look at."""
    starts = np.arange(2_000_000, dtype=np.int64) * 100
    begin = np.arange(200_000, dtype=np.int64) * 1_000
    found = overlap_each(begin, begin + 250, *union(starts, starts + 40))
    # [0, 250) meets [0, 40), [100, 140) and [200, 240).
    assert found.shape == (200_000,)
    assert (found == 120).all()
