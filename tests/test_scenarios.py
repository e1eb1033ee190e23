"""Planted situations and the answers they must get."""

from __future__ import annotations

import pytest

from rankdiff.simulation import Phase, base4, flat8, synthetic, tp_dp
from tests.jobs import codes, late, run

MS = 1_000_000


def figures(report, key):
    return {r["rank"]: r[key] for r in report["ranks"]}


def test_the_culprit_has_the_shortest_collectives(tmp_path):
    report = run(base4(tmp_path).paths)
    assert late(report) == [("late_rank", 2)]
    assert figures(report, "wait_ns") == {0: 15 * MS, 1: 15 * MS, 2: 0, 3: 15 * MS}
    assert figures(report, "imposed_wait_ns") == {0: 0, 1: 0, 2: 45 * MS, 3: 0}
    assert figures(report, "delay_ns") == {0: 0, 1: 0, 2: 15 * MS, 3: 0}
    assert figures(report, "last_count")[2] == 10
    assert figures(report, "nccl_ns") == {0: 20 * MS, 1: 20 * MS, 2: 5 * MS, 3: 20 * MS}
    assert report["verdict"]["wait_ns_per_step"] == 1_500_000


def test_clocks_are_aligned_on_ends(tmp_path):
    # B02: aligned on starts, nodeB would be 4.717 ms off and nobody late.
    straight = run(base4(tmp_path / "a").paths)
    bent = run(base4(tmp_path / "b", offset_ns={"nodeB": 3_217_000}).paths)
    assert [n["offset_ns"] for n in bent["clock"]["nodes"]] == [0, 3_217_000]
    assert late(bent) == late(straight) == [("late_rank", 2)]
    for key in ("wait_ns", "imposed_wait_ns", "delay_ns", "last_count", "lateness_ns_median"):
        assert figures(bent, key) == figures(straight, key)


def test_a_device_whose_clock_differs_is_not_late(tmp_path):
    report = run(
        synthetic(
            tmp_path, ranks=2, nodes=1, steps=100, end_stagger_ns={1: 22_000}, end_jitter_ns=3_000
        ).paths
    )
    skew = figures(report, "end_skew_ns")
    assert abs(skew[1] - skew[0] - 22_000) < 3_000
    assert late(report, "major", "minor", "note") == []


@pytest.mark.parametrize(("lateness", "found"), [(150_000, []), (2 * MS, [("late_rank", 1)])])
def test_lateness_below_the_clock_error_is_not_claimed(tmp_path, lateness, found):
    report = run(base4(tmp_path, steps=40, late={1: lateness}, end_jitter_ns=400_000).paths)
    assert late(report) == found
    assert 300_000 < report["clock"]["uncertainty_ns"] < 600_000
    if not found:
        assert report["verdict"]["reason"] == "clock_too_coarse"


@pytest.mark.parametrize("ranks", [2, 8])
def test_equal_ranks_are_balanced(tmp_path, ranks):
    # B05: arrivals within 20 us of each other, also with two ranks, one of which is always the last.
    report = run(flat8(tmp_path, ranks=ranks).paths)
    assert report["verdict"]["status"] == "balanced"
    assert late(report, "major", "minor", "note") == []
    # All idle together between the steps, which is no rank's lateness.
    assert {f["kind"] for f in report["findings"]} <= {"common_stall"}
    assert report["verdict"]["smallest_findable_delay_ns_per_step"] > 0


def test_lateness_that_rotates_is_nobodys(tmp_path):
    # B06: rank k mod 8 is 5 ms late in step k: 400 ms are lost.
    turns = {r: [5 * MS if k % 8 == r else 0 for k in range(80)] for r in range(8)}
    report = run(synthetic(tmp_path, ranks=8, steps=80, late=turns, jitter_ns=100_000).paths)
    assert report["verdict"]["status"] == "rotating"
    assert late(report, "major", "minor") == []
    finding = next(f for f in report["findings"] if f["kind"] == "rotating")
    assert (finding["pattern"], finding["ranks"], finding["steps_late"]) == ("rotating", list(range(8)), 80)
    assert 80 * finding["delay_ns_per_step"] == pytest.approx(400 * MS, rel=0.01)


def test_one_spike_is_an_event(tmp_path):
    # B06: a single spike of 2 s in step 41.
    report = run(
        synthetic(tmp_path, ranks=8, steps=80, late={5: [0] * 41 + [2000 * MS]}, jitter_ns=100_000).paths
    )
    finding = report["findings"][0]
    assert (finding["kind"], finding["rank"], finding["pattern"]) == ("late_rank", 5, "one_off")
    assert (finding["p_value"], finding["first_step"], finding["severity"]) == (None, "41", "major")
    assert report["verdict"]["status"] == "straggler"


def test_a_regular_checkpoint_has_a_period(tmp_path):
    every = [20 * MS if k % 5 == 3 else 0 for k in range(80)]
    finding = run(synthetic(tmp_path, ranks=8, steps=80, late={0: every}, jitter_ns=100_000).paths)[
        "findings"
    ][0]
    assert (finding["rank"], finding["pattern"], finding["period_steps"]) == (0, "intermittent", 5)
    assert (finding["steps_late"], finding["first_step"]) == (16, "3")


def test_a_startup_skew_is_left_out(tmp_path):
    report = run(base4(tmp_path, late={2: 1_500_000, 1: [15_000 * MS]}).paths)
    assert late(report) == [("late_rank", 2)]
    assert [f["pattern"] for f in report["findings"] if f["severity"] == "note"] == ["startup"]
    assert report["findings"][0]["steps"] == 9


@pytest.mark.parametrize("jitter", [0, 300_000])
def test_windows_that_start_at_different_steps(tmp_path, jitter):
    # B08: rank 1 lacks the first 3 of 40 all-reduces, rank 3 the last 5; by index rank 1 would be 30 ms late.
    # Without jitter the steps repeat perfectly, and only the session clocks tell which is which.
    report = run(base4(tmp_path, steps=40, cut={1: (3, 0), 3: (0, 5)}, jitter_ns=jitter).paths)
    assert report["job"]["matched_collectives"] == 32
    assert report["job"]["unmatched_collectives"] == 4 * 40 - 8 - 4 * 32
    assert late(report) == [("late_rank", 2)]
    assert max(abs(x) for r, x in figures(report, "lateness_ns_median").items() if r != 2) < 5 * MS


def test_lost_events_cost_single_instances(tmp_path):
    report = run(
        synthetic(
            tmp_path, ranks=8, steps=100, lost={3: [40], 4: [70, 71]}, jitter_ns=100_000, late={2: 2 * MS}
        ).paths
    )
    assert report["job"]["matched_collectives"] == 97
    assert late(report) == [("late_rank", 2)]
    warning = next(w for w in report["warnings"] if w["code"] == "counts_differ")
    assert warning["ranks"] == [3]
    assert report["communicators"][0]["first_divergence"] == 40


def test_ranks_that_issue_another_collective_are_named(tmp_path):
    # 6 of 8 ranks do 99 collectives, ranks 2 and 3 one more in the middle: the minority is named.
    report = run(
        synthetic(
            tmp_path, ranks=8, steps=100, lost={r: [50] for r in (0, 1, 4, 5, 6, 7)}, jitter_ns=100_000
        ).paths
    )
    warning = next(w for w in report["warnings"] if w["code"] == "counts_differ")
    assert warning["ranks"] == [2, 3]
    assert report["job"]["matched_collectives"] == 99


@pytest.mark.parametrize("settings", [{}, {"payload": False}, {"payload": False, "nccl_ranges": False}])
@pytest.mark.parametrize("culprit", [None, 1])
def test_tensor_and_data_parallel_groups(tmp_path, settings, culprit):
    late_by = {} if culprit is None else {culprit: 5 * MS}
    report = run(
        synthetic(tmp_path, steps=20, phases=tp_dp(), jitter_ns=100_000, late=late_by, **settings).paths
    )
    groups = sorted(c["ranks"] for c in report["communicators"])
    assert groups == [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert report["job"]["matched_collectives"] == 80
    assert late(report) == ([] if culprit is None else [("late_rank", culprit)])


def test_a_late_node_is_told_from_its_ranks(tmp_path):
    # B43: both ranks of nodeB; and one of eight on a node, which is that rank alone.
    both = run(base4(tmp_path / "both", late={2: 1_500_000, 3: 1_550_000}, jitter_ns=50_000).paths)
    assert late(both) == [("late_node", "nodeB")]
    finding = both["findings"][0]
    assert (finding["ranks"], finding["steps_late"], finding["steps"]) == ([2, 3], 10, 10)
    one = run(synthetic(tmp_path / "one", ranks=16, steps=20, late={3: 2 * MS}, jitter_ns=100_000).paths)
    assert late(one) == [("late_rank", 3)]


@pytest.mark.parametrize("count", [8, 15])
def test_nodes_are_not_blocks_of_ranks(tmp_path, count):
    # B44: ranks are dealt out to two hosts in turn, 4 and 4, or 8 and 7.
    nodes = tuple("AB"[r % 2] for r in range(count))
    slow = {r: 2 * MS for r in range(1, count, 2)}
    report = run(synthetic(tmp_path, ranks=count, nodes=nodes, steps=20, late=slow, jitter_ns=100_000).paths)
    assert late(report) == [("late_node", "B")]


def test_pipeline_stages_may_differ(tmp_path):
    stages = (Phase(4 * MS, [[0, 2], [1, 3]]),)
    report = run(
        synthetic(tmp_path, steps=20, phases=stages, late={1: 3 * MS, 3: 3 * MS}, jitter_ns=100_000).paths
    )
    assert report["verdict"]["status"] == "balanced"
    assert report["job"]["islands"] == [[0, 2], [1, 3]]


def test_broadcasts_do_not_carry_a_verdict(tmp_path):
    report = run(synthetic(tmp_path, steps=30, phases=(Phase(op="broadcast"),), jitter_ns=100_000).paths)
    assert report["verdict"]["reason"] == "no_nxn_collectives"


def test_drift_comes_back(tmp_path):
    report = run(
        synthetic(
            tmp_path,
            steps=600,
            step_ns=100 * MS,
            offset_ns={"nodeB": 3_500_000},
            drift_ppm={"nodeB": 8.0},
            end_jitter_ns=60_000,
            late={1: 3 * MS},
            jitter_ns=100_000,
        ).paths
    )
    clock = report["clock"]["nodes"][1]
    assert report["job"]["matched_collectives"] == 600
    assert abs(clock["drift_ppm"] - 8.0) < 0.3
    # At the middle of the observations, 30 s in, drift has added 240 us.
    assert abs(clock["offset_ns"] - 3_500_000 - 8e-6 * 30e9) < 10_000


def test_a_missing_rank_may_be_the_culprit(tmp_path):
    report = run(synthetic(tmp_path, steps=30, written=[0, 1, 3], late={2: 3 * MS}, jitter_ns=100_000).paths)
    assert report["verdict"]["reason"] == "missing_ranks"
    assert report["job"]["missing_ranks"] == [2]
    assert late(report, "major", "minor") == []


def test_steps_without_numbers_and_without_names(tmp_path):
    work = {"steps": 30, "phases": (Phase(4 * MS, count=3),), "late": {1: 3 * MS}, "jitter_ns": 100_000}
    named = run(synthetic(tmp_path / "a", step_ranges="train_step", cut={0: (5, 0), 2: (0, 7)}, **work).paths)
    assert named["job"]["step_source"] == "nvtx:train_step"
    assert late(named) == [("late_rank", 1)]
    bare = run(synthetic(tmp_path / "b", step_ranges=None, **work).paths)
    assert (bare["job"]["step_source"], bare["job"]["steps"]) == ("period", 30)
    assert late(bare) == [("late_rank", 1)]


def test_two_ranks_need_eight_steps(tmp_path):
    few = run(synthetic(tmp_path / "a", ranks=2, steps=7, late={1: 5 * MS}, jitter_ns=100_000).paths)
    assert few["verdict"]["reason"] == "too_few_steps"
    enough = run(synthetic(tmp_path / "b", ranks=2, steps=9, late={1: 5 * MS}, jitter_ns=100_000).paths)
    assert late(enough) == [("late_rank", 1)]


def test_one_report_gets_the_hint_about_names(tmp_path):
    job = base4(tmp_path)
    report = run(job.paths[:1])
    assert report["verdict"]["reason"] == "one_rank"
    assert "%q{SLURM_PROCID}" in report["verdict"]["summary"]
    assert codes(report) == {"missing_ranks"}
