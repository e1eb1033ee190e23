"""Mutations of tables: rows, columns and tables that go, come twice, or are something else."""

from __future__ import annotations

import sqlite3

from tests.mutation.cells import Rng, columns, free, pick_column, pick_rows, pick_table


def drop_table(db: sqlite3.Connection, rng: Rng) -> tuple[str, str]:
    """Drop a table."""
    table = pick_table(db, rng)
    db.execute(f'DROP TABLE "{table}"')
    return "removed", f"no table {table}"


def empty_table(db: sqlite3.Connection, rng: Rng) -> tuple[str, str]:
    """Leave a table without rows."""
    table = pick_table(db, rng)
    db.execute(f'DELETE FROM "{table}"')
    return "removed", f"{table} empty"


def drop_rows(db: sqlite3.Connection, rng: Rng) -> tuple[str, str]:
    """Drop rows: a few, a run, a part or all but one."""
    table = pick_table(db, rng)
    rows = pick_rows(db, table, rng)
    if rng.random() < 0.1:
        rows = rows[1:]
    db.executemany(f'DELETE FROM "{table}" WHERE rowid = ?', [(r,) for r in rows])
    return "removed", f"{len(rows)} rows of {table} gone"


def drop_rows_by_time(db: sqlite3.Connection, rng: Rng) -> tuple[str, str]:
    """Drop what lies before or after a moment, in every table of events: another capture window."""
    low, high = db.execute('SELECT min("start"), max("end") FROM CUPTI_ACTIVITY_KIND_KERNEL').fetchone()
    if not (isinstance(low, int) and isinstance(high, int)):  # mutated before
        low, high = 0, 10**9
    at = int(low + rng.random() * (high - low))
    if rng.random() < 0.5:
        keep_window(db, at, high)
        return "removed", f"no events before {at}"
    keep_window(db, low, at)
    return "removed", f"no events after {at}"


def keep_window(db: sqlite3.Connection, low: int, high: int) -> None:
    """Drop events that start outside a window, session times in ns."""
    for table in (
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "CUPTI_ACTIVITY_KIND_MEMSET",
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "NVTX_EVENTS",
        "OSRT_API",
    ):
        if "start" in columns(db, table):
            db.execute(f'DELETE FROM {table} WHERE "start" < ? OR "start" > ?', (low, high))


def drop_column(db: sqlite3.Connection, rng: Rng) -> tuple[str, str]:
    """Make a table again without one of its columns."""
    table = pick_table(db, rng)
    gone = pick_column(db, table, rng)
    kept = [c for c in columns(db, table) if c != gone]
    if kept:
        _remake(db, table, ", ".join(f'"{c}"' for c in kept))
    return "removed", f"{table} without column {gone}"


def rename_column(db: sqlite3.Connection, rng: Rng) -> tuple[str, str]:
    """Rename a column, or write it in other letters."""
    table = pick_table(db, rng)
    column = pick_column(db, table, rng)
    new = column.upper() if rng.random() < 0.5 else f"{column}2"
    db.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "mutated"')
    db.execute(f'ALTER TABLE "{table}" RENAME COLUMN "mutated" TO "{new}"')
    return "removed", f"{table}.{column} called {new}"


def more_columns(db: sqlite3.Connection, rng: Rng) -> tuple[str, str]:
    """Add a column in front, so that every position is another."""
    table = pick_table(db, rng)
    shown = ", ".join(f'"{c}"' for c in columns(db, table))
    _remake(db, table, f'9 AS "new \'column", {shown}')
    return "removed", f"{table} with another column in front"


def retype_column(db: sqlite3.Connection, rng: Rng) -> tuple[str, str]:
    """Store a column as another class of values: text, real, bytes."""
    table = pick_table(db, rng)
    column = pick_column(db, table, rng)
    kind = ("TEXT", "REAL", "BLOB")[int(rng.integers(3))]
    free(db, table)
    shown = ", ".join(
        f'CAST("{c}" AS {kind}) AS "{c}"' if c == column else f'"{c}"' for c in columns(db, table)
    )
    _remake(db, table, shown)
    return "removed", f"{table}.{column} as {kind}"


def twice(db: sqlite3.Connection, rng: Rng) -> tuple[str, str]:
    """Repeat rows."""
    table = pick_table(db, rng)
    rows = pick_rows(db, table, rng)
    free(db, table)
    db.execute("CREATE TEMP TABLE chosen (r)")
    db.executemany("INSERT INTO chosen VALUES (?)", [(r,) for r in rows])
    db.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}" WHERE rowid IN (SELECT r FROM chosen)')
    db.execute("DROP TABLE chosen")
    return "labels", f"{len(rows)} rows of {table} twice"


def shuffle(db: sqlite3.Connection, rng: Rng) -> tuple[str, str]:
    """Store rows in another order."""
    table = pick_table(db, rng)
    by = int(rng.integers(1, 10_000)) * 2 + 1
    _remake(db, table, "*", f"ORDER BY (rowid * {by}) % 10007, rowid")
    return "removed", f"{table} in another order"


def as_view(db: sqlite3.Connection, rng: Rng) -> tuple[str, str]:
    """Put a view in the place of a table; views are never read."""
    table = pick_table(db, rng)
    db.execute(f'ALTER TABLE "{table}" RENAME TO "{table}_"')
    db.execute(f'CREATE VIEW "{table}" AS SELECT * FROM "{table}_"')
    return "removed", f"{table} is a view"


def _remake(db: sqlite3.Connection, table: str, shown: str, order: str = "") -> None:
    db.execute(f'CREATE TABLE mutated_away AS SELECT {shown} FROM "{table}" {order or "ORDER BY rowid"}')
    db.execute(f'DROP TABLE "{table}"')
    db.execute(f'ALTER TABLE mutated_away RENAME TO "{table}"')


ROWS = (
    drop_table,
    empty_table,
    drop_rows,
    drop_rows,
    drop_rows,
    drop_rows_by_time,
    drop_rows_by_time,
    drop_column,
    rename_column,
    more_columns,
    retype_column,
    twice,
    shuffle,
    as_view,
)
