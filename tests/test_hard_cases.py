"""Situations that broke a verdict: captures with less in them, strangers in the folder, overlapped collectives."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from rankdiff.simulation import Phase, synthetic, tp_dp
from tests.jobs import codes, copies, late, run, without_payloads, without_table

MS = 1_000_000
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
QUIET = {"jitter_ns": 100_000}
NO_START = without_table("TARGET_INFO_SESSION_START_TIME")
# Sessions of one node start at different moments: without the start a rank's clock is its own.
STARTS = {0: -5 * MS, 1: -83 * MS, 2: -21 * MS, 3: -64 * MS}


@pytest.fixture(scope="module")
def truth(captures: Path) -> dict[str, dict]:
    return json.loads((captures / "truth.json").read_text())


@pytest.fixture(scope="module")
def reports(captures: Path):
    return lambda name: sorted((captures / name).glob("*.sqlite"))


def only(report: Path):
    return lambda p: p.name == report.name


def losing(share: float, *, launches: bool, seed: int | None = None, first: int = 1, payloads: bool = True):
    """Delete NCCL kernels at random, with another seed in every report unless one is given."""
    count = [first - 1]

    def edit(db):
        count[0] += 1
        draw = random.Random(count[0] if seed is None else seed)
        rows = db.execute(
            f"SELECT k.rowid, k.correlationId FROM {KERNEL} k JOIN StringIds s ON s.id = k.shortName "
            "WHERE s.value LIKE 'nccl%' ORDER BY k.start"
        ).fetchall()
        for row, correlation in rows:
            if draw.random() < share:
                db.execute(f"DELETE FROM {KERNEL} WHERE rowid = ?", (row,))
                if launches:
                    db.execute(f"DELETE FROM {RUNTIME} WHERE correlationId = ?", (correlation,))
        if not payloads:
            without_payloads(db)

    return edit


def causes(report):
    return [
        f["cause"] for f in report["findings"] if f["kind"].startswith("late") and f["severity"] != "note"
    ]


# A rank whose session start is not known has a clock of its own, also beside others of its node.


@pytest.mark.parametrize("name", ["healthy8", "after4", "compute4", "window4", "tpdp4", "fsdpdata4"])
def test_one_rank_without_session_start(name, truth, reports, tmp_path):
    report = run(copies(reports(name), tmp_path, NO_START, only(reports(name)[1])))
    assert late(report) == [("late_rank", r) for r in truth[name]["late_ranks"]]
    assert report["job"]["matched_collectives"] == truth[name]["matched"]


@pytest.mark.parametrize("name", ["data4", "compute4", "after4"])
def test_no_rank_with_session_start(name, truth, reports, tmp_path):
    report = run(copies(reports(name), tmp_path, NO_START))
    assert report["verdict"]["status"] == truth[name]["status"]
    assert late(report) == [("late_rank", r) for r in truth[name]["late_ranks"]]
    assert report["job"]["matched_collectives"] == truth[name]["matched"]


@pytest.mark.parametrize("unknown", [(1,), (0, 1, 2, 3)])
@pytest.mark.parametrize("culprit", [None, 2])
def test_synthetic_ranks_without_session_start(unknown, culprit, tmp_path):
    job = synthetic(
        tmp_path,
        steps=20,
        session_start_ns=STARTS,
        options={r: {"utc_ns": None} for r in unknown},
        late={} if culprit is None else {culprit: 3 * MS},
        **QUIET,
    )
    report = run(job.paths)
    assert late(report) == ([] if culprit is None else [("late_rank", culprit)])
    assert report["verdict"]["status"] == ("balanced" if culprit is None else "straggler")


# Who was not compared was not acquitted.


def test_the_culprits_report_is_of_another_job(reports, tmp_path):
    files = copies(reports("data4"), tmp_path, lambda db: None)
    shutil.copyfile(reports("host4")[2], files[2])
    report = run(files)
    assert late(report) == []
    assert report["verdict"]["status"] == "not_assessed"
    assert any(2 in w["ranks"] for w in report["warnings"])


def test_a_report_of_another_job_is_named(reports, tmp_path):
    files = copies(reports("data4"), tmp_path, lambda db: None)
    shutil.copyfile(reports("host4")[3], files[3])
    report = run(files)
    assert late(report) == [("late_rank", 2)]
    assert any(3 in w["ranks"] for w in report["warnings"])


def test_a_culprit_whose_communicator_was_not_resolved(reports, tmp_path):
    report = run(copies(reports("compute4"), tmp_path, losing(0.01, launches=True, first=51, payloads=False)))
    # Rank 1 found, or said to be not assessed; "nobody was late" is wrong.
    assert (late(report), report["verdict"]["status"]) in (
        ([("late_rank", 1)], "straggler"),
        ([], "not_assessed"),
    )


# Lost events.


def test_lost_kernels_accuse_nobody(truth, reports, tmp_path):
    # Ranks 0 and 1 share a node and a clock: no shift may put them 2 ms apart.
    files = copies(
        reports("window4"), tmp_path, losing(0.03, launches=False, seed=7), only(reports("window4")[1])
    )
    report = run(files)
    assert late(report) == [("late_rank", 2)]
    assert max(abs(r["end_skew_ns"]) for r in report["ranks"]) < 500_000


def test_windows_differ_and_steps_vary_a_little(tmp_path):
    # Steps of 8 ms vary by 0.3 ms, ends scatter by 5 us, and the session clocks are wrong by more than a step.
    offsets = {f"node{chr(ord('A') + i)}": (i * 7919 % 37 - 18) * MS for i in range(8)}
    job = synthetic(
        tmp_path,
        ranks=8,
        nodes=8,
        steps=40,
        step_ranges="train_step",
        late={7: 2 * MS},
        cut={r: (2 * r, 7 * r % 5) for r in range(8)},
        offset_ns=offsets,
        jitter_ns=300_000,
        end_jitter_ns=5_000,
    )
    report = run(job.paths)
    assert report["job"]["matched_collectives"] == 40 - 14 - 4
    assert late(report) == [("late_rank", 7)]


def test_lost_kernels_on_all_ranks_of_a_mixed_sequence(reports, tmp_path):
    # 2 % of the pairs are broken: no exact stretch of 52 operations need exist where it is looked for.
    report = run(copies(reports("fsdpdata4"), tmp_path, losing(0.01, launches=True)))
    assert report["job"]["matched_collectives"] > 180
    assert late(report) == [("late_rank", 3)]


def test_lost_kernels_without_payloads(reports, tmp_path):
    report = run(
        copies(reports("fsdpdata4"), tmp_path, losing(0.01, launches=True, first=51, payloads=False))
    )
    assert report["verdict"]["status"] != "balanced"
    assert not [f for f in report["findings"] if f["kind"] == "slow_transfer"]


# Transfers: what crosses nodes is slower than what does not, and that is no fault.


@pytest.mark.parametrize("culprit", [None, 1])
def test_transfers_within_a_node_are_faster_than_between_nodes(culprit, tmp_path):
    phases = (
        Phase(3 * MS, [[0, 1], [2, 3]], stream=20, transfer_ns=200_000),
        Phase(3 * MS, [[0, 2], [1, 3]], stream=30, transfer_ns=2 * MS),
    )
    late_by = {} if culprit is None else {culprit: 4 * MS}
    report = run(synthetic(tmp_path, steps=20, phases=phases, late=late_by, **QUIET).paths)
    assert [f["node"] for f in report["findings"] if f["kind"] == "slow_transfer"] == []


def test_transfers_of_unknown_size_are_not_compared(reports, tmp_path):
    report = run(
        copies(reports("tpdp4"), tmp_path, without_payloads, lambda p: p.name != reports("tpdp4")[1].name)
    )
    assert late(report) == [("late_rank", 1)]
    # Rank 1 of gpu01 is late; the message says "while none of their ranks is late".
    assert [f["node"] for f in report["findings"] if f["kind"] == "slow_transfer"] == []


# Causes.


def test_compute_hidden_under_the_peers_waits_is_no_more_work(tmp_path):
    # FSDP: the peers compute while they wait for the late rank, whose equal work lies bare.
    phases = (Phase(2 * MS, op="all_gather", overlap=True, transfer_ns=300_000),) * 3 + (
        Phase(4 * MS, op="reduce_scatter", stream=21, overlap=True, transfer_ns=300_000),
    ) * 3
    job = synthetic(
        tmp_path, ranks=8, nodes=4, steps=20, phases=phases, late={3: 6 * MS}, late_as="data_load", **QUIET
    )
    report = run(job.paths)
    assert late(report) == [("late_rank", 3)]
    assert causes(report) == ["data_load"]
    assert "more kernel time" not in json.dumps(report)


def test_os_calls_not_captured_are_not_host_code(reports, tmp_path):
    report = run(copies(reports("node4"), tmp_path, without_table("OSRT_API")))
    f = report["findings"][0]
    assert (f["kind"], f["node"]) == ("late_node", "gpu02")
    assert f["cause"] == "unknown" or "not captured" in " ".join(f["evidence"])


def test_os_calls_captured_on_one_rank_of_the_late_node(reports, tmp_path):
    report = run(copies(reports("node4"), tmp_path, without_table("OSRT_API"), only(reports("node4")[3])))
    f = report["findings"][0]
    assert (f["cause"], f["cause_detail"]["osrt"]) == ("os_wait", "clock_nanosleep")


# These hold.


@pytest.mark.parametrize("seed", range(3))
def test_a_sleep_that_moves_at_random_rotates(seed, tmp_path):
    draw = random.Random(seed)
    who = [draw.randrange(8) for _ in range(40)]
    sleeps = {r: [25 * MS if w == r else 0 for w in who] for r in range(8)}
    job = synthetic(tmp_path, ranks=8, nodes=4, steps=40, late=sleeps, late_as="os_wait", **QUIET)
    report = run(job.paths)
    assert (report["verdict"]["status"], late(report)) == ("rotating", [])


def test_six_of_eight_ranks_make_a_late_node(tmp_path):
    job = synthetic(tmp_path, ranks=16, steps=20, late=dict.fromkeys(range(8, 14), 2 * MS), **QUIET)
    assert late(run(job.paths)) == [("late_node", "nodeB")]


def test_late_from_the_middle_on(tmp_path):
    job = synthetic(tmp_path, ranks=8, steps=40, late={5: [0] * 20 + [4 * MS] * 20}, **QUIET)
    report = run(job.paths)
    assert (late(report), report["findings"][0]["first_step"]) == ([("late_rank", 5)], "20")


def test_two_late_ranks_keep_their_own_causes(tmp_path):
    work = {1: {"data_load": 8 * MS}, 6: {"os_wait": 5 * MS}}
    report = run(synthetic(tmp_path, ranks=8, nodes=4, steps=20, late=work, **QUIET).paths)
    assert late(report) == [("late_rank", 1), ("late_rank", 6)]
    assert causes(report) == ["data_load", "os_wait"]
    assert codes(report) == set()


# A window that begins between launch and kernel takes the payload away, not the collective.


def test_collectives_whose_launch_lies_before_the_window(reports, tmp_path):
    def cut(db):
        ends = db.execute(
            f'SELECT k."end" FROM {KERNEL} k JOIN StringIds s ON s.id = k.shortName '
            "WHERE s.value LIKE 'nccl%' ORDER BY k.start"
        ).fetchall()
        begin = ends[4][0]
        for table in (KERNEL, RUNTIME, "OSRT_API"):
            db.execute(f"DELETE FROM {table} WHERE start < ?", (begin,))
        db.execute("DELETE FROM NVTX_EVENTS WHERE eventType IN (59, 60) AND start < ?", (begin,))

    files = copies(reports("data4"), tmp_path / "a", cut, only(reports("data4")[1]))
    bare = run(copies(files, tmp_path / "b", without_payloads))
    assert bare["job"]["matched_collectives"] == 75
    assert run(files)["job"]["matched_collectives"] == 75


@pytest.mark.parametrize("payload", [True, False])
def test_windows_over_tensor_and_data_parallel_groups(payload, tmp_path):
    job = synthetic(
        tmp_path,
        ranks=8,
        nodes=4,
        steps=30,
        phases=tp_dp(2, 4),
        late={1: 4 * MS},
        cut={0: (5, 3), 3: (9, 0), 6: (0, 11)},
        payload=payload,
        end_jitter_ns=5_000,
        **QUIET,
    )
    report = run(job.paths)
    # Tensor-parallel pairs 26, 25, 30, 25; data-parallel groups 22 and 26.
    assert report["job"]["matched_collectives"] == 154
    assert late(report) == [("late_rank", 1)]
