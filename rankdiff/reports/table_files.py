"""The file of one table, Parquet or Arrow: its columns, its number of rows, and its rows as a stream."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from rankdiff.reports.reader import BLOB, INTEGER, TEXT

_ROWS_AT_ONCE = 20_000
_ARROW_FILE = b"ARROW1"
_BYTES_OF = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}

Batches = Callable[[list[str]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class TableFile:
    """One table.

    Attributes
    ----------
    schema : pyarrow.Schema
        Names and types as in the file.
    batches : callable
        Reads some columns anew.
    """

    path: str
    is_parquet: bool
    schema: pa.Schema
    rows: int
    batches: Batches

    def stream(self, names: Sequence[str], raw: Sequence[str]) -> pa.RecordBatchReader:
        """Some columns as INTEGER, TEXT, BLOB or, where none of these fits, as they are.

        Parameters
        ----------
        names : sequence of str
        raw : sequence of str
            Columns of text whose bytes are wanted.
        """
        # Without a column a batch would have no rows.
        wanted = list(names) or [self.schema.names[0]]
        types = [BLOB if name in raw else _plain(self.schema.field(name).type) for name in wanted]
        schema = pa.schema(list(zip(wanted, types, strict=True)))

        def plain() -> Iterator[pa.RecordBatch]:
            for batch in self.batches(wanted):
                arrays = [_as(batch.column(n), kind) for n, kind in zip(wanted, types, strict=True)]
                yield pa.record_batch(arrays, schema=schema)

        return pa.RecordBatchReader.from_batches(schema, plain())


def open_table(path: str) -> TableFile:
    """Open the file of a table.

    Raises
    ------
    OSError, pyarrow.ArrowException
        When it cannot be read or is damaged.
    """
    with open(path, "rb") as file:
        head = file.read(len(_ARROW_FILE))
    if path.endswith(".parquet"):
        with _source(path) as source, pa.parquet.ParquetFile(source) as parquet:
            schema = _checked(parquet.schema_arrow)
            return TableFile(path, True, schema, parquet.metadata.num_rows, _parquet(path))
    batches = _arrow_file(path) if head == _ARROW_FILE else _arrow_stream(path)
    with _source(path) as source:
        opened = pa.ipc.open_file(source) if head == _ARROW_FILE else pa.ipc.open_stream(source)
        schema = _checked(opened.schema)
    return TableFile(path, False, schema, sum(batch.num_rows for batch in batches(schema.names)), batches)


def _checked(schema: pa.Schema) -> pa.Schema:
    if not schema.names or len(set(schema.names)) < len(schema.names):
        raise pa.ArrowInvalid("no columns, or two of one name")
    return schema


def kind_of(kind: pa.DataType) -> pa.DataType | None:
    """INTEGER, TEXT or BLOB, whichever a type of a file stands for; None for another type."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    # A column of nothing but nulls may have no type; it fits anything.
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return INTEGER
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return TEXT
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return BLOB
    return None


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind_of(kind) or (kind.value_type if pa.types.is_dictionary(kind) else kind)


def _as(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values as INTEGER, TEXT or BLOB; text that is not UTF-8 as well as it can be read.

    Arrow trusts the offsets in a file, so they are checked before anybody follows them.
    """
    if pa.types.is_dictionary(values.type):
        return _as(values.dictionary, kind).take(values.indices)
    as_bytes = _BYTES_OF.get(values.type)
    plain = values if as_bytes is None else values.view(as_bytes)
    plain.validate(full=True)
    if kind == INTEGER:
        return values.cast(kind, safe=values.type != pa.uint64())  # the same bits, as in SQLite
    if kind == BLOB:
        return plain.cast(BLOB)
    if kind != TEXT:
        return values
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        texts = [None if raw is None else raw.decode("utf-8", "replace") for raw in plain.to_pylist()]
        return pa.array(texts, TEXT)
    return values.cast(TEXT)


def _source(path: str) -> pa.NativeFile:
    return pa.OSFile(os.fsencode(path))  # bytes: a path need not be UTF-8


def _parquet(path: str) -> Batches:
    def batches(names: list[str]) -> Iterator[pa.RecordBatch]:
        with _source(path) as source, pa.parquet.ParquetFile(source) as file:
            yield from file.iter_batches(_ROWS_AT_ONCE, columns=names)

    return batches


def _arrow_file(path: str) -> Batches:
    def batches(names: list[str]) -> Iterator[pa.RecordBatch]:
        with _source(path) as source:
            file = pa.ipc.open_file(source)
            for number in range(file.num_record_batches):
                yield file.get_batch(number).select(names)

    return batches


def _arrow_stream(path: str) -> Batches:
    def batches(names: list[str]) -> Iterator[pa.RecordBatch]:
        with _source(path) as source:
            for batch in pa.ipc.open_stream(source):
                yield batch.select(names)

    return batches
