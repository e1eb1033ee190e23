"""All tables of a compared job in one DuckDB database, for the user's own SQL.

Tables of the job are in the schema `main`, those of the single ranks in the schema `digest`; both are those of
`rankdiff.job_tables`. They are written in parts, so that memory does not grow with the job, and each in its own order,
so that the same job gives the same content.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import polars as pl

from rankdiff.comparison import Comparison
from rankdiff.errors import RankdiffError
from rankdiff.frames import Frames, rank_tables
from rankdiff.job_tables import JOB_TABLES, RANK_TABLES
from rankdiff.notes import Note
from rankdiff.render.newfile import check_new, staged
from rankdiff.reports.engine import interruptible, open_engine

_ROWS_AT_ONCE = 1 << 18  # of a digest table; so many of each may wait for more
# What DuckDB raises when it cannot write; a statement of ours that is wrong is another error.
_NO_ROOM = (
    duckdb.IOException,
    duckdb.OutOfMemoryException,
    duckdb.TransactionException,  # the log could not be written
    duckdb.FatalException,  # a checkpoint could not
)
_MAGIC = b"DUCK"  # in a database file, after its checksum
# What DuckDB keeps beside a database while it is open.
_BESIDE = (".wal", ".wal.checkpoint", ".wal.recovery", ".tmp")


def check_database(path: Path, force: bool) -> None:
    """Refuse a name that is taken, unless by a database and with `force`.

    Raises
    ------
    RankdiffError
        As `check_new`, or what is there is no DuckDB database: it could be a report.
    """
    check_new(path, force)
    if not str(path).isprintable():
        raise RankdiffError(f"{path}: DuckDB takes no such name", "Choose another name")
    try:
        with open(path, "rb") as file:
            taken = file.read(12)[8:] != _MAGIC
    except FileNotFoundError:
        return
    except OSError as error:
        raise RankdiffError(f"{path}: cannot be read: {error.strerror}", "Choose another name") from None
    if taken:
        raise RankdiffError(f"{path}: exists and is no DuckDB database", "Choose another name")


def write_database(
    path: Path, c: Comparison, notes: Sequence[Note] = (), command: str | None = None, force: bool = False
) -> None:
    """Write a database, whole or not at all.

    Parameters
    ----------
    path : Path
    c : Comparison
    notes : sequence of Note
        Further warnings, of reading the reports.
    command : str, optional
        How to make it again, without folders.
    force : bool
        Replace a file of that name.

    Raises
    ------
    RankdiffError
        As `check_database`, the file cannot be written, or a digest cannot be read any more. Whatever is raised, nothing
        is left behind.
    """
    check_database(path, force)
    made = Frames.of(c, notes, command)
    with staged(path, force, _BESIDE) as staging:
        try:
            with interruptible(), open_engine(share=4, file=str(staging)) as db:
                _write(db, made)
        except _NO_ROOM as error:
            reason = str(error).replace(staging.name, path.name).partition("\n")[0]
            raise RankdiffError(
                f"{path}: cannot be written: {reason}",
                "Choose another folder, with room, or point RANKDIFF_TMP at one",
            ) from None


def _write(db: duckdb.DuckDBPyConnection, made: Frames) -> None:
    """Fill an empty database."""
    db.execute("CREATE SCHEMA digest")
    for name, schema in JOB_TABLES.items():
        _create(db, f"main.{name}", schema)
        for part in made.parts(name):
            _append(db, f"main.{name}", part)
    for name, schema in RANK_TABLES.items():
        _create(db, f"digest.{name}", schema)
    waiting: dict[str, list[pl.DataFrame]] = {name: [] for name in RANK_TABLES}
    for name, frame in rank_tables(made.comparison):
        waiting[name].append(frame)
        if sum(part.height for part in waiting[name]) >= _ROWS_AT_ONCE:
            _append(db, f"digest.{name}", pl.concat(waiting[name]))
            waiting[name].clear()
    for name, parts in waiting.items():
        if parts:
            _append(db, f"digest.{name}", pl.concat(parts))
    db.execute("CHECKPOINT")


def _create(db: duckdb.DuckDBPyConnection, table: str, schema: pl.Schema) -> None:
    db.register("part", pl.DataFrame(schema=schema).to_arrow())
    db.execute(f"CREATE TABLE {table} AS FROM part")
    db.unregister("part")


def _append(db: duckdb.DuckDBPyConnection, table: str, part: pl.DataFrame) -> None:
    db.register("part", part.to_arrow())
    db.execute(f"INSERT INTO {table} FROM part")
    db.unregister("part")
