"""The longest idle gaps of a rank."""

from __future__ import annotations

import polars as pl

from rankdiff.digest import Digest

MIN_GAP_NS = 50_000  # shorter gaps are not worth a line


def longest_gaps(digest: Digest, min_gap_ns: int, most: int) -> pl.DataFrame:
    """The longest idle gaps, longest first.

    Parameters
    ----------
    digest : Digest
    min_gap_ns : int
        Shorter gaps are left out.
    most : int

    Returns
    -------
    polars.DataFrame
        schema.GAPS, at most `most` rows; of equal length, the earlier first.
    """
    length = pl.col("end_ns") - pl.col("start_ns")
    return (
        digest.gaps.filter(length >= min_gap_ns)
        .sort([length, "start_ns"], descending=[True, False])
        .head(most)
        .select(digest.gaps.columns)
    )


def step_label(digest: Digest, step: int | None) -> str | None:
    """Number of a step range as the export names it, else its ordinal; None for no step."""
    if step is None:
        return None
    row = digest.steps.filter(pl.col("step") == step)
    number = row["number"][0] if row.height else None
    return str(step if number is None else number)
