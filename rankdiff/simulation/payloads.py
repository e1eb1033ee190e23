"""NCCL's NVTX payloads as nsys stores them: schema rows and blobs.

Layouts of NCCL 2.25 and later (``src/include/nvtx_payload_schemas.h``), as real exports of NCCL 2.28 hold
them: a blob is four little-endian u64 (domain, schema, payload size, payload offset), then the fields; the
bytes between the last field and the payload size are whatever lay in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

Cell = int | str | None

COMM = "NCCL communicator ID"
SIZE = "Message size [bytes]"
PEER = "Peer rank"
ROOT = "Root"
REDOP = "Reduction operation"

_BASE = 1 << 24  # added to NCCL's own static schema numbers
REDOP_ENUM = _BASE + 20  # NCCL 2.28
REDOPS = ("Sum", "Product", "Max", "Min", "Avg")
_INT32, _UINT64, _SIZE_T = 5, 18, 22
_FORMATS = {_INT32: "<i", _UINT64: "<Q", _SIZE_T: "<Q", REDOP_ENUM: "<i"}
_HEADER = struct.Struct("<4Q")
_PADDING = b"\xff\x7f\x00\x00"  # seen in real blobs: not zero, and not a field


class Field(NamedTuple):
    """One field of a payload."""

    name: str
    type: int
    offset: int


class Layout(NamedTuple):
    """The payload of one NCCL call."""

    schema: int
    size: int
    fields: tuple[Field, ...]


def _layout(number: int, size: int, *tail: tuple[str, int]) -> Layout:
    fields = [Field(COMM, _UINT64, 0)]
    offset = 8
    for name, kind in tail:
        fields.append(Field(name, kind, offset))
        offset += 4 if _FORMATS[kind] == "<i" else 8
    return Layout(_BASE + number, size, tuple(fields))


_BYTES = (SIZE, _SIZE_T)
_INIT = (("No. of ranks", _INT32), ("Rank", _INT32), ("CUDA device", _INT32))

# By NCCL call, which is also the name of its NVTX range.
LAYOUTS = {
    "ncclAllGather": _layout(4, 16, _BYTES),
    "ncclAllReduce": _layout(5, 24, _BYTES, (REDOP, REDOP_ENUM)),
    "ncclBroadcast": _layout(6, 24, _BYTES, (ROOT, _INT32)),
    "ncclReduceScatter": _layout(7, 24, _BYTES, (REDOP, REDOP_ENUM)),
    "ncclReduce": _layout(8, 24, _BYTES, (ROOT, _INT32), (REDOP, REDOP_ENUM)),
    "ncclSend": _layout(9, 24, _BYTES, (PEER, _INT32)),
    "ncclRecv": _layout(10, 24, _BYTES, (PEER, _INT32)),
    "ncclCommInitRankConfig": _layout(11, 24, *_INIT),
    "ncclAlltoAll": _layout(16, 16, _BYTES),
    "ncclGather": _layout(17, 24, _BYTES, (ROOT, _INT32)),
    "ncclScatter": _layout(18, 24, _BYTES, (ROOT, _INT32)),
}


def encode_payload(call: str, values: Mapping[str, int], *, domain: int = 1) -> bytes:
    """Return the blob of one NCCL call; fields that `values` does not name are 0."""
    layout = LAYOUTS[call]
    body = bytearray(layout.size)
    used = 0
    for field in layout.fields:
        struct.pack_into(_FORMATS[field.type], body, field.offset, values.get(field.name, 0))
        used = field.offset + struct.calcsize(_FORMATS[field.type])
    body[used:] = _PADDING[: layout.size - used]
    return _HEADER.pack(domain, layout.schema, layout.size, _HEADER.size) + bytes(body)


def decode_payload(call: str, blob: bytes) -> dict[str, int]:
    """Return the fields of a blob by name.

    Raises
    ------
    ValueError
        When the header is not the one of this call.
    """
    layout = LAYOUTS[call]
    _, schema, size, offset = _HEADER.unpack_from(blob)
    if (schema, size, offset) != (layout.schema, layout.size, _HEADER.size) or len(blob) != offset + size:
        raise ValueError(f"{call}: header {schema}, {size}, {offset} of {len(blob)} bytes")
    return {
        field.name: struct.unpack_from(_FORMATS[field.type], blob, offset + field.offset)[0]
        for field in layout.fields
    }


def schema_rows(call: str, domain: int) -> Iterator[tuple[str, dict[str, Cell]]]:
    """Yield (table, row) of everything an export says about the payload of one call."""
    layout = LAYOUTS[call]
    key: dict[str, Cell] = {"domainId": domain, "schemaId": layout.schema}
    count = len(layout.fields)
    yield (
        "NVTX_PAYLOAD_SCHEMAS",
        {**key, "type": 1, "numEntries": count, "payloadSize": layout.size},
    )
    for number, field in enumerate(layout.fields):
        row: dict[str, Cell] = {
            "idx": number,
            "type": field.type,
            "name": field.name,
            "offset": field.offset or None,
        }
        yield "NVTX_PAYLOAD_SCHEMA_ENTRIES", {**key, **row}


def enum_rows(domain: int) -> Iterator[tuple[str, dict[str, Cell]]]:
    """Yield (table, row) of the enumeration of reduction operations."""
    key: dict[str, Cell] = {"domainId": domain, "schemaId": REDOP_ENUM}
    yield "NVTX_PAYLOAD_ENUMS", {**key, "numEntries": len(REDOPS), "size": 4}
    for number, name in enumerate(REDOPS):
        row: dict[str, Cell] = {"idx": number, "name": name, "value": number or None}
        yield "NVTX_PAYLOAD_ENUM_ENTRIES", {**key, **row}
