"""Kernels that tell which sequences end together, against their naive twins and planted sequences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdiff.kernels.agreement import connected, end_agreement, how_near, joining
from tests.oracles import agreement as naive

ENDS = st.integers(-500_000, 500_000)


@given(
    st.lists(st.tuples(ENDS, ENDS, st.integers(1, 10**6)), min_size=1, max_size=40), st.sampled_from([0, 40])
)
def test_how_near(rows, ppm):
    pairs = []
    for n, (one, other, lasts) in enumerate(rows):
        end_a = 10**9 + n * 10**7 + one
        end_b = end_a + other + ppm * n * 10
        pairs.append((end_a - lasts, end_a, end_b - 200_000, end_b))
    near = np.empty(6)
    how_near(*np.array(pairs, np.int64).T, near)
    assert near == pytest.approx(naive.how_near(pairs), rel=1e-6, abs=1e-3)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=12))
def test_connected_and_joining(pairs):
    low, high = np.array(pairs, np.int64).reshape(-1, 2).T
    label, joins = naive.connected(8, pairs)
    assert connected(8, low, high).tolist() == label
    assert joining(8, low, high).tolist() == joins


def judged(*sequences, around=1, grain=1e6):
    """Agreement of the first of some sequences of ends with each other one; each lasts 1 ms."""
    end = np.concatenate(sequences)
    first = np.append(0, np.cumsum([s.size for s in sequences]))
    b = np.arange(1, len(sequences))
    return end_agreement(end - 1_000_000, end, first, np.zeros_like(b), b, around, 512, 2.0, grain)


def test_sequences_that_may_be_one_communicator():
    rng = np.random.default_rng(5)
    ends = np.cumsum(rng.integers(5_000_000, 7_000_000, 300))
    noise = [rng.normal(0, 20_000, 300).astype(np.int64) for _ in range(3)]
    spread, broken, middle, *_ = judged(
        ends,
        ends[40:] + noise[0][40:],  # begins later
        np.delete(ends + noise[1], [100, 200]),  # lost two
        ends + noise[2] + 300_000,  # a clock that is ahead
        ends[::9],  # another communicator's, in step
        ends + 10**12,  # at another time
    )
    assert spread[:3] == pytest.approx([40_000] * 3, rel=0.3)
    assert broken[:3].tolist() == [0, 0, 0]
    assert middle[:3] == pytest.approx([0, 0, 300_000], abs=5_000)
    assert np.isinf(spread[3:]).all()


def test_a_period_does_not_hide_in_the_sample():
    # Every other collective is another communicator's: the ends of one half do not speak for all.
    rng = np.random.default_rng(6)
    ends = np.cumsum(rng.integers(5_000_000, 7_000_000, 4096))
    other = ends + np.where(np.arange(4096) % 2, rng.normal(0, 500_000, 4096), 0).astype(np.int64)
    spread, *_ = judged(ends, other)
    assert spread[0] > 500_000


def test_a_shift_is_found_by_clocks_that_are_far_off():
    rng = np.random.default_rng(7)
    ends = np.cumsum(rng.integers(500_000, 700_000, 300))
    spread, _, middle, *_ = judged(ends, ends + 3_000_000, around=8, grain=1e4)
    assert (spread[0], middle[0]) == (0, 3_000_000)
