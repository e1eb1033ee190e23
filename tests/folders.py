"""Exports as folders of one file per table, made from SQLite exports the way newer nsys writes them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

Retype = Callable[[pa.Array], pa.Array]


def to_folder(
    report: Path, folder: Path, form: str = "parquet", retype: Retype = lambda array: array
) -> Path:
    """Write a report as ``<name>_pqtdir`` or ``<name>_arwdir`` into a folder and return its path.

    Parameters
    ----------
    report : Path
        SQLite export.
    folder : Path
    form : str
        ``parquet``, ``arrow`` (files) or ``arrows`` (streams in files called ``.arrow``).
    retype : callable
        Changes the type of a column.
    """
    target = folder / f"{report.stem}_{'pqtdir' if form == 'parquet' else 'arwdir'}"
    target.mkdir(parents=True)
    with closing(sqlite3.connect(f"file:{report}?mode=ro", uri=True)) as base:
        base.text_factory = bytes
        names = base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            write_table(target, name.decode(), table_of(base, name.decode(), retype), form)
    return target


def write_table(folder: Path, name: str, table: pa.Table, form: str = "parquet") -> None:
    """Write one table into a folder."""
    if form == "parquet":
        pa.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=5_000)
        return
    make = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
    with make(folder / f"{name}.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=5_000)


def table_of(base: sqlite3.Connection, name: str, retype: Retype) -> pa.Table:
    """One table of a database, whose text comes as bytes."""
    info = base.execute(f'PRAGMA table_info("{name}")').fetchall()
    columns = {}
    for _, column, declared, *_ in info:
        column = column.decode()
        values = [value for (value,) in base.execute(f'SELECT "{column}" FROM "{name}" ORDER BY rowid')]
        columns[column] = retype(_array(values, declared.decode().upper()))
    return pa.table(columns)


def _array(values: list[object], declared: str) -> pa.Array:
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, bytes) for value in present):
        raw = pa.array(values, pa.binary())
        if any(b"\0" in value for value in present[:1]):
            return raw
        # Text as it is, without the check that it is UTF-8.
        return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers(), raw.null_count)
    if present and any(isinstance(value, float) for value in present):
        return pa.array(values, pa.float64())
    if declared == "TEXT" and not present:
        return pa.array(values, pa.string())
    return pa.array(values, pa.int64())
