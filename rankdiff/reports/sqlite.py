"""The reference reader: Python's sqlite3, read-only, projected columns, into Arrow with explicit types.

Nothing is ever written beside the file: a WAL database is read through a private copy, or as immutable when
its log is missing. Views and virtual tables may run code and are never read.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from rankdiff.errors import ReportError
from rankdiff.notes import Note
from rankdiff.reports.header import locks_work, read_header
from rankdiff.reports.reader import BLOB, INTEGER, TEXT, Reader, quote
from rankdiff.reports.sqlite_errors import SQLITE_ERRORS, explained
from rankdiff.reports.temporary import private_folder

_CLASS = {INTEGER: int, TEXT: str, BLOB: bytes}

_ROWS_AT_ONCE = 20_000
_LOCK_WAIT_S = 3.0
_LOCKING_FAILED = {"SQLITE_IOERR_LOCK", "SQLITE_IOERR_RDLOCK", "SQLITE_IOERR_UNLOCK", "SQLITE_PROTOCOL"}


class SqliteReader(Reader):
    """An SQLite export.

    Parameters
    ----------
    path : str
        Path of the file.
    name : str
        How messages call it.

    Raises
    ------
    ReportError
        When it is not a complete SQLite database or cannot be opened.
    """

    def __init__(self, path: str, name: str) -> None:
        super().__init__(name)
        self.path = path
        self._private: str | None = None
        self._known_columns: dict[str, tuple[str, ...]] = {}
        self._db: sqlite3.Connection | None = None
        source, immutable = self._prepare()
        try:
            try:
                self._open(source, immutable)
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorname", "") or ""
                refused = code.startswith("SQLITE_BUSY") and not locks_work(source)
                if not refused and code not in _LOCKING_FAILED:
                    raise
                # A file system without locks (some Lustre and NFS mounts): nobody can hold one either.
                self._open(source, immutable=True)
                self.notes.append(
                    Note("no_locks", f"{name}: the file system has no locks, read without them")
                )
        except SQLITE_ERRORS as error:
            self.close()
            raise explained(error, self.name, None) from None

    def close(self) -> None:
        """Close the file and remove the private copy, if there was one."""
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)
            self._private = None

    def tables(self) -> list[str]:
        """Names of the ordinary tables, with rows or without, sorted."""
        return sorted(self._tables)

    def query(self, sql: str, parameters: Sequence[Any], table: str) -> list[tuple[Any, ...]]:
        """Run one small query; `table` is only for the message of an error."""
        with self._errors(table):
            return self._connection.execute(sql, tuple(parameters)).fetchall()

    def _filled(self, table: str) -> bool:
        return bool(self.query(f"SELECT 1 FROM {quote(table)} LIMIT 1", (), table))

    def _columns(self, table: str) -> tuple[str, ...]:
        if table not in self._known_columns:
            rows = self.query(f"PRAGMA table_info({quote(table)})", (), table)
            self._known_columns[table] = tuple(row[1] for row in rows)
        return self._known_columns[table]

    def _select(
        self, table: str, columns: Mapping[str, pa.DataType], where: str, parameters: Sequence[Any]
    ) -> pa.Table:
        schema = pa.schema(list(columns.items()))
        there = self._columns(table)
        selected = [column for column in columns if column in there]
        sql = f"SELECT {', '.join(map(quote, selected)) or '1'} FROM {quote(table)}" + (
            f" WHERE {where}" if where else ""
        )
        batches = []
        with self._errors(table):
            cursor = self._connection.execute(sql, tuple(parameters))
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                values = dict(zip(selected, zip(*rows, strict=True), strict=True))
                arrays = [
                    self._array(values[column], kind, table, column)
                    if column in values
                    else pa.nulls(len(rows), kind)
                    for column, kind in columns.items()
                ]
                batches.append(pa.record_batch(arrays, schema=schema))
        return pa.Table.from_batches(batches, schema=schema)

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise ReportError(f"{self.name}: the reader is closed")
        return self._db

    def _prepare(self) -> tuple[str, bool]:
        """Check the header and return the path to open and whether to open it as immutable."""
        header = read_header(self.path, self.name)
        if not header.wal:
            return self.path, False
        if header.log is None:
            message = f"{self.name}: written in WAL mode without its -wal file; last changes may be missing"
            self.notes.append(Note("wal_missing", message))
            return self.path, True
        self._private = private_folder()
        copy = os.path.join(self._private, "report.sqlite")
        try:
            shutil.copyfile(self.path, copy)
            shutil.copyfile(header.log, f"{copy}-wal")
        except OSError as error:
            self.close()
            raise ReportError(
                f"{self.name}: has an unmerged log beside it, and it cannot be copied ({error.strerror})",
                "Point TMPDIR at a folder with room, or export the report again",
            ) from error
        self.notes.append(
            Note("wal_copied", f"{self.name}: has an unmerged log beside it, read through a copy")
        )
        return copy, False

    def _open(self, path: str, immutable: bool) -> None:
        location = urllib.parse.quote(os.fsencode(os.path.abspath(path)))
        mode = "rw" if self._private else "ro"  # merging the log of the private copy needs to write there
        uri = f"file:{location}?mode={mode}" + ("&immutable=1" if immutable else "")
        if self._db is not None:
            self._db.close()
        self._db = sqlite3.connect(uri, uri=True, timeout=_LOCK_WAIT_S, check_same_thread=False)
        self._db.text_factory = _lenient
        self._db.execute("PRAGMA trusted_schema=OFF")
        self._db.execute("PRAGMA query_only=ON")
        rows = self._db.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
        ).fetchall()
        self._tables = {
            name for name, sql in rows if not re.match(r"\s*create\s+virtual", sql or "", re.IGNORECASE)
        }

    def _array(self, values: tuple[Any, ...], kind: pa.DataType, table: str, column: str) -> pa.Array:
        # Arrow would cut 1.5 to 1 and take bytes for text, so the classes are looked at first: inference
        # fails, or finds another type, when they are mixed.
        try:
            found = pa.array(values)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            found = None
        if found is not None and found.type == kind:
            return found
        if found is not None and pa.types.is_null(found.type):
            return pa.nulls(len(values), kind)
        wanted = _CLASS[kind]
        kept = [value if type(value) is wanted else None for value in values]
        wrong = sum(value is not None for value in values) - sum(value is not None for value in kept)
        self.wrong_type(wrong, table, column, kind)
        return pa.array(kept, kind)

    @contextmanager
    def _errors(self, table: str) -> Iterator[None]:
        try:
            yield
        except SQLITE_ERRORS as error:
            raise explained(error, self.name, table) from None


def _lenient(raw: bytes) -> str:
    # Real exports hold text in the code page of the machine (a GBK time zone, for one).
    return raw.decode("utf-8", "replace")
