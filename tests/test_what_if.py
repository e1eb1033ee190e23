"""What if the late rank were typical: the replay, and its answers against the same job without the fault."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.plays import Play, perform
from rankdiff.comparison import compare_digests
from rankdiff.findings import is_loud
from rankdiff.kernels.replay import replayed_ends
from rankdiff.pipeline import compare
from rankdiff.render.json import to_dict
from rankdiff.render.text import to_text
from rankdiff.replay import Played, lay_out
from rankdiff.simulation import Phase, synthetic, tp_dp
from rankdiff.what_if import with_what_if, without_excess
from tests.jobs import run
from tests.oracles import replay as naive

MS = 1_000_000


@st.composite
def loops(draw):
    """Instances whose members follow earlier instances, or nothing."""
    out = []
    for i in range(draw(st.integers(0, 6))):
        member = st.tuples(st.sampled_from([None, *range(i)]), st.integers(0, 9))
        out.append(draw(st.lists(member, min_size=1, max_size=3)))
    return out, draw(st.lists(st.integers(0, 5), min_size=len(out), max_size=len(out)))


@given(loops())
def test_the_replay_agrees_with_its_twin(loop):
    instances, transfer = loop
    flat = [m for members in instances for m in members]
    got = replayed_ends(
        np.cumsum([0, *(len(members) for members in instances)], dtype=np.int64),
        np.array([-1 if a is None else a for a, _ in flat], np.int64),
        np.array([ns for _, ns in flat], np.int64),
        np.array(transfer, np.int64),
    )
    assert got.tolist() == naive.replayed_ends(instances, transfer)


def a_loop(steps, late):
    """A tensor-parallel pair (0, 1), one of (2, 3), then all four; 1 ms of work before each, ranks 0 and 1 `late`.

    Ranks 2 and 3 spend what rank 0 is late by in send/recv before the last of these.
    """
    first, step, row, anchor, segment, elsewhere = [0], [], [], [], [], []
    for k in range(steps):
        for members, before in (((0, 1), 3 * k - 1), ((2, 3), 3 * k - 1), (range(4), None)):
            for r in members:
                held = before is None and r > 1
                row.append(r)
                anchor.append(max(before, -1) if before is not None else 3 * k + r // 2)
                segment.append(100 + (late[k] if (before is not None and r < 2) or held else 0))
                elsewhere.append(late[k] if held else 0)
            first.append(first[-1] + len(members))
            step.append(k)
    ints = [np.array(x, np.int64) for x in (first, step, [10] * len(step), row, anchor, segment, elsewhere)]
    return Played(*ints)


def test_what_is_taken_out():
    loop = a_loop(4, [0, 50, 70, 0])
    own, late = np.array([True, True, False, False]), np.array([False, True, False, False])
    got = without_excess(loop, own, ~own, late, np.ones(4, np.bool_))
    taken = (loop.segment - got).reshape(4, 8)
    # In step 1 alone. No peer is in the pair (0, 1): the other pair, at the same place of the step, is the measure.
    assert taken[[0, 2, 3]].tolist() == [[0] * 8] * 3
    assert taken[1].tolist() == [50, 50, 0, 0, 0, 0, 50, 50]


def test_what_is_taken_out_where_no_step_tells_what_is_typical():
    loop = a_loop(4, [0, 50, 70, 0])
    own, late = np.array([True, True, False, False]), np.array([False, True, False, False])
    got = without_excess(loop, own, ~own, late, np.zeros(4, np.bool_))
    assert (loop.segment - got).reshape(4, 8)[1].tolist() == [50, 50, 0, 0, 0, 0, 50, 50]


def test_nobody_gains_more_than_was_taken():
    loop = a_loop(4, [0, 50, 70, 0])
    longer = replace(loop, elsewhere=3 * loop.elsewhere, segment=loop.segment + 2 * loop.elsewhere)
    own, late = np.array([True, True, False, False]), np.ones(4, np.bool_)
    got = without_excess(longer, own, ~own, late, late)
    taken = (longer.segment - got).reshape(4, 8)
    assert taken[:, 6:].tolist() == [[0, 0], [50, 50], [70, 70], [0, 0]]


def test_clock_errors_do_not_turn_the_order_around(tmp_path):
    # By a wrong clock rank 0 reaches the third collective after the others have reached the fourth.
    (island,) = compare([str(p) for p in synthetic(tmp_path, steps=8).paths]).comparison.islands
    (t,) = island.timed
    start = t.start.copy()
    start[3, 0] = start[4].max() + 1
    nothing = (np.empty(0, np.int64), np.empty(0, np.int64))
    loop = lay_out(replace(island, timed=(replace(t, start=start),)), [nothing] * 4)
    assert (loop.anchor < loop.instance).all()
    assert (loop.anchor >= 0).sum() == 4 * 7
    # The others' fourth follows the second for them.
    assert loop.anchor[loop.instance == 3].tolist()[1:] == [2, 2, 2]


def step_time(job, judged):
    """Mean true time of the judged steps: from the last end of the step before to the step's own."""
    ends = {}
    for i in job.instances:
        ends[i.step] = max(ends.get(i.step, 0), *i.ends.values())
    steps = sorted(ends)
    times = {b: ends[b] - ends[a] for a, b in pairwise(steps)}
    return np.mean([times[k] for k in judged if k in times])


EVERY_FIFTH = [12 * MS if k % 5 == 3 else 0 for k in range(40)]
IRREGULAR = np.random.default_rng(5).integers(1 * MS, 6 * MS, 40).tolist()


@pytest.mark.parametrize(
    "settings",
    [
        {"late": {2: 2 * MS}},
        {"late": {2: 2 * MS}, "late_as": "host"},
        {"late": {2: 2 * MS, 3: 2 * MS}},
        {"late": {2: 2 * MS}, "offset_ns": {"nodeB": 3_000_000}, "end_jitter_ns": 10_000},
        {"late": {1: EVERY_FIFTH}},
        {"late": {1: IRREGULAR}},
        {"late": {1: [0] * 17 + [300 * MS]}},
        {"late": {1: 3 * MS}, "phases": tp_dp()},
        {"late": {1: 3 * MS}, "phases": (Phase(3 * MS, count=3), Phase(2 * MS))},
        {"late": {1: 3 * MS}, "ranks": 2, "nodes": 1},
    ],
)
def test_the_gain_is_the_true_difference(tmp_path, settings):
    work = {"steps": 40, "jitter_ns": 30_000, "seed": 3} | settings
    late = synthetic(tmp_path / "late", **work)
    healthy = synthetic(tmp_path / "healthy", **(work | {"late": {}}))
    report = run(late.paths)
    finding = report["findings"][0]
    judged = [int(s["step"]) for s in report["steps"] if s["judged"]]
    old, new = step_time(late, judged), step_time(healthy, judged)
    found = finding["what_if"]
    assert found["gain_ns_per_step"] == pytest.approx(old - new, rel=0.02)
    assert found["step_ns"] == pytest.approx(new, rel=0.01)
    assert found["speedup"] == pytest.approx(old / new - 1, rel=0.03)
    assert found["gpu_hours_per_hour"] == pytest.approx((old - new) / old * report["job"]["ranks"], rel=0.03)
    assert found["replay_error"] < 0.005


def test_a_late_rank_that_may_stay_as_jittery_as_the_others(tmp_path):
    # With only its excess over the median taken out the rank would never be the last again, and the gain too large.
    work = {"ranks": 2, "nodes": 1, "steps": 200, "jitter_ns": 1 * MS, "seed": 1}
    late = synthetic(tmp_path / "late", late={1: 4 * MS}, **work)
    healthy = synthetic(tmp_path / "healthy", **work)
    report = run(late.paths)
    judged = [int(s["step"]) for s in report["steps"] if s["judged"]]
    true = step_time(late, judged) - step_time(healthy, judged)
    assert report["findings"][0]["what_if"]["gain_ns_per_step"] == pytest.approx(true, rel=0.04)


def test_lateness_that_jitter_hides_in_some_steps():
    # Persistent, and late in two of three steps: those are the ones in which jitter adds to it.
    play = Play(ranks=2, per_node=2, steps=200, per_step=1, jitter_share=0.03, late={1: 4e6}, seed=5)
    late, healthy = (
        compare_digests(p.digests, p.identities, ()) for p in (perform(play), perform(replace(play, late={})))
    )
    ends = [c.islands[0].steps.last_end for c in (late, healthy)]
    true = ((ends[0][-1] - ends[0][0]) - (ends[1][-1] - ends[1][0])) / (play.steps - 1)
    finding = late.verdict.findings[0]
    assert (finding.pattern, finding.steps_late < 150) == ("persistent", True)
    assert finding.what_if.gain_ns_per_step == pytest.approx(true, rel=0.05)


def test_missing_ranks_have_gpus_too(tmp_path):
    settings = {"ranks": 8, "steps": 20, "late": {2: 4 * MS}, "jitter_ns": 30_000}
    whole = run(synthetic(tmp_path / "a", **settings).paths)["findings"][0]["what_if"]
    part = run(synthetic(tmp_path / "b", written=range(6), **settings).paths)["findings"][0]["what_if"]
    assert part["gpu_hours_per_hour"] == pytest.approx(whole["gpu_hours_per_hour"], rel=0.02)


def test_a_replay_that_errs_predicts_nothing(tmp_path):
    c = compare([str(p) for p in synthetic(tmp_path, steps=20, late={2: 3 * MS}).paths]).comparison
    (island,) = c.islands
    assert c.verdict.findings[0].what_if.refused is None
    # A trace whose steps take 5 % longer than its collectives explain.
    longer = replace(island, steps=replace(island.steps, step_ns=1.05 * island.steps.step_ns))
    findings = with_what_if(c.job, c.clock, longer, c.verdict.findings, 4)
    (found,) = [f.what_if for f in findings if is_loud(f)]
    assert found.replay_error == pytest.approx(0.05 / 1.05, rel=0.01)
    assert (found.step_ns, found.gain_ns_per_step, found.speedup, found.gpu_hours_per_hour) == (None,) * 4
    assert found.refused == "a replay of the trace as it is errs by 4.8% of the time"
    doubted = replace(c, verdict=replace(c.verdict, findings=findings))
    shown = to_dict(doubted)["findings"][0]
    assert (shown["what_if"], shown["what_if_refused"]) == (None, found.refused)
    assert f"no prediction: {found.refused}" in " ".join(to_text(doubted).split())


def test_only_accusations_are_replayed(tmp_path):
    # A single spike of little weight is a note.
    report = run(synthetic(tmp_path, steps=80, late={3: [0] * 41 + [20 * MS]}, jitter_ns=50_000).paths)
    (finding,) = [f for f in report["findings"] if f["rank"] == 3]
    assert (finding["severity"], finding["what_if"], finding["what_if_refused"]) == ("note", None, None)


@pytest.mark.parametrize(("name", "low"), [("data4", 0.9), ("node4", 0.9), ("before4", 0.9), ("tpdp4", 0.5)])
def test_real_captures_gain_about_what_the_late_rank_costs(captures, name, low):
    finding = run(sorted((captures / name).glob("*.sqlite")))["findings"][0]
    assert low <= finding["what_if"]["gain_ns_per_step"] / finding["delay_ns_per_step"] <= 1.05
    assert finding["what_if"]["replay_error"] < 0.02
