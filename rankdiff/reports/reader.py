"""What every form of export offers: its tables, some columns of a table, and small queries.

One class for each form; `open_reader` takes the one that a report needs. Every query names one table, in the
spelling of `source`, and every name that is a word of some SQL (`end`, `start`, `value`) is quoted, so that the
same text runs on SQLite and on DuckDB.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankdiff.errors import ReportError
from rankdiff.notes import Note
from rankdiff.reports.filters import Filter, condition
from rankdiff.reports.filters import quote as quote
from rankdiff.untrusted import shown

T = TypeVar("T")

INTEGER, TEXT, BLOB = pa.int64(), pa.string(), pa.binary()

_STRINGS = {"id": INTEGER, "value": TEXT}
_PARAMETERS_AT_ONCE = 500
_NAMED_COLUMNS = 12  # in the message about one that is missing


class DamagedError(ReportError):
    """A table of an export is damaged; others may be whole."""


def unless_damaged(reader: Reader, read: Callable[[Reader], T], otherwise: T) -> T:
    """Read what one can do without, or do without it where its table is damaged."""
    try:
        return read(reader)
    except DamagedError as error:
        reader.notes.append(Note("table_unreadable", f"{error.what}; taken as not captured"))
        return otherwise


class Reader(ABC):
    """One export, open for reading; a context manager.

    Parameters
    ----------
    name : str
        How messages call it.

    Attributes
    ----------
    notes : list of Note
        What had to be done to read it, and values of an unexpected type, which are read as null.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.notes: list[Note] = []
        self._sources: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close the export and remove what was made for reading it."""

    @abstractmethod
    def tables(self) -> list[str]:
        """Names of the ordinary tables, with rows or without, sorted."""

    @abstractmethod
    def query(self, sql: str, parameters: Sequence[Any], table: str) -> list[tuple[Any, ...]]:
        """Run one small query on `table`, which stands in it as `source` spells it.

        Raises
        ------
        DamagedError
            When the table is damaged.
        ReportError
            When it cannot be read for another reason.
        """

    @abstractmethod
    def _filled(self, table: str) -> bool:
        """Say whether the table of exactly this name exists and has a row."""

    @abstractmethod
    def _columns(self, table: str) -> tuple[str, ...]:
        """Names of the columns of the table of exactly this name."""

    @abstractmethod
    def _select(
        self, table: str, columns: Mapping[str, pa.DataType], where: str, parameters: Sequence[Any]
    ) -> pa.Table:
        """Read columns of a table that has rows; those that it lacks are null."""

    def _select_filtered(
        self, table: str, columns: Mapping[str, pa.DataType], filters: Sequence[Filter]
    ) -> pa.Table:
        """Read likewise the rows that meet all filters, in the order of the table."""
        return self._select(table, columns, condition(filters), ())

    def has(self, table: str) -> bool:
        """Say whether a table exists and has a row; a table without rows was not captured."""
        return bool(self._source(table))

    def columns(self, table: str) -> tuple[str, ...]:
        """Names of the columns of a table, as they are spelled in it; empty when it was not captured."""
        source = self._source(table)
        return self._columns(source) if source else ()

    def source(self, table: str) -> str:
        """How a query names a table, quoted."""
        return quote(self._source(table) or table)

    def read(
        self,
        table: str,
        columns: Mapping[str, pa.DataType],
        *,
        required: Sequence[str] = (),
        filters: Sequence[Filter] = (),
        where: str = "",
        parameters: Sequence[Any] = (),
    ) -> pa.Table:
        """Read some columns of a table.

        Parameters
        ----------
        table : str
            Name of the table; one that is missing or empty gives no rows.
        columns : mapping of str to pyarrow.DataType
            INTEGER, TEXT or BLOB. A column that the table lacks is all null.
        required : sequence of str
            Columns that the table must have if it has rows.
        filters : sequence of Filter
            The rows wanted meet all; on columns that are required.
        where, parameters
            A further condition in SQL, without the word WHERE, for small tables.

        Returns
        -------
        pyarrow.Table
            The columns asked for, in that order, rows in the order of the table.

        Raises
        ------
        ReportError
            When a required column is missing or the table cannot be read.
        """
        source = self._source(table)
        if not source:
            return pa.schema(list(columns.items())).empty_table()
        there = self._columns(source)
        for column in required:
            if column not in there:
                found = ", ".join(there[:_NAMED_COLUMNS]) + (", ..." if len(there) > _NAMED_COLUMNS else "")
                raise ReportError(
                    f"{self.name}: table {source} has no column {column}, found {found}",
                    "This version of Nsight Systems is not known; export with another one",
                )
        if where:
            both = f"({where}) AND {condition(filters)}" if filters else where
            return self._select(source, columns, both, parameters)
        return self._select_filtered(source, columns, filters)

    def strings(self, ids: npt.ArrayLike, whole: bool = False) -> pa.Table:
        """Look up entries of StringIds: never the whole table, which holds environments.

        Parameters
        ----------
        ids : (n,) int64
            Ids wanted; repeated ones are looked up once.
        whole : bool
            As they are; otherwise as names fit to be shown, null where an entry is no name.

        Returns
        -------
        pyarrow.Table
            ``id`` int64, ``value`` string; ids that do not exist are left out.
        """
        found = self._strings(np.unique(np.asarray(ids, dtype=np.int64)).tolist())
        if whole:
            return found
        # An entry with a NUL is the environment of some process, and no name: a broken id must not show it.
        names = [None if text is None or "\0" in text else shown(text) for text in found["value"].to_pylist()]
        return found.set_column(1, "value", pa.array(names, TEXT))

    def _strings(self, ids: list[int]) -> pa.Table:
        """Entries of StringIds, some hundred at a time: engines limit the parameters of a query."""
        parts = [pa.schema(list(_STRINGS.items())).empty_table()]
        for at in range(0, len(ids), _PARAMETERS_AT_ONCE):
            some = ids[at : at + _PARAMETERS_AT_ONCE]
            marks = ",".join("?" * len(some))
            parts.append(
                self.read(
                    "StringIds",
                    _STRINGS,
                    required=tuple(_STRINGS),
                    where=f'"id" IN ({marks})',
                    parameters=some,
                )
            )
        return pa.concat_tables(parts)

    def wrong_type(self, count: int, table: str, column: str, kind: pa.DataType) -> None:
        """Take note of values that are not of the type they should have."""
        message = f"{self.name}: {count} values of {table}.{column} are not {kind}, read as missing"
        self.notes.append(Note("wrong_type", message))

    def _source(self, table: str) -> str:
        """Name of the table with rows that stands for `table`; empty when there is none.

        A format that changes gets a number (``..._V2``); where only such a table has rows, the highest number
        is read by its column names like any other.
        """
        if table not in self._sources:
            self._sources[table] = self._find_source(table)
        return self._sources[table]

    def _find_source(self, table: str) -> str:
        there = self.tables()
        if table in there and self._filled(table):
            return table
        versions = {
            int(found[1]): name
            for name in there
            if (found := re.fullmatch(rf"{re.escape(table)}_V(\d{{1,4}})", name))
        }
        for number in sorted(versions, reverse=True):
            if self._filled(versions[number]):
                message = f"{self.name}: table {versions[number]} is read as {table}"
                self.notes.append(Note("newer_table", message))
                return versions[number]
        return ""
