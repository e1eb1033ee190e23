"""The lanes of a timeline as a table, for who draws them otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from rankdiff.comparison import Comparison
from rankdiff.digest import DigestOptions
from rankdiff.encounters import Meetings
from rankdiff.job_tables import TIMELINE
from rankdiff.kernels.intervals import I64
from rankdiff.lanes import Lanes, lanes_of
from rankdiff.reports.discover import discover
from rankdiff.schema import check
from rankdiff.tracks import spans_of
from rankdiff.windows import moment_window, step_window, worst_step
from rankdiff.witnesses import by_node, captured_ranks, ranks_to_show

_RANKS = 8  # shown unless somebody asks for others
_LANES = ("idle", "compute", "copy", "nccl", "range", "call")  # from the GPU up to the code


def lane_table(
    c: Comparison,
    paths: Sequence[str],
    options: DigestOptions,
    step: int | None = None,
    ranks: frozenset[int] | None = None,
    span_ns: int | None = None,
    around_ns: int | None = None,
) -> pl.DataFrame:
    """Read what ranks did around a step or a moment.

    Parameters
    ----------
    c : Comparison
    paths : sequence of str
        Where the reports are.
    options : DigestOptions
        Those of the comparison.
    step : int, optional
        Its number; the default is the worst one.
    ranks : frozenset of int, optional
        The default is the one waited for and others that matter most.
    span_ns : int, optional
        Length of the window.
    around_ns : int, optional
        Its middle, on the job clock; `step` does not count then.

    Returns
    -------
    polars.DataFrame
        TIMELINE.

    Raises
    ------
    RankdiffError
        There is no such step or rank, or a report cannot be read any more or is a digest.
    """
    if around_ns is not None:
        window = moment_window(c, around_ns, span_ns)
    else:
        number = worst_step(c) if step is None else step
        window = step_window(c, number, number, span_ns)
    chosen = ranks_to_show(c, window, _RANKS) if ranks is None else by_node(c, captured_ranks(c, ranks))
    meetings = Meetings(c, window, frozenset(chosen))
    parts = [pl.DataFrame(schema=TIMELINE)]
    reports = discover(paths, need_reports=True).reports
    for identity, spans in spans_of(c, reports, options, window, chosen):
        lanes = lanes_of(c, window, identity, spans, meetings.of(identity.rank))
        rows = pl.concat([pl.DataFrame(schema=_LANE), *_pieces(lanes)])
        here = {"rank": pl.lit(identity.rank, pl.Int64), "node": pl.lit(identity.node, pl.String)}
        placed = rows.with_columns(pl.col("start_ns", "end_ns", "wait_end_ns") + window.start_ns, **here)
        parts.append(placed.select(TIMELINE.names()))
    return check(pl.concat(parts), TIMELINE, "timeline")


_LANE = pl.Schema({name: kind for name, kind in TIMELINE.items() if name not in ("rank", "node")})


def _pieces(lanes: Lanes) -> Iterator[pl.DataFrame]:
    """The lanes one after the other, each sorted by time."""
    idle = [_spans("idle", spans, name) for name, spans in lanes.idle.items()]
    yield pl.concat(idle).sort("start_ns", "end_ns")
    yield _spans("compute", lanes.compute)
    yield _spans("copy", lanes.copies)
    yield _lane("nccl", lanes.nccl)
    phases = lanes.phases.with_columns(
        pl.when("loads_data").then(pl.lit("data_load")).otherwise(pl.lit(None, pl.String)).alias("class")
    )
    yield _lane("range", phases)
    if lanes.calls is not None:
        yield _lane("call", lanes.calls)


def _spans(lane: str, spans: tuple[I64, I64], kind: str | None = None) -> pl.DataFrame:
    rows = pl.DataFrame({"start_ns": spans[0], "end_ns": spans[1]})
    return _lane(lane, rows.with_columns(pl.lit(kind, pl.String).alias("class")))


def _lane(lane: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of a lane with the columns that they lack as nulls."""
    absent = [pl.lit(None, kind).alias(name) for name, kind in _LANE.items() if name not in rows.columns]
    full = rows.with_columns(*absent).with_columns(lane=pl.lit(lane))
    return full.select(pl.col(name).cast(kind) for name, kind in _LANE.items())
