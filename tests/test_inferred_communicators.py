"""Communicators told by the ends of their collectives, against those that payloads name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from benchmarks.plays import Play, perform
from rankdiff import inference
from rankdiff.inference import inferred_groups
from rankdiff.job import build_job
from rankdiff.matching import payload_groups
from rankdiff.one_clock import on_one_clock
from rankdiff.pairing import classes_of


def job_of(play, one_stream=False, own_clocks=False):
    played = perform(play)
    digests = played.digests
    if one_stream:
        digests = [
            replace(d, collectives=d.collectives.with_columns(stream=pl.lit(7, pl.Int64))) for d in digests
        ]
    if own_clocks:
        digests = [replace(d, info=replace(d.info, session_start_utc_ns=None)) for d in digests]
    return build_job(digests, played.identities)


def members(groups):
    return {tuple((r, *g.positions[r].tolist()) for r in sorted(g.positions)) for g in groups}


MANY = Play(ranks=40, per_node=8, tensor=4, steps=40)


@pytest.mark.parametrize(
    ("play", "shape"),
    [
        (MANY, {}),
        (replace(MANY, tensor=1), {}),
        (replace(MANY, tensor=20), {}),
        (replace(MANY, offset_ns={1: 5e6, 3: -2e6}, drift_ppm={2: 30.0}, steps=120), {}),
        (replace(MANY, lost_share=0.002), {}),
        (replace(MANY, lost_share=0.001, per_node=4), {"own_clocks": True}),
        (replace(MANY, step_ranges=False), {}),
        (replace(MANY, shift={1: 7, 22: 30}, short={0: 20}), {}),
        (replace(MANY, late={13: 15e6}), {}),
    ],
)
def test_of_many_ranks(play, shape):
    job = job_of(play, **shape)
    groups, notes = inferred_groups(job)
    assert members(groups) == members(payload_groups(job))
    assert [n.code for n in notes] == ["inferred_communicators"]


@pytest.mark.parametrize("step_ranges", [True, False])
def test_of_many_ranks_on_one_stream(step_ranges):
    # A tensor-parallel group's three places in the step are told apart, as they were not by their stream.
    job = job_of(replace(MANY, step_ranges=step_ranges, drift_ppm={2: 30.0}), one_stream=True)
    groups, notes = inferred_groups(job)
    whole = payload_groups(job)
    sets = [tuple(sorted(g.positions)) for g in groups]
    assert sorted(set(sets)) == sorted(tuple(sorted(g.positions)) for g in whole)
    assert sum(p.size for g in groups for p in g.positions.values()) == 40 * 160
    assert [n.code for n in notes] == ["inferred_communicators"]


def test_usual_spreads_tell_data_parallel_groups_of_many_ranks():
    # Of 2016 pairs the widest within a group and the nearest of two are less than 1.8 times apart, by chance.
    play = Play(ranks=64, per_node=8, steps=100, step_ns=12e6, jitter_share=0.009, per_step=2, tensor=4)
    job = job_of(play)
    groups, _ = inferred_groups(job)
    assert members(groups) == members(payload_groups(job))


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_a_drifting_clock_does_not_part_a_communicator(tensor):
    # Over 20 s a clock that gains 60 ppm leaves by 1.2 ms, twenty times what ends scatter by.
    job = job_of(Play(ranks=8, per_node=4, steps=200, tensor=tensor, drift_ppm={1: 60.0}))
    groups, _ = inferred_groups(job)
    assert members(groups) == members(payload_groups(job))


@pytest.mark.parametrize("shape", [{}, {"one_stream": True}, {"own_clocks": True}])
def test_a_glance_tells_what_a_look_at_length_does(monkeypatch, shape):
    job = job_of(Play(ranks=12, per_node=4, tensor=2, steps=40, seed=3), **shape)
    at_length = inferred_groups(job)
    monkeypatch.setattr(inference, "_AT_LENGTH", 0)
    monkeypatch.setattr("rankdiff.pairing._at_length", None)  # must not be called
    groups, notes = inferred_groups(job)
    assert members(groups) == members(at_length[0])
    assert notes == at_length[1]


def clock_of(job):
    classes = [c for r in job.ranks for c in classes_of(r)]
    return on_one_clock(
        job, [c.rank for c in classes], [c.op for c in classes], [c.positions for c in classes]
    )


def test_ends_of_members_on_one_clock():
    play = Play(
        ranks=12, per_node=2, steps=200, tensor=4, offset_ns={1: 7e6, 4: -3e6}, drift_ppm={3: 30.0}, seed=1
    )
    job = job_of(play)
    found = clock_of(job)
    assert (found.island == 0).all()
    for g in payload_groups(job):
        ends = np.stack([found.end[r][p] for r, p in g.positions.items()])
        for part in np.array_split(ends, 4, axis=1):
            assert np.abs(np.median(part - part[0], axis=1)).max() < 15_000


def test_a_job_of_another_time_stays_on_an_island():
    play = Play(ranks=12, per_node=4, steps=40)
    here, there = perform(play), perform(replace(play, seed=9, jitter_share=0.3))
    digests = [*here.digests[:8], *there.digests[8:]]
    late = [
        d.collectives.with_columns(pl.col("start_ns", "end_ns") * 7 + 10**13).with_columns(
            op=pl.lit("all_gather")
        )
        for d in digests[8:]
    ]
    digests[8:] = [replace(d, collectives=c) for d, c in zip(digests[8:], late, strict=True)]
    job = build_job(digests, here.identities)
    assert clock_of(job).island.tolist() == [0] * 8 + [2] * 4
