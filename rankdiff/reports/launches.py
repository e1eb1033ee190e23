"""GPU operations in the order of time, and the CUDA call that launched each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
import pyarrow as pa

from rankdiff.kernels.intervals import I64
from rankdiff.reports.columns import process_ids

# Columns of `tables.GPU` that are made here.
MADE = ("kind", "launched", "launch_ns", "launch_end_ns", "launch_tid", "launch_name")
_OF_API = {"launch_ns": "start_ns", "launch_end_ns": "end_ns", "launch_tid": "thread", "launch_name": "name"}

_LAST = np.iinfo(np.int64).max  # null sorts last


def in_time(gpu: Mapping[str, pa.Array]) -> I64:
    """Order of GPU operations by (pid, device, start_ns, end_ns, stream, correlation), nulls last.

    Parameters
    ----------
    gpu : mapping of str to pyarrow.Array
        These columns of n rows.

    Returns
    -------
    (n,) int64
        Rows.
    """
    names = ("correlation", "stream", "end_ns", "start_ns", "device", "pid")
    keys = [_filled(gpu[name], _LAST) for name in names]
    if any(np.any(key[1:] != key[:-1]) for key in keys[-2:]):
        return np.lexsort(keys)
    start = keys[3]
    order = np.argsort(start, kind="stable")
    in_order = start[order]
    tied = np.zeros(order.size, np.bool_)
    tied[1:] = in_order[1:] == in_order[:-1]
    tied[:-1] |= tied[1:]
    # Few operations start together: the other keys matter for these alone.
    at = np.flatnonzero(tied)
    some = order[at]
    order[at] = some[np.lexsort([key[some] for key in keys[:4]])]
    return order


def launches(pid: pa.Array, correlation: pa.Array, threads: pl.Series, of_calls: pa.Array) -> I64:
    """The CUDA call of each GPU operation: that of its process with its correlation id, of several the last row.

    Parameters
    ----------
    pid, correlation : (n,) pyarrow.Array
        Of the operations; a process has no null.
    threads : (m,) polars.Series
        globalTid of the calls.
    of_calls : (m,) pyarrow.Array
        Correlation ids of the calls.

    Returns
    -------
    (n,) int64
        Rows of the calls; -1 where there is none.
    """
    processes, asked, asks = pid.to_numpy(), _filled(correlation, 0), _valid(correlation)
    given, gives = _filled(of_calls, 0), _valid(of_calls)
    callers = process_ids(pa.chunked_array([threads.to_arrow()]))
    call = np.full(processes.size, -1, np.int64)
    for process in np.unique(processes):
        mine = np.flatnonzero((processes == process) & asks)
        rows = np.flatnonzero((_filled(callers, -1) == process) & gives)
        ids = given[rows]
        if np.any(ids[1:] < ids[:-1]):
            order = np.argsort(ids, kind="stable")
            rows, ids = rows[order], ids[order]
        wanted = asked[mine]
        at = np.searchsorted(ids, wanted, side="right") - 1
        hit = at >= 0
        hit[hit] = ids[at[hit]] == wanted[hit]
        call[mine[hit]] = rows[at[hit]]
    return call


def launch_columns(call: I64, api: pl.DataFrame) -> dict[str, pa.Array]:
    """What `tables.GPU` says of the calls that `launches` found, from `tables.API`."""
    rows = pa.array(call, mask=call < 0)
    columns = {name: api[column].to_arrow().take(rows) for name, column in _OF_API.items()}
    return {"launched": rows.is_valid(), **columns}


def _filled(values: pa.Array | pa.ChunkedArray, otherwise: int) -> I64:
    found: I64 = values.fill_null(otherwise).to_numpy()
    return found


def _valid(values: pa.Array | pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.asarray(values.is_valid())
