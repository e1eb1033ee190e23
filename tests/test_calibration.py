"""Error rates on played jobs: a small sample of what benchmarks/calibrate.py measures at length."""

from __future__ import annotations

import itertools

import pytest

from benchmarks import calibrate
from benchmarks.plays import FAMILIES, Play


@pytest.mark.parametrize("family", FAMILIES)
def test_a_late_rank_in_jitter_is_not_its_node(family):
    # Jitter gives every rank of the node a share of the delay; the node is not late for that.
    play = Play(steps=50, late={3: 5e6}, jitter_share=0.025, family=family)
    assert calibrate.judge(play).loud == (("late_rank", "minor", (3,)),)


def test_a_late_node_in_jitter_is_the_node():
    play = Play(steps=50, late=dict.fromkeys(range(4), 5e6), jitter_share=0.02)
    assert [(kind, ranks) for kind, _, ranks in calibrate.judge(play).loud] == [("late_node", (0, 1, 2, 3))]


def test_healthy_jobs_are_left_alone():
    settings = itertools.product((2, 4, 8), FAMILIES, (0.01, 0.05))
    plays = [
        Play(ranks=n, per_node=max(1, n // 2), steps=20, family=family, jitter_share=share, seed=i)
        for i, (n, family, share) in enumerate(settings)
    ]
    # One in a hundred may be accused; of these 18 at most one.
    assert len([p for p in plays if calibrate.judge(p).loud]) <= 1


@pytest.mark.parametrize("payloads", [True, False])
@pytest.mark.parametrize("tensor", [1, 2])
def test_lost_events_and_windows_apart(payloads, tensor):
    # One event in a hundred is lost, and the windows begin up to 120 collectives apart.
    play = Play(
        steps=60,
        tensor=tensor,
        shift={0: 100, 1: 20, 3: 61, 5: 120, 6: 7},
        short={2: 40, 7: 3},
        lost_share=0.01,
        payloads=payloads,
        jitter_share=0.02,
        offset_ns={1: 3.5e6},
        seed=4,
    )
    possible, right, wrong = calibrate.matched(play)
    assert wrong == 0
    assert right == possible > 50


def test_clocks_come_back():
    play = calibrate.clock_plays(1)[0]
    offset, rate = calibrate.clock_errors(play)
    assert abs(offset) < 5_000
    assert abs(rate) < 0.3


def test_tables_go_between_their_marks():
    page = "a\n<!-- table: x y -->\nold\nrows\n<!-- end -->\nb\n<!-- table: z -->\n<!-- end -->\n"
    made = calibrate.put_into(page, {"x y": ["| 1 |"], "z": ["| 2 |"]})
    assert made == "a\n<!-- table: x y -->\n| 1 |\n<!-- end -->\nb\n<!-- table: z -->\n| 2 |\n<!-- end -->\n"
    with pytest.raises(ValueError, match="'gone', expected 1"):
        calibrate.put_into(page, {"gone": []})
