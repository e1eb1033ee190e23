"""Sums over a rank's timeline: what its idle time and the time before each collective were made of."""

from __future__ import annotations

import numpy as np
import polars as pl

from rankdiff.figures import Figures
from rankdiff.kernels.intervals import I64
from rankdiff.kernels.partition import split
from rankdiff.schema import CLASSES, GAPS, IDLE, LEAD_UP, check
from rankdiff.steps import launch_times, step_at
from rankdiff.timeline import Timeline

MOST_GAPS = 1000

_LABELS = ["class", "range", "call"]


def lead_up(timeline: Timeline, collectives: pl.DataFrame, window_start_ns: int) -> pl.DataFrame:
    """What the time before each N x N collective was made of.

    Parameters
    ----------
    timeline : Timeline
    collectives : polars.DataFrame
        schema.COLLECTIVES.
    window_start_ns : int
        First GPU start of the rank.

    Returns
    -------
    polars.DataFrame
        schema.LEAD_UP. Where the previous N x N kernel ends after the own start there are no rows.
    """
    before = pl.col("end_ns").shift(1, fill_value=window_start_ns)
    # In order of start, so the windows are disjoint: each begins after the start where the one before it ends.
    spans = (
        collectives.with_row_index("collective")
        .filter(pl.col("op_class") == "nxn")
        .select(pl.col("collective").cast(pl.Int64), start=before, end="start_ns")
        .filter(pl.col("start") < pl.col("end"))
    )
    start, end = spans["start"].to_numpy(), spans["end"].to_numpy()
    pieces = timeline.pieces
    at, first, last, piece = split(start, end, pieces["start_ns"].to_numpy(), pieces["end_ns"].to_numpy())
    rows = pieces.select(_LABELS)[piece].with_columns(
        collective=spans["collective"][at], ns=pl.Series(last - first)
    )
    summed = rows.group_by("collective", *_LABELS).agg(pl.col("ns").sum())
    named = _named(timeline, summed).sort("collective", *_LABELS)
    return check(named.select(LEAD_UP.names()), LEAD_UP, "lead_up")


def idle(timeline: Timeline) -> pl.DataFrame:
    """What the idle time was made of.

    Returns
    -------
    polars.DataFrame
        schema.IDLE.
    """
    summed = _idle_pieces(timeline).group_by(_LABELS).agg(pl.col("ns").sum())
    return check(_named(timeline, summed).sort(_LABELS).select(IDLE.names()), IDLE, "idle")


def gaps(timeline: Timeline, figures: Figures, steps: pl.DataFrame) -> pl.DataFrame:
    """The longest idle gaps, each with the largest part of it.

    Parameters
    ----------
    timeline : Timeline
    figures : Figures
    steps : polars.DataFrame
        schema.STEPS.

    Returns
    -------
    polars.DataFrame
        schema.GAPS. Of equally large classes it is the first in the order of CLASSES.
    """
    chosen = _longest(*figures.idle)
    parts = (
        _idle_pieces(timeline)
        .filter(pl.col("gap").is_in(chosen.tolist()))
        .group_by("gap", *_LABELS)
        .agg(pl.col("ns").sum())
    )
    classes = (
        parts.group_by("gap", "class")
        .agg(class_ns=pl.col("ns").sum())
        .sort("gap", "class_ns", "class", descending=[False, True, False])
        .unique("gap", keep="first", maintain_order=True)
    )
    largest = (
        parts.join(classes, on=["gap", "class"])
        .sort("gap", "ns", "range", "call", descending=[False, True, False, False])
        .unique("gap", keep="first", maintain_order=True)
    )
    enders = figures.enders
    launch = pl.Series(enders.start).to_frame("at").select(pl.when(pl.Series(enders.thread) != 0).then("at"))
    step = step_at(steps, launch_times(launch.to_series(), pl.Series(figures.idle[1])))
    found = _named(timeline, largest).with_columns(
        start_ns=pl.Series(figures.idle[0][chosen]),
        end_ns=pl.Series(figures.idle[1][chosen]),
        step=step[chosen],
    )
    return check(found.select(GAPS.names()), GAPS, "gaps")


def _idle_pieces(timeline: Timeline) -> pl.DataFrame:
    pieces = timeline.pieces.drop_nulls("gap")
    return pieces.select("gap", *_LABELS, ns=pl.col("end_ns") - pl.col("start_ns"))


def _longest(start: I64, end: I64) -> I64:
    """Rows of the longest gaps, ascending; of equally long ones the earlier."""
    order = np.argsort(start - end, kind="stable")
    return np.sort(order[:MOST_GAPS])


def _named(timeline: Timeline, rows: pl.DataFrame) -> pl.DataFrame:
    """Replace the codes of class, range and call by their names."""
    words = {"class": CLASSES, "range": timeline.ranges, "call": timeline.calls}
    return rows.with_columns(
        pl.Series(label, [*names, None], dtype=pl.String)[rows[label].fill_null(len(names)).to_numpy()]
        for label, names in words.items()
    )
