"""Columns of an export: in one piece, as a frame, by the numbers in them."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc


def framed(columns: Mapping[str, pa.ChunkedArray | pa.Array]) -> pl.DataFrame:
    """A frame with these columns, each in one piece."""
    return pl.DataFrame(pa.table({name: whole(column) for name, column in columns.items()}))


def whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column in one piece, which shares no memory with the table that it is of where there are several."""
    if isinstance(column, pa.Array):
        return column
    return pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def rows_of(known: pa.ChunkedArray, ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Where in `known`, whose values differ, each id is; null where it is not."""
    return pc.index_in(ids, value_set=known.drop_null(), skip_nulls=True).cast(pa.int64())


def kept(rows: pa.Table, good: pa.ChunkedArray) -> pa.Table:
    """The good rows; the table itself, and no copy, where all are."""
    return rows if pc.all(good).as_py() is not False else rows.filter(good)


def process_ids(global_ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Process ids inside globalTid or globalPid values; null stays null."""
    shifted = pc.shift_right(global_ids, pa.scalar(24, pa.int64()))
    return pc.bit_wise_and(shifted, pa.scalar(0xFFFFFF, pa.int64()))


def give_back() -> None:
    """Return memory that Arrow keeps for later to the system: what comes after a large table is not Arrow's."""
    pa.default_memory_pool().release_unused()
