"""NCCL kernels to collectives: the call that launched each, its communicator, operation and size."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from rankdiff.kernels.nesting import CLOSE, MEMBER, OPEN, groups, innermost
from rankdiff.reports.names import nvtx_op, op_class
from rankdiff.reports.nsys import ReportTables
from rankdiff.reports.payloads import decode_blobs, decode_json
from rankdiff.schema import COLLECTIVES, P2P_OPS, check

_KINDS = {"group_start": OPEN, "group_end": CLOSE}

# One row per NCCL call that launches or groups, sorted by (thread, start).
_CALLS = pl.Schema(
    {
        "thread": pl.Int64,
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "op": pl.String,
        "kind": pl.Int64,
        "comm": pl.String,
        "bytes": pl.Int64,
        "root": pl.Int64,
    }
)


def find_collectives(tables: ReportTables, pid: int, steps: pl.DataFrame) -> dict[int, pl.DataFrame]:
    """Collectives of a process.

    Parameters
    ----------
    tables : ReportTables
    pid : int
    steps : polars.DataFrame
        schema.STEPS of the process.

    Returns
    -------
    dict of int to polars.DataFrame
        schema.COLLECTIVES by device, for every device on which the process ran a kernel.
    """
    kernels = _kernels(tables, pid)
    nccl = kernels.filter(pl.col("communicates")).with_row_index("row")
    calls = _calls(tables, pid)
    nccl = _step(_operation(nccl, calls), steps)
    out = {}
    for device in sorted(kernels["device"].unique()):
        mine = nccl.filter(pl.col("device") == device).sort("start_ns", "end_ns", "stream", "row")
        tokens = _lead_tokens(kernels.filter(pl.col("device") == device))
        mine = mine.with_columns(
            tokens,
            pl.col("op")
            .replace_strict({op: op_class(op) for op in mine["op"].unique()}, return_dtype=pl.String)
            .alias("op_class"),
        )
        out[device] = check(mine.select(COLLECTIVES.names()), COLLECTIVES, "collectives")
    return out


def _kernels(tables: ReportTables, pid: int) -> pl.DataFrame:
    return tables.frame(
        "SELECT g.device, g.start_ns, g.end_ns, g.stream, g.context, coalesce(n.name, '') AS kernel, "
        "coalesce(n.communicates, false) AS communicates, coalesce(n.op, 'unknown') AS kernel_op, "
        "coalesce(n.hash, 0::UBIGINT) AS hash, l.start_ns AS launch_ns, l.end_ns AS launch_end_ns, l.thread AS launch_tid "
        "FROM gpu g LEFT JOIN name n ON n.id = g.name_id "
        "LEFT JOIN launch l ON l.pid = g.pid AND l.correlation = g.correlation "
        "WHERE g.pid = ? AND g.kind = 'kernel' ORDER BY g.start_ns, g.end_ns, g.stream, g.correlation",
        [pid],
    )


def _lead_tokens(kernels: pl.DataFrame) -> pl.Series:
    """For each NCCL kernel the wrapping sum of the hashes of the other kernels since the one before it.

    A sum does not depend on the order in which streams happen to interleave.
    """
    is_nccl = kernels["communicates"].to_numpy()
    hashes = np.where(is_nccl, np.uint64(0), kernels["hash"].to_numpy().astype(np.uint64))
    so_far = np.cumsum(hashes, dtype=np.uint64)[is_nccl]
    before = np.concatenate([np.zeros(1, np.uint64), so_far[:-1]]) if so_far.size else so_far
    return pl.Series("lead_token", so_far - before, dtype=pl.UInt64)


def _calls(tables: ReportTables, pid: int) -> pl.DataFrame:
    """NCCL's own ranges of a process that name an operation or delimit a group."""
    domains = tables.frame("SELECT domain, name FROM domain WHERE pid = ?", [pid])
    nccl = domains.filter(pl.col("name") == "NCCL")["domain"].to_list()
    names = tables.frame("SELECT DISTINCT name FROM nvtx WHERE pid = ? AND name ILIKE 'nccl%'", [pid])[
        "name"
    ].to_list()
    known = [(name, op) for name in names if (op := nvtx_op(name))]
    if not known:
        return pl.DataFrame(schema=_CALLS)
    table = pa.table({"name": [name for name, _ in known], "op": [op for _, op in known]})
    tables.db.register("nccl_call", table)
    # Without a row for the domain (windowed exports lose it) the name alone must do; other domains that have
    # a name are not NCCL's even if their ranges are called so.
    others = set(domains["domain"].to_list()) - set(nccl)
    rule = (
        f"IN ({', '.join(map(str, nccl))})"
        if nccl
        else f"NOT IN ({', '.join(map(str, sorted(others) or [-1]))})"
    )
    rows = tables.db.sql(
        "SELECT n.thread, n.start_ns, coalesce(n.end_ns, $2) AS end_ns, c.op, n.payload, n.json FROM nvtx n "
        f"JOIN nccl_call c ON c.name = n.name WHERE n.pid = $1 AND n.domain {rule} ORDER BY n.thread, n.start_ns, n.end_ns DESC",
        params=[pid, tables.capture_end_ns],
    ).to_arrow_table()
    tables.db.unregister("nccl_call")
    blobs = rows["payload"].combine_chunks().cast(pa.binary())
    payloads = decode_blobs(
        blobs if isinstance(blobs, pa.Array) else pa.array([], pa.binary()), tables.layouts
    )
    texts = pl.Series("json", rows["json"], dtype=pl.String)
    if payloads["comm"].null_count() == payloads.height and texts.null_count() < len(texts):
        distinct = texts.unique(maintain_order=True)
        decoded = decode_json(distinct.to_list()).with_columns(distinct)
        payloads = pl.DataFrame({"json": texts}).join(
            decoded, on="json", how="left", nulls_equal=True, maintain_order="left"
        )
    frame = pl.DataFrame(rows.select(["thread", "start_ns", "end_ns", "op"]))
    kind = pl.Series("kind", [_KINDS.get(op, MEMBER) for op in frame["op"]], dtype=pl.Int64)
    return check(
        pl.concat([frame.with_columns(kind), payloads.select("comm", "bytes", "root")], how="horizontal"),
        _CALLS,
        "calls",
    )


def _operation(nccl: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Add comm, op, bytes, root, ops_in_group and op_source to the NCCL kernels."""
    call = np.full(nccl.height, -1, np.int64)
    launching = calls.with_row_index("call").filter(pl.col("kind") != OPEN)
    launched = nccl.filter(pl.col("launch_ns").is_not_null())
    at = innermost(
        launching["thread"],
        launching["start_ns"],
        launching["end_ns"],
        launched["launch_tid"],
        launched["launch_ns"],
    )
    inside = launching["call"].to_numpy().astype(np.int64)
    call[launched["row"].to_numpy()] = np.where(at >= 0, inside[at], -1) if inside.size else -1
    launches = np.bincount(call[call >= 0], minlength=calls.height)
    group = groups(calls["thread"], calls["kind"], launches)
    calls = calls.with_columns(pl.Series("group", group), pl.Series("order", np.arange(calls.height)))
    nccl = nccl.with_columns(pl.Series("call", call))
    joined = nccl.join(
        calls.select("kind", "group", "comm", "bytes", "root", "op", call="order"),
        on="call",
        how="left",
        maintain_order="left",
    ).with_columns(pl.lit(1, pl.Int64).alias("ops_in_group"), pl.col("op").alias("call_op"))
    in_group = joined.filter((pl.col("kind") == CLOSE) & (pl.col("group") >= 0))
    alone = joined.filter(
        ~((pl.col("kind") == CLOSE) & (pl.col("group") >= 0)).fill_null(False)
    ).with_columns(pl.when(pl.col("kind") == MEMBER).then("op").alias("op"))
    both = pl.concat([alone, _grouped(in_group, calls)], how="diagonal_relaxed") if in_group.height else alone
    named = pl.col("op").is_not_null()
    return both.sort("row").with_columns(
        # NCCL 2.29 fuses broadcasts from every rank into one kernel that gathers.
        op=pl.when((pl.col("op") == "broadcast") & (pl.col("kernel_op") == "all_gather"))
        .then(pl.lit("all_gather"))
        .when(named)
        .then("op")
        .otherwise("kernel_op"),
        op_source=pl.when(named & pl.col("comm").is_not_null())
        .then(pl.lit("payload"))
        .when(named)
        .then(pl.lit("nvtx"))
        .otherwise(pl.lit("kernel")),
    )


def _grouped(kernels: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Kernels that were launched by the end of a group: share the group's operations out among them.

    One kernel per communicator; NCCL launches the communicators of a group in ascending order of their hash.
    With one communicator all kernels are its own. What does not add up keeps no communicator.
    """
    members = calls.filter((pl.col("kind") == MEMBER) & (pl.col("group") >= 0))
    p2p = pl.col("op").is_in(list(P2P_OPS))
    shares = (
        members.group_by("group", "comm", maintain_order=True)
        .agg(
            op=pl.when(pl.col("op").n_unique() == 1)
            .then(
                pl.when(p2p.all() & (pl.len() > 1)).then(pl.lit("send_recv")).otherwise(pl.col("op").first())
            )
            .when(p2p.all())
            .then(pl.lit("send_recv")),
            ops=pl.col("op").unique(),
            first_op=pl.col("op").first(),
            members=pl.len().cast(pl.Int64),
            bytes=pl.when(pl.col("bytes").is_not_null().all()).then(pl.col("bytes").sum()),
            root=pl.when(pl.col("root").n_unique() == 1).then(pl.col("root").first()),
        )
        .sort("group", "comm")
        .with_columns(place=pl.int_range(pl.len()).over("group"), comms=pl.len().over("group"))
    )
    order = ["launch_ns", "start_ns", "row"]
    kernels = kernels.drop("comm", "bytes", "root", "op", "ops_in_group").sort("group", "device", *order)
    kernels = kernels.with_columns(
        place=pl.int_range(pl.len()).over("group", "device"),
        launched=pl.len().over("group", "device"),
        devices=pl.col("device").n_unique().over("group"),
    )
    one = shares.filter(pl.col("comms") == 1).drop("place")
    several = shares.filter(pl.col("comms") > 1)
    single = kernels.join(one, on="group", how="inner")
    rest = kernels.join(several, on=["group", "place"], how="inner").filter(
        pl.col("launched") == pl.col("comms")
    )
    placed = pl.concat([single, rest.select(single.columns)])
    unplaced = kernels.join(placed.select("row"), on="row", how="anti")
    fits = pl.col("members") % pl.col("devices") == 0
    placed = placed.with_columns(
        ops_in_group=pl.when(fits).then(pl.col("members") // pl.col("devices")).otherwise("members"),
        bytes=pl.when(fits & ((pl.col("launched") == 1) | (pl.col("comms") > 1))).then(
            pl.col("bytes") // pl.col("devices")
        ),
        # A group of several kinds of operation: what the kernel names, as far as the group has it.
        op=pl.when(pl.col("op").is_not_null())
        .then("op")
        .when(pl.col("kernel_op").is_in(pl.col("ops")))
        .then("kernel_op")
        .when(pl.col("launched") == 1)
        .then("first_op"),
    )
    return pl.concat([placed, unplaced], how="diagonal_relaxed")


def _step(nccl: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Add the step whose range contains the launch, by time: NCCL is launched from threads without ranges."""
    launch = nccl["launch_ns"]
    # Without any launch (no CUDA API trace) the start on the GPU is the next best thing.
    when = nccl["start_ns"] if launch.null_count() == nccl.height else launch
    asked = when.is_not_null().to_numpy()
    at = innermost(
        np.zeros(steps.height),
        steps["start_ns"],
        steps["end_ns"],
        np.zeros(int(asked.sum())),
        when.drop_nulls(),
    )
    step = np.full(nccl.height, -1, np.int64)
    step[asked] = at
    return nccl.with_columns(step=pl.when(pl.Series(step) >= 0).then(pl.Series(step)))
