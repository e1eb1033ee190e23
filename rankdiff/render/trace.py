"""All ranks on one clock for ui.perfetto.dev and chrome://tracing: Chrome's trace event format, as JSON."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import polars as pl

from rankdiff import __version__
from rankdiff.comparison import Comparison
from rankdiff.findings import is_loud
from rankdiff.render.document import clean
from rankdiff.render.words import because, cost
from rankdiff.reports.identity import Identity
from rankdiff.tracks import RankTracks, Track
from rankdiff.units import duration, utc
from rankdiff.windows import Window, origin_utc_ns

_FIRST_PID = 1000  # 0 is the idle process to Perfetto; so a pid shows the rank
_LEVEL = 5  # of compression: half the time of the usual 9, a few percent more bytes
_AT_ONCE = 50_000  # events turned into text together
_ARROW = "arrival"


@dataclass
class Counts:
    """What was written."""

    ranks: int = 0
    slices: int = 0
    arrows: int = 0
    marks: int = 0
    tracks: dict[str, int] = field(default_factory=dict)  # by kind

    def add(self, traced: RankTracks) -> None:
        """Count a rank."""
        self.ranks += 1
        for track in traced.tracks:
            self.slices += track.slices.height
            self.arrows += track.arrows_in.height
            self.marks += track.marks.height
            self.tracks[track.kind] = self.tracks.get(track.kind, 0) + 1

    @property
    def events(self) -> int:
        """Slices, arrows and marks."""
        return self.slices + self.arrows + self.marks


def write_json(
    out: BinaryIO, c: Comparison, window: Window, traces: Iterable[RankTracks], compress: bool
) -> Counts:
    """Write a trace as JSON.

    Parameters
    ----------
    out : BinaryIO
    c : Comparison
    window : Window
        Time 0 of the trace is its start.
    traces : iterable of RankTracks
        Taken one at a time, in the order in which the ranks are to stand.
    compress : bool
        Write gzip, without a time in it.

    Returns
    -------
    Counts
    """
    counts = Counts()
    # The mark of the viewer's tracks: unlike a real thread id it is unique in the whole trace, because
    # Perfetto tells threads of different processes apart by it alone.
    first_tid = _FIRST_PID + 1 + max((i.rank for i in c.identities), default=0)
    packed = gzip.GzipFile("", "wb", _LEVEL, out, mtime=0) if compress else nullcontext(out)
    with packed as file:
        head = json.dumps(about(c, window), separators=(",", ":"))
        file.write(f'{{"displayTimeUnit":"ns","otherData":{head},"traceEvents":[\n'.encode())
        comma = b""
        for order, traced in enumerate(traces):
            counts.add(traced)
            for lines in _rank(c, traced, order, first_tid):
                file.write(comma + ",\n".join(lines).encode())
                comma = b",\n"
            first_tid += len(traced.tracks)
        file.write(b"\n]}\n")
    return counts


def about(c: Comparison, window: Window) -> dict[str, Any]:
    """What a reader of the trace needs besides the events."""
    origin, uncertainty = origin_utc_ns(c), c.clock.uncertainty_ns
    return {
        "rankdiff_version": __version__,
        "window": window.words,
        "time_zero_utc": utc(origin + window.start_ns) if origin is not None else None,
        "time_zero_ns": window.start_ns,
        "clock": c.clock.method,
        "clock_uncertainty_ns": round(uncertainty) if uncertainty is not None else None,
    }


def process_name(i: Identity) -> str:
    """Rank and node."""
    return clean(f"rank {i.label} ({i.node})")


def role(c: Comparison, rank: int) -> str:
    """What the verdict says of a rank, in a few words."""
    for f in c.verdict.findings:
        if is_loud(f) and rank in f.ranks:
            return clean(f"late: {cost(f)}{because(f)}")
    figures = c.figures.get(rank)
    steps = sum(
        int(i.included.sum()) for i in c.islands if rank in {c.job.ranks[r].identity.rank for r in i.ranks}
    )
    if figures is None or figures.wait_ns is None or not steps:
        return "not compared"
    return f"waits {duration(figures.wait_ns / steps)} a step"


def _rank(c: Comparison, traced: RankTracks, order: int, first_tid: int) -> Iterator[list[str]]:
    i = traced.identity
    pid = _FIRST_PID + i.rank
    yield [
        _metadata("process_name", pid, None, {"name": process_name(i)}),
        _metadata("process_sort_index", pid, None, {"sort_index": order}),
        _metadata("process_labels", pid, None, {"labels": role(c, i.rank)}),
    ]
    for n, track in enumerate(traced.tracks):
        tid = first_tid + n
        yield [
            _metadata("thread_name", pid, tid, {"name": clean(track.name)}),
            _metadata("thread_sort_index", pid, tid, {"sort_index": n}),
        ]
        for frame in _events(track, pid, tid):
            for part in frame.iter_slices(_AT_ONCE):
                yield part.select(pl.struct(pl.all()).struct.json_encode()).to_series().to_list()


def _events(track: Track, pid: int, tid: int) -> Iterator[pl.DataFrame]:
    where = (pl.lit(pid, pl.Int64).alias("pid"), pl.lit(tid, pl.Int64).alias("tid"))
    kind = pl.lit(track.kind).alias("cat")
    s = track.slices
    yield s.select(
        pl.lit("X").alias("ph"),
        _name(),
        kind,
        *where,
        _us(s["start_ns"]).alias("ts"),
        _us(s["end_ns"] - s["start_ns"]).alias("dur"),
        *_args(s, "start_ns", "end_ns", "name"),
    )
    # After the slices: an arrow sticks to the slice that is open when it comes up.
    for phase, ends in (("s", track.arrows_out), ("f", track.arrows_in)):
        bound = (pl.lit("e").alias("bp"),) if phase == "f" else ()
        yield ends.select(
            pl.lit(phase).alias("ph"),
            pl.lit(_ARROW).alias("name"),
            pl.lit(_ARROW).alias("cat"),
            *where,
            _us(ends["at_ns"]).alias("ts"),
            "id",
            *bound,
        )
    m = track.marks
    yield m.select(
        pl.lit("i").alias("ph"),
        _name(),
        kind,
        *where,
        _us(m["at_ns"]).alias("ts"),
        pl.lit("t").alias("s"),
        *_args(m, "at_ns", "name"),
    )


def _name() -> pl.Expr:
    """Names without control characters."""
    return pl.col("name").fill_null("?").str.replace_all(r"\p{Cc}", "?")


def _args(frame: pl.DataFrame, *known: str) -> list[pl.Expr]:
    rest = [name for name in frame.columns if name not in known]
    return [pl.struct(rest).alias("args")] if rest else []


def _us(ns: pl.Series) -> pl.Series:
    """Microseconds that come back as the same nanoseconds.

    Perfetto multiplies by 1000 and cuts the decimals off, and 1.001 × 1000 is a little less than 1001: slices
    would no longer nest.
    """
    whole = ns.to_numpy()
    us = whole / 1000.0
    return pl.Series(np.where((us * 1000.0).astype(np.int64) < whole, np.nextafter(us, np.inf), us))


def _metadata(name: str, pid: int, tid: int | None, args: dict[str, Any]) -> str:
    thread = {} if tid is None else {"tid": tid}
    return json.dumps({"ph": "M", "name": name, "pid": pid, **thread, "args": args}, separators=(",", ":"))
