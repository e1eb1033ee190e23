"""How fast large SQLite exports are read: the page reader, SQLite alone, and the bytes of the file.

    python -m benchmarks.reader REPORT...                  time the reading of each, as it is
    python -m benchmarks.reader REPORT --megabytes 400     ... repeated in time until it has that size
    python -m benchmarks.reader REPORT... --megabytes 400 --keep DIR   and keep the larger reports

All in one run, in turn, so that a busy machine slows all alike: look at the ratios. Tables and filters are those
of `rankdiff compare`: kernels, CUDA calls, and the OS calls of the threads that launch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from rankdiff.reports import sqlite as product
from rankdiff.reports.filters import Filter
from rankdiff.reports.nsys import KERNEL, RUNTIME, SHAPE
from rankdiff.reports.nvtx import NVTX
from rankdiff.reports.reader import INTEGER
from rankdiff.reports.sqlite import SqliteReader
from rankdiff.reports.threads import OSRT

_KERNEL_COLUMNS = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
_API_COLUMNS = ("start", "end", "globalTid", "correlationId", "nameId")
_OSRT_COLUMNS = ("start", "end", "globalTid", "nameId")
_OS_CALL = 27
_REPEATED = (KERNEL, RUNTIME, OSRT, NVTX, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
_ROUNDS = 5
_PAUSE_NS = 1_000_000  # between two repetitions


def _tables(db: sqlite3.Connection) -> list[str]:
    there = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return [table for table in _REPEATED if table in there]


def period_ns(reports: Sequence[Path]) -> int:
    """Length of the longest recording, and a pause: ranks of a job must be repeated alike."""
    longest = 0
    for report in reports:
        with closing(sqlite3.connect(f"{report.resolve().as_uri()}?mode=ro", uri=True)) as db:
            spans = [
                db.execute(f"SELECT min(start), max(coalesce(end, start)) FROM {table}").fetchone()
                for table in _tables(db)
            ]
        known = [span for span in spans if None not in span]
        longest = max(longest, max(last for _, last in known) - min(first for first, _ in known))
    return longest + _PAUSE_NS


def enlarge(report: Path, to: Path, times: int, period: int) -> None:
    """Repeat what a report recorded, one time after the other.

    Times move by the period and correlation ids by their number.
    """
    shutil.copyfile(report, to)
    os.chmod(to, 0o644)
    with closing(sqlite3.connect(to)) as db:
        tables = _tables(db)
        (most,) = db.execute(f"SELECT max(correlationId) FROM {RUNTIME}").fetchone()
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        for table in tables:
            names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            moved = {name: f"t.{name} + n.i * {period}" for name in ("start", "end") if name in names}
            if "correlationId" in names:
                moved["correlationId"] = f"t.correlationId + n.i * {most + 1}"
            columns = ", ".join(moved.get(name, f"t.{name}") for name in names)
            db.execute(
                f"INSERT INTO {table} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n "
                f"WHERE i < {times}) SELECT {columns} FROM n CROSS JOIN (SELECT * FROM {table}) t"
            )
            db.commit()


def reads(reader: SqliteReader) -> list[pa.Table]:
    """Read the large tables as `rankdiff compare` does."""
    threads = reader.query(f"SELECT DISTINCT globalTid FROM {RUNTIME} LIMIT 64", (), RUNTIME)
    mine = Filter("globalTid", "in", tuple(thread for (thread,) in threads if thread is not None))
    return [
        reader.read(KERNEL, dict.fromkeys((*_KERNEL_COLUMNS, "shortName", *SHAPE), INTEGER)),
        reader.read(RUNTIME, dict.fromkeys(_API_COLUMNS, INTEGER)),
        reader.read(
            OSRT,
            dict.fromkeys(_OSRT_COLUMNS, INTEGER),
            filters=(Filter("eventClass", "in", (_OS_CALL,)), mine),
        ),
    ]


def _with_pages(path: Path) -> list[pa.Table]:
    with SqliteReader(str(path), path.name) as reader:
        return reads(reader)


def _without(path: Path) -> list[pa.Table]:
    least, product.LEAST_BYTES = product.LEAST_BYTES, 1 << 62
    try:
        return _with_pages(path)
    finally:
        product.LEAST_BYTES = least


def _bytes(path: Path) -> list[pa.Table]:
    buffer = bytearray(4 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return []


WAYS: dict[str, Callable[[Path], list[pa.Table]]] = {
    "page reader": _with_pages,
    "sqlite3": _without,
    "bytes alone": _bytes,
}


def measure(path: Path, rounds: int) -> None:
    """Time all ways in turn and print their medians."""
    fast, slow = _with_pages(path), _without(path)  # also compiles, and brings the file into memory
    rows = sum(table.num_rows for table in fast)
    same = all(one.equals(other) for one, other in zip(fast, slow, strict=True))
    del fast, slow
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            began = time.perf_counter()
            way(path)
            taken[name].append(time.perf_counter() - began)
    print(f"{path.name}: {path.stat().st_size >> 20} MiB, {rows} rows, {'equal' if same else 'NOT EQUAL'}")
    first = statistics.median(taken["page reader"])
    for name, seconds in taken.items():
        middle = statistics.median(seconds)
        memory = _peak(path, name)
        print(f"  {name:12} {middle:8.3f} s  {middle / first:7.2f} x  peak {memory} MiB")


def _peak(path: Path, way: str) -> int:
    """Largest memory of a process that reads once, in MiB."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.reader", "--peak", way, str(path)],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reader", description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, nargs="+")
    parser.add_argument("--megabytes", type=int, help="repeat each report in time up to this size")
    parser.add_argument("--keep", type=Path, help="folder for the larger reports")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument(
        "--peak", choices=list(WAYS), help="only read, in this way, and print the largest memory"
    )
    chosen = parser.parse_args(arguments)
    if chosen.peak:
        kept = WAYS[chosen.peak](chosen.report[0])
        # Not getrusage: its largest memory is that of the parent where that had more.
        status = Path("/proc/self/status").read_text()
        print(next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmHWM")))
        del kept
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        largest = max(report.stat().st_size for report in chosen.report)
        for report in chosen.report:
            path = report
            if chosen.megabytes:
                path = folder / report.name
                times = max(2, (chosen.megabytes << 20) // largest)
                enlarge(report, path, times, period_ns(chosen.report))
            if chosen.rounds:
                measure(path, chosen.rounds)


if __name__ == "__main__":
    main()
