"""The fast way through a large SQLite table: the pages of its b-tree, decoded by several threads at once.

What it does not know or what looks damaged it leaves to SQLite, whose rows it must equal. It needs memory for the
columns asked for and for some chunks of pages, one for each thread.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from rankdiff.kernels.intervals import I64
from rankdiff.kernels.sqlite_pages import REFUSED, U8, leaf_cells
from rankdiff.kernels.sqlite_records import LENGTH_BITS, gather, records
from rankdiff.reports.engine import usable_cpus
from rankdiff.reports.filters import Filter
from rankdiff.reports.page_file import Pages, leaves_of, room
from rankdiff.reports.page_plan import Plan, UnfitError, plan_of
from rankdiff.reports.reader import INTEGER, TEXT

LEAST_BYTES = 1 << 20  # of a file; smaller ones SQLite reads as fast
LEAST_LEAVES = 64  # likewise of a table

_CHUNK_BYTES = 4 << 20
_MOST_THREADS = 16  # each needs memory, and the rest of the machine would not keep up
_MOST_OVERFLOW_BYTES = 64 << 20  # of the rows of one chunk

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """Rows of a table.

    Attributes
    ----------
    rows : pyarrow.Table
    wrong : dict of str to int
        Values that are not of their column's type, read as null.
    """

    rows: pa.Table
    wrong: Mapping[str, int]


def read_pages(
    db: sqlite3.Connection,
    file: int,
    table: str,
    columns: Mapping[str, pa.DataType],
    filters: Sequence[Filter],
    least_leaves: int = LEAST_LEAVES,
) -> Found | None:
    """Read some columns of a table from the pages of its file.

    Parameters
    ----------
    db : sqlite3.Connection
        The same file, not in a transaction: its read lock is held meanwhile. It must not be in WAL mode with a
        log in use.
    file : int
        A descriptor of it. It must stay open as long as `db` is: closing one drops all locks of the process.
    table : str
        An ordinary table.
    columns : mapping of str to pyarrow.DataType
        INTEGER, TEXT or BLOB. A column that the table lacks is all null.
    filters : sequence of Filter
        The rows wanted meet all.
    least_leaves : int
        A table of fewer pages is left to SQLite.

    Returns
    -------
    Found or None
        None: SQLite has to read this table.

    Raises
    ------
    sqlite3.Error
        When SQLite cannot read the file's schema or get the lock.
    """
    try:
        with _read_lock(db):
            plan = plan_of(db, table, columns, filters)
            pages = Pages(file)
            leaves = leaves_of(pages, plan.root)
            return _decode(pages, leaves, plan, columns) if leaves.size >= least_leaves else None
    except (UnfitError, OSError) as error:
        # Whatever it is, SQLite meets it too, and says so in its own way.
        _log.debug("table %s is left to SQLite: %s", table, error)
        return None


@contextmanager
def _read_lock(db: sqlite3.Connection) -> Iterator[None]:
    """Keep writers away: a transaction has SQLite's read lock from its first SELECT on."""
    db.execute("BEGIN")
    try:
        db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        yield
    finally:
        if db.in_transaction:  # some errors end it
            db.execute("ROLLBACK")


def _decode(pages: Pages, leaves: I64, plan: Plan, columns: Mapping[str, pa.DataType]) -> Found:
    size = max(1, _CHUNK_BYTES // pages.bytes)
    chunks = [leaves[at : at + size] for at in range(0, leaves.size, size)]
    with ThreadPoolExecutor(min(usable_cpus(), len(chunks), _MOST_THREADS)) as pool:
        parts = list(pool.map(lambda chunk: _chunk(pages, chunk, plan), chunks))
    for before, after in pairwise(parts):
        if before.last >= after.first:
            raise UnfitError("rowids")
    schema = pa.schema(list(columns.items()))
    batches = []
    for part in parts:
        arrays = [
            part.arrays[name] if name in part.arrays else pa.nulls(part.count, kind)
            for name, kind in columns.items()
        ]
        batches.append(pa.record_batch(arrays, schema=schema))
    wrong = np.sum([part.wrong for part in parts], axis=0)
    return Found(pa.Table.from_batches(batches, schema), dict(zip(plan.kinds, wrong.tolist(), strict=True)))


@dataclass(frozen=True)
class _Part:
    """Rows of some leaves: arrays by column, their length, wrong values a column, first and last rowid."""

    arrays: Mapping[str, pa.Array]
    count: int
    wrong: I64
    first: int
    last: int


def _chunk(pages: Pages, leaves: I64, plan: Plan) -> _Part:
    data, at = pages.read_all(leaves)
    counts = data[at + 3].astype(np.int64) << 8 | data[at + 4]
    if counts.max() > pages.bytes // 6:  # no page holds so many: do not ask for memory for them
        raise UnfitError("leaf")
    rows = int(counts.sum())
    cells = room(4 * rows, np.int64).reshape(4, rows)
    ends = np.zeros(2, np.int64)
    found = leaf_cells(data, at, pages.bytes, plan.tests, plan.operands, cells, ends) if rows else REFUSED
    if found == REFUSED:
        raise UnfitError("leaf")
    cells, rows = cells[:, :found].copy() if found < rows else cells, found
    data = _with_overflow(pages, data, cells)
    width = len(plan.kinds)
    values = room(width * rows, np.int64).reshape(width, rows)
    valid = room(width * rows, np.bool_).reshape(width, rows)
    wrong = np.zeros(width, np.int64)
    count = records(data, cells, plan.fields, plan.tests, plan.operands, values, valid, wrong)
    if count == REFUSED:
        raise UnfitError("record")
    # A view keeps the whole slab; where some of it is of no use, it must not stay.
    spare = count < rows or any(kind != INTEGER for kind in plan.kinds.values())
    arrays = {}
    for column, (name, kind) in enumerate(plan.kinds.items()):
        of_column = values[column, :count]
        arrays[name] = _array(data, of_column.copy() if spare else of_column, valid[column, :count], kind)
    return _Part(arrays, count, wrong, int(ends[0]), int(ends[1]))


def _with_overflow(pages: Pages, data: U8, cells: I64) -> U8:
    """The bytes with the payloads of rows that do not fit on their page behind them, in one piece each."""
    spilled = np.flatnonzero(cells[1] > cells[3])
    if not spilled.size:
        return data
    if cells[1, spilled].sum() > _MOST_OVERFLOW_BYTES:
        raise UnfitError("long rows")
    if pages.auto_vacuum:
        # SQLite finds the pages of a chain through another table there, which damage can make differ.
        raise UnfitError("overflow pages of an auto-vacuum database")
    pieces, end = [data], data.size
    for row in spilled.tolist():
        at, length, _, here = cells[:, row].tolist()
        pieces.append(data[at : at + here])
        following = data[at + here : at + here + 4]
        missing = length - here
        while missing:
            page = pages.read(int.from_bytes(following.tobytes(), "big"))
            following, content = page[:4], page[4 : 4 + missing]
            pieces.append(content)
            missing -= content.size
        if following.any():
            raise UnfitError("overflow pages")
        cells[0, row] = end
        end += length
    return np.concatenate(pieces)


def _array(
    data: U8, values: I64, valid: np.ndarray[tuple[int], np.dtype[np.bool_]], kind: pa.DataType
) -> pa.Array:
    mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    if kind == INTEGER:
        return pa.Array.from_buffers(kind, values.size, [mask, pa.py_buffer(values)])
    ends = np.cumsum(values & ((1 << LENGTH_BITS) - 1))
    total = int(ends[-1]) if ends.size else 0
    if total > data.size:
        raise UnfitError("cells overlap")
    out = np.empty(total, np.uint8)
    if gather(data, values, ends, out) != total:
        raise UnfitError("text")
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    found = pa.Array.from_buffers(pa.binary(), values.size, [mask, pa.py_buffer(offsets), pa.py_buffer(out)])
    if kind != TEXT:
        return found
    try:
        return found.cast(TEXT)
    except pa.ArrowInvalid:  # not all of it is UTF-8
        texts = [None if raw is None else raw.decode("utf-8", "replace") for raw in found.to_pylist()]
        return pa.array(texts, TEXT)
