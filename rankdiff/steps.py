"""Step ranges: where the training steps of a process begin and end on the CPU."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
import pyarrow as pa

from rankdiff.kernels.intervals import I64
from rankdiff.kernels.nesting import innermost
from rankdiff.reports.names import DEFAULT_STEP_RANGE, step_name
from rankdiff.reports.tables import ReportTables
from rankdiff.schema import STEPS, check

# Between names that occur equally often: the more specific word.
_KNOWN = {"code": pl.Int64, "name": pl.String, "label": pl.String, "number": pl.Int64}
_PREFERENCE = ("profilerstep", "train_step", "step", "iteration", "iter", "batch")


def matching_names(names: pl.Series, pattern: str, fixed_digits: bool) -> dict[int, re.Match[str]]:
    """Match a pattern at the start of each name.

    Parameters
    ----------
    names : polars.Series
        Names of ranges.
    pattern : str
        A Python regular expression.
    fixed_digits : bool
        The pattern treats all digits alike, so that names that differ in digits only are matched once. Names
        with an operation number (``aten::mm, op_id = 7``) would otherwise be millions of different names.

    Returns
    -------
    dict of int to re.Match
        By row of `names`; those that do not match are left out.
    """
    compiled = re.compile(pattern)
    rows = pl.Series(range(len(names)), dtype=pl.Int64)
    if fixed_digits:
        alike = names.str.replace_all(r"[0-9]", "0")
        rows = alike.is_in([name for name in alike.unique() if compiled.match(name)]).arg_true()
    found = ((row, compiled.match(name)) for row, name in zip(rows, names.gather(rows), strict=True))
    return {row: match for row, match in found if match}


def find_steps(
    tables: ReportTables, pid: int, step_range: str | None = None
) -> tuple[pl.DataFrame, str | None, list[str]]:
    """Step ranges of a process, on any of its threads.

    Parameters
    ----------
    tables : ReportTables
    pid : int
    step_range : str, optional
        Regular expression, anchored at the start of the name; the default knows step, iteration, batch, ...

    Returns
    -------
    steps : polars.DataFrame
        schema.STEPS, sorted by start. Of several names the outermost is taken (an iteration of several
        batches is the step), then the most frequent.
    source : str or None
        ``nvtx:<name>``; None when nothing matches.
    names : list of str
        All names that are a step's, chosen or not.
    """
    pattern = step_range or DEFAULT_STEP_RANGE
    mine = tables.nvtx_of(pid)
    codes = mine["name"].unique().sort()
    matches = matching_names(tables.nvtx_names.gather(codes), pattern, step_range is None)
    found = [(codes[row], match.string, *step_name(match)) for row, match in matches.items()]
    if not found:
        return pl.DataFrame(schema=STEPS), None, []
    known = pl.DataFrame(found, schema=_KNOWN, orient="row")
    ranges = (
        mine.rename({"name": "code"})
        .select("code", "start_ns", "end_ns")
        .join(known, on="code", how="inner", maintain_order="left")
        .sort("start_ns", "end_ns", descending=[False, True], nulls_last=True, maintain_order=True)
        .with_columns(pl.col("end_ns").fill_null(tables.capture_end_ns))
        .filter(pl.col("end_ns") > pl.col("start_ns"))
    )
    step_names = known["name"].to_list()
    if ranges.is_empty():
        return pl.DataFrame(schema=STEPS), None, step_names
    label = _outermost(ranges)
    chosen = ranges.filter(pl.col("label") == label)
    # The same step marked on two threads, or twice on one, is one step: the enclosing range.
    before = chosen["end_ns"].cum_max().shift(1, fill_value=chosen["start_ns"][0] - 1)
    chosen = chosen.filter(chosen["end_ns"] > before)
    steps = chosen.with_row_index("step").select(
        pl.col("step").cast(pl.Int64), "number", "name", "start_ns", "end_ns"
    )
    return check(steps, STEPS, "steps"), f"nvtx:{label}", step_names


def step_at(steps: pl.DataFrame, times: pl.Series) -> pl.Series:
    """Step that contains each moment.

    Parameters
    ----------
    steps : polars.DataFrame
        schema.STEPS.
    times : polars.Series
        Session times; may be null.

    Returns
    -------
    polars.Series
        Int64; null where no step contains the moment, or it is null.
    """
    moments = times.fill_null(0).to_numpy()
    # Steps neither nest nor begin together, so the last to begin before a moment is the one, or none is.
    found = np.searchsorted(steps["start_ns"].to_numpy(), moments, side="right") - 1
    ends = np.append(steps["end_ns"].to_numpy(), np.iinfo(np.int64).min)  # row -1: before all steps
    inside = (ends[found] > moments) & times.is_not_null().to_numpy()
    return pl.Series(pa.array(found, mask=~inside))


def launch_times(launches: pl.Series, starts: pl.Series) -> pl.Series:
    """Times that tell the steps of GPU operations: the launches, or without any the starts on the GPU."""
    # Without any launch there is no CUDA API trace, and the start is the next best thing.
    return starts if launches.null_count() == len(launches) else launches


def _outermost(ranges: pl.DataFrame) -> str:
    """Choose among the names that matched."""
    counts = dict(ranges.group_by("label").len().iter_rows())
    # A single range is the step only if there is nothing better: it may be the whole run.
    repeated = {label: count for label, count in counts.items() if count > 1} or counts
    middle = {label: _span(ranges, label) for label in repeated}

    def enclosed(label: str) -> bool:
        starts, ends = middle[label]
        for other in repeated:
            if other == label:
                continue
            other_starts, other_ends = middle[other]
            at = innermost([0] * len(other_starts), other_starts, other_ends, [0] * len(starts), starts)
            inside = (at >= 0) & (other_ends[at] >= ends)
            if 2 * int(inside.sum()) > len(starts) and repeated[other] <= repeated[label]:
                return True
        return False

    def order(label: str) -> tuple[bool, int, int, str]:
        word = re.split(r"[^a-z_]", label.lower())[0]
        rank = _PREFERENCE.index(word) if word in _PREFERENCE else len(_PREFERENCE)
        return enclosed(label), -repeated[label], rank, label

    chosen: str = min(repeated, key=order)
    return chosen


def _span(ranges: pl.DataFrame, label: str) -> tuple[I64, I64]:
    rows = ranges.filter(pl.col("label") == label)
    return rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
