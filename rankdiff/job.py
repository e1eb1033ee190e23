"""The ranks of a job side by side: their N x N collectives as arrays on the session clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rankdiff.digest import Digest
from rankdiff.reports.identity import Identity

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Kinds:
    """The distinct kinds of a rank's N x N collectives; a rank has few, so its collectives hold their number only.

    Attributes
    ----------
    token : (q,) int64
        Operation and bytes; equal tokens are equal across ranks; -1: bytes not known.
    op_token : (q,) int64
        Operation alone.
    comm : tuple of (str or None), q of them
        Communicator hash.
    stream : (q,) int64
        -1: not known.
    """

    token: I64
    op_token: I64
    comm: tuple[str | None, ...]
    stream: I64


@dataclass(frozen=True)
class JobRank:
    """One rank of the job; `start`, `end` are its N x N collectives in ns since the job's origin.

    The origin is the earliest session start of the job (UTC). The session clocks are good to milliseconds
    between nodes; the fitted clocks (`rankdiff.clocks`) come on top.

    A thousand ranks with twenty thousand collectives each fit into memory because of what is not stored: all but
    the times is looked up by `kind` and by step when it is asked for.
    """

    index: int
    identity: Identity
    digest: Digest
    origin_shift_ns: int  # add to a session time to get ns since the job's origin
    start: I64  # (k,)
    end: I64  # (k,)
    kind: NDArray[np.int32]  # (k,) index into `kinds`
    kinds: Kinds
    own_row: NDArray[np.int32] | None  # (k,) row numbers in digest.collectives; None: all of its rows
    own_step: NDArray[np.int32]  # (k,) ordinal of the step range on this rank, -1: none
    height: int  # rows of digest.collectives
    number_of: I64  # number in the name of each step range, -1: none; the last is that of no step

    @property
    def row(self) -> I64:
        """(k,) int64: row numbers in digest.collectives."""
        return np.arange(self.kind.size) if self.own_row is None else self.own_row.astype(np.int64)

    @property
    def token(self) -> I64:
        """(k,) int64: operation and bytes; equal tokens are equal across ranks."""
        return self.kinds.token[self.kind]

    @property
    def op_token(self) -> I64:
        """(k,) int64: operation alone."""
        return self.kinds.op_token[self.kind]

    @property
    def stream(self) -> I64:
        """(k,) int64: CUDA stream, -1: not known."""
        return self.kinds.stream[self.kind]

    @property
    def step(self) -> I64:
        """(k,) int64: ordinal of the step range on this rank, -1: none."""
        return self.own_step.astype(np.int64)

    @property
    def step_number(self) -> I64:
        """(k,) int64: number in the name of its step range, -1: none."""
        return self.number_of[self.own_step]

    @property
    def comms(self) -> frozenset[str]:
        """Communicators that its collectives name."""
        return frozenset(c for c in self.kinds.comm if c is not None)

    def without_payloads(self) -> JobRank:
        """Return the rank as if its report had no payloads."""
        blank = Kinds(
            self.kinds.op_token, self.kinds.op_token, (None,) * len(self.kinds.comm), self.kinds.stream
        )
        return replace(self, kinds=blank)

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
        told = np.array([c is not None for c in self.kinds.comm], np.bool_)[self.kind].sum()
        return bool(told > 0 and 2 * told >= self.kind.size)


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
    tables = [_Table(d) for _, d in pairs]
    seen = sorted(
        {key for t in tables for key in t.operations},
        key=lambda key: (key[0], key[1] is not None, key[1] or 0),
    )
    token = {key: n for n, key in enumerate(seen)}
    op_token = {op: n + 1 for n, op in enumerate(sorted({op for op, _ in seen}))}
    ranks = []
    for i, ((identity, digest), table) in enumerate(zip(pairs, tables, strict=True)):
        known = digest.info.session_start_utc_ns
        shift = known - origin if known is not None and origin is not None else 0
        ranks.append(
            JobRank(
                index=i,
                identity=identity,
                digest=digest,
                origin_shift_ns=shift,
                start=table.start + shift if shift else table.start,
                end=table.end + shift if shift else table.end,
                kind=table.kind,
                kinds=table.kinds(token, op_token),
                own_row=table.row,
                own_step=table.step,
                height=table.height,
                number_of=_numbers(digest),
            )
        )
    return Job(tuple(ranks), origin)


class _Table:
    """The N x N collectives of a digest in the order of time, with their kinds."""

    def __init__(self, digest: Digest) -> None:
        of = ("context", "stream", "op", "bytes", "comm")
        table = digest.columns("collectives", "op_class", "start_ns", "end_ns", "step", *of)
        nxn = (table["op_class"] == "nxn").fill_null(False)
        whole = bool(nxn.all())
        frame = table if whole else table.filter(nxn)
        self.row = None if whole else np.flatnonzero(nxn.to_numpy()).astype(np.int32)
        start = frame["start_ns"].to_numpy()
        if not bool((start[1:] > start[:-1]).all()):
            order = np.lexsort((_i64(frame["stream"].fill_null(-1)), frame["end_ns"].to_numpy(), start))
            if not np.array_equal(order, np.arange(order.size)):
                frame = frame[order]
                self.row = (order if self.row is None else self.row[order]).astype(np.int32)
        self.start, self.end = _i64(frame["start_ns"]), _i64(frame["end_ns"])
        self.step = frame["step"].fill_null(-1).to_numpy().astype(np.int32)
        self.height = table.height
        # Row at which each kind occurs first.
        first = _i64(frame.with_row_index("at").select(pl.col("at").first().over(of)).to_series())
        known = np.flatnonzero(first == np.arange(first.size))
        number = np.zeros(first.size, np.int32)
        number[known] = np.arange(known.size)
        self.kind = number[first]
        self._kinds = frame.select(of)[known].rows()

    @property
    def operations(self) -> set[tuple[str, int | None]]:
        """Operations and bytes."""
        return {(op, size) for _, _, op, size, _ in self._kinds}

    def kinds(self, token: dict[tuple[str, int | None], int], op_token: dict[str, int]) -> Kinds:
        """Number the kinds alike on all ranks, with communicators restored whose launch lies before the window.

        A kernel whose launch was cut off has no payload. Where all others of its stream and operation are on one
        communicator, so is it; its bytes stay unknown (token -1).
        """
        usual: dict[tuple[int, int, str], set[str]] = {}
        for context, stream, op, _, comm in self._kinds:
            usual.setdefault((context, stream, op), set()).update(() if comm is None else (comm,))
        tokens, comms = [], []
        for context, stream, op, size, comm in self._kinds:
            among = usual[context, stream, op]
            restored = comm is None and len(among) == 1 and stream is not None
            comms.append(next(iter(among)) if restored else comm)
            tokens.append(-1 if restored and size is None else token[op, size])
        return Kinds(
            np.array(tokens, np.int64),
            np.array([op_token[op] for _, _, op, _, _ in self._kinds], np.int64),
            tuple(comms),
            np.array([-1 if k[1] is None else k[1] for k in self._kinds], np.int64),
        )


def _numbers(digest: Digest) -> I64:
    """Number of each step range by its ordinal, and -1 at the end, where the index of no step points."""
    steps = digest.steps
    at = steps["step"].to_numpy()
    out = np.full(2 + int(at.max(initial=-1)), -1, np.int64)
    out[at] = steps["number"].fill_null(-1).to_numpy()
    return out


def _i64(column: pl.Series) -> I64:
    return np.ascontiguousarray(column.to_numpy().astype(np.int64, copy=False))


def span(rank: JobRank) -> tuple[int, int]:
    """First and last GPU activity of a rank, ns since the job's origin."""
    info = rank.digest.info
    return info.window_start_ns + rank.origin_shift_ns, info.window_end_ns + rank.origin_shift_ns
