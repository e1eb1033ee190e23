"""Payload blobs and their JSON twins, whole and damaged."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdiff.reports.payloads import (
    BYTES,
    COMM,
    PAYLOADS,
    PEER,
    ROOT,
    decode_blobs,
    decode_json,
    read_layouts,
)
from rankdiff.reports.sqlite import SqliteReader
from rankdiff.simulation import Call, Export

LAYOUTS = {
    (1, 5): {COMM: (0, 8), BYTES: (8, 8)},
    (1, 6): {COMM: (0, 8), BYTES: (8, 8), ROOT: (16, 4)},
    (1, 9): {BYTES: (8, 8), COMM: (0, 8), PEER: (16, 4)},
}


def blob(schema, *fields, domain=1, offset=32):
    return struct.pack("<QQQQ", domain, schema, 24, offset) + b"".join(fields)


def u64(value):
    return struct.pack("<Q", value)


def decode(*blobs):
    return decode_blobs(pa.array(blobs, pa.binary()), LAYOUTS).rows()


def test_fields_by_name():
    top = (1 << 64) - 1
    assert decode(
        blob(5, u64(top), u64(4096), u64(0)),
        None,
        blob(6, u64(0xAB), u64(1), struct.pack("<i", -1)),
        blob(9, u64(7), u64(2), struct.pack("<ii", 3, 718)),
    ) == [
        ("f" * 16, 4096, None, None),
        (None, None, None, None),
        ("00000000000000ab", 1, -1, None),
        ("0000000000000007", 2, None, 3),
    ]


def test_data_where_the_header_says():
    assert decode(blob(5, bytes(8), u64(1), u64(2), offset=40))[0][:2] == ("0000000000000001", 2)


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"\x01",
        blob(5)[:31],
        blob(5),
        blob(5, u64(1), u64(2), offset=1 << 62),
        blob(5, u64(1), u64(2), offset=(1 << 64) - 8),
        blob(5, u64(1), u64(2), offset=0),
        blob(99, u64(1), u64(2)),
        blob(5, u64(1), u64(2), domain=2),
    ],
)
def test_broken_blobs(broken):
    whole = blob(5, u64(1), u64(2))
    assert decode(whole, broken, whole) == [
        ("0000000000000001", 2, None, None),
        (None, None, None, None),
        ("0000000000000001", 2, None, None),
    ]


def test_a_blob_cut_inside_its_fields():
    assert decode(blob(5, u64(1), u64(2))[:-1]) == [("0000000000000001", None, None, None)]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=60)), max_size=6))
def test_any_bytes(blobs):
    frame = decode_blobs(pa.array(blobs, pa.binary()), LAYOUTS)
    assert frame.schema == PAYLOADS
    assert frame.height == len(blobs)


def test_a_slice_of_an_array():
    blobs = pa.array([None, blob(5, u64(1), u64(2)), blob(5, u64(3), u64(4))], pa.binary())[1:]
    assert decode_blobs(blobs, LAYOUTS)["comm"].to_list() == ["0000000000000001", "0000000000000003"]


def test_layouts_of_a_file(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.group([Call("send", 1), Call("recv", 1)], [(100_000, 200_000, 20)])
        export.nccl("all_reduce", 300_000, 400_000, comm=2)
        export.process(99, 1).nccl("all_reduce", 300_000, 400_000, comm=2)
    with SqliteReader(export.path, "x") as reader:
        layouts = read_layouts(reader)
    assert {COMM: (0, 8), BYTES: (8, 8), PEER: (16, 4)} in layouts.values()
    assert {COMM: (0, 8), BYTES: (8, 8)} in layouts.values()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'{{"{COMM}": 18446744073709551615, "{BYTES}": 8}}', ("f" * 16, 8, None, None)),
        (f'{{"payload": [{{"{COMM}": "0xab", "{ROOT}": 2}}]}}', ("00000000000000ab", None, 2, None)),
        (
            f'[{{"name": "{COMM}", "value": 5}}, {{"name": "{PEER}", "value": 1}}]',
            ("0000000000000005", None, None, 1),
        ),
        (f'{{"{COMM}": null, "{BYTES}": "many", "{ROOT}": true}}', (None, None, None, None)),
        (f'{{"{COMM}": 36893488147419103232, "{BYTES}": 1.5}}', (None, None, None, None)),
        ("[" * 5000, (None, None, None, None)),
        ("{", (None, None, None, None)),
        ("3", (None, None, None, None)),
        (None, (None, None, None, None)),
    ],
)
def test_json(text, expected):
    assert decode_json([text]).rows() == [expected]
