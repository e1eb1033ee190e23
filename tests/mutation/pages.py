"""Mutations of bytes: truncated, zeroed and garbled files, headers and journals."""

from __future__ import annotations

from pathlib import Path

from tests.mutation.cells import Rng


def truncate(path: Path, rng: Rng) -> tuple[str, str]:
    """Cut the file, at any byte or at a page; now and then with a header that agrees."""
    data = bytearray(path.read_bytes())
    size = _page(data)
    at = int(rng.integers(len(data)))
    if rng.random() < 0.5:
        at -= at % size
    if at > 100 and rng.random() < 0.5:
        data[28:32] = (at // size).to_bytes(4, "big")
    path.write_bytes(data[:at])
    return "removed", f"cut to {at} of {len(data)} bytes"


def zero(path: Path, rng: Rng) -> tuple[str, str]:
    """Zero pages: one, a few, or a run of them."""
    data = bytearray(path.read_bytes())
    size = _page(data)
    count = len(data) // size
    first, length = int(rng.integers(1, count)), int(rng.choice([1, 1, 2, 20, count // 2]))
    pages = range(first, min(count, first + length))
    if rng.random() < 0.3:
        pages = sorted({int(x) for x in rng.integers(1, count, length)})
    for p in pages:
        data[p * size : (p + 1) * size] = bytes(size)
    path.write_bytes(data)
    return "removed", f"{len(pages)} pages from {first} zeroed"


def garble(path: Path, rng: Rng) -> tuple[str, str]:
    """Overwrite bytes anywhere, or at the beginning of a page, where its structure is."""
    data = bytearray(path.read_bytes())
    size = _page(data)
    where = []
    for _ in range(int(rng.choice([1, 3, 30, 300]))):
        at = int(rng.integers(100, len(data) - 16))
        if rng.random() < 0.6:
            at = at - at % size + int(rng.integers(0, 40))
        length = int(rng.integers(1, 9))
        data[at : at + length] = rng.bytes(length)
        where.append(at)
    path.write_bytes(data)
    return "times", f"bytes garbled at {where[:4]}"


def schema_page(path: Path, rng: Rng) -> tuple[str, str]:
    """Garble the first page: the header's fields, or the table of tables."""
    data = bytearray(path.read_bytes())
    inside = range(16, 100) if rng.random() < 0.6 else range(100, _page(data))
    at = int(rng.choice(inside))
    data[at] = int(rng.choice([0, 1, 2, 3, 127, 255, int(rng.integers(256))]))
    path.write_bytes(data)
    return "times", f"byte {at} = {data[at]}"


def swap_pages(path: Path, rng: Rng) -> tuple[str, str]:
    """Exchange two pages."""
    data = bytearray(path.read_bytes())
    size = _page(data)
    a, b = (int(x) * size for x in rng.integers(1, len(data) // size, 2))
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
    path.write_bytes(data)
    return "times", f"pages at {a} and {b} exchanged"


def journal(path: Path, rng: Rng) -> tuple[str, str]:
    """Mark the file as written in WAL mode, with garbage as its log, or none; or lay a hot journal beside it."""
    data = bytearray(path.read_bytes())
    how = int(rng.integers(3))
    if how < 2:
        data[18:20] = b"\x02\x02"
        path.write_bytes(data)
    if how == 1:
        Path(f"{path}-wal").write_bytes(rng.bytes(int(rng.integers(1, 5000))))
    if how == 2:
        Path(f"{path}-journal").write_bytes(rng.bytes(int(rng.integers(1, 5000))))
    return "removed", ("WAL without log", "WAL with garbage", "garbage as journal")[how]


def longer(path: Path, rng: Rng) -> tuple[str, str]:
    """Append bytes."""
    with path.open("ab") as file:
        file.write(rng.bytes(int(rng.integers(1, 10_000))))
    return "removed", "bytes appended"


def _page(data: bytearray) -> int:
    size = int.from_bytes(data[16:18], "big")
    return 65536 if size == 1 else max(512, size)


PAGES = (truncate, truncate, zero, zero, garble, garble, schema_page, swap_pages, journal, longer)
