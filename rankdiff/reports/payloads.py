"""NCCL's NVTX payloads: communicator, message size, root and peer of each call.

A blob is a header of four u64 (domain, schema, size, offset of the data) and then the fields of the schema,
little endian. Fields are found by the *name* of their schema entry: schema numbers have changed meaning
between versions of NCCL, names have not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from rankdiff.reports.reader import INTEGER, TEXT, Reader, unless_damaged

COMM, BYTES, ROOT, PEER = "NCCL communicator ID", "Message size [bytes]", "Root", "Peer rank"
_HEADER_BYTES = 32
_FOUR_BYTES = frozenset({5, 6, 15, 16})  # entry types int, unsigned, int32, uint32; the others here are of 8

# One row per payload, in the order of the input.
PAYLOADS = pl.Schema(
    {
        "comm": pl.String,  # 16 hex digits; null: not in the payload
        "bytes": pl.Int64,
        "root": pl.Int64,
        "peer": pl.Int64,
    }
)

Layouts = Mapping[tuple[int, int], Mapping[str, tuple[int, int]]]


def read_layouts(reader: Reader) -> Layouts:
    """Where the fields of each schema are: (domain, schema) to entry name to (offset, bytes).

    The rows are repeated for every process, and a missing offset means 0.
    """
    return unless_damaged(reader, _layouts, {})  # without payloads communicators are inferred


def _layouts(reader: Reader) -> Layouts:
    table = reader.read(
        "NVTX_PAYLOAD_SCHEMA_ENTRIES",
        {"domainId": INTEGER, "schemaId": INTEGER, "type": INTEGER, "name": TEXT, "offset": INTEGER},
        where='"name" IN (?, ?, ?, ?)',
        parameters=(COMM, BYTES, ROOT, PEER),
    )
    layouts: dict[tuple[int, int], dict[str, tuple[int, int]]] = {}
    for row in table.to_pylist():
        if row["name"] is None or row["domainId"] is None or row["schemaId"] is None:
            continue  # another version's spelling of a column, or a broken row
        size = 4 if row["type"] in _FOUR_BYTES else 8
        layouts.setdefault((row["domainId"], row["schemaId"]), {})[row["name"]] = (row["offset"] or 0, size)
    return layouts


def decode_blobs(blobs: pa.Array, layouts: Layouts) -> pl.DataFrame:
    """Decode payload blobs.

    Parameters
    ----------
    blobs : (n,) pyarrow binary
        Null where a call has no payload.
    layouts : mapping
        From `read_layouts`.

    Returns
    -------
    polars.DataFrame
        n rows of PAYLOADS; null where a blob is too short, of an unknown schema or lacks the field.
    """
    values: dict[str, np.ndarray[Any, Any]] = {}
    valid: dict[str, np.ndarray[Any, Any]] = {}
    for name in (COMM, BYTES, ROOT, PEER):
        values[name] = np.zeros(len(blobs), np.uint64 if name == COMM else np.int64)
        valid[name] = np.zeros(len(blobs), np.bool_)
    present = np.flatnonzero(np.asarray(blobs.is_valid()))
    if present.size and layouts:
        data, offsets = _buffer(blobs)
        length = offsets[1:] - offsets[:-1]
        present = present[length[present] >= _HEADER_BYTES]
        header = data[offsets[present][:, None] + np.arange(_HEADER_BYTES)].view("<u8")
        for (domain, schema), fields in layouts.items():
            of_schema = (header[:, 0] == domain) & (header[:, 1] == schema)
            rows = present[of_schema]
            start = header[of_schema, 3].astype(np.int64)
            for name, (offset, size) in fields.items():
                at = start + offset
                fits = (at >= _HEADER_BYTES) & (at <= length[rows] - size)  # a sum could overflow
                chosen = rows[fits]
                raw = data[(offsets[chosen] + at[fits])[:, None] + np.arange(size)]
                kind = "<i4" if size == 4 else "<u8" if name == COMM else "<i8"
                values[name][chosen] = raw.view(kind).ravel()
                valid[name][chosen] = True
    return pl.DataFrame(
        {
            "comm": _hex(values[COMM], valid[COMM]),
            "bytes": _nullable(values[BYTES], valid[BYTES] & (values[BYTES] >= 0)),
            "root": _nullable(values[ROOT], valid[ROOT]),
            "peer": _nullable(values[PEER], valid[PEER]),
        },
        schema=PAYLOADS,
    )


def decode_json(texts: list[str | None]) -> pl.DataFrame:
    """Decode payloads exported as JSON: distinct texts, of which there are few.

    Returns
    -------
    polars.DataFrame
        n rows of PAYLOADS; null for a text that is no payload of NCCL's.
    """
    rows = []
    for text in texts:
        fields: dict[str, int] = {}
        try:
            _collect(json.loads(text) if text else None, fields)
        except (ValueError, RecursionError):
            fields = {}
        comm = fields.get(COMM)
        rows.append(
            {
                "comm": None if comm is None else f"{comm & (1 << 64) - 1:016x}",
                "bytes": _signed(fields.get(BYTES)),
                "root": _signed(fields.get(ROOT)),
                "peer": _signed(fields.get(PEER)),
            }
        )
    return pl.DataFrame(rows, schema=PAYLOADS)


def _collect(node: Any, fields: dict[str, int]) -> None:
    """Find the known fields at any depth; also as {"name": ..., "value": ...} pairs."""
    if isinstance(node, dict):
        pair = node.get("name"), node.get("value")
        for name, value in (*node.items(), pair):
            if name in (COMM, BYTES, ROOT, PEER) and (number := _integer(value)) is not None:
                fields.setdefault(name, number)
            elif isinstance(value, dict | list):
                _collect(value, fields)
    elif isinstance(node, list):
        for value in node:
            _collect(value, fields)


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return None
    return value if isinstance(value, int) and -(1 << 63) <= value < 1 << 64 else None


def _signed(value: int | None) -> int | None:
    return value if value is not None and value < 1 << 63 else None


def _buffer(blobs: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    if not len(blobs):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, offsets, data = blobs.buffers()
    where = np.frombuffer(offsets, np.int32, len(blobs) + 1, blobs.offset * 4).astype(np.int64)
    return np.frombuffer(data if data is not None else b"", np.uint8), where


def _nullable(values: np.ndarray[Any, Any], valid: np.ndarray[Any, Any]) -> pl.Series:
    return pl.Series(pa.array(values, pa.int64(), mask=~valid))


def _hex(values: np.ndarray[Any, Any], valid: np.ndarray[Any, Any]) -> pl.Series:
    distinct, which = np.unique(values, return_inverse=True)
    words = pa.array([f"{int(value):016x}" for value in distinct], pa.string())
    return pl.Series(words.take(pa.array(which, mask=~valid)))
