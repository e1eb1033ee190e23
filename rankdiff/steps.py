"""Step ranges: where the training steps of a process begin and end on the CPU."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from rankdiff.kernels.intervals import I64
from rankdiff.kernels.nesting import innermost
from rankdiff.reports.names import DEFAULT_STEP_RANGE, step_name
from rankdiff.reports.tables import ReportTables
from rankdiff.schema import STEPS, check

# Between names that occur equally often: the more specific word.
_PREFERENCE = ("profilerstep", "train_step", "step", "iteration", "iter", "batch")


def matching_names(names: Sequence[str], pattern: str, fixed_digits: bool) -> list[re.Match[str] | None]:
    """Match a pattern at the start of each name.

    Parameters
    ----------
    names : sequence of str
        Names of ranges, with repetitions.
    pattern : str
        A Python regular expression.
    fixed_digits : bool
        The pattern treats all digits alike, so that names that differ in digits only are matched once. Names
        with an operation number (``aten::mm, op_id = 7``) would otherwise be millions of different names.
    """
    compiled = re.compile(pattern)
    if not fixed_digits:
        seen = {name: compiled.match(name) for name in set(names)}
        return [seen[name] for name in names]
    series = pl.Series(names, dtype=pl.String)
    alike = series.str.replace_all(r"[0-9]", "0")
    hits = [name for name in alike.unique().to_list() if compiled.match(name)]
    mask = alike.is_in(hits).to_list()
    return [compiled.match(name) if hit else None for name, hit in zip(names, mask, strict=True)]


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
    names = tables.frame("SELECT DISTINCT name FROM nvtx WHERE pid = ?", [pid])["name"]
    matches = matching_names(names.to_list(), pattern, step_range is None)
    found = [(name, *step_name(match)) for name, match in zip(names, matches, strict=True) if match]
    if not found:
        return pl.DataFrame(schema=STEPS), None, []
    known = pl.DataFrame(
        found, schema={"name": pl.String, "label": pl.String, "number": pl.Int64}, orient="row"
    )
    rows = tables.frame(
        "SELECT name, start_ns, end_ns FROM nvtx WHERE pid = ? ORDER BY start_ns, end_ns DESC", [pid]
    )
    ranges = (
        rows.join(known, on="name", how="inner", maintain_order="left")
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
    asked = times.is_not_null().to_numpy()
    found = np.full(len(times), -1, np.int64)
    # One track for all: what is asked about often runs on threads that have no ranges.
    one_track = np.zeros(steps.height, np.int64), np.zeros(int(asked.sum()), np.int64)
    found[asked] = innermost(
        one_track[0], steps["start_ns"], steps["end_ns"], one_track[1], times.drop_nulls()
    )
    return pl.select(pl.when(pl.lit(pl.Series(found)) >= 0).then(pl.lit(pl.Series(found)))).to_series()


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
