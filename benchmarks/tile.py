"""Larger reports out of small ones: what a real capture recorded, repeated in time up to any size.

    python -m benchmarks.tile REPORT... --megabytes 400 --to DIR

Give all reports of a job at once: they are repeated equally often and with the same period, so that they stay one
job. Times move on, correlation ids too, and steps are counted on; names, threads and sizes stay, so that the shares
of the tables and the digits of their values are those of the capture.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from rankdiff.reports.names import DEFAULT_STEP_RANGE, step_name
from rankdiff.reports.nsys import KERNEL, RUNTIME
from rankdiff.reports.nvtx import NVTX
from rankdiff.reports.threads import OSRT

_REPEATED = (KERNEL, RUNTIME, OSRT, NVTX, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
_PAUSE_NS = 1_000_000  # between two repetitions
_STEP = re.compile(DEFAULT_STEP_RANGE)


def tile(reports: Sequence[Path], folder: Path, megabytes: float) -> list[Path]:
    """Repeat the reports of a job until the largest has about some size.

    Returns
    -------
    list of Path
        The new reports in `folder`, in the order of `reports` and with their names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    times = max(2, int(megabytes * (1 << 20)) // max(report.stat().st_size for report in reports))
    period = _period_ns(reports)
    made = [folder / report.name for report in reports]
    for report, to in zip(reports, made, strict=True):
        _repeat(report, to, times, period)
    return made


def _period_ns(reports: Iterable[Path]) -> int:
    """Length of the longest recording, and a pause."""
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


def _repeat(report: Path, to: Path, times: int, period: int) -> None:
    shutil.copyfile(report, to)
    os.chmod(to, 0o644)
    with closing(sqlite3.connect(to)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        (most,) = db.execute(f"SELECT max(correlationId) FROM {RUNTIME}").fetchone()
        for table in _tables(db):
            names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            moved = {name: f"t.{name} + n.i * {period}" for name in ("start", "end") if name in names}
            if "correlationId" in names:
                moved["correlationId"] = f"t.correlationId + n.i * {most + 1}"
            if table == NVTX:
                moved |= _counted_on(db, [name for name in ("text", "textId") if name in names], times)
            columns = ", ".join(moved.get(name, f"t.{name}") for name in names)
            db.execute(
                f"INSERT INTO {table} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n "
                f"WHERE i < {times - 1}) SELECT {columns} FROM n CROSS JOIN (SELECT * FROM {table}) t"
            )
            db.commit()


def _counted_on(db: sqlite3.Connection, columns: Sequence[str], times: int) -> dict[str, str]:
    """What stands for names of steps in a repetition: those of the steps that follow."""
    texts = set()
    ids = {}
    if "text" in columns:
        texts |= {text for (text,) in db.execute(f"SELECT DISTINCT text FROM {NVTX} WHERE text IS NOT NULL")}
    if "textId" in columns:
        ids = dict(
            db.execute(f"SELECT id, value FROM StringIds WHERE id IN (SELECT DISTINCT textId FROM {NVTX})")
        )
    steps: dict[str, tuple[str, int]] = {}
    for text in texts | set(ids.values()):
        if (found := _STEP.match(text)) and (step := step_name(found))[1] is not None:
            steps[text] = step[0], step[1]
    numbers: dict[str, list[int]] = {}
    for label, number in steps.values():
        numbers.setdefault(label, []).append(number)
    strides = {label: max(each) - min(each) + 1 for label, each in numbers.items()}

    def text_of(text: str | None, repetition: int) -> str | None:
        if text not in steps:
            return text
        label, number = steps[text]
        return re.sub(r"\d+(?=\D*$)", str(number + repetition * strides[label]), text)

    (free,) = db.execute("SELECT max(id) + 1 FROM StringIds").fetchone()
    new_id: dict[tuple[int, int], int] = {}
    for number, text in ids.items():
        for repetition in range(1, times if text in steps else 1):
            new_id[number, repetition] = free + len(new_id)
    db.executemany(
        "INSERT INTO StringIds (id, value) VALUES (?, ?)",
        [(new, text_of(ids[number], repetition)) for (number, repetition), new in new_id.items()],
    )
    db.create_function("text_of", 2, text_of)
    db.create_function("id_of", 2, lambda number, repetition: new_id.get((number, repetition), number))
    stand_in = {"text": "text_of(t.text, n.i)", "textId": "id_of(t.textId, n.i)"}
    return {name: stand_in[name] for name in columns}


def _tables(db: sqlite3.Connection) -> list[str]:
    there = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return [table for table in _REPEATED if table in there]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tile", description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, nargs="+")
    parser.add_argument("--megabytes", type=float, default=400, help="size of the largest new report")
    parser.add_argument("--to", type=Path, required=True, help="folder for the new reports")
    chosen = parser.parse_args(arguments)
    for made in tile(chosen.report, chosen.to, chosen.megabytes):
        print(f"{made}: {made.stat().st_size >> 20} MiB")


if __name__ == "__main__":
    main()
