"""A digest as if only some steps had been captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from rankdiff.digest import Digest
from rankdiff.errors import RankdiffError
from rankdiff.schema import DIGEST_TABLES, check

# Read or filtered anew each time: they grow with the job (see `digest_file.StoredDigest`).
_LARGE = frozenset({"collectives", "lead_up"})


class ClippedDigest(Digest):
    """Some steps of another digest, numbered from 0; tables are cut when they are asked for.

    What a digest sums up over the whole report stays that of the whole report: the scalars but for the window, and
    the table IDLE.
    """

    _whole: Digest
    _steps: pl.DataFrame

    @classmethod
    def of(cls, whole: Digest, steps: pl.DataFrame) -> ClippedDigest:
        """Make one; `steps` are the rows of `whole.steps` that stay."""
        made = cls.__new__(cls)
        info = whole.info
        if steps.height:
            begin, end = int(steps["start_ns"][0]), int(steps["end_ns"].to_numpy().max())
            begin, end = max(begin, info.window_start_ns), min(end, info.window_end_ns)
            if begin < end:
                info = replace(info, window_start_ns=begin, window_end_ns=end)
        object.__setattr__(made, "info", info)
        object.__setattr__(made, "_whole", whole)
        object.__setattr__(made, "_steps", steps)
        return made

    def __getattr__(self, name: str) -> pl.DataFrame:
        """Cut a table."""
        if name not in DIGEST_TABLES:
            raise AttributeError(name)
        table = check(self._cut(name), DIGEST_TABLES[name], name)
        if name not in _LARGE:
            object.__setattr__(self, name, table)
        return table

    def _cut(self, name: str) -> pl.DataFrame:
        table: pl.DataFrame = getattr(self._whole, name)
        kept = self._steps.select("step").with_row_index("now").with_columns(pl.col("now").cast(pl.Int64))
        if name == "idle":
            return table
        if name == "work":
            begin, end = self.info.window_start_ns, self.info.window_end_ns
            inside = table.filter((pl.col("end_ns") > begin) & (pl.col("start_ns") < end))
            return inside.with_columns(
                pl.col("start_ns").clip(lower_bound=begin), pl.col("end_ns").clip(upper_bound=end)
            )
        if name == "lead_up":
            rows = self._whole.collectives.select("step").with_row_index("collective")
            rows = rows.with_columns(pl.col("collective").cast(pl.Int64))
            kept = rows.join(kept, on="step", how="semi", maintain_order="left").select("collective")
            kept = kept.with_row_index("now").with_columns(pl.col("now").cast(pl.Int64))
            return _renumbered(table, kept, "collective")
        return _renumbered(table, kept, "step")


def clip(digests: Sequence[Digest], first: int, last: int) -> list[Digest]:
    """Keep some steps of every digest of a job.

    Parameters
    ----------
    digests : sequence of Digest
    first, last : int
        Numbers in the names of the step ranges; both ends belong to it.

    Raises
    ------
    RankdiffError
        The steps of a rank have no numbers, or nobody has such a step.
    """
    out: list[Digest] = []
    numbers: list[int] = []
    for digest in digests:
        numbered = digest.steps.filter(pl.col("number").is_not_null())
        if not numbered.height:
            raise RankdiffError(
                f"{digest.info.claims.report}: no step range with a number in its name, so --steps cannot choose",
                "Name the ranges with --step-range, or leave steps out with --skip-steps",
            )
        numbers += [int(numbered["number"].to_numpy().min()), int(numbered["number"].to_numpy().max())]
        out.append(ClippedDigest.of(digest, numbered.filter(pl.col("number").is_between(first, last))))
    if not any(digest.steps.height for digest in out):
        raise RankdiffError(
            f"no steps {first} to {last}: the steps are {min(numbers)} to {max(numbers)}", "Choose among them"
        )
    return out


def _renumbered(table: pl.DataFrame, kept: pl.DataFrame, column: str) -> pl.DataFrame:
    """Rows whose `column` is kept, with its new number."""
    found = table.join(kept, on=column, how="inner", maintain_order="left")
    return found.with_columns(pl.col("now").alias(column)).select(table.columns)
