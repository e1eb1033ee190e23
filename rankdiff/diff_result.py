"""Two captures of a job held against each other, as an object: what changed, and every row behind it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from rankdiff.differences.difference import Difference as Found
from rankdiff.differences.gate import Gate, regression
from rankdiff.differences.rows import Row
from rankdiff.render.diff_document import document
from rankdiff.render.diff_json import to_dict, to_json
from rankdiff.render.diff_package import diff_files
from rankdiff.render.diff_text import to_text
from rankdiff.render.diff_words import summary
from rankdiff.render.folder import write_folder
from rankdiff.render.markdown import to_markdown
from rankdiff.render.notebook import cell
from rankdiff.result import StrPath
from rankdiff.schema import check

# One row for everything that was compared; times are ns a step.
ROWS = pl.Schema(
    {
        "table": pl.String,  # step, parts, causes, ranks, nodes, gpus, rank_causes, kernels
        "key": pl.String,  # what it is: step_time, a part of the step, a class of time, delay, a kernel's name
        "rank": pl.Int64,  # null: of the whole job
        "node": pl.String,  # null as above
        "gpu_uuid": pl.String,  # of a row of `gpus`
        "grid": pl.String,  # of a kernel
        "block": pl.String,  # of a kernel
        "before_ns": pl.Float64,  # null: not measured, see reason
        "after_ns": pl.Float64,  # null: not measured, see reason
        "change_ns": pl.Float64,  # after less before; null where one of them is
        "low_ns": pl.Float64,  # interval of the change, which holds with all others in 95 of 100 differences
        "high_ns": pl.Float64,
        "verdict": pl.String,  # changed, too_small, not_distinguishable; null: not compared
        "reason": pl.String,  # why it was not compared; null: it was
    }
)


class Difference:
    """What changed between two captures of a job, and what cannot be told apart."""

    def __init__(self, found: Found) -> None:
        """Made by `diff`."""
        self._d = found

    @property
    def status(self) -> str:
        """``faster``, ``slower``, ``too_small``, ``not_distinguishable`` or ``not_assessed``: of the step time."""
        return self._d.status

    @property
    def reason(self) -> str | None:
        """Why it was not assessed."""
        return self._d.reason

    @property
    def summary(self) -> str:
        """The answer in a few sentences."""
        return summary(self._d)

    @cached_property
    def rows(self) -> pl.DataFrame:
        """One row for everything that was compared (`diff_result.ROWS`)."""
        return check(pl.DataFrame(list(_rows(self._d)), schema=ROWS, orient="row"), ROWS, "rows")

    @property
    def changed(self) -> pl.DataFrame:
        """The rows of what changed."""
        return self.rows.filter(pl.col("verdict") == "changed")

    def regression(self, threshold: float) -> Gate:
        """Say whether the step time grew by more than a share of it, as ``rankdiff diff --fail-on`` does.

        Parameters
        ----------
        threshold : float
            0.05 is 5 %.
        """
        return regression(self._d, threshold)

    def to_dict(self) -> dict[str, Any]:
        """diff.json as dicts and lists."""
        return to_dict(self._d)

    def to_json(self) -> str:
        """diff.json."""
        return to_json(self._d)

    def to_text(self) -> str:
        """What `rankdiff diff` prints."""
        return to_text(self._d)

    def to_markdown(self) -> str:
        """The difference for a ticket, without a picture."""
        return to_markdown(document(self._d, (), self._command))

    def write(self, folder: StrPath, *, plots: bool = True, force: bool = False) -> None:
        """Write diff.md, diff.html, diff.json and plots/ into a folder, all of them or none.

        Raises
        ------
        RankdiffError
            The folder is not empty and not `force`, or cannot be written.
        """
        write_folder(Path(folder), diff_files(self._d, self._command, plots), force)

    def __repr__(self) -> str:
        return f"<rankdiff.Difference {self._d.before.name} to {self._d.after.name}: {self.summary}>"

    def _repr_html_(self) -> str:
        return cell(document(self._d, (), self._command))

    @property
    def _command(self) -> str:
        return f"rankdiff diff {self._d.before.name} {self._d.after.name}"


def _rows(d: Found) -> Iterator[tuple[object, ...]]:
    tables: dict[str, tuple[Row, ...]] = {
        "step": (d.step,),
        "parts": d.parts,
        "causes": d.causes,
        "ranks": d.ranks,
        "nodes": d.nodes,
        "gpus": d.gpus,
        "rank_causes": d.rank_causes,
    }
    for table, rows in tables.items():
        for row in rows:
            yield _values(table, row, None, None)
    for kernel in d.kernels or ():
        yield _values("kernels", kernel.row, kernel.grid, kernel.block)


def _values(table: str, r: Row, grid: str | None, block: str | None) -> tuple[object, ...]:
    place = (r.rank, r.node, r.gpu_uuid, grid, block)
    numbers = (r.before_ns, r.after_ns, r.change_ns, r.low_ns, r.high_ns)
    return (table, r.key, *place, *(None if n is None else float(n) for n in numbers), r.verdict, r.reason)
