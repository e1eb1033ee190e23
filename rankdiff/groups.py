"""NCCL groups: which of a group's kernels carries which of its operations."""

from __future__ import annotations

import polars as pl

from rankdiff.kernels.nesting import MEMBER
from rankdiff.schema import P2P_OPS

_P2P = sorted(P2P_OPS)
_STREAM = ["context", "stream"]
_TOLD = {
    "row": pl.UInt32,
    "comm": pl.String,
    "root": pl.Int64,
    "op": pl.String,
    "bytes": pl.Int64,
    "ops_in_group": pl.Int64,
}
_STREAM_WEIGHT = 1000  # of a kernel on another communicator's stream, against a name that does not fit


def share_out(kernels: pl.DataFrame, calls: pl.DataFrame, sure: pl.DataFrame) -> pl.DataFrame:
    """Share the operations of each group out among the kernels that its end launched.

    A group becomes one kernel per communicator. NCCL keeps the communicators of a group in ascending order of
    their hash (``ncclGroupCommJoin``), so its kernels come in that order; only where the kernels' streams or
    names fit the order of the calls better is that one taken. With one communicator all kernels are its own.
    What does not add up keeps neither communicator nor operation, rather than a guess.

    Parameters
    ----------
    kernels : polars.DataFrame
        Launched by group ends: ``row``, ``device``, ``context``, ``stream``, ``group``, ``launch_ns``,
        ``start_ns``, ``kernel_op``.
    calls : polars.DataFrame
        `reports.nccl_calls.CALLS` with the columns ``group`` and ``call`` (order of the calls).
    sure : polars.DataFrame
        ``context``, ``stream``, ``comm`` of kernels outside of groups.

    Returns
    -------
    polars.DataFrame
        ``row``, ``op``, ``comm``, ``bytes``, ``root``, ``ops_in_group`` for the kernels that could be told.
    """
    if kernels.is_empty():
        return pl.DataFrame(schema=_TOLD)
    shares = _shares(calls)
    # A process that drives several devices has one communicator with one kernel on each of them.
    kernels = kernels.select("row", "device", *_STREAM, "group", "launch_ns", "start_ns", "kernel_op")
    kernels = kernels.sort("group", "device", "launch_ns", "start_ns", "row").with_columns(
        place=pl.int_range(pl.len()).over("group", "device").cast(pl.Int64),
        launched=pl.len().over("group", "device").cast(pl.Int64),
        devices=pl.col("device").n_unique().over("group").cast(pl.Int64),
    )
    alone = kernels.join(shares.filter(pl.col("comms") == 1), on="group")
    sure = pl.concat([sure, alone.select(sure.columns)]).drop_nulls("comm").unique()
    owners = sure.filter(pl.len().over(_STREAM) == 1).rename({"comm": "owner"})
    shared = _in_order(kernels.join(owners, on=_STREAM, how="left"), shares.filter(pl.col("comms") > 1))
    columns = [*kernels.columns, "op", "ops", "first_op", "members", "bytes", "root", "comm", "comms"]
    both = pl.concat([alone.select(columns), shared.select(columns)])
    even = pl.col("members") % pl.col("devices") == 0
    one_kernel = (pl.col("launched") == 1) | (pl.col("comms") > 1)
    return both.select(
        "row",
        "comm",
        "root",
        # Several kinds of operation: the one that the kernel names, if it is one of them.
        op=pl.when(pl.col("op").is_not_null())
        .then(pl.col("op"))
        .when(pl.col("kernel_op").is_in(pl.col("ops")))
        .then(pl.col("kernel_op"))
        .when(one_kernel)
        .then(pl.col("first_op")),
        bytes=pl.when(even & one_kernel).then(pl.col("bytes") // pl.col("devices")),
        ops_in_group=pl.when(even).then(pl.col("members") // pl.col("devices")).otherwise(pl.col("members")),
    )


def _shares(calls: pl.DataFrame) -> pl.DataFrame:
    """One row per (group, communicator), with its place in the order of hashes and in the order of calls."""
    members = calls.filter((pl.col("kind") == MEMBER) & (pl.col("group") >= 0))
    op, size, root = pl.col("op"), pl.col("bytes"), pl.col("root")
    p2p = op.is_in(_P2P).all()
    shares = members.group_by("group", "comm").agg(
        op=pl.when(p2p & (pl.len() > 1)).then(pl.lit("send_recv")).when(op.n_unique() == 1).then(op.first()),
        ops=op.unique(),
        first_op=op.sort_by("call").first(),
        members=pl.len().cast(pl.Int64),
        bytes=pl.when(size.is_not_null().all()).then(size.sum()),
        root=pl.when(root.n_unique() == 1).then(root.first()),
        call=pl.col("call").min(),
    )
    return shares.with_columns(
        comms=pl.len().over("group").cast(pl.Int64),
        by_hash=(pl.col("comm").rank("ordinal").over("group") - 1).cast(pl.Int64),
        by_call=(pl.col("call").rank("ordinal").over("group") - 1).cast(pl.Int64),
    )


def _in_order(kernels: pl.DataFrame, shares: pl.DataFrame) -> pl.DataFrame:
    """Give each kernel the communicator of its place, where there are as many kernels as communicators."""
    fitting = kernels.join(shares.select("group", "comms").unique(), on="group").filter(
        pl.col("launched") == pl.col("comms")
    )
    named = pl.when(pl.col("op").is_in(_P2P)).then(pl.lit("send_recv")).otherwise(pl.col("op"))
    differs = ((pl.col("kernel_op") != "unknown") & (pl.col("kernel_op") != named)).fill_null(False)
    orders = []
    for order, column in enumerate(("by_hash", "by_call")):
        placed = fitting.drop("comms").join(
            shares, left_on=["group", "place"], right_on=["group", column], suffix="_share"
        )
        foreign = (pl.col("owner") != pl.col("comm")).fill_null(False)
        misfits = (foreign.cast(pl.Int64) * _STREAM_WEIGHT + differs.cast(pl.Int64)).sum().over("group")
        orders.append(
            placed.with_columns(misfits=misfits, order=pl.lit(order)).drop("by_hash", "by_call", strict=False)
        )
    both = pl.concat(orders, how="diagonal")
    chosen = both.group_by("group").agg(pl.col("order").sort_by("misfits", "order").first())
    return both.join(chosen, on=["group", "order"])
