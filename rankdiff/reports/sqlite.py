"""The reference reader: Python's sqlite3, read-only, projected columns, into Arrow with explicit types.

Large tables go through the page reader, which gives the same or nothing.

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
from rankdiff.reports.filters import Filter, condition
from rankdiff.reports.header import locks_work, read_header
from rankdiff.reports.pages import LEAST_BYTES, read_pages
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
        self._file: int | None = None  # for the page reader
        self._opened: tuple[int, int] | None = None  # device and inode of what SQLite has open
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
        if self._file is not None:
            os.close(self._file)  # only now: it drops all locks that this process has on the file
            self._file = None
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
        return self._rows(
            table, columns, f"{quote(table)}" + (f" WHERE {where}" if where else ""), parameters
        )

    def _select_filtered(
        self, table: str, columns: Mapping[str, pa.DataType], filters: Sequence[Filter]
    ) -> pa.Table:
        file = self._large_file()
        if file is not None:
            with self._errors(table):
                found = read_pages(self._connection, file, table, columns, filters)
            if found is not None:
                for column, count in found.wrong.items():
                    if count:
                        self.wrong_type(count, table, column, columns[column])
                return found.rows
        where = f" WHERE {condition(filters)}" if filters else ""
        # An index that somebody added would change the order.
        return self._rows(table, columns, f"{quote(table)} NOT INDEXED{where}", ())

    def _large_file(self) -> int | None:
        """Descriptor of the file that SQLite has open if the page reader may read it and it is worth while."""
        if self._private is not None or self._opened is None:
            return None
        if self._file is None:
            try:
                if os.stat(self.path).st_size < LEAST_BYTES:
                    return None
                self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # moved away since; SQLite still has it
                return None
        return self._file if _identity(os.fstat(self._file)) == self._opened else None

    def _rows(
        self, table: str, columns: Mapping[str, pa.DataType], source: str, parameters: Sequence[Any]
    ) -> pa.Table:
        """Rows of `source`, the table and conditions, as SQLite gives them."""
        schema = pa.schema(list(columns.items()))
        there = self._columns(table)
        selected = [column for column in columns if column in there]
        sql = f"SELECT {', '.join(map(quote, selected)) or '1'} FROM {source}"
        batches = []
        wrong = dict.fromkeys(selected, 0)
        with self._errors(table):
            cursor = self._connection.execute(sql, tuple(parameters))
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                values = dict(zip(selected, zip(*rows, strict=True), strict=True))
                arrays = []
                for column, kind in columns.items():
                    if column in values:
                        array, count = _array(values[column], kind)
                        wrong[column] += count
                    else:
                        array = pa.nulls(len(rows), kind)
                    arrays.append(array)
                batches.append(pa.record_batch(arrays, schema=schema))
        for column, count in wrong.items():
            if count:
                self.wrong_type(count, table, column, columns[column])
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
        before = _identity_of(path)
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
        after = _identity_of(path)
        self._opened = before if before == after else None  # the same twice is what SQLite opened between

    @contextmanager
    def _errors(self, table: str) -> Iterator[None]:
        try:
            yield
        except SQLITE_ERRORS as error:
            raise explained(error, self.name, table) from None


def _array(values: tuple[Any, ...], kind: pa.DataType) -> tuple[pa.Array, int]:
    """Values as an array, and how many are of another class and became null."""
    # Arrow would cut 1.5 to 1 and take bytes for text, so the classes are looked at first: inference
    # fails, or finds another type, when they are mixed. Only text among blobs it takes for blobs.
    try:
        found = pa.array(values)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        found = None
    if found is not None and found.type == kind and not (kind == BLOB and str in map(type, values)):
        return found, 0
    if found is not None and pa.types.is_null(found.type):
        return pa.nulls(len(values), kind), 0
    wanted = _CLASS[kind]
    kept = [value if type(value) is wanted else None for value in values]
    wrong = sum(value is not None for value in values) - sum(value is not None for value in kept)
    return pa.array(kept, kind), wrong


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _identity_of(path: str) -> tuple[int, int] | None:
    try:
        return _identity(os.stat(path))
    except OSError:  # SQLite says what is wrong with it
        return None


def _lenient(raw: bytes) -> str:
    # Real exports hold text in the code page of the machine (a GBK time zone, for one).
    return raw.decode("utf-8", "replace")
