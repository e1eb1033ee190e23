"""The track kernel against its naive twin, on small numbers where ties are common."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankdiff.kernels import tracks as kernel
from tests.oracles import tracks as naive

interval = st.tuples(st.integers(0, 12), st.integers(0, 8)).map(lambda x: (x[0], x[0] + x[1]))


@given(st.lists(interval, max_size=14))
def test_tracks(intervals):
    ordered = sorted(intervals, key=lambda x: (x[0], -x[1]))
    table = np.array(ordered, np.int64).reshape(-1, 2)
    found = kernel.tracks(table[:, 0], table[:, 1])
    assert found.dtype == np.int64
    assert found.tolist() == naive.tracks(ordered)


def test_what_nests_stays_on_one_track():
    start, end = np.array([0, 0, 2, 5, 10]), np.array([10, 5, 4, 10, 20])
    assert kernel.tracks(start, end).tolist() == [0, 0, 0, 0, 0]


def test_what_crosses_goes_to_the_next():
    start, end = np.array([0, 1, 2, 3]), np.array([4, 5, 6, 7])
    assert kernel.tracks(start, end).tolist() == [0, 1, 2, 3]
