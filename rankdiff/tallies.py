"""Sums over a rank's timeline: what its idle time and the time before each collective were made of."""

from __future__ import annotations

import numpy as np
import polars as pl

from rankdiff.figures import Figures
from rankdiff.kernels.grouping import sums
from rankdiff.kernels.intervals import I64
from rankdiff.kernels.partition import split
from rankdiff.schema import CLASSES, GAPS, IDLE, LEAD_UP, check
from rankdiff.steps import launch_times, step_at
from rankdiff.timeline import Timeline

MOST_GAPS = 1000


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
    labels, pieces = timeline.labels, timeline.pieces
    at, first, last, piece = split(start, end, pieces["start_ns"].to_numpy(), pieces["end_ns"].to_numpy())
    window, label, ns = _summed(at, timeline.label[piece], labels.height, last - first)
    rows = labels[label].with_columns(collective=spans["collective"].gather(window), ns=ns)
    return check(rows.select(LEAD_UP.names()), LEAD_UP, "lead_up")


def idle(timeline: Timeline) -> pl.DataFrame:
    """What the idle time was made of.

    Returns
    -------
    polars.DataFrame
        schema.IDLE.
    """
    gap, length = _idle_pieces(timeline)
    in_gap = gap >= 0
    labels = timeline.labels
    (ns,) = sums(timeline.label[in_gap], labels.height, length[in_gap][None])
    (time,) = np.nonzero(ns)  # labels of busy time have none, and no piece is empty
    rows = labels[time].with_columns(ns=ns[time])
    return check(rows.select(IDLE.names()), IDLE, "idle")


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
    gap, length = _idle_pieces(timeline)
    wanted = np.zeros(figures.idle[0].size + 1, np.bool_)  # one more for row -1: the GPU is busy
    wanted[chosen] = True
    rows = np.flatnonzero(wanted[gap])
    labels = timeline.labels
    place, label, ns = _summed(gap[rows], timeline.label[rows], labels.height, length[rows])
    code = np.array([CLASSES.index(name) for name in labels["class"]], np.int64)
    parts = pl.DataFrame({"gap": place, "label": label, "class": code[label], "ns": ns})
    classes = (
        parts.group_by("gap", "class")
        .agg(class_ns=pl.col("ns").sum())
        .sort("gap", "class_ns", "class", descending=[False, True, False])
        .unique("gap", keep="first", maintain_order=True)
    )
    largest = (
        parts.join(classes, on=["gap", "class"])
        .sort("gap", "ns", "label", descending=[False, True, False])
        .unique("gap", keep="first", maintain_order=True)
    )
    enders = figures.enders
    launch = pl.Series(enders.start).to_frame("at").select(pl.when(pl.Series(enders.thread) != 0).then("at"))
    step = step_at(steps, launch_times(launch.to_series(), pl.Series(figures.idle[1])))
    found = labels[largest["label"].to_numpy()].with_columns(
        largest["class_ns"],
        start_ns=pl.Series(figures.idle[0][chosen]),
        end_ns=pl.Series(figures.idle[1][chosen]),
        step=step[chosen],
    )
    return check(found.select(GAPS.names()), GAPS, "gaps")


def _idle_pieces(timeline: Timeline) -> tuple[I64, I64]:
    """Gap of each piece, -1 where the GPU is busy, and its length."""
    pieces = timeline.pieces
    length = pieces["end_ns"].to_numpy() - pieces["start_ns"].to_numpy()
    return pieces["gap"].fill_null(-1).to_numpy(), length


def _summed(place: I64, label: I64, labels: int, ns: I64) -> tuple[I64, I64, I64]:
    """Sums by (place, label), sorted by them: places, labels, sums."""
    key = place * labels + label
    order = np.argsort(key, kind="stable")
    in_order = key[order]
    first = np.flatnonzero(np.append(in_order.size > 0, in_order[1:] != in_order[:-1]))
    return *np.divmod(in_order[first], labels), np.add.reduceat(ns[order], first)


def _longest(start: I64, end: I64) -> I64:
    """Rows of the longest gaps, ascending; of equally long ones the earlier."""
    order = np.argsort(start - end, kind="stable")
    return np.sort(order[:MOST_GAPS])
