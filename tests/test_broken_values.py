"""Values that no profiler writes: each costs what it touches, and never the run, the others or the truth."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rankdiff.errors import ReportError
from rankdiff.pipeline import compare
from rankdiff.render.package import ticket_files
from rankdiff.reports.capture import LATEST_UTC_NS
from rankdiff.reports.sqlite import SqliteReader
from rankdiff.reports.tables import LONGEST_SESSION_NS
from rankdiff.simulation import synthetic
from tests.jobs import codes, copies, late, run

MS = 1_000_000
KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
FIGURES = ("span_ns", "busy_ns", "idle_ns", "idle_data_load_ns", "idle_osrt_ns", "nccl_ns", "nccl_kernels")


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> list[Path]:
    return synthetic(
        tmp_path_factory.mktemp("job"), steps=10, late={2: 4 * MS}, late_as="data_load", jitter_ns=50_000
    ).paths


@pytest.fixture(scope="module")
def unbroken(job) -> dict[str, Any]:
    return run(job)


def edited(job: list[Path], folder: Path, *statements: str, ranks: str = "0") -> dict[str, Any]:
    """The report of a job after changes in some of its files."""

    def edit(db: sqlite3.Connection) -> None:
        for statement in statements:
            db.execute(statement)

    return run(copies(job, folder, edit, lambda path: path.stem[-1] in ranks))


def extra_rows(table: str, *times: str) -> tuple[str, ...]:
    """Statements that add rows like the first one, with other times."""
    temporary = f"CREATE TEMP TABLE one_{table} AS SELECT * FROM {table} LIMIT 1"
    insert = f"INSERT INTO {table} SELECT * FROM one_{table}"
    return (temporary, *(s for time in times for s in (f"UPDATE one_{table} SET {time}", insert)))


def extra_kernels(*times: str) -> tuple[str, ...]:
    """`extra_rows` of kernels."""
    return extra_rows(KERNEL, *times)


@pytest.mark.parametrize(
    "times",
    [
        '"start" = 5000000, "end" = 4000000',
        '"start" = 5000000, "end" = 9223372036854775807',
        '"start" = -9223372036854775808, "end" = 9223372036854775807',
        '"start" = -9223372036854775808, "end" = 5000000',
        '"start" = 1700000000000000000, "end" = 1700000000000001000',
        "\"start\" = 'late', \"end\" = 'later'",
        '"start" = 1.5, "end" = 9e999',
    ],
)
def test_an_operation_with_impossible_times_is_left_out(job, unbroken, tmp_path, times):
    report = edited(job, tmp_path, *extra_kernels(times))
    assert late(report) == late(unbroken) == [("late_rank", 2)]
    for rank, before in zip(report["ranks"], unbroken["ranks"], strict=True):
        assert [rank[f] for f in FIGURES] == [before[f] for f in FIGURES]


def test_times_within_a_long_session_count(job, unbroken, tmp_path):
    last = LONGEST_SESSION_NS - 1_000
    report = edited(job, tmp_path, *extra_kernels(f'"start" = {last}, "end" = {last + 1_000}'))
    assert report["ranks"][0]["busy_ns"] == unbroken["ranks"][0]["busy_ns"] + 1_000
    report = edited(
        job, tmp_path / "beyond", *extra_kernels(f'"start" = {last + 2_000}, "end" = {last + 3_000}')
    )
    assert report["ranks"][0]["busy_ns"] == unbroken["ranks"][0]["busy_ns"]


def test_ranges_and_calls_with_impossible_times_are_left_out(job, unbroken, tmp_path):
    always = '"start" = -9223372036854775808, "end" = 9223372036854775807'
    report = edited(
        job,
        tmp_path,
        *extra_rows("OSRT_API", always),
        *extra_rows("NVTX_EVENTS", always, '"start" = 9223372036854775807, "end" = NULL'),
        ranks="2",
    )
    assert late(report) == [("late_rank", 2)]
    assert report["findings"][0]["cause"] == "data_load"
    assert report["ranks"][2]["idle_osrt_ns"] == unbroken["ranks"][2]["idle_osrt_ns"]


@pytest.mark.parametrize("start", [-5, -(2**63), 2**63 - 1, LATEST_UTC_NS + 1, "'noon'", "1e300"])
def test_an_impossible_session_start_is_unknown(job, tmp_path, start):
    report = edited(job, tmp_path, f"UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = {start}")
    assert report["job"]["ranks"] == 4
    assert {who for _, who in late(report)} <= {2}


@pytest.mark.parametrize("shift", ["9" * 19, "-" + "9" * 30, "soon", "9" * 5_000])
def test_an_impossible_shift_is_none(job, unbroken, tmp_path, shift):
    report = edited(
        job,
        tmp_path,
        "DELETE FROM META_DATA_EXPORT WHERE name = 'EXPORT_CONFIG_TIME_SHIFT'",
        f"INSERT INTO META_DATA_EXPORT (name, value) VALUES ('EXPORT_CONFIG_TIME_SHIFT', '{shift}')",
    )
    assert late(report) == [("late_rank", 2)]
    assert report["ranks"][0]["busy_ns"] == unbroken["ranks"][0]["busy_ns"]


def test_one_early_time_does_not_hide_that_times_are_utc(job, unbroken, tmp_path):
    def normalised(db: sqlite3.Connection) -> None:
        utc = db.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()[0]
        db.execute("DELETE FROM META_DATA_EXPORT")
        for table in (KERNEL, RUNTIME, "NVTX_EVENTS", "OSRT_API"):
            db.execute(f'UPDATE {table} SET "start" = "start" + {utc}, "end" = "end" + {utc}')
        for statement in extra_kernels('"start" = 10, "end" = 20'):
            db.execute(statement)

    report = run(copies(job, tmp_path, normalised, lambda path: path.stem[-1] == "0"))
    assert "times_taken_as_utc" in codes(report)
    assert late(report) == [("late_rank", 2)]
    assert report["ranks"][0]["busy_ns"] == unbroken["ranks"][0]["busy_ns"]


def free(table: str, *columns: str) -> tuple[str, ...]:
    """Statements that make a table again without constraints, some columns changed."""
    changed = ", ".join(columns)
    return (
        f"CREATE TABLE again AS SELECT * FROM {table}",
        f"DROP TABLE {table}",
        f"ALTER TABLE again RENAME TO {table}",
        f"UPDATE {table} SET {changed}",
    )


def test_kernels_without_a_stream_are_compared(job, tmp_path):
    report = edited(job, tmp_path, *free(KERNEL, "streamId = NULL"), ranks="0123")
    assert late(report) == [("late_rank", 2)]
    assert report["job"]["matched_collectives"] == 10


@pytest.mark.parametrize(
    "change",
    ["name = NULL", "domainId = NULL", "schemaId = NULL", '"offset" = 9223372036854775807', '"offset" = -9'],
)
def test_broken_payload_layouts_cost_only_the_payloads(job, tmp_path, change):
    report = edited(job, tmp_path, *free("NVTX_PAYLOAD_SCHEMA_ENTRIES", change), ranks="0123")
    assert late(report) == [("late_rank", 2)]
    assert {c["source"] for c in report["communicators"]} == {"inferred"}


def test_a_renamed_column_of_the_layouts(job, tmp_path):
    # SQLite finds it whatever the case of its letters; it is read as missing all the same.
    report = edited(
        job, tmp_path, 'ALTER TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES RENAME COLUMN "name" TO "NAME"', ranks="0123"
    )
    assert late(report) == [("late_rank", 2)]


def spoil(path: Path, where: Callable[[bytes], int], with_bytes: bytes) -> None:
    data = bytearray(path.read_bytes())
    at = where(bytes(data))
    data[at : at + len(with_bytes)] = with_bytes
    path.write_bytes(data)


def test_damaged_payload_layouts_cost_only_the_payloads(job, tmp_path):
    paths = copies(job, tmp_path, lambda _: None)
    for path in paths:
        with closing(sqlite3.connect(path)) as db:
            sql = "SELECT rootpage FROM sqlite_master WHERE name = 'NVTX_PAYLOAD_SCHEMA_ENTRIES'"
            page = db.execute(sql).fetchone()[0]
            size = db.execute("PRAGMA page_size").fetchone()[0]
        spoil(path, lambda _, at=(page - 1) * size: at, b"\xff" * 8)
    report = run(paths)
    assert late(report) == [("late_rank", 2)]
    assert "table_unreadable" in codes(report)


def test_a_message_of_sqlite_that_is_no_text(job, tmp_path):
    # SQLite quotes the name of the table whose definition it cannot read, here with a byte that is no UTF-8.
    path = tmp_path / "prof_a_0.sqlite"
    shutil.copyfile(job[0], path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute(
            "UPDATE sqlite_master SET name = CAST(x'41ff42' AS TEXT), sql = 'CREATE (' WHERE name = 'OSRT_API'"
        )
    with pytest.raises(ReportError, match="the database is damaged") as raised:
        SqliteReader(str(path), path.name)
    assert raised.value.__cause__ is None


def test_numbers_of_gpus_that_are_none(job, tmp_path):
    report = edited(
        job,
        tmp_path,
        *free("TARGET_INFO_GPU", "id = 9e999", "name = x'00ff'"),
        *free("TARGET_INFO_CUDA_DEVICE", "gpuId = 9e999"),
    )
    assert late(report) == [("late_rank", 2)]
    assert report["ranks"][0]["gpu_uuid"] is None or report["ranks"][0]["gpu_uuid"].isprintable()


def test_durations_of_more_than_64_bits(job, unbroken, tmp_path):
    huge = '"start" = 0, "end" = 9223372036854775807'
    report = edited(job, tmp_path, *extra_kernels(huge, huge, huge))
    assert late(report) == [("late_rank", 2)]
    assert report["ranks"][0]["busy_ns"] == unbroken["ranks"][0]["busy_ns"]


def test_pictures_of_a_single_step(tmp_path):
    outcome = compare([str(path) for path in synthetic(tmp_path, steps=1).paths])
    files = ticket_files(outcome.comparison, outcome.notes, "rankdiff compare")
    assert "plots/idle.svg" in files
