"""Self-doubt: the clock-free twin, the margin of an acquittal, intervals, and findings of a single step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.plays import Play, perform
from rankdiff import significance
from rankdiff.comparison import compare_digests
from rankdiff.findings import is_loud
from rankdiff.significance import DRAWS, interval95, mean_ci95, resampled_sums
from rankdiff.simulation import Phase, Settings, parse_fault, simulate, synthetic
from tests.jobs import codes, late, run, warning, words

MS = 1_000_000


# The twin ----------------------------------------------------------------------------------------------------


def wavering(ahead_ns, step_ns=20 * MS):
    """A clock that is off in every third step, where the median of its ends does not show it."""
    return lambda t: t + (ahead_ns if t // step_ns % 3 == 0 else 0)


def test_durations_agree_about_a_late_rank(tmp_path):
    report = run(synthetic(tmp_path, steps=20, late={2: 2 * MS}, jitter_ns=20_000).paths)
    twin, finding = report["findings"][0]["twin"], report["findings"][0]
    assert twin["agrees"]
    assert twin["delay_ns_per_step"] == pytest.approx(finding["delay_ns_per_step"], rel=0.01)
    assert twin["p_value"] == finding["p_value"] < 0.001
    assert "clock_suspect" not in codes(report)


def test_durations_agree_about_a_late_node_and_an_event(tmp_path):
    node = run(synthetic(tmp_path / "a", steps=20, late={2: 2 * MS, 3: 2 * MS}, jitter_ns=20_000).paths)
    assert late(node) == [("late_node", "nodeB")]
    finding = node["findings"][0]
    assert finding["twin"]["agrees"]
    assert finding["twin"]["delay_ns_per_step"] == pytest.approx(finding["delay_ns_per_step"], rel=0.01)
    event = run(synthetic(tmp_path / "b", steps=20, late={1: [0] * 9 + [400 * MS]}, jitter_ns=20_000).paths)
    twin = event["findings"][0]["twin"]
    assert (twin["p_value"], twin["agrees"]) == (None, True)
    assert twin["delay_ns_per_step"] == pytest.approx(400 * MS / event["findings"][0]["steps"], rel=0.01)


@pytest.mark.parametrize(
    ("ahead", "severity", "status"), [(8 * MS, "minor", "straggler"), (4 * MS, "note", "not_assessed")]
)
def test_lateness_that_only_the_clock_has(tmp_path, ahead, severity, status):
    job = synthetic(
        tmp_path,
        nodes=("a", "b", "c", "d"),
        steps=60,
        step_ns=20 * MS,
        phases=(Phase(transfer_ns=10 * MS),),
        jitter_ns=20_000,
        options={2: {"clock": wavering(ahead)}},
    )
    report = run(job.paths)
    (finding,) = [f for f in report["findings"] if f["kind"] == "late_rank"]
    assert (finding["severity"], finding["lowered_for"]) == (severity, ["clock_suspect"])
    assert report["verdict"]["status"] == status
    assert finding["delay_ns_per_step"] == pytest.approx(ahead / 3, rel=0.1)
    assert not finding["twin"]["agrees"]
    assert finding["twin"]["delay_ns_per_step"] < 100_000
    assert "rank 2 arrives last on the fitted clocks" in warning(report, "clock_suspect")
    assert "by the durations of its collectives" in words(job.paths)


def test_lateness_that_the_clock_hides_is_a_warning_alone(tmp_path):
    # Rank 2 is late in every third step, and its clock is behind by as much in just these steps.
    job = synthetic(
        tmp_path,
        nodes=("a", "b", "c", "d"),
        steps=60,
        step_ns=20 * MS,
        jitter_ns=20_000,
        late={2: [8 * MS if k % 3 == 0 else 0 for k in range(60)]},
        options={2: {"clock": wavering(-8 * MS)}},
    )
    report = run(job.paths)
    assert late(report) == []
    assert "rank 2 makes the others wait 2.6" in warning(report, "clock_suspect")


def test_real_captures_agree_with_their_twins(captures):
    for name in ("data4", "node4", "tpdp4", "window4", "host4"):
        report = run(sorted((captures / name).glob("*.sqlite")))
        finding = report["findings"][0]
        assert finding["twin"]["agrees"], name
        ratio = finding["twin"]["delay_ns_per_step"] / finding["delay_ns_per_step"]
        assert ratio == pytest.approx(1.0, abs=0.03), name
        assert "clock_suspect" not in codes(report), name


# The margin --------------------------------------------------------------------------------------------------


def compared(play):
    played = perform(play)
    return compare_digests(played.digests, played.identities, ())


def found(c):
    return [f.ranks for f in c.verdict.findings if is_loud(f)]


@pytest.mark.parametrize(
    ("ranks", "jitter", "family"),
    # Where what is material decides, and where chance does.
    [(8, 0.002, "normal"), (4, 0.03, "normal"), (8, 0.05, "exponential"), (16, 0.05, "normal")],
)
def test_a_delay_above_the_margin_is_found_and_half_of_it_is_not(ranks, jitter, family):
    healthy = Play(ranks=ranks, per_node=2, steps=20, per_step=1, jitter_share=jitter, family=family, seed=11)
    c = compared(healthy)
    assert c.verdict.status == "balanced"
    delays = c.islands[0].delta.sum(axis=1)
    rank = int(np.argsort(delays)[(ranks - 1) // 2])
    margin = c.verdict.margin.rank
    assert found(compared(replace(healthy, late={rank: 1.3 * margin}))) == [(rank,)]
    assert found(compared(replace(healthy, late={rank: 0.5 * margin}))) == []


def test_the_margin_of_nodes():
    healthy = Play(ranks=16, per_node=4, steps=30, per_step=1, jitter_share=0.005, seed=3)
    c = compared(healthy)
    assert c.verdict.margin.nodes_judged
    assert c.verdict.margin.node >= c.verdict.threshold_ns
    node = range(4)
    above, below = (dict.fromkeys(node, x * c.verdict.margin.node) for x in (1.5, 0.5))
    assert found(compared(replace(healthy, late=above))) == [(0, 1, 2, 3)]
    assert found(compared(replace(healthy, late=below))) == []


def test_a_balanced_verdict_shows_its_margin(tmp_path):
    paths = synthetic(tmp_path / "a", ranks=8, steps=40, jitter_ns=100_000).paths
    report = run(paths)
    margin, node = (report["verdict"][k] for k in ("margin_ns_per_step", "node_margin_ns_per_step"))
    assert margin >= report["verdict"]["smallest_findable_delay_ns_per_step"]
    assert f"A rank late by {margin / 1e3:.0f} us a step would have been seen, a node by" in words(paths)
    assert node >= report["verdict"]["smallest_findable_delay_ns_per_step"]
    # Two nodes need more steps than eight ranks do.
    few = synthetic(tmp_path / "b", ranks=8, steps=7, jitter_ns=100_000).paths
    report = run(few)
    assert report["verdict"]["status"] == "balanced"
    assert report["verdict"]["node_margin_ns_per_step"] is None
    assert "there are too few steps to see a late node" in words(few)


def test_a_late_rank_leaves_no_margin(tmp_path):
    report = run(synthetic(tmp_path, steps=20, late={2: 2 * MS}, jitter_ns=20_000).paths)
    assert (report["verdict"]["margin_ns_per_step"], report["verdict"]["node_margin_ns_per_step"]) == (
        None,
        None,
    )


def test_steps_that_could_not_convict_do_not_acquit(tmp_path):
    # Ten ranks on two nodes are tested at half the error rate: three steps of one and the same rank are chance.
    settings = {"ranks": 10, "step_ranges": "step {}", "jitter_ns": 20_000, "late": {1: 5 * MS}}
    report = run(synthetic(tmp_path, steps=3, **settings).paths)
    assert report["verdict"]["reason"] == "too_few_steps"


# Intervals ---------------------------------------------------------------------------------------------------


def test_resampling_draws_all_rows_alike(monkeypatch):
    x = np.random.default_rng(1).exponential(1.0, (3, 7))
    got = resampled_sums(x)
    picks = np.random.default_rng(significance._SEED).integers(0, 7, (DRAWS, 7))
    assert got == pytest.approx(np.stack([row[picks].sum(axis=1) for row in x]))
    assert got.sum(axis=0) == pytest.approx(resampled_sums(x.sum(axis=0)[None, :])[0])
    monkeypatch.setattr(significance, "_MOST_WEIGHTS", 20)
    assert resampled_sums(x) == pytest.approx(got)


def test_an_interval_of_equal_steps_is_a_point():
    assert mean_ci95(np.full(9, 4.0)) == (4.0, 4.0)
    assert interval95(resampled_sums(np.full((2, 5), 3.0))).tolist() == [[15.0, 15.0], [15.0, 15.0]]


def test_every_delay_has_an_interval(tmp_path):
    report = run(synthetic(tmp_path, steps=30, late={2: 2 * MS, 3: 2 * MS}, jitter_ns=200_000).paths)
    for item in report["ranks"] + report["nodes"]:
        low, high = item["delay_ci95_ns"]
        assert low <= item["delay_ns"] <= high
    low, high = report["verdict"]["wait_ci95_ns_per_step"]
    assert low < report["verdict"]["wait_ns_per_step"] < high
    # The node's finding, its row and its ranks speak of the same delay.
    (finding,) = [f for f in report["findings"] if f["kind"] == "late_node"]
    row = next(n for n in report["nodes"] if n["node"] == finding["node"])
    assert row["delay_ci95_ns"] == pytest.approx(
        [finding["steps"] * x for x in finding["delay_ci95_ns"]], rel=1e-6
    )


# Single steps ------------------------------------------------------------------------------------------------


def test_a_finding_that_one_step_carries_says_so(tmp_path):
    # 0.1 ms in every step is below what is material; 5 ms in step 11 lift the mean above it.
    extra = [100_000 + (5 * MS if k == 11 else 0) for k in range(30)]
    paths = synthetic(tmp_path, steps=30, late={3: extra}, jitter_ns=5_000).paths
    report = run(paths)
    assert late(report) == [("late_rank", 3)]
    finding = report["findings"][0]
    assert finding["p_value"] < 0.005
    assert finding["carried_by_step"] == "11"
    assert any(e.startswith("step 11 alone carries this finding") for e in finding["evidence"])
    assert "step 11 alone carries this finding" in words(paths)


def test_an_event_is_carried_by_its_step(tmp_path):
    one = run(
        synthetic(
            tmp_path / "a", ranks=8, steps=80, late={5: [0] * 41 + [2000 * MS]}, jitter_ns=100_000
        ).paths
    )
    assert (one["findings"][0]["p_value"], one["findings"][0]["carried_by_step"]) == (None, "41")
    two = [2000 * MS if k in (41, 60) else 0 for k in range(80)]
    both = run(synthetic(tmp_path / "b", ranks=8, steps=80, late={5: two}, jitter_ns=100_000).paths)
    assert both["findings"][0]["carried_by_step"] is None


def test_a_finding_that_hangs_on_a_step_says_so():
    # Material without its largest step, and even most of the delay is left, but not beyond chance any more.
    play = Play(
        ranks=8, per_node=2, steps=20, family="exponential", jitter_share=0.05, seed=801, late={1: 10e6}
    )
    c = compared(play)
    (finding,) = [f for f in c.verdict.findings if is_loud(f)]
    assert finding.p_value <= 0.005
    delta = c.islands[0].delta
    assert finding.carried_by_step == c.islands[0].steps.labels[int(delta[1].argmax())]
    assert any(
        e.startswith(f"this finding hangs on step {finding.carried_by_step}") for e in finding.evidence
    )


@pytest.mark.parametrize("steps", [8, 40])
def test_a_persistent_finding_hangs_on_no_step(tmp_path, steps):
    # Two ranks and eight steps: with one less, whichever it is, nobody could be told from chance.
    report = run(synthetic(tmp_path, ranks=2, steps=steps, late={1: 3 * MS}, jitter_ns=50_000).paths)
    assert late(report) == [("late_rank", 1)]
    assert report["findings"][0]["carried_by_step"] is None


def simulated(folder, *faults, **settings):
    return run(
        simulate(folder / "job", Settings(faults=[parse_fault(f) for f in faults], **settings)).reports
    )


def test_a_partner_that_passes_a_delay_on_is_not_accused(tmp_path):
    # Tensor-parallel pairs and overlapped gradient buckets: rank 3 waits for rank 2 and is late for its own group.
    report = simulated(tmp_path, "io:rank=2:ms=3", tp=2, seed=1)
    assert late(report) == [("late_rank", 2)]
    (passed,) = [f for f in report["findings"] if f["rank"] == 3]
    assert (passed["severity"], passed["cause"]) == ("note", "inherited")
    assert "a replay without its excess gains" in passed["evidence"][-1]


def test_one_rank_of_a_group_that_fills_a_node_is_that_rank(tmp_path):
    report = simulated(tmp_path, "io:rank=2:ms=3", tp=4, seed=1)
    assert late(report) == [("late_rank", 2)]
    assert report["findings"][0]["cause"] == "io"


def test_a_slow_network_is_no_late_node(tmp_path):
    report = simulated(tmp_path, "network:node=n02:factor=3", tp=4, nodes=4)
    assert report["verdict"]["status"] == "balanced"
    assert late(report) == []
    assert [f["node"] for f in report["findings"] if f["kind"] == "slow_transfer"] == ["n02"]
