"""The order of GPU operations, and the CUDA call that launched each."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from rankdiff.reports.launches import in_time, launch_columns, launches

ONE, TWO = 11 << 24, 12 << 24  # globalTid of a thread of either process


def operations(*rows):
    names = ("pid", "device", "start_ns", "end_ns", "stream", "correlation")
    return {
        name: pa.array(column, pa.int64())
        for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }


def test_the_order_within_a_device():
    one = operations(
        (1, 0, 5, 9, 7, 1), (1, 0, 0, 4, 7, 2), (1, 0, 5, 9, 7, 0), (1, 0, 5, 8, 9, 3), (1, 0, 5, 9, None, 4)
    )
    assert in_time(one).tolist() == [1, 3, 2, 0, 4]


def test_the_order_of_several_processes_and_devices():
    several = operations((2, 0, 0, 1, 7, 1), (1, 1, 0, 1, 7, 2), (1, 0, 9, 10, 7, 3), (1, 0, 3, 4, 7, 4))
    assert in_time(several).tolist() == [3, 2, 1, 0]


def called(rows):
    """Calls of (thread, correlation)."""
    threads, ids = zip(*rows, strict=True)
    return pl.Series(threads, dtype=pl.Int64), pa.array(ids, pa.int64())


def found(asked, calls):
    pids, ids = zip(*asked, strict=True)
    return launches(pa.array(pids, pa.int64()), pa.array(ids, pa.int64()), *called(calls)).tolist()


def test_the_last_call_of_the_process_with_the_id_counts():
    calls = [(ONE, 5), (ONE, 3), (TWO, 5), (ONE, 5), (None, 3), (ONE, None)]
    assert found([(11, 5), (11, 3), (12, 5), (12, 3), (11, 4), (11, None), (13, 5)], calls) == [
        3,
        1,
        2,
        -1,
        -1,
        -1,
        -1,
    ]


def test_ids_out_of_order_in_a_large_table():
    rng = np.random.default_rng(1)
    ids = rng.permutation(1000)
    asked = rng.integers(0, 1100, 300)
    at = found([(11, int(each)) for each in asked], [(ONE, int(each)) for each in ids])
    assert at == [int(np.flatnonzero(ids == each)[0]) if each < 1000 else -1 for each in asked]


def test_what_is_known_of_a_call():
    api = pl.DataFrame(
        {"thread": [ONE, TWO], "start_ns": [None, 4], "end_ns": [3, 5], "name": [0, None]},
        schema=dict.fromkeys(("thread", "start_ns", "end_ns", "name"), pl.Int64),
    )
    columns = launch_columns(np.array([1, -1, 0]), api)
    assert {name: values.to_pylist() for name, values in columns.items()} == {
        "launched": [True, False, True],
        "launch_ns": [4, None, None],
        "launch_end_ns": [5, None, 3],
        "launch_tid": [TWO, None, ONE],
        "launch_name": [None, None, 0],
    }
    assert launch_columns(np.array([-1]), api[:0])["launch_ns"].to_pylist() == [None]
