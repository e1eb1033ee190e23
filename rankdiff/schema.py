"""The tables that pass between the stages: names, types, units, and what null means.

A digest (one GPU process of one report) consists of these tables and of a `DigestInfo`. The version
is written into every stored digest; a reader refuses another major number.

All times are int64 nanoseconds. In a digest they are *session times*: the event time of the export less
the shift that the export applied (``EXPORT_CONFIG_TIME_SHIFT``), so that
``utc = session time + session_start_utc_ns``.
"""

from __future__ import annotations

import polars as pl

DIGEST_VERSION = "rankdiff.digest/1"

# Classes of collective operations (METHOD: only N x N operations carry clocks and waits).
NXN_OPS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
ROOTED_OPS = frozenset({"broadcast", "reduce", "gather", "scatter"})
P2P_OPS = frozenset({"send", "recv", "send_recv"})

# One row per NCCL kernel of the rank, sorted by (start_ns, end_ns, stream).
COLLECTIVES = pl.Schema(
    {
        "start_ns": pl.Int64,  # session time
        "end_ns": pl.Int64,  # session time
        "launch_ns": pl.Int64,  # start of the CUDA call that launched it; null: not captured
        "launch_end_ns": pl.Int64,  # return of that call; null as above
        "launch_tid": pl.Int64,  # globalTid of the launching thread; null as above
        "stream": pl.Int64,  # not comparable between ranks
        "context": pl.Int64,
        "kernel": pl.String,  # short name
        "op": pl.String,  # all_reduce, all_gather, ..., send_recv, unknown
        "op_class": pl.String,  # nxn, rooted, p2p, unknown
        "comm": pl.String,  # communicator hash, 16 hex digits; null: no payload
        "bytes": pl.Int64,  # message size of the payload (summed over a group); null: no payload
        "root": pl.Int64,  # root of a rooted operation in its communicator; null: unknown or none
        "ops_in_group": pl.Int64,  # operations fused into this kernel (1 without a group)
        "op_source": pl.String,  # payload, nvtx or kernel: where the operation was read
        "lead_token": pl.UInt64,  # hash of the names of the other kernels since the previous NCCL kernel
        "step": pl.Int64,  # ordinal of the step range that contains the launch; null: none does
    }
)

# One row per step range of the process, sorted by start.
STEPS = pl.Schema(
    {
        "step": pl.Int64,  # ordinal within this rank, from 0
        "number": pl.Int64,  # the number in the range's name; null: the name has none
        "name": pl.String,
        "start_ns": pl.Int64,  # session time
        "end_ns": pl.Int64,  # session time; an open range ends with the capture
    }
)

# Unions of the rank's GPU work, disjoint and sorted within each kind.
WORK = pl.Schema(
    {
        "kind": pl.String,  # compute (kernels but NCCL, graph launches) or copy (copies and sets)
        "start_ns": pl.Int64,  # session time
        "end_ns": pl.Int64,  # session time
    }
)

# What the time before each collective was made of: one row per (collective, class). Filled by the cause
# analysis; empty in digests that were made without it.
LEAD_UP = pl.Schema(
    {
        "collective": pl.Int64,  # row number in COLLECTIVES
        "class": pl.String,
        "ns": pl.Int64,
    }
)

DIGEST_TABLES = {"collectives": COLLECTIVES, "steps": STEPS, "work": WORK, "lead_up": LEAD_UP}


def check(frame: pl.DataFrame, expected: pl.Schema, name: str) -> pl.DataFrame:
    """Return `frame` when it has exactly the columns and types of `expected`.

    Raises
    ------
    TypeError
        When a column is missing, extra, out of order or of another type: a bug in the stage before.
    """
    if frame.schema != expected:
        raise TypeError(f"table {name}: expected {dict(expected)}, found {dict(frame.schema)}")
    return frame
