"""Other ways to load the columns that `rankdiff compare` needs; runs in an environment of its own.

    PYTHON benchmarks/peers.py WAY TABLES REPORT...

WAY is duckdb, connectorx or sqlite3; TABLES is JSON: columns by table. Prints the seconds as JSON; what was imported
and opened before the first report counts for nobody.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path


def _sql(table: str, columns: list[str], source: str | None = None) -> str:
    named = ", ".join(f'"{column}"' for column in columns)
    return f"SELECT {named} FROM {source or table}"


def duckdb_scanner() -> Callable[[str, str, list[str]], object]:
    """DuckDB's SQLite scanner, into Arrow."""
    import duckdb
    import duckdb_extension_sqlite_scanner as packaged

    extension = next(Path(packaged.__file__).parent.rglob("*.duckdb_extension"))
    db = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    db.execute(f"LOAD '{extension}'")
    return lambda path, table, columns: db.sql(
        _sql(table, columns, f"sqlite_scan('{path}', '{table}')")
    ).to_arrow_table()


def connectorx_reader() -> Callable[[str, str, list[str]], object]:
    """connectorx, into Arrow."""
    import connectorx

    return lambda path, table, columns: connectorx.read_sql(
        f"sqlite://{path}", _sql(table, columns), return_type="arrow"
    )


def python_sqlite3() -> Callable[[str, str, list[str]], object]:
    """Python's sqlite3, into tuples."""

    def read(path: str, table: str, columns: list[str]) -> object:
        with closing(sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True)) as db:
            return db.execute(_sql(table, columns)).fetchall()

    return read


WAYS = {"duckdb": duckdb_scanner, "connectorx": connectorx_reader, "sqlite3": python_sqlite3}


def main(way: str, tables: str, *reports: str) -> None:
    """Load all tables of all reports, one after the other."""
    read = WAYS[way]()
    wanted = json.loads(tables)
    began, busy = time.perf_counter(), time.process_time()
    for path in reports:
        kept = [read(path, table, columns) for table, columns in wanted.items()]
        del kept
    print(json.dumps({"wall": time.perf_counter() - began, "cpu": time.process_time() - busy}))


if __name__ == "__main__":
    main(*sys.argv[1:])
