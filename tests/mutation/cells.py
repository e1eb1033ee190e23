"""Mutations of values: cells of the tables of an export."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from typing import Any

import numpy as np

Rng = np.random.Generator
TIMES = {"start", "end", "timestamp", "utcEpochNs"}

# What the product reads, often; everything else now and then.
READ = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "NVTX_EVENTS",
    "NVTX_EVENTS",
    "OSRT_API",
    "PROFILER_OVERHEAD",
    "StringIds",
    "META_DATA_CAPTURE",
    "META_DATA_EXPORT",
    "NVTX_PAYLOAD_SCHEMAS",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
    "TARGET_INFO_SESSION_START_TIME",
    "TARGET_INFO_SYSTEM_ENV",
    "TARGET_INFO_CUDA_DEVICE",
    "TARGET_INFO_GPU",
    "DIAGNOSTIC_EVENT",
)
COLUMNS = {  # of the large tables, those that are read; of the others any
    "CUPTI_ACTIVITY_KIND_KERNEL": "start end deviceId contextId streamId correlationId globalPid shortName gridX",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end globalTid correlationId nameId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start end deviceId streamId correlationId globalPid bytes copyKind srcKind",
    "NVTX_EVENTS": "start end eventType globalTid domainId textId text binaryData",
    "OSRT_API": "start end eventClass globalTid nameId nestingLevel",
}


def tables(db: sqlite3.Connection) -> list[str]:
    """Tables with rows."""
    rows = db.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name"
    )
    return [n for (n,) in rows.fetchall() if db.execute(f'SELECT 1 FROM "{n}" LIMIT 1').fetchone()]


def pick_table(db: sqlite3.Connection, rng: Rng) -> str:
    """A table with rows, mostly one that is read."""
    there = tables(db)
    wanted = [t for t in READ if t in there] if rng.random() < 0.95 else there
    return str(rng.choice(wanted or there))


def columns(db: sqlite3.Connection, table: str) -> list[str]:
    """Names of a table's columns."""
    return [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]


def pick_column(db: sqlite3.Connection, table: str, rng: Rng) -> str:
    """A column, mostly one that is read."""
    there = columns(db, table)
    wanted = [c for c in COLUMNS.get(table, "").split() if c in there]
    return str(rng.choice(wanted if wanted and rng.random() < 0.95 else there))


def pick_rows(db: sqlite3.Connection, table: str, rng: Rng) -> list[int]:
    """Row ids: a few, a run of them, a part, or all."""
    ids = [row[0] for row in db.execute(f'SELECT rowid FROM "{table}" ORDER BY rowid') if row[0] is not None]
    if not ids:  # a file garbled before
        return []
    how = rng.integers(5)
    if how == 0:
        return [int(x) for x in rng.choice(ids, min(len(ids), int(rng.integers(1, 6))), replace=False)]
    if how == 1:
        at, length = int(rng.integers(len(ids))), int(rng.integers(1, len(ids) + 1))
        return ids[at : at + length]
    if how in (2, 3):
        part = rng.random() ** 2
        return [i for i, u in zip(ids, rng.random(len(ids)), strict=True) if u < part]
    return ids


def free(db: sqlite3.Connection, table: str) -> None:
    """Make a table again without its constraints, so that any value goes in; an id column loses its meaning as key."""
    sql = db.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
    bare = re.sub(r"--[^\n]*", "", sql)
    bare = re.sub(r"\b(NOT\s+NULL|PRIMARY\s+KEY|UNIQUE|AUTOINCREMENT)\b", "", bare, flags=re.IGNORECASE)
    db.execute(f'ALTER TABLE "{table}" RENAME TO mutated_away')
    db.execute(bare)
    db.execute(f'INSERT INTO "{table}" SELECT * FROM mutated_away ORDER BY rowid')
    db.execute("DROP TABLE mutated_away")


_HUGE = 2**63 - 1
VALUES: tuple[tuple[str, Callable[[Rng], Any]], ...] = (
    ("zero", lambda _: 0),
    ("minus one", lambda _: -1),
    ("largest", lambda _: _HUGE),
    ("near the largest", lambda r: _HUGE - int(r.integers(1, 10**10))),
    ("smallest", lambda _: -(2**63)),
    ("near the smallest", lambda r: -(2**63) + int(r.integers(1, 10**10))),
    ("2^62", lambda _: 2**62),
    ("time of the day", lambda r: 1_700_000_000_000_000_000 + int(r.integers(10**10))),
    ("32 bits", lambda _: 2**32),
    ("any", lambda r: int(r.integers(-(2**63), 2**63 - 1))),
    ("small", lambda r: int(r.integers(-3, 100))),
    ("within the capture", lambda r: int(r.integers(0, 3 * 10**9))),
    ("real", lambda r: float(r.normal() * 10.0 ** int(r.integers(0, 20)))),
    ("infinity", lambda _: float("inf")),
    ("text", lambda r: "".join(chr(int(x)) for x in r.integers(1, 0x2FF, 8))),
    ("number as text", lambda r: f"{int(r.integers(10**9))}x"),
    ("text with NUL", lambda _: "a\x00b"),
    ("long text", lambda r: "long" * int(r.integers(10, 50_000))),
    ("blob", lambda r: r.bytes(int(r.integers(0, 200)))),
    ("null", lambda _: None),
)


def overwrite(db: sqlite3.Connection, rng: Rng) -> tuple[str, str]:
    """Write one kind of value into a column; returns (effect, words)."""
    table = pick_table(db, rng)
    column = pick_column(db, table, rng)
    kind, make = VALUES[int(rng.integers(len(VALUES)))]
    rows = pick_rows(db, table, rng)
    one = make(rng) if rng.random() < 0.5 else None
    free(db, table)
    rows = _again(db, table, rows)
    db.executemany(
        f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?',
        [(make(rng) if one is None else one, row) for row in rows],
    )
    return _effect(table, column, kind), f"{len(rows)} x {table}.{column} = {kind}"


def _again(db: sqlite3.Connection, table: str, rows: list[int]) -> list[int]:
    """Row ids after `free`, which numbers rows from 1 on."""
    count = db.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
    return rows if rows and max(rows) <= count else [1 + r % count for r in rows] if count else []


def _effect(table: str, column: str, kind: str) -> str:
    if kind == "null":
        return "removed"
    return "times" if column in TIMES or (table, column) in _CLOCK else "labels"


# Values that decide what time an event has: the shift of the export, and the names of the rows holding it.
_CLOCK = {("META_DATA_EXPORT", "value"), ("META_DATA_EXPORT", "name")}


def from_another_row(db: sqlite3.Connection, rng: Rng) -> tuple[str, str]:
    """Give rows the value that another row has."""
    table = pick_table(db, rng)
    column = pick_column(db, table, rng)
    rows = pick_rows(db, table, rng)
    free(db, table)
    rows = _again(db, table, rows)
    values = [row[0] for row in db.execute(f'SELECT "{column}" FROM "{table}" ORDER BY rowid')]
    db.executemany(
        f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?',
        [(values[int(rng.integers(len(values)))], row) for row in rows],
    )
    return _effect(table, column, ""), f"{len(rows)} x {table}.{column} shuffled"


def one_id(db: sqlite3.Connection, rng: Rng) -> tuple[str, str]:
    """Give many rows of kernels or calls one correlation id."""
    table = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME")[int(rng.integers(2))]
    rows = pick_rows(db, table, rng)
    db.executemany(f"UPDATE {table} SET correlationId = 77 WHERE rowid = ?", [(r,) for r in rows])
    return "labels", f"{len(rows)} x {table}.correlationId = 77"


def move(db: sqlite3.Connection, rng: Rng) -> tuple[str, str]:
    """Turn intervals around, stretch, shift, collapse or blur them."""
    timed = [t for t in READ if t in tables(db) and {"start", "end"} <= set(columns(db, t))]
    table = str(rng.choice(timed))
    rows = pick_rows(db, table, rng)
    free(db, table)
    rows = _again(db, table, rows)
    by = int(10 ** rng.uniform(3, 17)) * int(rng.choice([-1, 1]))
    words, sql = (
        ("turned around", '"start" = "end", "end" = "start"'),
        (f"end {by:+}", f'"end" = "end" + ({by})'),
        (f"shifted {by:+}", f'"start" = "start" + ({by}), "end" = "end" + ({by})'),
        (f"start {by:+}", f'"start" = "start" + ({by})'),
        ("without length", '"end" = "start"'),
        ("in whole ms", '"start" = "start" / 1000000 * 1000000, "end" = "end" / 1000000 * 1000000'),
        ("stretched", '"start" = "start" * 3, "end" = "end" * 3'),
    )[int(rng.integers(7))]
    db.executemany(f'UPDATE "{table}" SET {sql} WHERE rowid = ?', [(r,) for r in rows])
    return "times", f"{len(rows)} x {table} {words}"


def garble_payloads(db: sqlite3.Connection, rng: Rng) -> tuple[str, str]:
    """Change bytes of NCCL's payloads, header or fields, or their length."""
    rows = db.execute("SELECT rowid, binaryData FROM NVTX_EVENTS WHERE binaryData IS NOT NULL").fetchall()
    how = int(rng.integers(5))
    part = rng.random()
    changed = []
    for row, blob in rows:
        if rng.random() > part:
            continue
        data = bytearray(blob if isinstance(blob, bytes) else str(blob).encode("utf-8", "replace"))
        if how == 0:
            data = data[: int(rng.integers(len(data) + 1))]
        elif how == 1:
            data[int(rng.integers(max(1, len(data) // 2))) % max(1, len(data)) :][:1] = b"\xff"
        elif how == 2:
            data = bytearray(rng.bytes(len(data)))
        elif how == 3:
            data[24:32] = rng.bytes(8)
        else:
            data += rng.bytes(int(rng.integers(1, 100)))
        changed.append((bytes(data), row))
    db.executemany("UPDATE NVTX_EVENTS SET binaryData = ? WHERE rowid = ?", changed)
    words = ("cut", "one byte", "random", "offset random", "longer")[how]
    return "labels", f"{len(changed)} payloads {words}"


CELLS = (overwrite, overwrite, overwrite, overwrite, from_another_row, one_id, move, move, garble_payloads)
