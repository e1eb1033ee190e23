"""Planted reasons for lateness, and the causes that must be named."""

from __future__ import annotations

import pytest

from rankdiff.pipeline import compare
from rankdiff.render.json import to_dict
from rankdiff.simulation import Phase, base4, synthetic
from tests.jobs import codes, copies, late, run, without_table

MS = 1_000_000


def culprit(report):
    """The first finding on a rank or node."""
    return next(f for f in report["findings"] if f["kind"] in ("late_rank", "late_node"))


@pytest.mark.parametrize(
    ("shows_as", "cause", "where", "call"),
    [
        ("gpu_slow", "gpu_slow", None, None),
        ("gpu_grid", "gpu_work", None, None),
        ("gpu_work", "gpu_work", None, None),
        ("data_load", "data_load", "data_load", "read"),
        ("io", "io", None, "fsync"),
        ("os_wait", "os_wait", None, "nanosleep"),
        ("host", "host", "checkpoint", None),
    ],
)
def test_the_cause_is_the_planted_one(tmp_path, shows_as, cause, where, call):
    report = run(synthetic(tmp_path, steps=20, late={2: 3 * MS}, late_as=shows_as, jitter_ns=50_000).paths)
    f = culprit(report)
    assert late(report) == [("late_rank", 2)]
    assert (f["cause"], f["cause_detail"]["range"], f["cause_detail"]["osrt"]) == (cause, where, call)
    assert f["cause_detail"]["share"] > 0.9
    main = {"gpu_slow": "gpu_work"}.get(cause, cause)
    assert abs(f["cause_detail"]["excess_ns_per_step"][main] - 3 * MS) < 200_000
    assert f["advice"]
    assert f["evidence"]


def test_slower_kernels_are_told_from_larger_and_from_more(tmp_path):
    slow = culprit(run(base4(tmp_path / "a").paths))
    assert slow["cause"] == "gpu_slow"
    assert slow["cause_detail"]["duration_ratio"] == 1.25
    assert "cannot be proven" in " ".join(slow["evidence"])
    wide = culprit(run(base4(tmp_path / "b", late_as="gpu_grid").paths))
    assert wide["cause"] == "gpu_work"
    assert [k["grid"] for k in wide["cause_detail"]["top_kernels"]] == ["160x1x1"]
    more = culprit(run(base4(tmp_path / "c", late_as="gpu_work").paths))
    assert more["cause"] == "gpu_work"
    top = more["cause_detail"]["top_kernels"][0]
    assert (top["kernel"], top["count_per_step"], top["peers_count_per_step"]) == ("extra_gemm", 1, 0)


def test_a_late_node_has_one_cause(tmp_path):
    report = run(
        synthetic(tmp_path, steps=20, late={2: 3 * MS, 3: 3 * MS}, late_as="os_wait", jitter_ns=50_000).paths
    )
    f = culprit(report)
    assert (f["kind"], f["cause"], f["cause_detail"]["osrt"]) == ("late_node", "os_wait", "nanosleep")
    # The first step begins with the first kernel: its sleep lies before the window.
    assert abs(f["cause_detail"]["here_ns_per_step"] - 0.95 * 3 * MS) < 20_000


def test_a_rare_checkpoint_is_explained_in_its_own_steps(tmp_path):
    every = [40 * MS if k % 5 == 3 else 0 for k in range(60)]
    f = culprit(run(synthetic(tmp_path, steps=60, late={0: every}, late_as="host", jitter_ns=50_000).paths))
    assert (f["cause"], f["cause_detail"]["range"], f["period_steps"]) == ("host", "checkpoint", 5)
    assert abs(f["cause_detail"]["here_ns_per_step"] - 40 * MS) < 500_000


def test_one_spike_is_explained_too(tmp_path):
    spike = {5: [0] * 41 + [2000 * MS]}
    f = culprit(
        run(synthetic(tmp_path, ranks=8, steps=80, late=spike, late_as="host", jitter_ns=100_000).paths)
    )
    assert (f["pattern"], f["cause"], f["cause_detail"]["range"]) == ("one_off", "host", "checkpoint")


def test_what_was_not_captured_is_not_blamed(tmp_path):
    job = synthetic(tmp_path / "job", steps=20, late={2: 3 * MS}, late_as="data_load", jitter_ns=50_000)
    whole = copies(
        job.paths, tmp_path / "a", without_table("OSRT_API"), lambda p: p.name.endswith("_2.sqlite")
    )
    f = culprit(run(whole))
    assert (f["cause"], f["cause_detail"]["osrt"]) == ("data_load", None)
    bare = run(
        copies(
            job.paths, tmp_path / "b", without_table("NVTX_EVENTS"), lambda p: p.name.endswith("_2.sqlite")
        )
    )
    f = culprit(bare)
    # Without ranges the loading is a read of the launching thread, and nothing else is known of it.
    assert (f["rank"], f["cause"], f["cause_detail"]["osrt"]) == (2, "io", "read")
    idle = {r["rank"]: r["idle_by_cause_ns"] for r in bare["ranks"]}
    assert idle[2]["data_load"] is None
    assert idle[0]["data_load"] > 0


def test_the_profiler_is_not_the_ranks_fault(tmp_path):
    def flush(db):
        db.execute(
            "CREATE TABLE PROFILER_OVERHEAD (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER)"
        )
        db.execute(
            "INSERT INTO PROFILER_OVERHEAD SELECT start - 3050000, start - 50000, globalPid + 7, NULL FROM "
            "(SELECT start, globalPid, start - lag(end) OVER (ORDER BY start) AS gap FROM CUPTI_ACTIVITY_KIND_KERNEL) "
            "WHERE gap > 3000000"
        )

    job = synthetic(tmp_path / "job", steps=20, late={2: 3 * MS}, late_as="begin", jitter_ns=50_000)
    report = run(copies(job.paths, tmp_path / "a", flush, lambda p: p.name.endswith("_2.sqlite")))
    f = culprit(report)
    assert (f["cause"], f["severity"]) == ("profiler", "note")
    assert late(report) == []


def test_code_in_no_range_is_host_code(tmp_path):
    job = synthetic(tmp_path, steps=20, late={2: 3 * MS}, late_as="begin", jitter_ns=50_000)
    f = culprit(run(job.paths))
    assert (f["cause"], f["cause_detail"]["range"]) == ("host", None)
    assert "py-spy" in f["advice"]


@pytest.mark.parametrize(
    ("load", "code", "cause"), [(800_000, 700_000, "mixed"), (1_300_000, 200_000, "data_load")]
)
def test_a_cause_must_carry_the_excess(tmp_path, load, code, cause):
    def loading(db):
        # A loading range over part of the time that rank 2 takes before each of its kernels.
        rows = db.execute(
            "SELECT k.start FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.shortName "
            "WHERE s.value = 'gemm' ORDER BY k.start"
        ).fetchall()
        thread = db.execute("SELECT globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME LIMIT 1").fetchone()[0]
        db.executemany(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) VALUES (?, ?, 59, ?, ?, 0)",
            [(start - 100_000 - load, start - 100_000, "data_load", thread) for (start,) in rows[1:]],
        )

    work = {"steps": 20, "late_as": "begin", "jitter_ns": 1_000, "data_load": False}
    job = synthetic(tmp_path / "job", late={2: load + code}, **work)
    f = culprit(run(copies(job.paths, tmp_path / "a", loading, lambda p: p.name.endswith("_2.sqlite"))))
    assert f["cause"] == cause
    shares = f["cause_detail"]["shares"]
    assert shares["data_load"] == pytest.approx(load / (load + code), abs=0.02)
    assert shares["host"] == pytest.approx(code / (load + code), abs=0.02)


def test_nobody_late_and_all_loading(tmp_path):
    job = synthetic(
        tmp_path, steps=20, late=dict.fromkeys(range(4), 12 * MS), late_as="data_load", jitter_ns=50_000
    )
    report = run(job.paths)
    assert report["verdict"]["status"] == "balanced"
    stall = next(f for f in report["findings"] if f["kind"] == "common_stall")
    assert (stall["cause"], stall["ranks"]) == ("data_load", [0, 1, 2, 3])
    assert report["bottleneck"]["kind"] == "data"
    assert "gaps_under_reads" in {p["code"] for p in report["bottleneck"]["patterns"]}


def test_a_slow_fabric_is_no_late_rank(tmp_path):
    pairs = [[0, 1], [2, 3], [4, 5], [6, 7]]
    nodes = ["a", "b", "c", "d", "e", "f", "g", "h"]
    job = synthetic(
        tmp_path,
        ranks=8,
        nodes=nodes,
        steps=20,
        phases=(Phase(4 * MS, pairs),),
        jitter_ns=50_000,
        end_stagger_ns={2: 2 * MS, 3: 2 * MS},
    )
    report = run(job.paths)
    assert late(report) == []
    slow = [f for f in report["findings"] if f["kind"] == "slow_transfer"]
    assert [f["node"] in ("c", "d") for f in slow] == [True]
    assert "nccl-tests" in slow[0]["advice"]


def test_bus_bandwidth_is_given_where_bytes_are_known(tmp_path):
    report = run(base4(tmp_path).paths)
    t = report["communicators"][0]["transfers"][0]
    # 1 MiB all-reduce of 4 ranks in 0.5 ms: 2 * 3 / 4 of the bytes cross each link.
    assert (t["op"], t["bytes"], t["transfer_ns_median"]) == ("all_reduce", 1 << 20, 500_000)
    assert t["bus_gbytes_per_s"] == pytest.approx(1.5 * (1 << 20) / 500_000, abs=1e-5)


def test_no_warning_without_a_reason(tmp_path):
    assert codes(run(base4(tmp_path).paths)) == set()


def test_no_range_that_loads_data(tmp_path):
    report = run(synthetic(tmp_path, steps=10, data_load=False, late={2: 3 * MS}, late_as="host").paths)
    note = next(w for w in report["warnings"] if w["code"] == "no_data_range")
    assert "checkpoint" in note["message"]
    assert {r["idle_data_load_ns"] for r in report["ranks"]} == {None}
    assert {r["idle_by_cause_ns"]["data_load"] for r in report["ranks"]} == {None}


def test_idle_by_cause_closes_and_short_gaps_are_not_listed(tmp_path):
    job = synthetic(tmp_path, steps=10, late={2: 3 * MS}, late_as="data_load")
    report = run(job.paths)
    for r in report["ranks"]:
        assert sum(x for x in r["idle_by_cause_ns"].values() if x is not None) == r["idle_ns"]
        lengths = [g["ns"] for g in r["longest_gaps"]]
        assert lengths == sorted(lengths, reverse=True)
    outcome = compare([str(p) for p in job.paths])
    bare = to_dict(outcome.comparison, outcome.notes, 10 * MS)
    assert [r["longest_gaps"] for r in bare["ranks"]] == [[], [], [], []]
