"""Grouping kernels against their naive twins."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankdiff.kernels.grouping import grouped, sums
from tests.oracles import grouping as naive

WIDEST = st.sampled_from([0, 1, -1, 1 << 31, 1 << 62, -(1 << 63), (1 << 63) - 1])


def table(events, width):
    return np.array(events, np.int64).reshape(-1, width).T


@given(st.lists(st.tuples(st.integers(-2, 2), WIDEST), max_size=30))
def test_grouped(events):
    group, first = grouped(table(events, 2))
    assert (group.tolist(), first.tolist()) == naive.grouped(events)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-9, 9), st.integers(-9, 9)), max_size=20))
def test_sums(rows):
    group, one, other = table(rows, 3)
    found = sums(group, 4, np.stack((one, other)))
    assert found.tolist() == [naive.sums(group, 4, one), naive.sums(group, 4, other)]


def test_more_groups_than_the_first_table_holds():
    rng = np.random.default_rng(1)
    events = rng.integers(0, 200, (2, 5000))
    group, first = grouped(events)
    distinct, rows, inverse = np.unique(events, axis=1, return_index=True, return_inverse=True)
    assert distinct.shape[1] > 4000
    assert sorted(rows.tolist()) == first.tolist()
    assert np.array_equal(events[:, first[group]], events)
    assert np.array_equal(first[group], rows[inverse.ravel()])
