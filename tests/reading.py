"""Exports read back with sqlite3 alone, to hold them against what a test wrote; and what rankdiff keeps of one."""

from __future__ import annotations

import dataclasses
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl

from rankdiff.reports.tables import ReportTables

KERNELS = """
    SELECT k.start, k."end", s.value, k.streamId, k.correlationId, k.globalPid, k.gridX
    FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.shortName
    ORDER BY k.start, k.correlationId
"""
LAUNCHES = """
    SELECT k.start, r.start, r."end", r.globalTid, s.value
    FROM CUPTI_ACTIVITY_KIND_KERNEL k
    JOIN StringIds s ON s.id = k.shortName
    JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
      ON r.correlationId = k.correlationId AND r.globalTid / 16777216 = k.globalPid / 16777216
"""
RANGES = """
    SELECT e.start, e."end", coalesce(s.value, e.text), e.globalTid, e.binaryData, e.domainId
    FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId
    WHERE e.eventType IN (59, 60) ORDER BY e.start
"""


def rows(path: Path, query: str) -> list[Any]:
    """Return the rows of a query on a file."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as base:
        return base.execute(query).fetchall()


def table_set(path: Path) -> set[str]:
    """Return the names of the tables of a file."""
    return {name for (name,) in rows(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def nccl(path: Path) -> list[Any]:
    """Return the rows of `KERNELS` that are NCCL's."""
    return [row for row in rows(path, KERNELS) if row[2].lower().startswith("nccl")]


def ranges(path: Path, name: str) -> list[Any]:
    """Return the rows of `RANGES` of one name."""
    return [row for row in rows(path, RANGES) if row[2] == name]


def stored(tables: ReportTables) -> list[Any]:
    """Return everything that was read of a report, frames as their rows."""
    kept = [getattr(tables, each.name) for each in dataclasses.fields(tables) if each.name != "reader"]
    return [each.rows() if isinstance(each, pl.DataFrame) else each for each in kept]
