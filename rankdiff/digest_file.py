"""Digests as Parquet files: one file per report, one row per GPU process, one column per table.

A table is a list of records, so that one column can be read without the others and any engine can unnest it; the
scalars are one JSON text. What a file must hold is checked when it is read: it may come from anywhere.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from rankdiff import __version__
from rankdiff.digest import Digest, DigestInfo, DigestOptions
from rankdiff.errors import ReportError
from rankdiff.parquet_file import DAMAGE, KEY, MAKE_AGAIN, State, opened
from rankdiff.plain import from_plain, to_plain
from rankdiff.schema import DIGEST_TABLES, DIGEST_VERSION
from rankdiff.untrusted import shown

ENDING = ".digest.parquet"
# Columns that are row numbers of another table: by table, the column, that table, and a column that it has.
_REFERENCES = {"lead_up": ("collective", "collectives", "start_ns"), "collectives": ("step", "steps", "step")}
# These grow with the job; the rest is small and kept once it has been read.
_LARGE = frozenset({"collectives", "lead_up"})
_KEPT_BYTES = 128 << 20  # of large tables in memory, of all digests
_LONGEST_NS = 1 << 62  # differences of times must fit int64


@dataclass(frozen=True)
class Provenance:
    """What a file of digests was made of and how.

    Attributes
    ----------
    fingerprint : str
        Of the report (`reports.fingerprint`); tells whether it has changed since.
    options : DigestOptions
    schema : str
        `schema.DIGEST_VERSION` of the writer.
    rankdiff_version : str
    """

    fingerprint: str
    options: DigestOptions
    schema: str = DIGEST_VERSION
    rankdiff_version: str = __version__


class StoredDigest(Digest):
    """A digest whose tables are read from its file when they are asked for.

    A thousand ranks do not fit into memory at once. Of the two tables that grow with the number of collectives only
    the last ones stay there, up to a limit for all digests together.
    """

    # Never set here: it is what `__getattr__` needs, not a field of the digest.
    _place: tuple[str, int, State]

    @classmethod
    def of(cls, info: DigestInfo, path: str, row: int, state: State) -> StoredDigest:
        """Make one; `row` is its row in the file, `state` what its file must still be when tables are read."""
        made = cls.__new__(cls)
        object.__setattr__(made, "info", info)
        object.__setattr__(made, "_place", (path, row, state))
        return made

    def with_info(self, info: DigestInfo) -> StoredDigest:
        """The same tables with other scalars."""
        return StoredDigest.of(info, *self._place)

    def columns(self, table: str, *names: str) -> pl.DataFrame:
        """Read some columns of a table only; see `Digest.columns`."""
        if table in vars(self) or table not in _LARGE:
            return super().columns(table, *names)
        return _kept(*self._place, table, names)

    def __getattr__(self, name: str) -> pl.DataFrame:
        """Read a table that is not in memory."""
        if name not in DIGEST_TABLES:
            raise AttributeError(name)
        path, row, state = self._place
        if name in _LARGE:
            return _kept(path, row, state, name, None)
        table = read_table(path, row, name, state=state)
        object.__setattr__(self, name, table)
        return table


def write_digests(digests: Sequence[Digest], provenance: Provenance, to: str | BinaryIO) -> None:
    """Write the digests of one report as a file.

    Parameters
    ----------
    digests : sequence of Digest
        Of one report, in the order of their rows.
    provenance : Provenance
    to : str or binary file
        A path is written over if it exists; the caller sees to a temporary name, and removes it after an error.

    Raises
    ------
    OSError
        When it cannot be written.
    """
    meta = {KEY: json.dumps(to_plain(provenance)).encode()}
    tables = {name: [_records(getattr(d, name)) for d in digests] for name in DIGEST_TABLES}
    columns = {"info": pa.array([_info_text(d.info) for d in digests], pa.string())}
    columns |= {name: pa.concat_arrays(parts) for name, parts in tables.items()}
    whole = pa.table(columns).replace_schema_metadata(meta)
    if isinstance(to, str):
        # pyarrow takes no name that is not UTF-8, and removes a file that it could not write.
        with open(to, "wb") as file:
            _write(whole, file)
    else:
        _write(whole, to)


def _write(whole: pa.Table, file: BinaryIO) -> None:
    pq.write_table(
        whole,
        file,
        row_group_size=1,  # a row can be read without the others
        compression="zstd",
        write_statistics=False,
        write_page_checksum=True,
    )


def read_provenance(path: str) -> Provenance:
    """What a file of digests was made of.

    Raises
    ------
    ReportError
        It is no file of digests, is damaged, or of another major version.
    """
    with opened(path) as (_, (_, said)):
        return _provenance(path, said)


def read_digests(path: str) -> tuple[list[Digest], Provenance]:
    """Open the digests in a file; their tables are read later.

    Raises
    ------
    ReportError
        It is no file of digests, is damaged, or of another major version.
    """
    with opened(path) as (file, state):
        provenance = _provenance(path, state[1])
        missing = {"info", *DIGEST_TABLES} - _names(path, file)
        if missing:
            raise ReportError(f"{path}: a digest without the table {min(missing)}", MAKE_AGAIN)
        texts = _column(path, file, None, "info").to_pylist()
    try:
        infos = [from_plain(DigestInfo, json.loads(text)) for text in texts]
    except (ValueError, TypeError, RecursionError) as error:
        raise ReportError(f"{path}: a damaged digest ({error})", MAKE_AGAIN) from None
    if not infos:
        raise ReportError(f"{path}: a digest of no rank", MAKE_AGAIN)
    return [StoredDigest.of(info, path, row, state) for row, info in enumerate(infos)], provenance


def read_table(
    path: str, row: int, name: str, columns: Sequence[str] | None = None, state: State | None = None
) -> pl.DataFrame:
    """Read one table of one digest, or some of its columns.

    Parameters
    ----------
    state : State, optional
        Of the file when the digest was opened: tables of two digests must not be mixed.

    Raises
    ------
    ReportError
        The file is gone, another one, damaged, or holds what no digest can.
    """
    expected = DIGEST_TABLES[name]
    wanted = list(expected.names() if columns is None else columns)
    refers = _REFERENCES.get(name)
    with opened(path) as (file, found):
        if state is not None and found != state:
            raise ReportError(f"{path}: replaced or changed since it was opened", "Compare again")
        values = _rows(path, file, row, name, None if columns is None else wanted)
        limit = None
        if refers is not None and refers[0] in wanted:
            limit = len(_rows(path, file, row, refers[1], [refers[2]]))
    names = [field.name for field in values.type]
    if sorted(names) != sorted(wanted) or values.null_count:
        raise _damaged(path, name)
    frame = pl.DataFrame(pl.from_arrow(pa.Table.from_arrays(values.flatten(), names=names))).select(wanted)
    if frame.schema != pl.Schema({column: expected[column] for column in wanted}):
        raise _damaged(path, name)
    _check_values(path, name, frame)
    if refers is not None and limit is not None:
        highest = frame[refers[0]].max()
        if highest is not None and int(highest) >= limit:  # type: ignore[arg-type]
            raise _damaged(path, name)
    return frame


class _Tables:
    """Large tables in memory, of all digests, up to a limit; the last one used stays longest."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[object, ...], pl.DataFrame] = OrderedDict()
        self._bytes = 0.0

    def get(self, key: tuple[object, ...]) -> pl.DataFrame | None:
        if key in self._tables:
            self._tables.move_to_end(key)
        return self._tables.get(key)

    def add(self, key: tuple[object, ...], table: pl.DataFrame) -> None:
        self._tables[key] = table
        self._bytes += table.estimated_size()
        while self._bytes > _KEPT_BYTES and len(self._tables) > 1:
            self._bytes -= self._tables.popitem(last=False)[1].estimated_size()


_tables = _Tables()


def _kept(path: str, row: int, state: State, name: str, columns: tuple[str, ...] | None) -> pl.DataFrame:
    """A large table, or some of its columns, from memory if it was asked for lately."""
    key = (path, row, state, name, columns)
    table = _tables.get(key)
    if table is None:
        table = read_table(path, row, name, columns, state)
        _tables.add(key, table)
    return table


def _records(frame: pl.DataFrame) -> pa.Array:
    """A table as a list of records with one element: the list of its rows."""
    table = frame.to_arrow().combine_chunks()
    columns = [
        column.combine_chunks() if column.num_chunks != 1 else column.chunk(0) for column in table.columns
    ]
    columns = [pa.concat_arrays(c.chunks) if isinstance(c, pa.ChunkedArray) else c for c in columns]
    records = pa.StructArray.from_arrays(columns, fields=list(table.schema))
    return pa.ListArray.from_arrays(pa.array([0, frame.height], pa.int32()), records)


def _info_text(info: DigestInfo) -> str:
    plain = to_plain(info)
    # Where the report lay on somebody's disk is nobody's business; its name stays.
    plain["claims"]["path"] = info.claims.report
    return json.dumps(plain)


def _provenance(path: str, text: bytes) -> Provenance:
    if not text:
        raise ReportError(
            f"{path}: one Parquet file, expected an export or a digest of rankdiff",
            "Give the folder that holds all its tables",
        )
    try:
        plain = json.loads(text)
        version = plain.get("schema") if isinstance(plain, dict) else None
        if isinstance(version, str) and version != DIGEST_VERSION:
            raise ReportError(
                f"{path}: digest schema {shown(version)}, expected {DIGEST_VERSION}",
                "Make it again with this version of rankdiff: rankdiff digest REPORT -o DIR",
            )
        return from_plain(Provenance, plain)
    except ValueError as error:
        raise ReportError(f"{path}: a damaged digest ({error})", MAKE_AGAIN) from None


def _names(path: str, file: Any) -> set[str]:
    try:
        return set(file.schema_arrow.names)
    except DAMAGE:
        raise ReportError(f"{path}: a damaged Parquet file", MAKE_AGAIN) from None


def _column(path: str, file: Any, row: int | None, name: str) -> Any:
    try:
        part = file.read(columns=[name]) if row is None else file.read_row_group(row, columns=[name])
        return part.column(0)
    except DAMAGE:
        raise _damaged(path, name) from None


def _rows(path: str, file: Any, row: int, name: str, columns: Sequence[str] | None) -> Any:
    """Rows of a table as an array of structs with all columns, or with some."""
    paths = [name] if columns is None else [f"{name}.list.element.{column}" for column in columns]
    try:
        records = file.read_row_group(row, columns=paths).column(0)
        kind = records.type
        if not (pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)) or len(records) != 1:
            raise _damaged(path, name)
        return pa.concat_arrays(records.chunks).flatten()
    except DAMAGE:
        raise _damaged(path, name) from None


def _damaged(path: str, name: str) -> ReportError:
    return ReportError(f"{path}: a damaged digest (table {name})", MAKE_AGAIN)


def _check_values(path: str, name: str, frame: pl.DataFrame) -> None:
    """Refuse what would send the arithmetic out of bounds: times and counts beyond belief."""
    for column in frame.columns:
        if frame.schema[column] != pl.Int64 or column in ("launch_tid", "context", "stream"):
            continue
        values = frame[column].drop_nulls().to_numpy()
        if values.size and (int(values.min()) < -_LONGEST_NS or int(values.max()) > _LONGEST_NS):
            raise _damaged(path, name)
        if values.size and column in ("ns", "count", "collective", "step") and int(values.min()) < 0:
            raise _damaged(path, name)
    if {"start_ns", "end_ns"} <= set(frame.columns):
        start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
        if frame["start_ns"].null_count() or frame["end_ns"].null_count() or np.any(end < start):
            raise _damaged(path, name)
