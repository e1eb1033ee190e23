"""Every nanosecond of a rank has one class: exactly, on hand-made files, and as a slow twin has it."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace

import polars as pl
import pytest

from rankdiff.digest import DigestOptions, make_digests
from rankdiff.idle import idle_by_cause
from rankdiff.reports.call_names import cuda_class, os_class, strip_version
from rankdiff.reports.discover import discover
from rankdiff.reports.identity import claims
from rankdiff.reports.names import DEFAULT_STEP_RANGE
from rankdiff.schema import DIGEST_TABLES, IDLE_CLASSES, check
from rankdiff.simulation import Export
from tests.oracles.figures import DATA, figures
from tests.oracles.timeline import Names, by_label, timelines

NAMES = Names(
    bare=strip_version,
    cuda_class=cuda_class,
    os_class=os_class,
    is_data=lambda name: re.match(DATA, name),
    is_step=lambda name: re.match(DEFAULT_STEP_RANGE, name),
)
AUTOGRAD = 7001


def digest_all(path, **options):
    """Digest every (process, device) with GPU work, rank or not."""
    (report,) = discover([path]).reports
    some = claims(report)[0]
    units = [replace(some, pid=each["pid"], device=each["device"]) for each in figures(path)]
    return make_digests(report, units, DigestOptions(**options))


def digest_one(export, **options):
    (digest,) = digest_all(export.path, **options)
    assert_closed(digest)
    return digest


def windows(digest):
    """Row, start and end of the time before each N x N collective, in plain Python."""
    out, before = [], digest.info.window_start_ns
    for row, each in enumerate(digest.collectives.iter_rows(named=True)):
        if each["op_class"] == "nxn":
            out.append((row, before, max(before, each["start_ns"])))
            before = each["end_ns"]
    return out


def assert_closed(digest):
    """All tables have their schema, and the sums close."""
    for name, schema in DIGEST_TABLES.items():
        check(getattr(digest, name), schema, name)
    info = digest.info
    assert digest.idle["ns"].sum() == info.idle_ns
    assert digest.idle["ns"].min() is None or digest.idle["ns"].min() > 0
    causes = idle_by_cause(digest)
    assert tuple(causes) == IDLE_CLASSES
    assert sum(ns or 0 for ns in causes.values()) == info.idle_ns
    sums = dict(digest.lead_up.group_by("collective").agg(pl.col("ns").sum()).iter_rows())
    assert sums == {row: end - start for row, start, end in windows(digest) if end > start}
    labels = ["class", "range", "call"]
    assert not digest.idle.select(labels).is_duplicated().any()
    assert not digest.lead_up.select("collective", *labels).is_duplicated().any()
    assert digest.idle.equals(digest.idle.sort(labels))
    assert digest.lead_up.equals(digest.lead_up.sort("collective", *labels))
    assert digest.gaps["start_ns"].is_sorted()
    longest = digest.gaps.select(pl.col("end_ns") - pl.col("start_ns")).to_series()
    assert (digest.gaps["class_ns"] <= longest).all()
    assert digest.gaps.height <= 1000
    if digest.gaps.height < 1000:
        assert longest.sum() == info.idle_ns


def assert_as_the_twin(path):
    expected = timelines(path, NAMES)
    digests = digest_all(path)
    assert len(digests) == len(expected)
    for digest in digests:
        assert_closed(digest)
        shift = digest.info.time_shift_ns
        pieces = expected[digest.info.claims.pid, digest.info.claims.device]
        assert Counter(idle(digest)) == by_label(pieces), path
        spans = [(start + shift, end + shift) for _, start, end in windows(digest)]
        found = [Counter() for _ in spans]
        order = {row: at for at, (row, _, _) in enumerate(windows(digest))}
        for row, *label, ns in digest.lead_up.iter_rows():
            found[order[row]][tuple(label)] = ns
        assert found == by_label(pieces, spans), path


def idle(digest):
    """Idle time by (class, range, call)."""
    return {tuple(label): ns for *label, ns in digest.idle.iter_rows()}


def classes(digest):
    """Idle time by class, without those that have none."""
    return {name: ns for name, ns in idle_by_cause(digest).items() if ns}


def one_gap(process, *, launch=(105_000, 107_000), tid=None, api="cudaLaunchKernel_v7000"):
    """GPU work [0, 10) and [110, 120) us; the second is launched as given."""
    process.kernel(0, 10_000, "gemm", launch=(-2_000, -1_900))
    process.kernel(110_000, 120_000, "gemm", launch=launch, tid=tid, api=api)


def exported(tmp_path, **options):
    return Export(tmp_path / "prof_a_0.sqlite", **options)


# Each class, exactly


def test_every_class_in_one_gap(tmp_path):
    with exported(tmp_path) as export:
        one_gap(export)
        export.overhead(5_000, 12_000)
        export.nvtx(11_000, 20_000, "data_load 3")
        export.osrt(13_000, 15_000, "read")
        export.sync(20_000, 25_000)
        export.osrt(21_000, 22_000, "poll")
        export.api(25_000, 28_000, "cudaMalloc_v3020")
        export.osrt(26_000, 27_000, "ioctl")
        export.osrt(30_000, 40_000, "read")
        export.osrt(40_000, 45_000, "clock_nanosleep")
        export.api(50_000, 51_000, "cudaMemcpyAsync_v3020")
        export.sched(55_000, inward=True)
        export.sched(60_000, inward=False)
        export.sched(64_000, inward=True)
        export.osrt(70_000, 71_000, "mmap64")
    digest = digest_one(export)
    assert idle(digest) == {
        ("profiler", "data_load 3", None): 1_000,
        ("profiler", None, None): 1_000,
        ("data_load", "data_load 3", "read"): 2_000,
        ("data_load", "data_load 3", None): 6_000,
        ("sync", None, "cudaStreamSynchronize"): 5_000,
        ("alloc", None, "cudaMalloc"): 3_000,
        ("io", None, "read"): 10_000,
        ("os_wait", None, "clock_nanosleep"): 5_000,
        ("launch", None, "cudaMemcpyAsync"): 1_000,
        ("launch", None, "cudaLaunchKernel"): 5_000,  # in the call, and after it until the kernel starts
        ("preempted", None, None): 4_000,
        ("host", None, "mmap64"): 1_000,
        ("host", None, None): 100_000 - 44_000,
    }
    assert idle_by_cause(digest)["unknown"] == 0
    assert digest.info.unclassified_calls == ()
    assert_as_the_twin(export.path)


def test_times_before_the_session_are_times(tmp_path):
    """Only null is null: a negative time is none of the marks that stand for it."""
    digests = []
    for name, moved in (("prof_a_0.sqlite", 0), ("prof_a_1.sqlite", -50_000_000)):
        with Export(tmp_path / name) as export:
            for step in range(3):
                at = moved + 1_000_000 * step
                export.nvtx(at, at + 900_000, f"step {step}")
                export.kernel(at + 10_000, at + 300_000, "gemm", launch=(at, at + 2_000))
                export.osrt(at + 300_000, at + 350_000, "read")
                export.nccl("all_reduce", at + 400_000, at + 600_000, launch=(at + 380_000, at + 390_000))
        digests.append(digest_one(export))
        assert_as_the_twin(export.path)
    at_home, before = digests
    assert before.info.window_end_ns < 0
    for name in ("idle", "lead_up", "signatures", "host_calls"):
        assert getattr(at_home, name).equals(getattr(before, name)), name
    assert before.collectives["step"].to_list() == [0, 1, 2]
    for name in ("steps", "work", "gaps"):
        moved = getattr(before, name).with_columns(pl.col("start_ns", "end_ns") + 50_000_000)
        assert moved.equals(getattr(at_home, name)), name


def test_busy_classes_before_a_collective(tmp_path):
    with exported(tmp_path) as export:
        export.nccl("all_reduce", 0, 10_000)
        export.kernel(10_000, 20_000, "gemm")
        export.memcpy(15_000, 24_000)
        export.nccl("send", 22_000, 30_000, stream=21)
        export.graph_trace(28_000, 33_000)
        export.nccl("all_reduce", 40_000, 50_000, launch=(36_000, 37_000))
    digest = digest_one(export)
    assert [row for row in digest.lead_up.iter_rows() if row[0] == 2] == [
        (2, "copy", None, None, 4_000),
        (2, "gpu_work", None, None, 15_000),
        (2, "host", None, None, 3_000),
        (2, "launch", None, "cuLaunchKernelEx", 4_000),
        (2, "nccl", None, None, 4_000),
    ]
    assert_as_the_twin(export.path)


def test_windows_before_collectives(tmp_path):
    with exported(tmp_path) as export:
        export.kernel(0, 4_000, "gemm")
        export.nccl("all_reduce", 10_000, 30_000)  # the first window begins with the first GPU activity
        export.nccl("all_gather", 20_000, 25_000, stream=21)  # begins before the one before it ends
        export.nccl("broadcast", 31_000, 32_000)  # is none of N x N
        export.nccl("all_reduce", 40_000, 50_000)
    digest = digest_one(export)
    sums = dict(digest.lead_up.group_by("collective").agg(pl.col("ns").sum()).iter_rows())
    assert sums == {0: 10_000, 3: 15_000}
    assert_as_the_twin(export.path)


def test_a_wait_in_the_queue_is_launch(tmp_path):
    # It was launched before the gap began. Nothing runs, so no work of the rank's own holds it back.
    with exported(tmp_path) as export:
        one_gap(export, launch=(2_000, 3_000))
        export.osrt(20_000, 30_000, "read")
        export.nvtx(20_000, 30_000, "data_load")
    assert idle(digest_one(export)) == {
        ("launch", None, "cudaLaunchKernel"): 90_000,
        ("launch", "data_load", "cudaLaunchKernel"): 10_000,
    }


def test_a_blocking_copy_is_sync_until_it_starts(tmp_path):
    with exported(tmp_path) as export:
        export.kernel(0, 10_000, "gemm", launch=(-2_000, -1_900))
        export.memcpy(110_000, 120_000, launch=(90_000, 121_000), api="cudaMemcpy_v3020")
    assert classes(digest_one(export)) == {"host": 80_000, "sync": 20_000}


def test_the_launching_call_counts_whatever_its_name(tmp_path):
    with exported(tmp_path) as export:
        one_gap(export, launch=(60_000, 115_000), api="cudaFancyStart_v99000")
    assert idle(digest_one(export)) == {
        ("host", None, None): 50_000,
        ("launch", None, "cudaFancyStart"): 50_000,
    }


def test_preempted_only_outside_of_calls(tmp_path):
    with exported(tmp_path) as export:
        one_gap(export)
        export.osrt(20_000, 30_000, "futex")
        for start, inward in ((22_000, False), (34_000, True), (40_000, False), (40_000, True)):
            export.sched(start, inward=inward)
        export.sched(100_000, inward=False)  # and never comes back: until the capture ends
        export.sched(50_000, inward=False, tid=AUTOGRAD)
    assert classes(digest_one(export)) == {
        "os_wait": 10_000,
        "preempted": 9_000,
        "launch": 5_000,
        "host": 76_000,
    }
    assert_as_the_twin(export.path)


# Which thread counts


def test_the_thread_that_ends_the_gap_counts_and_parked_ones_do_not(tmp_path):
    with exported(tmp_path) as export:
        one_gap(export, tid=AUTOGRAD)
        export.osrt(0, 120_000, "poll")  # the main thread is parked, and in a data-loading range besides
        export.nvtx(0, 120_000, "data_load")
        export.osrt(40_000, 60_000, "pread64", tid=AUTOGRAD)
        export.nvtx(30_000, 70_000, "gather", tid=AUTOGRAD)
    assert idle(digest_one(export)) == {
        ("io", "gather", "pread64"): 20_000,
        ("host", "gather", None): 20_000,
        ("host", None, None): 55_000,
        ("launch", None, "cudaLaunchKernel"): 5_000,
    }
    assert_as_the_twin(export.path)


def test_a_thread_without_ranges_is_named_after_the_thread_with_most(tmp_path):
    with exported(tmp_path) as export:
        one_gap(export, tid=AUTOGRAD)
        export.nvtx(0, 120_000, "backward")
        export.nvtx(60_000, 70_000, "hook 7")
        export.nvtx(20_000, 30_000, "ncclAllReduce", tid=AUTOGRAD, domain="NCCL")  # no range of its own
        for k in range(20):  # more of them, but this thread never calls CUDA
            export.nvtx(1_000 * k, 120_000, f"pin {k}", tid=7002)
    assert idle(digest_one(export)) == {
        ("host", "backward", None): 85_000,
        ("host", "hook 7", None): 10_000,
        ("launch", "backward", "cudaLaunchKernel"): 5_000,
    }
    assert_as_the_twin(export.path)


def test_data_loading_of_the_range_bearing_thread(tmp_path):
    # Everything is launched by an executor thread; the program, and its ranges, run in another.
    with exported(tmp_path) as export:
        export.kernel(0, 10_000, "gemm", tid=AUTOGRAD)
        export.kernel(110_000, 120_000, "gemm", launch=(105_000, 107_000), tid=AUTOGRAD)
        export.nvtx(20_000, 90_000, "data_load")
    assert classes(digest_one(export)) == {"data_load": 70_000, "host": 25_000, "launch": 5_000}


def test_of_several_operations_the_lowest_id_ends_the_gap(tmp_path):
    with exported(tmp_path) as export:
        export.kernel(0, 10_000, "gemm", launch=(-2_000, -1_900))
        export.kernel(110_000, 120_000, "first", launch=(100_000, 101_000), tid=AUTOGRAD)
        export.kernel(110_000, 120_000, "second", launch=(50_000, 51_000), stream=8)
        export.osrt(20_000, 30_000, "read")
        export.osrt(20_000, 25_000, "read", tid=AUTOGRAD)
    assert classes(digest_one(export)) == {"io": 5_000, "host": 85_000, "launch": 10_000}


def test_unknown_without_a_launch(tmp_path):
    with exported(tmp_path) as export:
        one_gap(export, launch=None)
        export.overhead(20_000, 30_000)
        export.osrt(10_000, 90_000, "read")
        export.nvtx(40_000, 50_000, "forward")
    digest = digest_one(export)
    assert idle(digest) == {
        ("profiler", None, None): 10_000,
        ("unknown", "forward", None): 10_000,
        ("unknown", None, None): 80_000,
    }
    assert digest.gaps.row(0) == (10_000, 110_000, None, "unknown", 90_000, None, None)
    assert_as_the_twin(export.path)


def test_overhead_of_another_process_does_not_count(tmp_path):
    with exported(tmp_path, pid=144) as export:
        other = export.process(145, device=1)
        for process in (export, other):
            one_gap(process)
        other.overhead(20_000, 30_000, tid=9)
        export.osrt(40_000, 45_000, "read")
    first, second = digest_all(export.path)
    assert classes(first) == {"io": 5_000, "host": 90_000, "launch": 5_000}
    assert idle_by_cause(first)["profiler"] == 0  # captured, and none in this process
    assert classes(second) == {"profiler": 10_000, "host": 85_000, "launch": 5_000}


# Ranges and calls


def test_nested_calls_are_counted_once_and_named_by_the_innermost(tmp_path):
    with exported(tmp_path) as export:
        one_gap(export)
        export.osrt(20_000, 30_000, "fread")
        export.osrt(22_000, 28_000, "read", nesting=1)
        export.osrt(24_000, 26_000, "futex", nesting=2)
        export.osrt(40_000, 40_000, "read", event_class=31)
    assert idle(digest_one(export)) == {
        ("io", None, "fread"): 4_000,
        ("io", None, "read"): 4_000,
        ("io", None, "futex"): 2_000,
        ("host", None, None): 85_000,
        ("launch", None, "cudaLaunchKernel"): 5_000,
    }


def test_an_unknown_call_is_code_and_is_reported(tmp_path):
    with exported(tmp_path) as export:
        one_gap(export)
        export.osrt(20_000, 30_000, "frobnicate")
        export.osrt(40_000, 50_000, "read")
        export.osrt(42_000, 44_000, "defrobnicate", nesting=1)  # inside of a known one: no question
        export.osrt(1_000, 2_000, "unfrobnicate")  # not in a gap
    digest = digest_one(export)
    assert digest.info.unclassified_calls == ("frobnicate",)
    assert classes(digest) == {"host": 85_000, "io": 10_000, "launch": 5_000}
    assert idle(digest)["host", None, "frobnicate"] == 10_000


def test_open_and_crossing_ranges(tmp_path):
    with exported(tmp_path) as export:
        one_gap(export)
        export.nvtx(15_000, 40_000, "save")
        export.nvtx(30_000, 60_000, "eval", type=60, end_tid=7002)  # crosses the first, ends elsewhere
        export.nvtx(50_000, 55_000, "imported", type=70)
        export.nvtx(80_000, None, "checkpoint", as_text_id=True)
        export.nvtx(85_000, None, "mark", type=34)
    digest = digest_one(export)
    assert idle(digest) == {
        ("host", None, None): 5_000 + 20_000,
        ("host", "save", None): 15_000,
        ("host", "eval", None): 25_000,
        ("host", "imported", None): 5_000,
        ("host", "checkpoint", None): 25_000,
        ("launch", "checkpoint", "cudaLaunchKernel"): 5_000,
    }
    assert digest.info.open_ranges == 1
    assert_as_the_twin(export.path)


def test_data_ranges_nested_and_crossing(tmp_path):
    with exported(tmp_path) as export:
        one_gap(export)
        export.nvtx(20_000, 30_000, "data_load")
        export.nvtx(22_000, 24_000, "decode")
        export.nvtx(28_000, 34_000, "data_load", type=60, end_tid=7002)
        export.nvtx(40_000, 50_000, "data_load", tid=7002)  # another thread's
    digest = digest_one(export)
    assert classes(digest) == {"data_load": 14_000, "host": 81_000, "launch": 5_000}
    assert idle(digest)["data_load", "decode", None] == 2_000
    assert digest.info.idle_data_load_ns == 24_000  # of any thread


def test_step_and_nccl_ranges_do_not_name_anything(tmp_path):
    with exported(tmp_path) as export:
        one_gap(export)
        for k in range(2):
            export.nvtx(200_000 * k, 200_000 * k + 190_000, f"step {k}")
            export.nvtx(200_000 * k + 1, 200_000 * k + 189_000, f"ProfilerStep#{k}")
        export.nvtx(20_000, 30_000, "ncclGroupEnd", domain="NCCL")
        export.nvtx(21_000, 29_000, "ncclStrange", domain="mine")
    assert idle(digest_one(export)) == {
        ("host", None, None): 87_000,
        ("host", "ncclStrange", None): 8_000,
        ("launch", None, "cudaLaunchKernel"): 5_000,
    }


def test_nccl_ranges_without_the_row_that_names_their_domain(tmp_path):
    with exported(tmp_path) as export:
        one_gap(export)
        export.nvtx(20_000, 30_000, "ncclGroupEnd", domain="NCCL")
        export.nvtx(40_000, 50_000, "nccl:all_reduce")
        export.sql("DELETE FROM NVTX_EVENTS WHERE eventType = 75")
    assert idle(digest_one(export)) == {
        ("host", None, None): 85_000,
        ("host", "nccl:all_reduce", None): 10_000,
        ("launch", None, "cudaLaunchKernel"): 5_000,
    }
    assert_as_the_twin(export.path)


# What was not captured


@pytest.mark.parametrize(
    ("table", "hidden"),
    [
        ("PROFILER_OVERHEAD", {"profiler"}),
        ("NVTX_EVENTS", {"data_load"}),
        ("OSRT_API", {"io", "os_wait"}),
        ("SCHED_EVENTS", {"preempted"}),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", set(IDLE_CLASSES) - {"profiler", "unknown"}),
        (None, set()),
    ],
)
def test_what_was_not_captured_is_not_zero(tmp_path, table, hidden):
    with exported(tmp_path) as export:
        one_gap(export)
        export.overhead(300_000, 301_000)
        export.nvtx(300_000, 301_000, "data_load")
        export.osrt(300_000, 301_000, "read")
        export.sched(300_000, inward=True)
        if table:
            export.drop(table)
    digest = digest_one(export)
    assert {name for name, ns in idle_by_cause(digest).items() if ns is None} == hidden
    assert table not in digest.info.tables


def test_ranges_of_which_none_loads_data(tmp_path):
    with exported(tmp_path) as export:
        one_gap(export)
        export.nvtx(20_000, 30_000, "read 17")
    assert idle_by_cause(digest_one(export))["data_load"] is None
    assert classes(digest_one(export, data_range="read"))["data_load"] == 10_000


def test_no_gap_and_no_collective(tmp_path):
    with exported(tmp_path) as export:
        export.kernel(0, 10_000, "gemm")
    digest = digest_one(export)
    assert [getattr(digest, name).height for name in ("lead_up", "idle", "gaps", "clocks")] == [0, 0, 0, 0]
    assert classes(digest) == {}


# Gaps


def test_gaps_are_named_by_their_largest_part(tmp_path):
    with exported(tmp_path) as export:
        export.nvtx(-5_000, 500_000, "step 0")
        one_gap(export)
        export.nvtx(20_000, 50_000, "load")
        export.osrt(22_000, 46_000, "read")  # 24 us of io ...
        export.osrt(50_000, 60_000, "futex")
        export.sync(60_000, 90_000)  # ... and 30 us of sync, in two calls of unequal length
        export.api(90_000, 95_000, "cudaDeviceSynchronize_v3020")
        export.kernel(140_000, 150_000, "gemm", launch=(100_000, 140_500))
    digest = digest_one(export)
    assert digest.gaps.rows() == [
        (10_000, 110_000, 0, "sync", 35_000, None, "cudaStreamSynchronize"),
        (120_000, 140_000, 0, "launch", 20_000, None, "cudaLaunchKernel"),
    ]


def test_of_equal_parts_the_first_class_names_the_gap(tmp_path):
    with exported(tmp_path) as export:
        one_gap(export, launch=(110_000, 110_500))
        export.osrt(10_000, 60_000, "nanosleep")
        export.osrt(60_000, 110_000, "read")
    assert digest_one(export).gaps.rows() == [(10_000, 110_000, None, "io", 50_000, None, "read")]


def test_only_the_longest_gaps_are_kept(tmp_path):
    with exported(tmp_path) as export:
        for k in range(1_102):  # 1,101 gaps: every second is longer, and the last is the shortest
            export.kernel(k * 1_000, k * 1_000 + (500 if k % 2 else 400), "gemm", launch=None)
        export.kernel(1_101_600, 1_101_700, "gemm", launch=None)
    digest = digest_one(export)
    lengths = digest.gaps.select(pl.col("end_ns") - pl.col("start_ns")).to_series()
    assert dict(lengths.value_counts().iter_rows()) == {600: 551, 500: 449}
    assert digest.gaps["start_ns"].max() == 1_100_400
    # Of equally long ones the earlier.
    assert digest.gaps.filter(lengths == 500)["start_ns"].max() == 448 * 2_000 + 1_500
    assert set(digest.gaps["class"]) == {"unknown"}


# Step by step


def test_signatures(tmp_path):
    with exported(tmp_path) as export:
        export.nvtx(0, 100_000, "step 0")
        export.nvtx(100_000, 200_000, "step 1")
        export.kernel(20_000, 23_000, "void gemm<float>(int)", grid=(64, 2, 1))
        export.kernel(21_000, 25_000, "void gemm<float>(int)", grid=(64, 2, 1), stream=8)
        export.kernel(30_000, 31_000, "gemm", grid=(128, 1, 1), block=(32, 4, 1))
        export.kernel(105_000, 106_000, "gemm", grid=(64, 2, 1))  # launched in step 0
        export.kernel(150_000, 152_000, "relu")
        export.kernel(160_000, 161_000, "relu", launch=None)
        export.nccl("all_reduce", 170_000, 180_000)
    assert digest_one(export).signatures.rows() == [
        (None, "relu", "128x1x1", "256x1x1", 1, 1_000),
        (0, "gemm", "64x2x1", "256x1x1", 3, 8_000),
        (0, "gemm", "128x1x1", "32x4x1", 1, 1_000),
        (1, "relu", "128x1x1", "256x1x1", 1, 2_000),
    ]


def test_signatures_of_an_export_without_shapes(tmp_path):
    with exported(tmp_path) as export:
        export.kernel(0, 10_000, "gemm")
        for column in ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"):
            export.sql(f"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN {column}")
    assert digest_one(export).signatures.rows() == [(None, "gemm", None, None, 1, 10_000)]


def test_host_calls(tmp_path):
    with exported(tmp_path) as export:
        export.nvtx(0, 100_000, "step 0")
        export.kernel(20_000, 30_000, "gemm", launch=(10_000, 11_000))
        export.kernel(40_000, 50_000, "gemm", launch=(15_000, 17_000), tid=AUTOGRAD)
        export.sync(60_000, 70_000)
        export.sync(80_000, 105_000)
        export.sync(200_000, 201_000, kind="Device")
        export.api(72_000, 75_000, "cudaMalloc_v3020")
        export.api(76_000, 77_000, "cudaEventRecord_v3020")
        export.sync(60_000, 70_000, tid=7002)  # launches nothing
    assert digest_one(export).host_calls.rows() == [
        (None, "sync", "cudaDeviceSynchronize", 1, 1_000),
        (0, "alloc", "cudaMalloc", 1, 3_000),
        (0, "launch", "cudaLaunchKernel", 2, 3_000),
        (0, "sync", "cudaStreamSynchronize", 2, 35_000),
    ]


def test_copies(tmp_path):
    with exported(tmp_path) as export:
        export.nvtx(0, 200_000, "step 0")
        export.memcpy(20_000, 23_000, kind=1, size=1 << 20, memory=(0, 2))
        export.memcpy(24_000, 25_000, kind=1, size=1 << 10, memory=(1, 2))
        export.memcpy(26_000, 27_000, kind=2, size=4, memory=(2, 0))
        export.memcpy(28_000, 29_000, kind=2, size=8, memory=(2, 0))
        export.memcpy(30_000, 31_000, kind=2, size=9, memory=(2, 0))
        export.memcpy(32_000, 33_000, kind=2, size=9, memory=(2, 255))
        export.memcpy(34_000, 35_000, kind=8, size=100, memory=(2, 2))
        export.memcpy(36_000, 37_000, kind=10, size=100, memory=(2, 2))
        export.memcpy(38_000, 39_000, kind=9, size=100, memory=(0, 0))
        export.memcpy(40_000, 41_000, kind=11, size=4_096)  # a page migration
        export.memset(42_000, 45_000, size=4)
    assert digest_one(export).copies.rows() == [
        (0, "DtoD", None, 1, 0, 100, 1_000),
        (0, "DtoH", None, 1, 0, 9, 1_000),
        (0, "DtoH", True, 3, 2, 21, 3_000),
        (0, "HtoD", False, 1, 0, 1 << 10, 1_000),
        (0, "HtoD", True, 1, 0, 1 << 20, 3_000),
        (0, "PtoP", None, 1, 0, 100, 1_000),
        (0, "memset", None, 1, 1, 4, 3_000),
        (0, "other", None, 1, 0, 100, 1_000),
    ]


def gpu_metrics(export, rows, name="GPC Clock Frequency [MHz]"):
    """Write metrics: (timestamp, GPU, value) of the clock, and a metric that is none."""
    export.sql(
        "CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER)"
    )
    export.sql(
        "CREATE TABLE TARGET_INFO_GPU_METRICS "
        "(typeId INTEGER, sourceId INTEGER, typeName TEXT, metricId INTEGER, metricName TEXT)"
    )
    for gpu in (0, 3):
        kind = 0x5_00_00_00 + gpu
        export.sql(f"INSERT INTO TARGET_INFO_GPU_METRICS VALUES ({kind}, 1, 'GPU', 1, '{name}')")
        export.sql(f"INSERT INTO TARGET_INFO_GPU_METRICS VALUES ({kind}, 1, 'GPU', 2, 'SMs Active [%]')")
    for at, gpu, value in rows:
        kind = 0x5_00_00_00 + gpu
        export.sql(f"INSERT INTO GPU_METRICS VALUES ({at + export.shift_ns}, {kind}, 1, {value})")
        export.sql(f"INSERT INTO GPU_METRICS VALUES ({at + export.shift_ns}, {kind}, 2, 50)")


@pytest.mark.parametrize("unit", [1, 1_000_000])  # the name says MHz, some exports hold Hz
def test_clocks(tmp_path, unit):
    rows = [
        (5_000, 3, 1_000),  # before any step
        (20_000, 3, 1_980),
        (30_000, 3, 1_000),
        (40_000, 3, 0),  # asleep
        (45_000, 3, -900),  # a value that was read with the wrong sign
        (150_000, 3, 1_700),
        (20_000, 0, 500),  # another GPU's
        (-20_000, 3, 500),  # before the rank used it
        (900_000, 3, 500),
    ]
    with exported(tmp_path, gpu=3, shift_ns=1_000) as export:
        export.kernel(0, 200_000, "gemm")
        export.nvtx(10_000, 100_000, "step 0")
        export.nvtx(100_000, 200_000, "step 1")
        gpu_metrics(export, [(at, gpu, value * unit) for at, gpu, value in rows])
    digest = digest_one(export)
    assert digest.clocks.rows() == [(None, 1, 1_000.0), (0, 2, 1_490.0), (1, 1, 1_700.0)]
    assert digest.info.tables["GPU_METRICS"] == 6


@pytest.mark.parametrize("why", ["no clock among the metrics", "GPU not known", "nothing sampled"])
def test_no_clocks(tmp_path, why):
    with exported(tmp_path, gpu=3) as export:
        export.kernel(0, 200_000, "gemm")
        if why == "no clock among the metrics":
            gpu_metrics(export, [(5_000, 3, 1_000)], name="SYS Clock Frequency [MHz]")
        elif why == "GPU not known":
            gpu_metrics(export, [(5_000, 3, 1_000)])
            export.drop("TARGET_INFO_CUDA_DEVICE")
    assert digest_one(export).clocks.is_empty()


# Against the slow twin


def random_export(path, seed):
    """A short, dense export in which everything nests, crosses, abuts and coincides."""
    chance = random.Random(seed)

    def span(most=12):
        start = chance.randrange(0, 190)
        return start, start + chance.randrange(0, most)

    threads = [None, AUTOGRAD, 7002]
    with Export(path, shift_ns=chance.choice([0, 1_000])) as export:
        for _ in range(chance.randrange(3, 14)):
            start, end = span()
            launch = span(4) if chance.random() < 0.8 else None
            tid = chance.choice(threads)
            what = chance.randrange(5)
            if what == 0:
                export.memcpy(start, end, launch=launch, tid=tid)
            elif what == 1:
                op = chance.choice(["all_reduce", "broadcast"])
                export.nccl(op, start, end, launch=launch, tid=tid, stream=chance.choice([20, 21]))
            else:
                export.kernel(start, end, "gemm", launch=launch, tid=tid)
        cuda = ["cudaMalloc_v3020", "cudaStreamSynchronize_v3020", "cuLaunchKernel", "cudaEventRecord"]
        calls = ["read", "futex", "poll", "mmap", "frobnicate"]
        ranges = ["data_load", "forward", "backward", "step 1", "ncclAllReduce", ""]
        for _ in range(30):
            export.api(*span(), chance.choice(cuda), tid=chance.choice(threads))
            export.osrt(*span(), chance.choice(calls), tid=chance.choice(threads))
            tid = chance.choice(threads[: 1 + seed % 3])
            start, end = span(40)
            domain = chance.choice([None, None, "NCCL"])
            type = chance.choice([59, 60, 70])
            export.nvtx(
                start,
                end if chance.random() < 0.9 else None,
                chance.choice(ranges),
                tid=tid,
                type=type,
                domain=domain,
            )
        for _ in range(chance.randrange(0, 20)):
            export.sched(chance.randrange(0, 200), inward=chance.random() < 0.6, tid=chance.choice(threads))
        for _ in range(chance.randrange(0, 3)):
            export.overhead(*span(), tid=7003)
    return path


@pytest.mark.parametrize("seed", range(12))
def test_random_exports_as_the_twin(tmp_path, seed):
    assert_as_the_twin(random_export(tmp_path / "prof_a_0.sqlite", seed))


def test_digests_are_the_same_every_time(tmp_path):
    path = random_export(tmp_path / "prof_a_0.sqlite", 99)
    for one, other in zip(digest_all(path), digest_all(path), strict=True):
        for name in DIGEST_TABLES:
            assert getattr(one, name).equals(getattr(other, name)), name


@pytest.mark.parametrize(
    ("report", "at", "label"),
    [
        ("data4/prof_gpu02_2", 0, ("data_load", "data_load", "read")),
        ("fsdpdata4/prof_gpu02_3", 0, ("data_load", "data_load", "sem_clockwait")),
        ("node4/prof_gpu02_2", 0, ("os_wait", None, "clock_nanosleep")),
        ("node4/prof_gpu02_3", 0, ("os_wait", None, "clock_nanosleep")),
        ("host4/prof_gpu02_3", 0, ("host", "checkpoint", None)),
        ("torchrun4/prof_gpu02", 1, ("host", "checkpoint", None)),
        ("compute4/prof_gpu01_1", 0, ("gpu_work", None, None)),
    ],
)
def test_injected_faults_are_most_of_the_lead_up(captures, report, at, label):
    digest = digest_all(captures / f"{report}.sqlite")[at]
    later = digest.lead_up.filter(pl.col("collective") >= digest.collectives.height // 2)
    sums = later.group_by("class", "range", "call").agg(pl.col("ns").sum()).sort("ns", descending=True)
    assert sums.row(0)[:3] == label
    assert sums.row(0)[3] > 0.6 * later["ns"].sum()


def test_real_captures_as_the_twin(captures):
    paths = sorted(captures.glob("**/*.sqlite"))
    assert paths
    for path in paths:
        assert_as_the_twin(path)


def test_public_exports_as_the_twin(public):
    for path in sorted(public.glob("**/*.sqlite")):
        assert_as_the_twin(path)
