"""What the page reader has to know of a table: which field of a record is which column, and what to test."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rankdiff.kernels import sqlite_pages
from rankdiff.kernels import sqlite_records as kernel
from rankdiff.kernels.intervals import I64
from rankdiff.reports.filters import Filter, quote
from rankdiff.reports.reader import BLOB, INTEGER, TEXT

_CLASS = {INTEGER: kernel.AS_INTEGER, TEXT: kernel.AS_TEXT, BLOB: kernel.AS_BLOB}
_OPERATOR = {
    "in": sqlite_pages.ONE_OF,
    "not in": sqlite_pages.NONE_OF,
    "not null": sqlite_pages.PRESENT,
    ">=": sqlite_pages.AT_LEAST,
    "<": sqlite_pages.BELOW,
}


class UnfitError(Exception):
    """Something that the page reader leaves to SQLite."""


@dataclass(frozen=True)
class Plan:
    """How to decode a table.

    Attributes
    ----------
    root : int
        Number of the first page of its tree.
    kinds : mapping of str to pyarrow.DataType
        The columns asked for that the table has, in their order.
    fields : (f, 3) int64
    tests : (t, 4) int64
    operands : (o,) int64
        As `kernels.sqlite_records.records` takes them.
    """

    root: int
    kinds: Mapping[str, pa.DataType]
    fields: I64
    tests: I64
    operands: I64


def plan_of(
    db: sqlite3.Connection, table: str, columns: Mapping[str, pa.DataType], filters: Sequence[Filter]
) -> Plan:
    """Work out how to decode a table.

    Raises
    ------
    UnfitError
        When its declaration has something that the page reader does not know.
    """
    found = db.execute(
        "SELECT rootpage, sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
    ).fetchall()
    if len(found) != 1:
        raise UnfitError("no such table")
    ((root, sql),) = found
    # Its tree is of another kind. A damaged page must not make it look like an ordinary one.
    if {"WITHOUT", "ROWID"} <= set(re.findall(r"\w+", (sql or "").upper())):
        raise UnfitError("WITHOUT ROWID")
    declared = db.execute(f"PRAGMA table_xinfo({quote(table)})").fetchall()
    if any(hidden for *_, hidden in declared):
        raise UnfitError("generated columns")
    names = [name for _, name, *_ in declared]
    kinds = {name: kind for name, kind in columns.items() if name in names}
    alias = _rowid_alias(db, table, declared)
    tested = {each.column for each in filters}
    if not tested <= set(names):
        raise UnfitError("a condition on a column that is missing")
    fields = np.full((len(names), 3), -1, np.int64)
    for field, (_, name, declaration, _, default, _, _) in enumerate(declared):
        fields[field, 2] = kernel.ORDINARY
        if name == alias:
            fields[field, 2] = kernel.ROWID
        elif name in kinds or name in tested:
            affinity = _affinity(declaration)
            # SQLite makes floats of the integers in a REAL column, and compares TEXT as text.
            if affinity == "real" or (affinity == "text" and name in tested):
                raise UnfitError("declared type")
            if default is not None and default.upper() != "NULL":
                fields[field, 2] = kernel.DEFAULTED
        if name in kinds:
            fields[field, :2] = list(kinds).index(name), _CLASS[kinds[name]]
    tests: list[tuple[int, int, int, int]] = []
    operands: list[int] = []
    for each in filters:
        first = len(operands)
        operands += sorted(set(each.values))
        tests.append((names.index(each.column), _OPERATOR[each.operator], first, len(operands)))
    return Plan(
        root,
        kinds,
        fields,
        np.array(sorted(tests), np.int64).reshape(-1, 4),
        np.array(operands, np.int64),
    )


def _rowid_alias(db: sqlite3.Connection, table: str, declared: Sequence[tuple[object, ...]]) -> str | None:
    """Name of the column that is the rowid, and null in every record; None for none."""
    keys = [(str(name), str(kind)) for _, name, kind, _, _, key, _ in declared if key]
    if len(keys) != 1 or keys[0][1].upper() != "INTEGER":
        return None
    # INTEGER PRIMARY KEY DESC is none: it has an index.
    indexes = db.execute(f"PRAGMA index_list({quote(table)})").fetchall()
    return None if any(origin == "pk" for _, _, _, origin, _ in indexes) else keys[0][0]


def _affinity(declaration: str) -> str:
    """Which values SQLite converts in a column, by the rules of https://www.sqlite.org/datatype3.html."""
    text = declaration.upper()
    for affinity, words in (("integer", ("INT",)), ("text", ("CHAR", "CLOB", "TEXT")), ("blob", ("BLOB",))):
        if any(word in text for word in words):
            return affinity
    return "real" if any(word in text for word in ("REAL", "FLOA", "DOUB")) else "numeric"
