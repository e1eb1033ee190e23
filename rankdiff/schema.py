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
# `collective` is a kernel that the user named (--comm-regex) and whose name tells no operation.
NXN_OPS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "collective"})
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

# Classes of time: every nanosecond of a rank has exactly one, the first that applies.
BUSY_CLASSES = (
    "gpu_work",  # a kernel that is not NCCL's, or a graph, runs
    "copy",  # only copies and sets run
    "nccl",  # only NCCL runs
)
# Nothing runs on the GPU. But for the first, told by the thread that launches the operation ending the gap.
IDLE_CLASSES = (
    "profiler",  # the profiler itself works, on any thread of the process
    "data_load",  # in a data-loading range
    "sync",  # in a CUDA call that waits for the GPU
    "alloc",  # in a CUDA call about memory
    "io",  # in an OS call that reads, writes or opens
    "os_wait",  # in an OS call that waits for time, a lock or another process
    "launch",  # in a CUDA call that puts work in a stream, or after it and before the operation starts
    "preempted",  # off the CPU, in no call
    "host",  # none of these: the thread runs code
    "unknown",  # it is not known which thread that was
)
CLASSES = BUSY_CLASSES + IDLE_CLASSES

# What the time before each N x N collective was made of: one row per (collective, class, range, call) with
# ns > 0, sorted by them. The window is from the end of the rank's previous N x N kernel (in order of start; at
# first from the rank's first GPU activity) to the own start; each window's rows sum exactly to its length.
LEAD_UP = pl.Schema(
    {
        "collective": pl.Int64,  # row number in COLLECTIVES
        "class": pl.String,  # of CLASSES
        "range": pl.String,  # innermost application NVTX range of the thread; null: none, or the GPU is busy
        "call": pl.String,  # CUDA or OS call that the thread is in, see timeline; null as for range
        "ns": pl.Int64,
    }
)

# What the idle time was made of: one row per (class, range, call) with ns > 0, sorted by them; sums exactly to
# the idle time of the rank.
IDLE = pl.Schema(
    {
        "class": pl.String,  # of IDLE_CLASSES
        "range": pl.String,  # as in LEAD_UP
        "call": pl.String,  # as in LEAD_UP
        "ns": pl.Int64,
    }
)

# One row per idle gap, sorted by start; the longest 1,000 of the rank.
GAPS = pl.Schema(
    {
        "start_ns": pl.Int64,  # session time
        "end_ns": pl.Int64,  # session time
        "step": pl.Int64,  # of the launch that ends the gap; null: in no step, or not known
        "class": pl.String,  # of IDLE_CLASSES: the largest part of the gap
        "class_ns": pl.Int64,  # how much of the gap is of that class
        "range": pl.String,  # of the largest (range, call) of that class; null as in LEAD_UP
        "call": pl.String,  # the same
    }
)

# Kernels that are not NCCL's: one row per (step, kernel, grid, block), sorted by them, null step first.
SIGNATURES = pl.Schema(
    {
        "step": pl.Int64,  # ordinal of the step range that contains the launch; null: none does
        "kernel": pl.String,  # short name
        "grid": pl.String,  # blocks, as 128x1x1; null: not in the export
        "block": pl.String,  # threads of a block, as 256x1x1; null as above
        "count": pl.Int64,
        "ns": pl.Int64,  # summed durations, also where kernels overlap
    }
)

# CUDA calls of the threads that launch the rank's work, classes sync, alloc and launch: one row per
# (step, class, call), sorted by them, null step first.
HOST_CALLS = pl.Schema(
    {
        "step": pl.Int64,  # ordinal of the step range in which the call starts; null: in none
        "class": pl.String,  # sync, alloc or launch
        "call": pl.String,  # name without version
        "count": pl.Int64,
        "ns": pl.Int64,  # summed durations, over all those threads
    }
)

# Copies and sets, without page migrations of unified memory: one row per (step, kind, pageable), sorted by
# them, nulls first.
COPIES = pl.Schema(
    {
        "step": pl.Int64,  # as in SIGNATURES
        "kind": pl.String,  # HtoD, DtoH, DtoD, PtoP, memset or other
        "pageable": pl.Boolean,  # the host's side is pageable memory; null: not known, or it has no such side
        "count": pl.Int64,
        "small": pl.Int64,  # those of at most 8 bytes: what .item() and the like copy
        "bytes": pl.Int64,
        "ns": pl.Int64,  # summed durations
    }
)

# Clock of the rank's GPU as its metrics sampled it: one row per step, sorted, null step first. Empty: not
# captured, or not known which GPU the rank had.
CLOCKS = pl.Schema(
    {
        "step": pl.Int64,  # ordinal of the step range at the time of the sample; null: in none
        "samples": pl.Int64,
        "sm_mhz": pl.Float64,  # mean over the samples
    }
)

DIGEST_TABLES = {
    "collectives": COLLECTIVES,
    "steps": STEPS,
    "work": WORK,
    "lead_up": LEAD_UP,
    "idle": IDLE,
    "gaps": GAPS,
    "signatures": SIGNATURES,
    "host_calls": HOST_CALLS,
    "copies": COPIES,
    "clocks": CLOCKS,
}


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
