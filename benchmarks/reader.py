"""How fast large SQLite exports are read: the page reader, SQLite alone, and the bytes of the file.

    python -m benchmarks.reader REPORT...

All in one run, in turn, so that a busy machine slows all alike: look at the ratios. Tables and filters are those
of `rankdiff compare`: kernels, CUDA calls, and the OS calls of the threads that launch. `benchmarks.tile` makes large
reports.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from rankdiff.reports import sqlite as product
from rankdiff.reports.filters import Filter
from rankdiff.reports.nsys import KERNEL, RUNTIME, SHAPE
from rankdiff.reports.reader import INTEGER
from rankdiff.reports.sqlite import SqliteReader
from rankdiff.reports.threads import OSRT

KERNEL_COLUMNS = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
API_COLUMNS = ("start", "end", "globalTid", "correlationId", "nameId")
OSRT_COLUMNS = ("start", "end", "globalTid", "nameId")
_OS_CALL = 27
_ROUNDS = 5


def reads(reader: SqliteReader) -> list[pa.Table]:
    """Read the large tables as `rankdiff compare` does."""
    threads = reader.query(f"SELECT DISTINCT globalTid FROM {RUNTIME} LIMIT 64", (), RUNTIME)
    mine = Filter("globalTid", "in", tuple(thread for (thread,) in threads if thread is not None))
    return [
        reader.read(KERNEL, dict.fromkeys((*KERNEL_COLUMNS, "shortName", *SHAPE), INTEGER)),
        reader.read(RUNTIME, dict.fromkeys(API_COLUMNS, INTEGER)),
        reader.read(
            OSRT,
            dict.fromkeys(OSRT_COLUMNS, INTEGER),
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
        [sys.executable, "-m", "benchmarks.reader", "--alone", way, str(path)],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(json.loads(done.stdout)["peak"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reader", description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument(
        "--alone", choices=list(WAYS), help="only read, in this way, and print seconds and memory"
    )
    chosen = parser.parse_args(arguments)
    if chosen.alone:
        print(json.dumps(_alone(WAYS[chosen.alone], chosen.report)))
        return
    for report in chosen.report:
        measure(report, chosen.rounds)


def _alone(way: Callable[[Path], list[pa.Table]], reports: Sequence[Path]) -> dict[str, float]:
    way(reports[0])  # loads the compiled code
    began, busy = time.perf_counter(), time.process_time()
    for report in reports:
        way(report)
    seconds = {"wall": time.perf_counter() - began, "cpu": time.process_time() - busy}
    # Not getrusage: its largest memory is that of the parent where that had more.
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith("VmHWM"))
    return {**seconds, "peak": peak}


if __name__ == "__main__":
    main()
