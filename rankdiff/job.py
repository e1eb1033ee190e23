"""The ranks of a job side by side: their N x N collectives as arrays on the session clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rankdiff.digest import Digest
from rankdiff.reports.identity import Identity

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class JobRank:
    """One rank of the job; `start`, `end` are its N x N collectives in ns since the job's origin.

    The origin is the earliest session start of the job (UTC). The session clocks are good to milliseconds
    between nodes; the fitted clocks (`rankdiff.clocks`) come on top.
    """

    index: int
    identity: Identity
    digest: Digest
    origin_shift_ns: int  # add to a session time to get ns since the job's origin
    row: I64  # (k,) row numbers in digest.collectives
    start: I64  # (k,)
    end: I64  # (k,)
    token: I64  # (k,) operation and bytes; equal tokens are equal across ranks
    op_token: I64  # (k,) operation alone
    step: I64  # (k,) ordinal of the step range on this rank, -1: none
    step_number: I64  # (k,) number in its name, -1: none
    comm: list[str | None]  # (k,)
    stream: I64  # (k,)

    @property
    def clock(self) -> str:
        """Name of the clock that its times are on: its node's, or its own where the session's start is unknown.

        Without the start of its session a rank's times count from a moment of its own, so that not even the
        ranks of its node share its clock.
        """
        known = self.digest.info.session_start_utc_ns is not None
        return self.node if known else f"{self.node} (rank {self.identity.label})"

    @property
    def node(self) -> str:
        """Name of the node."""
        return self.identity.node

    @property
    def has_payloads(self) -> bool:
        """Whether most of its collectives name their communicator (windows cut some off)."""
        known = sum(c is not None for c in self.comm)
        return known > 0 and 2 * known >= len(self.comm)


@dataclass(frozen=True)
class Job:
    """All ranks that can be compared, sorted by rank."""

    ranks: tuple[JobRank, ...]
    origin_utc_ns: int | None  # None: no report knows when its session started

    @property
    def nodes(self) -> list[str]:
        """Node names in the order of their lowest rank."""
        return list(dict.fromkeys(r.node for r in self.ranks))

    @cached_property
    def clocks(self) -> list[str]:
        """Names of the clocks in the order of their lowest rank."""
        return list(dict.fromkeys(r.clock for r in self.ranks))

    @cached_property
    def clock_of(self) -> I64:
        """(n,) int64: index into `clocks` for each rank."""
        at = {clock: i for i, clock in enumerate(self.clocks)}
        return np.array([at[r.clock] for r in self.ranks], np.int64)


def build_job(digests: Sequence[Digest], identities: Sequence[Identity]) -> Job:
    """Set the digests side by side.

    Parameters
    ----------
    digests, identities : sequences of equal length
        Element i of both is the same rank; any order.

    Returns
    -------
    Job
        Ranks sorted by number, so that the order of the arguments does not matter.
    """
    pairs = sorted(zip(identities, digests, strict=True), key=lambda p: p[0].rank)
    if not pairs:
        return Job((), None)
    starts = [d.info.session_start_utc_ns for _, d in pairs if d.info.session_start_utc_ns is not None]
    origin = min(starts) if starts else None
    tables = [_nxn(d) for _, d in pairs]
    keys = pl.concat([t.select("op", "bytes") for t in tables]).unique().sort("op", "bytes", nulls_last=False)
    keys = keys.with_row_index("token").with_columns(
        pl.col("token").cast(pl.Int64), pl.col("op").rank("dense").cast(pl.Int64).alias("op_token")
    )
    ranks = []
    for i, ((identity, digest), table) in enumerate(zip(pairs, tables, strict=True)):
        known = digest.info.session_start_utc_ns
        shift = known - origin if known is not None and origin is not None else 0
        t = table.join(keys, on=["op", "bytes"], how="left", nulls_equal=True, maintain_order="left")
        comm, token = _completed(t)
        ranks.append(
            JobRank(
                index=i,
                identity=identity,
                digest=digest,
                origin_shift_ns=shift,
                row=_i64(t["row"]),
                start=_i64(t["start_ns"]) + shift,
                end=_i64(t["end_ns"]) + shift,
                token=token,
                op_token=_i64(t["op_token"]),
                step=_i64(t["step"].fill_null(-1)),
                step_number=_i64(t["number"].fill_null(-1)),
                comm=comm,
                stream=_i64(t["stream"].fill_null(-1)),
            )
        )
    return Job(tuple(ranks), origin)


def _completed(t: pl.DataFrame) -> tuple[list[str | None], I64]:
    """Communicators and tokens of a rank, with those restored whose launch lies before the window.

    A kernel whose launch was cut off has no payload. Where all others of its stream and operation are on one
    communicator, so is it; its bytes stay unknown (token -1).
    """
    known = t.group_by("context", "stream", "op").agg(
        pl.col("comm").drop_nulls().n_unique().alias("comms"),
        pl.col("comm").drop_nulls().first().alias("usual"),
    )
    full = t.join(known, on=["context", "stream", "op"], how="left", maintain_order="left")
    restored = full["comm"].is_null() & (full["comms"] == 1)
    comm = full.select(pl.when(restored).then(pl.col("usual")).otherwise(pl.col("comm")))
    token = full.select(pl.when(restored & full["bytes"].is_null()).then(-1).otherwise(pl.col("token")))
    return comm.to_series().to_list(), _i64(token.to_series())


def _nxn(digest: Digest) -> pl.DataFrame:
    """N x N collectives of a digest with their row number and the number of their step."""
    return (
        digest.collectives.with_row_index("row")
        .filter(pl.col("op_class") == "nxn")
        .join(digest.steps.select("step", "number"), on="step", how="left", maintain_order="left")
        .with_columns(pl.col("row").cast(pl.Int64))
        .sort("start_ns", "end_ns", "stream")
    )


def _i64(column: pl.Series) -> I64:
    return np.ascontiguousarray(column.to_numpy().astype(np.int64))


def span(rank: JobRank) -> tuple[int, int]:
    """First and last GPU activity of a rank, ns since the job's origin."""
    info = rank.digest.info
    return info.window_start_ns + rank.origin_shift_ns, info.window_end_ns + rank.origin_shift_ns
