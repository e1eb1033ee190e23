"""The exact figures against an independent, slow reckoning: on hand-made files and on real exports."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rankdiff.digest import DigestOptions, make_digests
from rankdiff.reports.discover import discover
from rankdiff.reports.identity import assign, claims
from rankdiff.simulation import Export
from tests.oracles.figures import figures

EXACT = (
    "span_ns",
    "busy_ns",
    "idle_ns",
    "idle_data_load_ns",
    "idle_osrt_ns",
    "nccl_kernels",
    "nccl_ns",
)


def digest_all(path, options=None):
    """Digest every (process, device) that the oracle sees, rank or not."""
    (report,) = discover([path]).reports
    some = claims(report)[0]
    expected = figures(path)
    units = [replace(some, pid=each["pid"], device=each["device"]) for each in expected]
    return make_digests(report, units, options or DigestOptions()), expected


def assert_equal(path):
    digests, expected = digest_all(path)
    assert len(digests) == len(expected)
    for digest, figure in zip(digests, expected, strict=True):
        found = {name: getattr(digest.info, name) for name in EXACT}
        assert found == {name: figure[name] for name in EXACT}, path
    return digests


def exports(folder):
    return sorted(folder.glob("**/*.sqlite"))


def test_real_captures(captures):
    found = exports(captures)
    assert found
    for path in found:
        assert_equal(path)


def test_truth_of_the_real_captures(captures):
    truth = json.loads((captures / "truth.json").read_text())
    for job, known in truth.items():
        reports = discover(exports(captures / job)).reports
        identities, _ = assign([each for report in reports for each in claims(report)])
        rank = {(each.claims.path, each.claims.pid): each.label for each in identities}
        for report in reports:
            for digest in make_digests(report, claims(report)):
                exact = known["exact"][rank[report.path, digest.info.claims.pid]]
                assert {name: getattr(digest.info, name) for name in exact} == exact


def test_public_exports(public):
    found = exports(public)
    assert found
    for path in found:
        assert_equal(path)


def test_sample_reports(repository):
    found = exports(repository / "sample_reports")
    if not found:
        pytest.skip("sample_reports holds no exports")
    for path in found:
        assert_equal(path)


def one_gap(export):
    """GPU work [0, 10) and [50, 60) ms, launched by the main thread."""
    export.kernel(0, 10_000_000, "gemm", launch=(-2_000_000, -1_900_000))
    export.kernel(50_000_000, 60_000_000, "gemm", launch=(49_000_000, 49_100_000))


def idle_figures(path):
    (digest,) = assert_equal(path)
    return digest.info.idle_ns, digest.info.idle_data_load_ns, digest.info.idle_osrt_ns


def test_copies_sets_and_graphs_are_work_but_page_migrations_are_not(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        one_gap(export)
        export.memcpy(10_000_000, 20_000_000)
        export.memset(20_000_000, 21_000_000)
        export.graph_trace(30_000_000, 35_000_000)
        export.memcpy(35_000_000, 45_000_000, kind=11)
    (digest,) = assert_equal(export.path)
    assert digest.info.idle_ns == 9_000_000 + 15_000_000
    assert digest.info.hidden_by_graphs
    kinds = dict(digest.work.group_by("kind").len().iter_rows())
    assert kinds == {"compute": 3, "copy": 1}


def test_parked_threads_and_nested_calls_do_not_count(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        one_gap(export)
        export.osrt(12_000_000, 20_000_000, "read")
        export.osrt(14_000_000, 18_000_000, "pread", nesting=1)
        export.osrt(25_000_000, 25_000_000, "read", event_class=31)
        for tid in range(7000, 7005):
            export.osrt(0, 60_000_000, "poll", tid=tid)
    assert idle_figures(export.path) == (40_000_000, None, 8_000_000)


def test_ranges_open_nested_crossing_and_by_id(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        one_gap(export)
        export.nvtx(10_000_000, 20_000_000, "data_load")
        export.nvtx(12_000_000, 14_000_000, "data_load", as_text_id=True)
        export.nvtx(18_000_000, 24_000_000, "torch:data_load", type=60, end_tid=7001)
        export.nvtx(48_000_000, None, "DataLoader.next")
        export.nvtx(26_000_000, 40_000_000, "preload_data_loader_cfg")
        export.nvtx(1_000_000, None, "data_load", type=34)
        export.nvtx(0, None, "data_load", type=39)
        export.nvtx(0, None, "data_load", type=33)
    assert idle_figures(export.path) == (40_000_000, 16_000_000, None)
    (digest,), _ = digest_all(export.path)
    assert digest.info.data_ranges == 4
    assert digest.info.open_ranges == 1


def test_another_data_range(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        one_gap(export)
        export.nvtx(10_000_000, 15_000_000, "read 17")
        export.nvtx(20_000_000, 29_000_000, "read 18")
    (digest,), _ = digest_all(export.path, DigestOptions(data_range="read 17"))
    assert digest.info.idle_data_load_ns == 5_000_000
    assert digest.info.data_ranges == 1


def test_two_processes_with_the_same_correlation_ids(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite", pid=144) as export:
        other = export.process(145, device=1)
        for process in (export, other):
            one_gap(process)
        export.osrt(10_000_000, 15_000_000, "read")
        other.osrt(10_000_000, 17_000_000, "read")
    digests = assert_equal(export.path)
    assert [digest.info.idle_osrt_ns for digest in digests] == [5_000_000, 7_000_000]


def test_several_operations_at_the_end_of_a_gap(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 10_000_000, "gemm", tid=4000)
        export.kernel(50_000_000, 60_000_000, "first", tid=7001)  # the lower correlation id ends the gap
        export.kernel(50_000_000, 55_000_000, "second", tid=4000, stream=8)
        export.osrt(20_000_000, 30_000_000, "read", tid=4000)
        export.osrt(20_000_000, 22_000_000, "read", tid=7001)
    assert idle_figures(export.path) == (40_000_000, None, 2_000_000)


def test_normalised_times_give_the_same_figures(tmp_path):
    for shift in (0, 1_779_630_000_000_000_000):
        with Export(tmp_path / f"prof_a_{shift}.sqlite", shift_ns=shift) as export:
            one_gap(export)
            export.nvtx(12_000_000, 20_000_000, "data_load")
        (digest,) = assert_equal(export.path)
        assert digest.info.window_start_ns == 0
        assert digest.info.time_shift_ns == shift
        assert digest.info.idle_data_load_ns == 8_000_000


def test_normalised_times_without_metadata(tmp_path):
    epoch = 1_779_630_000_000_000_000
    with Export(tmp_path / "prof_a_0.sqlite", shift_ns=epoch, utc_ns=epoch) as export:
        one_gap(export)
        export.drop("META_DATA_EXPORT")
        export.drop("EXPORT_META_DATA")
    (digest,) = assert_equal(export.path)
    assert digest.info.window_start_ns == 0
    assert digest.info.session_start_utc_ns == epoch
    assert [note.code for note in digest.info.notes] == ["times_taken_as_utc"]


def test_zero_length_kernels(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(-1024, -1024, "empty")
        one_gap(export)
        export.kernel(20_000_000, 20_000_000, "empty")
        export.kernel(30_000_000, 30_000_000, "ncclDevKernel_Generic", stream=9)
    (digest,) = assert_equal(export.path)
    assert digest.info.span_ns == 60_000_000
    assert digest.info.nccl_kernels == 1


@pytest.mark.parametrize("table", ["OSRT_API", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"])
def test_a_table_that_was_not_captured(tmp_path, table):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        one_gap(export)
        export.osrt(12_000_000, 20_000_000, "read")
        export.nvtx(12_000_000, 20_000_000, "data_load")
        export.drop(table)
    (digest,) = assert_equal(export.path)
    assert table not in digest.info.tables
    assert (digest.info.idle_osrt_ns is None) == (table == "OSRT_API")
    assert (digest.info.idle_data_load_ns is None) == (table == "NVTX_EVENTS")


def test_an_empty_table_is_one_not_captured(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        one_gap(export)
        export.osrt(12_000_000, 20_000_000, "read")
        export.sql("DELETE FROM OSRT_API")
    assert idle_figures(export.path) == (40_000_000, None, None)


def test_graph_launches_without_a_trace_of_them_hide_work(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        one_gap(export)
        export.api(15_000_000, 15_100_000, "cudaGraphLaunch_v10000")
    (digest,) = assert_equal(export.path)
    assert digest.info.hidden_by_graphs
    with Export(tmp_path / "prof_a_1.sqlite") as export:
        one_gap(export)
        export.api(15_000_000, 15_100_000, "cudaGraphLaunch_v10000")
        export.kernel(16_000_000, 17_000_000, "gemm", graph_node=5)
    (digest,) = assert_equal(export.path)
    assert not digest.info.hidden_by_graphs
