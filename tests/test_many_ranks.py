"""Jobs of many ranks: the ways that are taken only there give what the plain ones give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.plays import Play, perform
from rankdiff import self_doubt
from rankdiff.comparison import compare_digests
from rankdiff.court import Court
from rankdiff.findings import is_loud
from rankdiff.replay import lay_out
from rankdiff.waits import delay_shares


def compared(play):
    played = perform(play)
    return compare_digests(played.digests, played.identities, ())


def loud(c):
    return [f.ranks for f in c.verdict.findings if is_loud(f)]


def test_a_late_rank_among_a_hundred():
    # More units than are permuted one by one, ranks and nodes.
    play = Play(ranks=144, per_node=2, steps=24, jitter_share=0.004, late={77: 12e6}, offset_ns={3: 4e6})
    c = compared(play)
    assert loud(c) == [(77,)]
    assert c.verdict.findings[0].p_value < 0.001
    assert c.clock.nodes[3].offset_ns - c.clock.nodes[0].offset_ns == pytest.approx(4e6, abs=10e3)
    assert [m.positions.shape for m in c.matching.communicators] == [(96, 144)]
    healthy = compared(replace(play, late={}))
    assert healthy.verdict.status == "balanced"


def test_many_short_steps_do_not_blur_the_shift():
    # Seventeen collectives a step: one too few or too many leaves 16 of 17 step numbers equal, and the clock is off by
    # more than half of the distance between two of them. The ends tell.
    play = Play(ranks=32, per_node=4, steps=40, per_step=17, step_ns=102e6, offset_ns={1: 5e6})
    c = compared(play)
    (m,) = c.matching.communicators
    assert (m.positions == m.positions[:, :1]).all()
    assert c.clock.nodes[1].offset_ns - c.clock.nodes[0].offset_ns == pytest.approx(5e6, abs=20e3)


def test_the_margin_of_a_large_island_takes_its_first_steps(monkeypatch):
    play = Play(ranks=16, per_node=4, steps=70, tensor=2, seed=4)
    c = compared(play)
    (island,) = c.islands
    court = Court(c.job, island, c.judgements[0].threshold_ns, c.clock.uncertainty_ns)
    whole = self_doubt.margin(court)
    monkeypatch.setattr(self_doubt, "_MOST_ARRIVALS", 1)
    short = self_doubt._shortened(court)
    assert short.island.steps.size == 50
    again = delay_shares(short.island.timed, island.ranks, 50)
    # What is left to be passed on from the step before the cut is the same.
    assert again == pytest.approx(island.delta[:, :50], rel=1e-6, abs=1.0)
    assert self_doubt.margin(court).rank >= whole.rank


def test_the_margin_of_a_rank_is_the_same_with_fewer_trials(monkeypatch):
    c = compared(Play(ranks=24, per_node=1, steps=40, tensor=4, jitter_share=0.004, seed=1))
    court = Court(c.job, c.islands[0], c.judgements[0].threshold_ns, c.clock.uncertainty_ns)
    tried = []

    def counted(island, rows, late_ns, planted=self_doubt.planted):
        tried.append(late_ns)
        return planted(island, rows, late_ns)

    monkeypatch.setattr(self_doubt, "planted", counted)
    found = self_doubt.margin(court)
    by_shares = len(tried)
    assert found.rank is not None
    assert found.rank > court.threshold
    # It is found, and what is a rung less late is not.
    assert found.rank in tried
    assert found.rank / 1.25 == pytest.approx(max(x for x in tried if x < found.rank))
    monkeypatch.setattr(
        self_doubt, "_likely", lambda delta, at, rows, ladder, low, high, passes: (low + high) // 2
    )
    assert self_doubt.margin(court) == found
    assert by_shares < len(tried) - by_shares


def test_communicators_of_many_ranks_by_their_ends():
    c = compared(Play(ranks=32, per_node=8, tensor=4, steps=24, payloads=False, seed=2))
    sizes = sorted(m.members.size for m in c.matching.communicators)
    assert sizes == [4] * 8 + [8] * 4
    assert c.matching.unmatched == 0


def test_shares_of_two_layers_are_all_of_the_open_time():
    c = compared(Play(ranks=48, per_node=8, tensor=8, steps=12, late={11: 8e6}, seed=6))
    (island,) = c.islands
    opened = np.concatenate([t.start.min(axis=1) for t in island.timed])
    closed = np.concatenate([t.start.max(axis=1) for t in island.timed])
    order = np.argsort(opened)
    reach = np.maximum.accumulate(closed[order])
    begin = np.maximum(opened[order], np.append(opened.min(), reach[:-1]))
    assert island.delta.sum() == pytest.approx(np.maximum(reach - begin, 0).sum())
    assert loud(c) == [(11,)]


def test_a_row_that_ends_late_is_anchored_to_what_ended():
    c = compared(Play(ranks=8, steps=12, seed=3))
    (island,) = c.islands
    nothing = (np.empty(0, np.int64), np.empty(0, np.int64))
    played = lay_out(island, [nothing] * 8)
    (t,) = island.timed
    first = played.segment.reshape(t.start.shape)
    assert (first[1:] == t.start[1:] - t.end[:-1]).all()
    assert not played.elsewhere.any()
