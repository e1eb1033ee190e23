"""The events of a rank as tracks of nesting slices on the common clock, with arrows between the ranks.

This is what a trace viewer shows, whatever the file format. Times count from the start of the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import polars as pl

from rankdiff.comparison import Comparison
from rankdiff.digest import DigestOptions
from rankdiff.encounters import Encounters, Meetings
from rankdiff.errors import RankdiffError
from rankdiff.placing import Placing, in_tracks
from rankdiff.reports.discover import Report
from rankdiff.reports.identity import Identity
from rankdiff.spans import RankSpans, read_spans
from rankdiff.windows import Window, common_time, session_window, step_begin

_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_THREAD_BITS = 0xFFFFFF

# Sorted by start, enclosing slices before those inside them; any two nest or do not touch.
_SLICES = {"start_ns": pl.Int64, "end_ns": pl.Int64, "name": pl.String}


@dataclass(frozen=True)
class Track:
    """One line of slices.

    Attributes
    ----------
    kind : str
        ``steps``, ``late``, ``compute``, ``nccl``, ``copy``, ``idle``, ``nvtx`` or ``calls``.
    slices : polars.DataFrame
        ``start_ns``, ``end_ns``, ``name``, and further columns: what the viewer shows of a slice.
    arrows_out, arrows_in : polars.DataFrame
        ``slice`` (row of it), ``at_ns`` (inside the slice) and ``id``: ends of arrows; an id is unique in the job
        and has one of each.
    marks : polars.DataFrame
        ``at_ns``, ``name`` and further columns: moments.
    """

    name: str
    kind: str
    slices: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_SLICES))
    arrows_out: pl.DataFrame = field(default_factory=lambda: _no_arrows())
    arrows_in: pl.DataFrame = field(default_factory=lambda: _no_arrows())
    marks: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(schema={"at_ns": pl.Int64, "name": pl.String})
    )


@dataclass(frozen=True)
class RankTracks:
    """One rank in a trace."""

    identity: Identity
    tracks: tuple[Track, ...]


def read_tracks(
    c: Comparison,
    reports: Sequence[Report],
    options: DigestOptions,
    window: Window,
    ranks: Sequence[int],
) -> Iterator[RankTracks]:
    """Read the tracks of some ranks, one rank in memory at a time.

    Parameters
    ----------
    c : Comparison
    reports : sequence of Report
    options : DigestOptions
        Those of the comparison.
    window : Window
    ranks : sequence of int
        Rank numbers, in the order wanted; the ranks of one report are best given together.

    Yields
    ------
    RankTracks

    Raises
    ------
    RankdiffError
        A rank's report is not among `reports`, or cannot be read any more.
    """
    meetings = Meetings(c, window, frozenset(ranks))
    for identity, spans in spans_of(c, reports, options, window, ranks):
        yield RankTracks(identity, tuple(_tracks(c, identity, spans, window, meetings.of(identity.rank))))


def spans_of(
    c: Comparison,
    reports: Sequence[Report],
    options: DigestOptions,
    window: Window,
    ranks: Sequence[int],
) -> Iterator[tuple[Identity, RankSpans]]:
    """Read the events of some ranks; as `read_tracks`."""
    by_path = {report.path: report for report in reports}
    identities = {i.rank: i for i in c.identities}
    for path, group in groupby((identities[r] for r in ranks), key=lambda i: i.claims.path):
        some = list(group)
        if path not in by_path:
            raise RankdiffError(
                f"rank {some[0].label}: {some[0].claims.report} is no report; a digest holds sums, not events",
                "Give the exports themselves",
            )
        who = {i.claims: i for i in some}
        for spans in read_spans(
            by_path[path],
            options,
            {i.claims: session_window(c, i.rank, window) for i in some},
        ):
            yield who[spans.claims], spans


def expected_events(c: Comparison, window: Window, ranks: Sequence[int]) -> int:
    """Roughly how many events a trace will hold, from what the digests know."""
    total = 0.0
    for i, d in zip(c.identities, c.digests, strict=True):
        if i.rank not in ranks:
            continue
        info = d.info
        rows = sum(n for table, n in info.tables.items() if table != "CUPTI_ACTIVITY_KIND_RUNTIME")
        inside = min(1.0, window.length_ns / max(info.span_ns, 1))
        # Each kernel brings an idle gap or two, each collective a wait, a transfer and arrows.
        total += inside * (rows + info.tables.get("CUPTI_ACTIVITY_KIND_KERNEL", 0) + 3 * d.collectives.height)
    return round(total)


def _tracks(
    c: Comparison, identity: Identity, spans: RankSpans, window: Window, meet: Encounters
) -> Iterator[Track]:
    place = _Tracks(common_time(c, identity.rank), window)
    yield from _steps(c, identity.rank, window)
    if meet.late.height:
        yield Track("late arrivals", "late", marks=meet.late)
    work = spans.work
    kernels = work.filter(pl.col("kind").is_in(["kernel", "graph"])).with_columns(
        name=pl.coalesce("name", pl.when(pl.col("kind") == "graph").then(pl.lit("CUDA graph")))
    )
    for (context, stream), rows in _by(kernels, "context", "stream"):
        where = f"compute, stream {stream}" + (f" of context {context}" if _several(work, "context") else "")
        yield from place.split(where, "compute", rows.select("start_ns", "end_ns", "name", "grid", "block"))
    for key, rows in _by(collectives_of(c, identity, meet), "track"):
        yield from place.collectives(str(key[0]), rows, meet.arrows)
    copies = work.filter(pl.col("kind").is_in(["memcpy", "memset"]))
    direction = pl.col("copy_kind").replace_strict(_COPY_KINDS, default="copy", return_dtype=pl.String)
    copies = copies.with_columns(
        name=pl.when(pl.col("kind") == "memset").then(pl.lit("memset")).otherwise(direction)
    )
    yield from place.split("copies", "copy", copies.select("start_ns", "end_ns", "name", "bytes", "stream"))
    idle = spans.idle.rename({"class": "name"})
    yield from place.split(
        "idle, by cause", "idle", idle.select("start_ns", "end_ns", "name", "range", "call")
    )
    for key, rows in _by(spans.ranges, "thread"):
        name = f"NVTX, thread {int(key[0]) & _THREAD_BITS}"
        yield from place.split(name, "nvtx", rows.select("start_ns", "end_ns", "name"))
    for key, rows in _by(spans.calls, "thread"):
        name = f"OS and blocking CUDA calls, thread {int(key[0]) & _THREAD_BITS}"
        yield from place.split(name, "calls", rows.select("start_ns", "end_ns", "name", "class"))


class _Tracks(Placing):
    """Makes tracks of rows in session time."""

    def split(self, name: str, kind: str, rows: pl.DataFrame) -> Iterator[Track]:
        """As many tracks as it takes for all slices to nest."""
        placed = self.placed(rows)
        for n, part in in_tracks(placed):
            yield Track(name + _again(n), kind, part)

    def collectives(self, name: str, rows: pl.DataFrame, arrows: pl.DataFrame) -> Iterator[Track]:
        """Collectives with their wait and transfer inside them, and the ends of their arrows."""
        placed = self.placed(rows).with_columns(last_ns=pl.col("last_ns") - self.window.start_ns)
        last, start, end = pl.col("last_ns"), pl.col("start_ns"), pl.col("end_ns")
        waited = pl.col("wait_ns") > 0
        for n, part in in_tracks(placed):
            before = part.filter(waited & (last > start)).select(
                start,
                pl.min_horizontal(last, end).alias("end_ns"),
                pl.format("wait for rank {}", "last_rank").alias("name"),
            )
            after = part.filter(waited & (last >= start) & (end > last)).select(
                last.alias("start_ns"), end, pl.lit("transfer").alias("name"), "arrow"
            )
            whole = part.drop("last_ns", "arrow", "track").with_columns(depth=0)
            nested = pl.concat(
                [whole, before.with_columns(depth=1), after.with_columns(depth=1)], how="diagonal"
            )
            nested = nested.sort(start, -end, "depth", maintain_order=True).with_row_index("slice")
            ends = nested.select(pl.col("slice").cast(pl.Int64), "row", "arrow", at_ns="start_ns")
            out = ends.drop("arrow").join(arrows, on="row", maintain_order="left_right")
            into = ends.drop_nulls("arrow")
            yield Track(
                name + _again(n),
                "nccl",
                nested.drop("slice", "depth", "row", "arrow"),
                out.select("slice", "at_ns", id="arrow"),
                # 1 ns later than the arrow leaves: viewers want to hear of its beginning before its end.
                into.select("slice", pl.col("at_ns") + 1, id="arrow"),
            )


def _steps(c: Comparison, rank: int, window: Window) -> Iterator[Track]:
    """The steps on the GPU's clock: from the last end of the step before to its own."""
    for island in c.islands:
        rows = [i for i, r in enumerate(island.ranks) if c.job.ranks[r].identity.rank == rank]
        if not rows:
            continue
        begin = np.array([step_begin(c, island, k) for k in range(island.steps.size)], np.int64)
        begin, end = begin - window.start_ns, island.steps.last_end - window.start_ns
        inside = (end > 0) & (begin < window.length_ns)
        table = pl.DataFrame(
            {
                "start_ns": np.clip(begin, 0, None),
                "end_ns": np.clip(end, None, window.length_ns),
                "name": [f"step {label}" for label in island.steps.labels],
                "delay_ns": np.rint(island.delta[rows[0]]).astype(np.int64),
                "judged": island.included,
            }
        )
        yield Track("steps (GPU time)", "steps", table.filter(pl.Series(inside)))


def collectives_of(c: Comparison, identity: Identity, meet: Encounters) -> pl.DataFrame:
    """NCCL kernels of a rank with what is known of their instances."""
    digest = next(d for i, d in zip(c.identities, c.digests, strict=True) if i.rank == identity.rank)
    table = digest.collectives.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    joined = table.join(meet.instances, on="row", how="left", maintain_order="left")
    why = (
        pl.when(pl.col("op_class") == "p2p").then(pl.lit("send and receive")).otherwise(pl.lit("not matched"))
    )
    alone = pl.coalesce(pl.format("NCCL {}, {}", "comm", why), pl.format("NCCL, {}", why))
    return joined.select(
        "start_ns",
        "end_ns",
        pl.col("op").alias("name"),
        "bytes",
        pl.coalesce("communicator", "comm").alias("communicator"),
        pl.col("step_label").alias("step"),
        "instance",
        "wait_ns",
        "transfer_ns",
        "lateness_ns",
        "last_rank",
        "kernel",
        "stream",
        (pl.col("start_ns") - pl.col("launch_ns")).alias("after_launch_ns"),
        "last_ns",
        "arrow",
        "row",
        pl.coalesce("track", alone).alias("track"),
    )


def _by(rows: pl.DataFrame, *columns: str) -> Iterator[tuple[tuple[Any, ...], pl.DataFrame]]:
    """Parts of a table by columns, in the order of their values."""
    if rows.height:
        parts: Mapping[tuple[Any, ...], pl.DataFrame] = rows.partition_by(*columns, as_dict=True)
        for key in rows.select(columns).unique().sort(columns, nulls_last=True).iter_rows():
            yield key, parts[key]


def _several(rows: pl.DataFrame, column: str) -> bool:
    return rows[column].n_unique() > 1


def _again(n: int) -> str:
    return f" ({n + 1})" if n else ""


def _no_arrows() -> pl.DataFrame:
    return pl.DataFrame(schema={"slice": pl.Int64, "at_ns": pl.Int64, "id": pl.Int64})
