"""Interval kernels against their naive twins, on small numbers where ties and abutting are common."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdiff.kernels import intervals, nesting
from tests.oracles import intervals as naive

interval = st.tuples(st.integers(-8, 24), st.integers(-8, 24))
several = st.lists(interval, max_size=12)
disjoint = several.map(naive.union)


def arrays(pairs):
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def pairs(starts, ends):
    assert starts.dtype == ends.dtype == np.int64
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


@given(several)
def test_union(given_intervals):
    assert pairs(*intervals.union(*arrays(given_intervals))) == naive.union(given_intervals)


@given(several)
def test_gaps(given_intervals):
    assert pairs(*intervals.gaps(*intervals.union(*arrays(given_intervals)))) == naive.gaps(given_intervals)


@given(disjoint, disjoint)
def test_overlaps(a, b):
    each = naive.overlap_each(a, b)
    assert intervals.overlap_each(*arrays(a), *arrays(b)).tolist() == each
    assert intervals.overlap_ns(*arrays(a), *arrays(b)) == sum(each)
    whole = sum(end - start for start, end in a)
    assert intervals.length_ns(*arrays(a)) == whole
    assert intervals.uncovered_ns(*arrays(a), *arrays(b)) == whole - sum(each)


@given(st.lists(st.integers(1, 4), max_size=8), st.lists(st.integers(1, 4), max_size=8))
def test_overlap_of_abutting_intervals(a_lengths, b_lengths):
    def chain(lengths):
        ends = np.cumsum([0, *lengths])
        return list(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))

    a, b = chain(a_lengths), chain(b_lengths)
    assert intervals.overlap_each(*arrays(a), *arrays(b)).tolist() == naive.overlap_each(a, b)


def test_pairwise_overlaps_are_not_added_up():
    # Two calls that cover the same 10 ns cover 10 ns, not 20.
    covered = intervals.union([0, 2], [10, 8])
    assert intervals.overlap_ns([0], [10], *covered) == 10


def test_epochs_stay_exact():
    epoch = 1_779_630_000_000_000_001
    starts, ends = intervals.union([epoch, epoch + 2], [epoch + 1, epoch + 3])
    assert pairs(starts, ends) == [(epoch, epoch + 1), (epoch + 2, epoch + 3)]
    assert intervals.length_ns(starts, ends) == 2


@pytest.mark.parametrize("kernel", ["union", "gaps"])
def test_empty_input(kernel):
    empty = np.empty(0, np.int64)
    starts, ends = getattr(intervals, kernel)(empty, empty)
    assert starts.size == ends.size == 0


def test_read_only_and_strided_input():
    table = np.arange(12, dtype=np.int64).reshape(3, 4)
    table.flags.writeable = False
    starts, ends = intervals.union(table[:, 0], table[:, 1])
    assert pairs(starts, ends) == [(0, 1), (4, 5), (8, 9)]
    assert intervals.overlap_each(table[:, 0], table[:, 2], starts, ends).tolist() == [1, 1, 1]


track = st.integers(0, 2)
ranges = st.lists(st.tuples(track, st.integers(0, 12), st.integers(0, 12)), max_size=10)
moments = st.lists(st.tuples(track, st.integers(-1, 13)), max_size=10)


@given(ranges, moments)
def test_innermost(given_ranges, given_moments):
    r = np.array(given_ranges, np.int64).reshape(-1, 3)
    m = np.array(given_moments, np.int64).reshape(-1, 2)
    found = nesting.innermost(r[:, 0], r[:, 1], r[:, 2], m[:, 0], m[:, 1])
    assert found.tolist() == naive.innermost(given_ranges, given_moments)


@given(st.lists(st.tuples(track, st.integers(0, 2), st.integers(0, 1)), max_size=14))
def test_groups(events):
    events = sorted(events, key=lambda event: event[0])
    e = np.array(events, np.int64).reshape(-1, 3)
    assert nesting.groups(e[:, 0], e[:, 1], e[:, 2]).tolist() == naive.groups(events)


def test_a_lost_group_end_costs_one_group_only():
    o, m, c = nesting.OPEN, nesting.MEMBER, nesting.CLOSE
    kind = [o, m, o, m, c, o, m, c]  # the first end is lost; the others launch
    assert nesting.groups([0] * 8, kind, [0, 0, 0, 0, 1, 0, 0, 1]).tolist() == [-1, 0, -1, 0, 0, -1, 1, 1]
