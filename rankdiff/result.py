"""The compared job as an object: the answer, and every table behind it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from rankdiff import comparison, frames, pipeline
from rankdiff.database import write_database
from rankdiff.differences.inputs import without_folders
from rankdiff.differences.measure import measure
from rankdiff.differences.side import Side
from rankdiff.digest import Digest
from rankdiff.errors import RankdiffError, ReportError
from rankdiff.gaps import MIN_GAP_NS
from rankdiff.job_tables import JOB_TABLES, RANK_TABLES
from rankdiff.lane_table import lane_table
from rankdiff.notes import Note
from rankdiff.render.folder import write_folder
from rankdiff.render.json import to_dict, to_json
from rankdiff.render.markdown import to_markdown
from rankdiff.render.notebook import to_fragment
from rankdiff.render.package import ticket_files
from rankdiff.render.text import to_text
from rankdiff.render.ticket import ticket
from rankdiff.render.words import summary
from rankdiff.untrusted import argument, shown

StrPath = str | os.PathLike[str]
_DIGEST = "digest."  # what the names of the ranks' own tables begin with
_MOST_NAMES = 8  # of reports in the command that makes a ticket again


class Comparison:
    """The compared job: the verdict, and every table behind it as a polars frame.

    The columns of the frames, with units and what null means, are on the page ``docs/database.md``; `save_db` writes
    the same tables. Times are ns on the job clock unless the page says otherwise. Frames are made when they are asked
    for the first time.
    """

    def __init__(
        self, outcome: pipeline.Outcome, paths: Iterable[str], options: pipeline.CompareOptions
    ) -> None:
        """Made by `compare`."""
        self._c: comparison.Comparison = outcome.comparison
        self._notes, self._paths, self._options = outcome.notes, tuple(paths), options
        self._kept: dict[str, pl.DataFrame] = {}
        self.problems: tuple[ReportError, ...] = outcome.problems
        """Why reports were left out, one each."""

    @property
    def verdict(self) -> comparison.Verdict:
        """The answer: status, reason, and the findings as objects."""
        return self._c.verdict

    @property
    def summary(self) -> str:
        """The answer in one sentence."""
        return summary(self._c)

    @cached_property
    def notes(self) -> tuple[Note, ...]:
        """Warnings about the captures and the comparison, sorted by code."""
        return tuple(sorted({*self._notes, *self._c.notes}, key=lambda n: (n.code, n.ranks, n.message)))

    @property
    def digests(self) -> dict[int, Digest]:
        """What is known of each rank by itself, by rank."""
        return {i.rank: d for i, d in zip(self._c.identities, self._c.digests, strict=True)}

    @property
    def findings(self) -> pl.DataFrame:
        """One row per finding, the gravest first; `verdict.findings` has them as objects."""
        return self.table("findings")

    @property
    def ranks(self) -> pl.DataFrame:
        """One row per rank."""
        return self.table("ranks")

    @property
    def nodes(self) -> pl.DataFrame:
        """One row per node."""
        return self.table("nodes")

    @property
    def steps(self) -> pl.DataFrame:
        """One row per step."""
        return self.table("steps")

    @property
    def delays(self) -> pl.DataFrame:
        """One row per step and rank: what the rank cost the step."""
        return self.table("delays")

    @property
    def communicators(self) -> pl.DataFrame:
        """One row per communicator."""
        return self.table("communicators")

    @property
    def instances(self) -> pl.DataFrame:
        """One row per matched collective."""
        return self.table("instances")

    @property
    def waits(self) -> pl.DataFrame:
        """One row per matched collective and rank: when it arrived, how long it waited. Not kept: it may be large."""
        return self._frames.table("waits")

    def waits_in_parts(self) -> Iterator[pl.DataFrame]:
        """`waits` in parts of about a million rows, for jobs whose waits do not fit into memory at once."""
        yield from self._frames.parts("waits")

    def table(self, name: str) -> pl.DataFrame:
        """A table by the name that it has in a database: ``ranks``, ``digest.gaps``.

        Parameters
        ----------
        name : str
            One of `table_names`.

        Raises
        ------
        RankdiffError
            There is no such table.
        """
        if name not in self.table_names:
            raise RankdiffError(f"no table {name!r}", f"Choose among {', '.join(self.table_names)}")
        if name == "waits":
            return self.waits
        if name not in self._kept:
            digest = name.removeprefix(_DIGEST)
            made = (
                frames.rank_table(self._c, digest) if name.startswith(_DIGEST) else self._frames.table(name)
            )
            self._kept[name] = made
        return self._kept[name]

    @property
    def table_names(self) -> tuple[str, ...]:
        """Names of all tables."""
        return (*JOB_TABLES, *(f"{_DIGEST}{name}" for name in RANK_TABLES))

    def timeline(
        self,
        step: int | None = None,
        *,
        ranks: Iterable[int] | None = None,
        span_ns: int | None = None,
        around_ns: int | None = None,
    ) -> pl.DataFrame:
        """What the ranks did around a step or a moment, as `rankdiff timeline` draws it; reads the reports again.

        Parameters
        ----------
        step : int, optional
            Its number; the default is the worst one.
        ranks : iterable of int, optional
            The default is the rank waited for and seven others that matter most.
        span_ns : int, optional
            Length of the window; the default is the step and a little more, or two steps around a moment.
        around_ns : int, optional
            A moment on the job clock, instead of a step: where no steps were found.

        Returns
        -------
        polars.DataFrame
            ``rankdiff.job_tables.TIMELINE``.

        Raises
        ------
        RankdiffError
            Both a step and a moment are given, there is no such step or rank, or a rank's report is not there any
            more or was given as a digest.
        """
        if step is not None and around_ns is not None:
            raise RankdiffError("step and around_ns: one of them", "Choose one")
        chosen = None if ranks is None else frozenset(ranks)
        return lane_table(self._c, self._paths, self._options.digest, step, chosen, span_ns, around_ns)

    def to_dict(self, min_gap_ns: int = MIN_GAP_NS) -> dict[str, Any]:
        """report.json as dicts and lists."""
        return to_dict(self._c, self._notes, min_gap_ns)

    def to_json(self, min_gap_ns: int = MIN_GAP_NS) -> str:
        """report.json; idle gaps shorter than `min_gap_ns` are not listed."""
        return to_json(self._c, self._notes, min_gap_ns)

    def to_text(self, min_gap_ns: int = MIN_GAP_NS) -> str:
        """What `rankdiff compare` prints."""
        return to_text(self._c, self._notes, min_gap_ns)

    def to_markdown(self, min_gap_ns: int = MIN_GAP_NS) -> str:
        """The ticket without pictures."""
        return to_markdown(ticket(self._c, self._notes, (), self._command, min_gap_ns))

    def write_ticket(
        self, folder: StrPath, *, plots: bool = True, force: bool = False, min_gap_ns: int = MIN_GAP_NS
    ) -> None:
        """Write report.md, report.html, report.json and plots/ into a folder, all of them or none.

        Parameters
        ----------
        folder : path
        plots : bool
            With pictures.
        force : bool
            Replace the files of an earlier ticket.
        min_gap_ns : int
            Shorter idle gaps are not listed.

        Raises
        ------
        RankdiffError
            The folder is not empty, or cannot be written.
        """
        files = ticket_files(self._c, self._notes, self._command, plots, min_gap_ns)
        write_folder(Path(folder), files, force)

    def save_db(self, path: StrPath, *, force: bool = False) -> None:
        """Write all tables into one DuckDB database, whole or not at all.

        Parameters
        ----------
        path : path
        force : bool
            Replace a file of that name.

        Raises
        ------
        RankdiffError
            It exists, or cannot be written.
        """
        write_database(Path(path), self._c, self._notes, force=force)

    def as_side(self) -> Side:
        """One side of a difference; `rankdiff.diff` asks for it."""
        name = os.path.basename(os.path.abspath(self._paths[0])) if len(self._paths) == 1 else "comparison"
        return measure(self._c, shown(name, 80), without_folders(self.problems, self._paths))

    def __repr__(self) -> str:
        return f"<rankdiff.Comparison of {len(self._c.identities)} ranks: {self.summary}>"

    def _repr_html_(self) -> str:
        return to_fragment(self._c, self._notes, self.problems)

    @cached_property
    def _frames(self) -> frames.Frames:
        return frames.Frames.of(self._c, self._notes)

    @property
    def _command(self) -> str:
        """How to make the result again on a command line, without folders and options."""
        names = list(dict.fromkeys(d.info.claims.report for d in self._c.digests))
        some = " ".join(map(argument, names[:_MOST_NAMES]))
        return f"rankdiff compare {some}{' ...' if len(names) > _MOST_NAMES else ''}"
