"""Running the product in tests: a comparison as report.json's dict, and copies of captures with changes."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rankdiff.digest import Digest, DigestOptions
from rankdiff.pipeline import CompareOptions, compare, read
from rankdiff.render.inspection import to_text as inspection_text
from rankdiff.render.json import to_dict
from rankdiff.render.text import to_text

TIME_COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("start", "end"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("start", "end"),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("start", "end"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("start", "end"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": ("start", "end"),
    "NVTX_EVENTS": ("start", "end"),
    "OSRT_API": ("start", "end"),
    "PROFILER_OVERHEAD": ("start", "end"),
    "DIAGNOSTIC_EVENT": ("timestamp",),
}

Edit = Callable[[sqlite3.Connection], None]


def run(paths: Iterable[Path | str], **options: Any) -> dict[str, Any]:
    """Compare reports and return report.json."""
    outcome = compare([str(p) for p in paths], CompareOptions(**options))
    return to_dict(outcome.comparison, outcome.notes)


def words(paths: Iterable[Path | str], **options: Any) -> str:
    """Compare reports and return what the terminal shows, as one line with single spaces."""
    outcome = compare([str(p) for p in paths], CompareOptions(**options))
    return " ".join(to_text(outcome.comparison, outcome.notes).split())


def table(paths: Iterable[Path | str], **options: Any) -> list[str]:
    """Lines of what the terminal shows."""
    outcome = compare([str(p) for p in paths], CompareOptions(**options))
    return to_text(outcome.comparison, outcome.notes).splitlines()


def inspected(paths: Iterable[Path | str], **options: Any) -> str:
    """What `inspect` says of reports, as one line with single spaces."""
    found = read([str(p) for p in paths], CompareOptions(digest=DigestOptions(**options)))
    return " ".join(inspection_text(found).split())


def digests(*paths: Path | str, **options: Any) -> list[Digest]:
    """Digests of reports, by rank; `options` are those of `DigestOptions`."""
    found = read([str(p) for p in paths], CompareOptions(digest=DigestOptions(**options)))
    return list(found.digests)


def figures(report: dict[str, Any], key: str) -> dict[int, Any]:
    """One figure of every rank of a report."""
    return {r["rank"]: r[key] for r in report["ranks"]}


def warning(report: dict[str, Any], code: str) -> str:
    """The message of a report's only warning of a code."""
    (message,) = [w["message"] for w in report["warnings"] if w["code"] == code]
    return str(message)


def late(report: dict[str, Any], *severities: str) -> list[tuple[str, Any]]:
    """Late ranks and nodes of a report as ("late_rank", 2) or ("late_node", "gpu02")."""
    wanted = severities or ("major", "minor")
    return [
        (f["kind"], f["rank"] if f["kind"] == "late_rank" else f["node"])
        for f in report["findings"]
        if f["kind"] in ("late_rank", "late_node") and f["severity"] in wanted
    ]


def codes(report: dict[str, Any]) -> set[str]:
    """Codes of the warnings of a report."""
    return {w["code"] for w in report["warnings"]}


def copies(
    reports: Sequence[Path], folder: Path, edit: Edit, only: Callable[[Path], bool] = lambda _: True
) -> list[Path]:
    """Copy reports into a folder and edit the copies that `only` chooses."""
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    for report in reports:
        target = folder / report.name
        shutil.copyfile(report, target)
        if only(report):
            with closing(sqlite3.connect(target)) as db, db:
                edit(db)
        out.append(target)
    return out


def has_table(db: sqlite3.Connection, table: str) -> bool:
    """Whether a database has a table."""
    return bool(
        db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
    )


def without_payloads(db: sqlite3.Connection) -> None:
    """Take the NCCL payloads away, as an export without --include-blobs does."""
    db.execute("UPDATE NVTX_EVENTS SET binaryData = NULL")


def without_table(table: str) -> Edit:
    """Drop a table."""

    def edit(db: sqlite3.Connection) -> None:
        db.execute(f"DROP TABLE IF EXISTS {table}")

    return edit


def with_clock(offset_ns: int, drift_ppm: float) -> Edit:
    """Let the clock of a report run ahead by an offset, and faster by a rate."""

    def edit(db: sqlite3.Connection) -> None:
        for table, columns in TIME_COLUMNS.items():
            if has_table(db, table):
                moves = ", ".join(
                    f'"{c}" = "{c}" + {offset_ns} + CAST(round("{c}" * {drift_ppm}e-6) AS INTEGER)'
                    for c in columns
                )
                db.execute(f"UPDATE {table} SET {moves}")

    return edit
