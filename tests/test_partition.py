"""Partition kernels against their naive twins, on small numbers where ties and abutting are common."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankdiff.kernels import intervals
from rankdiff.kernels import partition as kernel
from tests.oracles import partition as naive

MS = 1_000_000

interval = st.tuples(st.integers(-6, 20), st.integers(-6, 20))
several = st.lists(interval, max_size=10)


@st.composite
def timelines(draw, rows=6):
    """Sorted, disjoint intervals; some abut, some are empty."""
    t = draw(st.integers(-6, 4))
    line = []
    for gap, length in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=rows)):
        line.append((t + gap, t + gap + length))
        t = line[-1][1]
    return line


def arrays(pairs):
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def rows(columns):
    assert all(column.dtype == np.int64 and column.flags.c_contiguous for column in columns)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def partition(windows, layers):
    first = [0, *accumulate(len(layer) for layer in layers)]
    every = [row for layer in layers for row in layer]
    return rows(kernel.partition(*arrays(windows), first, *arrays(every)))


@given(several)
def test_flatten(given_intervals):
    flat = rows(kernel.flatten(*arrays(given_intervals)))
    assert flat == naive.flatten(given_intervals)
    # What is covered stays the same; a timeline again, so flattening it changes nothing.
    line = [(start, end) for start, end, _ in flat]
    united = intervals.union(*arrays(given_intervals))
    assert sum(end - start for start, end in line) == intervals.length_ns(*united)
    assert rows(kernel.flatten(*arrays(line))) == [(*row, i) for i, row in enumerate(line)]


@given(timelines(), st.lists(timelines(), max_size=4))
def test_partition(windows, layers):
    found = partition(windows, layers)
    assert found == naive.partition(windows, layers)
    sums = Counter()
    for window, start, end, _, _ in found:
        assert end > start
        sums[window] += end - start
    assert sums == Counter({w: end - start for w, (start, end) in enumerate(windows) if end > start})


@given(timelines(), st.lists(several, max_size=3))
def test_partition_of_flattened_layers(windows, layers):
    # As it is used: layers are flattened first; a layer that stands above gets all that it covers.
    flat = [[row[:2] for row in naive.flatten(layer)] for layer in layers]
    found = partition(windows, flat)
    assert found == naive.partition(windows, flat)
    rest = windows
    for k, layer in enumerate(layers):
        covered = intervals.union(*arrays(layer))
        labelled = sum(end - start for _, start, end, at, _ in found if at == k)
        assert labelled == intervals.overlap_ns(*arrays(rest), *covered)
        rest = [(start, end) for _, start, end, at, _ in found if at < 0 or at > k]


@given(timelines(), timelines())
def test_split(segments, timeline):
    found = rows(kernel.split(*arrays(segments), *arrays(timeline)))
    assert found == naive.split(segments, timeline)


def test_nothing():
    none = np.empty(0, np.int64)
    for columns in (
        kernel.flatten(none, none),
        kernel.flatten([3, 5], [3, 4]),
        kernel.partition(none, none, [0], none, none),
        kernel.partition(none, none, [0, 1], [0], [9]),
        kernel.partition([4], [4], [0, 1], [0], [9]),
        kernel.split(none, none, [0], [9]),
    ):
        assert rows(columns) == []


def test_a_window_without_layers_is_one_segment():
    assert partition([(3, 9)], []) == [(0, 3, 9, -1, -1)]
    assert partition([(3, 9)], [[], []]) == [(0, 3, 9, -1, -1)]
    assert rows(kernel.split([3], [9], [], [])) == [(0, 3, 9, -1)]


def test_windows_that_touch_stay_apart():
    assert partition([(0, 5), (5, 8)], [[(2, 7)]]) == [
        (0, 0, 2, -1, -1),
        (0, 2, 5, 0, 0),
        (1, 5, 7, 0, 0),
        (1, 7, 8, -1, -1),
    ]


def test_windows_that_overlap_do_not_count_time_twice():
    # With bounds unchecked, a second pass over the same time would also write behind the table.
    layers = [[(1, 9)], [(0, 9)], [(0, 9)]]
    assert partition([(0, 8), (0, 8), (6, 9)], layers) == [(0, 0, 1, 1, 1), (0, 1, 8, 0, 0), (2, 8, 9, 0, 0)]


def test_an_empty_interval_cuts_nothing():
    assert partition([(0, 9)], [[(4, 4)], [(2, 6)]]) == [
        (0, 0, 2, -1, -1),
        (0, 2, 6, 1, 1),
        (0, 6, 9, -1, -1),
    ]


def test_read_of_the_launching_thread():
    # A helper thread sits in poll from 0 to 100 ms. The launching thread reads for 8 of 10 idle ms, and only
    # its own calls make the layer.
    read = kernel.flatten([40 * MS], [48 * MS])
    assert rows(kernel.partition([40 * MS], [50 * MS], [0, 1], *read[:2])) == [
        (0, 40 * MS, 48 * MS, 0, 0),
        (0, 48 * MS, 50 * MS, -1, -1),
    ]


def test_five_threads_that_wait_for_10_ms_wait_10_ms():
    start, end, item = kernel.flatten([0] * 5, [100 * MS] * 5)
    assert rows((start, end, item)) == [(0, 100 * MS, 4)]
    assert partition([(40 * MS, 50 * MS)], [[(0, 100 * MS)]] * 5) == [(0, 40 * MS, 50 * MS, 0, 0)]


def test_nested_calls_cover_the_gap_once():
    start, end, item = kernel.flatten([0, 2], [10, 8])
    assert rows((start, end, item)) == [(0, 2, 0), (2, 8, 1), (8, 10, 0)]
    pieces = rows(kernel.partition([0], [10], [0, 3], start, end))
    assert sum(stop - begin for _, begin, stop, layer, _ in pieces if layer == 0) == 10


def test_nested_and_crossing_ranges():
    # Push/pop [0, 10) with [2, 4) inside, and a start/end range [8, 14) that crosses: 14 ns, not 18.
    start, end, item = kernel.flatten([0, 2, 8], [10, 4, 14])
    assert rows((start, end, item)) == [(0, 2, 0), (2, 4, 1), (4, 8, 0), (8, 14, 2)]
    assert int((end - start).sum()) == 14


def test_the_outer_range_surfaces_after_several_have_ended():
    # The second ends while the third, which crosses it, still runs.
    start, end, item = kernel.flatten([0, 1, 2, 2], [20, 5, 9, 3])
    assert rows((start, end, item)) == [(0, 1, 0), (1, 2, 1), (2, 3, 3), (3, 9, 2), (9, 20, 0)]


def test_gap_without_evidence_has_no_item():
    # An idle gap of 10: 2 in profiler overhead, which comes first, 4 more in a read, 4 in nothing known.
    pieces = partition([(0, 10)], [[(3, 5)], [(1, 7)]])
    assert pieces == [
        (0, 0, 1, -1, -1),
        (0, 1, 3, 1, 1),
        (0, 3, 5, 0, 0),
        (0, 5, 7, 1, 1),
        (0, 7, 10, -1, -1),
    ]


def test_epochs_stay_exact():
    epoch = 1_779_630_000_000_000_001
    assert rows(kernel.flatten([epoch, epoch + 1], [epoch + 5, epoch + 2])) == [
        (epoch, epoch + 1, 0),
        (epoch + 1, epoch + 2, 1),
        (epoch + 2, epoch + 5, 0),
    ]
    assert partition([(epoch, epoch + 3)], [[(epoch + 1, epoch + 2)]]) == [
        (0, epoch, epoch + 1, -1, -1),
        (0, epoch + 1, epoch + 2, 0, 0),
        (0, epoch + 2, epoch + 3, -1, -1),
    ]


def test_read_only_and_strided_input():
    table = np.arange(12, dtype=np.int64).reshape(3, 4)
    table.flags.writeable = False
    start, end, item = kernel.flatten(table[:, 0], table[:, 2])
    assert rows((start, end, item)) == [(0, 2, 0), (4, 6, 1), (8, 10, 2)]
    layer_first = np.array([0, 3])
    layer_first.flags.writeable = False
    found = rows(kernel.partition(table[:, 0], table[:, 3], layer_first, table[:, 0], table[:, 2]))
    assert found == naive.partition([(0, 3), (4, 7), (8, 11)], [[(0, 2), (4, 6), (8, 10)]])
