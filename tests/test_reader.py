"""Finding and opening files: odd paths, broken copies, other writers, and never a trace left behind."""

from __future__ import annotations

import gzip
import os
import sqlite3
import stat
from contextlib import closing

import pyarrow as pa
import pytest

from rankdiff.digest import make_digests
from rankdiff.errors import ReportError
from rankdiff.reports.capture import VARIABLES, read_capture
from rankdiff.reports.discover import discover
from rankdiff.reports.identity import claims
from rankdiff.reports.nsys import load
from rankdiff.reports.sqlite import BLOB, INTEGER, TEXT, SqliteReader
from tests.builder import Export


def small(path, **settings):
    """A report with a compute kernel, a collective and an OS call."""
    with Export(path, **settings) as export:
        export.kernel(0, 6_000_000, "gemm")
        export.nccl("all_reduce", 8_000_000, 9_000_000, comm=0xABC)
        export.osrt(6_000_000, 7_000_000, "read")
        export.nvtx(6_000_000, 7_500_000, "data_load")
    return export.path


def report_of(path):
    found = discover([path])
    assert not found.problems
    return found.reports[0]


def digest(path):
    report = report_of(path)
    return make_digests(report, claims(report))[0]


def problem(path):
    found = discover([path])
    assert not found.reports
    return str(found.problems[0])


@pytest.mark.parametrize(
    "name",
    [
        "prof_o'brien node_0.sqlite",
        "prof_näs_1.sqlite",
        "prof_a%20b_2.sqlite",
        "prof_what?mode=rw_3.sqlite",
        "prof_a#b_4.sqlite",
        'prof_"q"_5.sqlite',
        "prof_a&immutable=1_6.sqlite",
    ],
)
def test_odd_names(tmp_path, name):
    path = small(tmp_path / name)
    assert digest(path).info.nccl_kernels == 1
    assert os.listdir(tmp_path) == [name]


def test_a_name_that_is_not_text(tmp_path):
    path = os.fsencode(tmp_path) + b"/prof_\xff_0.sqlite"
    os.rename(small(tmp_path / "x.sqlite"), path)
    assert digest(os.fsdecode(path)).info.nccl_kernels == 1


def test_what_is_not_a_report(tmp_path):
    (tmp_path / "empty.sqlite").touch()
    (tmp_path / "a.nsys-rep").write_bytes(b"QDREP")
    (tmp_path / "b.sqlite").write_bytes(b"QDREP and so on")
    (tmp_path / "c.sqlite").write_bytes(gzip.compress(b"SQLite format 3\x00"))
    (tmp_path / "link.sqlite").symlink_to(tmp_path / "gone.sqlite")
    (tmp_path / "x_pqtdir").mkdir()
    assert "no such file" in problem(tmp_path / "gone.sqlite")
    assert "0 bytes" in problem(tmp_path / "empty.sqlite")
    assert "nsys export --type sqlite --include-blobs=true" in problem(tmp_path / "a.nsys-rep")
    assert "expected an SQLite export" in problem(tmp_path / "b.sqlite")
    assert "gunzip" in problem(tmp_path / "c.sqlite")
    assert "a link to a file that does not exist" in problem(tmp_path / "link.sqlite")
    assert "a directory" in problem(tmp_path)
    assert "not supported yet" in problem(tmp_path / "x_pqtdir")
    assert "not a regular file" in problem("/dev/null")
    assert "cannot be read" in problem("a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(tmp_path):
    path = small(tmp_path / "prof_a_0.sqlite")
    path.chmod(0)
    assert "Permission denied" in problem(path)


def test_one_bad_path_does_not_stop_the_others(tmp_path):
    paths = [small(tmp_path / f"prof_a_{rank}.sqlite") for rank in (10, 2, 1)]
    found = discover([*paths, tmp_path / "gone.sqlite"])
    assert [report.name for report in found.reports] == [f"prof_a_{rank}.sqlite" for rank in (1, 2, 10)]
    assert len(found.problems) == 1
    again = discover([tmp_path / "gone.sqlite", *reversed(paths)])
    assert again.reports == found.reports


def test_one_file_by_two_names_counts_once(tmp_path):
    path = small(tmp_path / "prof_a_0.sqlite")
    link = tmp_path / "prof_a_1.sqlite"
    link.symlink_to(path)
    found = discover([path, link, path])
    assert [report.name for report in found.reports] == ["prof_a_0.sqlite"]
    assert [note.code for note in found.notes] == ["same_file"]


def test_a_truncated_copy(tmp_path):
    path = small(tmp_path / "prof_a_0.sqlite")
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ReportError, match=r"prof_a_0\.sqlite: truncated copy, expected \d+ bytes"):
        claims(report_of(path))


def test_only_a_header(tmp_path):
    path = tmp_path / "prof_a_0.sqlite"
    path.write_bytes(b"SQLite format 3\x00")
    with pytest.raises(ReportError, match="expected an SQLite database"):
        claims(report_of(path))


def overwrite_table(path, table):
    """Overwrite the first page of a table with zeros."""
    with closing(sqlite3.connect(path)) as base:
        (page,) = base.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = base.execute("PRAGMA page_size").fetchone()
    with open(path, "r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes(size))


@pytest.mark.parametrize("table", ["NVTX_EVENTS", "OSRT_API"])
def test_damage_where_one_can_do_without(tmp_path, table):
    path = small(tmp_path / "prof_a_0.sqlite")
    overwrite_table(path, table)
    info = digest(path).info
    assert table not in info.tables
    assert [note.code for note in info.notes] == ["table_unreadable"]
    assert table in info.notes[0].message


def test_damage_in_a_table_that_is_needed(tmp_path):
    path = small(tmp_path / "prof_a_0.sqlite")
    overwrite_table(path, "CUPTI_ACTIVITY_KIND_KERNEL")
    with pytest.raises(ReportError, match="CUPTI_ACTIVITY_KIND_KERNEL: the database is damaged"):
        claims(report_of(path))


def test_damaged_metadata_is_missing_metadata(tmp_path):
    path = small(tmp_path / "prof_a_0.sqlite", env={"SLURM_PROCID": 3})
    overwrite_table(path, "META_DATA_CAPTURE")
    (claim,) = claims(report_of(path))
    assert claim.env_rank is None
    assert claim.file_rank == 0


def to_wal(path):
    with closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("CREATE TABLE something (x)")
        base.commit()


def test_wal_mode_without_its_log(tmp_path):
    path = small(tmp_path / "prof_a_0.sqlite")
    to_wal(path)
    info = digest(path).info
    assert info.nccl_kernels == 1
    assert "wal_missing" in {note.code for note in info.notes}
    assert os.listdir(tmp_path) == ["prof_a_0.sqlite"]


def test_wal_mode_with_its_log(tmp_path):
    path = small(tmp_path / "prof_a_0.sqlite")
    to_wal(path)
    with closing(sqlite3.connect(path)) as base:
        base.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = start - 1000 WHERE start = 0")
        base.commit()
        copy = tmp_path / "copy"
        copy.mkdir()
        for ending in ("", "-wal"):
            (copy / f"prof_a_0.sqlite{ending}").write_bytes(
                (tmp_path / f"prof_a_0.sqlite{ending}").read_bytes()
            )
    before = {entry: (copy / entry).read_bytes() for entry in os.listdir(copy)}
    info = digest(copy / "prof_a_0.sqlite").info
    assert info.span_ns == 9_001_000
    assert "wal_copied" in {note.code for note in info.notes}
    assert {entry: (copy / entry).read_bytes() for entry in os.listdir(copy)} == before


def test_a_locked_file(tmp_path, monkeypatch):
    monkeypatch.setattr("rankdiff.reports.sqlite._LOCK_WAIT_S", 0.05)
    path = small(tmp_path / "prof_a_0.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ReportError, match=r"prof_a_0\.sqlite: .*still being written"):
            claims(report_of(path))


def test_an_interrupted_export(tmp_path):
    path = small(tmp_path / "prof_a_0.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("CREATE TABLE big (x)")
        writer.executemany("INSERT INTO big VALUES (?)", [(os.urandom(3000),) for _ in range(50)])
        other = tmp_path / "prof_b_1.sqlite"
        other.write_bytes(path.read_bytes())
        (tmp_path / "prof_b_1.sqlite-journal").write_bytes(
            (tmp_path / "prof_a_0.sqlite-journal").read_bytes()
        )
    with pytest.raises(ReportError, match=r"prof_b_1\.sqlite.*(unfinished|truncated|damaged)"):
        claims(report_of(other))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder(tmp_path):
    path = small(tmp_path / "prof_a_0.sqlite")
    path.chmod(stat.S_IRUSR)
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert digest(path).info.nccl_kernels == 1
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = small(tmp_path / "prof_a_0.sqlite")
    content, status = path.read_bytes(), path.stat()
    digest(path)
    assert os.listdir(tmp_path) == ["prof_a_0.sqlite"]
    assert path.read_bytes() == content
    assert path.stat().st_mtime_ns == status.st_mtime_ns


def test_views_and_virtual_tables_are_never_read(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 6_000_000, "gemm")
        export.sql('CREATE VIEW OSRT_API AS SELECT 1 AS start, 2 AS "end", 27 AS eventClass, 1 AS globalTid')
    with SqliteReader(export.path, "x") as reader:
        assert not reader.has("OSRT_API")
        assert "OSRT_API" not in reader.tables()
    assert digest(export.path).info.idle_osrt_ns is None


def make_table(path, sql, rows):
    with closing(sqlite3.connect(path)) as base:
        base.execute(sql)
        base.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(rows[0]))})", rows)
        base.commit()
    return path


def test_values_of_another_class_are_missing_and_counted(tmp_path):
    rows = [(1, "a", b"x"), (2.5, 7, "y"), ("3", b"c", None), (None, None, 5), (1 << 62, "ä\0b", b"\xff")]
    path = make_table(tmp_path / "t.sqlite", "CREATE TABLE t (i, s, b)", rows)
    with SqliteReader(path, "t.sqlite") as reader:
        table = reader.read("t", {"i": INTEGER, "s": TEXT, "b": BLOB, "gone": INTEGER})
        assert table["i"].to_pylist() == [1, None, None, None, 1 << 62]
        assert table["s"].to_pylist() == ["a", None, None, None, "ä\0b"]
        assert table["b"].to_pylist() == [b"x", None, None, None, b"\xff"]
        assert table["gone"].null_count == 5
        assert table.schema.types == [pa.int64(), pa.string(), pa.binary(), pa.int64()]
        assert [note.message.split(": ")[1][:8] for note in reader.notes] == ["2 values"] * 3


def test_text_that_is_not_utf8(tmp_path):
    path = make_table(tmp_path / "t.sqlite", "CREATE TABLE t (s)", [(1,)])
    with closing(sqlite3.connect(path)) as base:
        base.execute("UPDATE t SET s = CAST(x'd6d0b9fa' AS TEXT)")
        base.commit()
    with SqliteReader(path, "t.sqlite") as reader:
        (text,) = reader.read("t", {"s": TEXT})["s"].to_pylist()
        assert "\ufffd" in text


def test_many_nulls_before_the_first_value(tmp_path):
    rows = [(None,)] * 250_000 + [(5,)]
    path = make_table(tmp_path / "t.sqlite", "CREATE TABLE t (i INTEGER)", rows)
    with SqliteReader(path, "t.sqlite") as reader:
        column = reader.read("t", {"i": INTEGER})["i"]
        assert column.null_count == 250_000
        assert column[-1].as_py() == 5


def test_a_missing_column_is_named(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 6_000_000, "gemm")
        export.sql("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN shortName TO newName")
    report = report_of(export.path)
    with pytest.raises(
        ReportError, match=r"prof_a_0\.sqlite: table CUPTI_ACTIVITY_KIND_KERNEL has no column shortName"
    ):
        load(report)


def test_more_and_fewer_columns_change_nothing(tmp_path):
    known = digest(small(tmp_path / "prof_a_0.sqlite"))
    path = small(tmp_path / "prof_a_1.sqlite")
    with closing(sqlite3.connect(path)) as base:
        base.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN foo BLOB")
        for column in ("mangledName", "greenContextId", "graphNodeId", "globalPid"):
            base.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN {column}")
        base.commit()
    other = digest(path)
    assert other.collectives.equals(known.collectives)
    assert other.info.span_ns == known.info.span_ns
    assert other.info.idle_osrt_ns == known.info.idle_osrt_ns


def test_blobs_in_a_text_column(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 6_000_000, "gemm")
        export.nvtx(0, 1000, "range", payload=b"\x00\x01\xff\xfe")
    assert digest(export.path).info.tables["NVTX_EVENTS"] == 1


def test_secrets_never_leave_the_file(tmp_path):
    secret = "SENTINEL123"
    env = {"SLURM_PROCID": 3, "WANDB_API_KEY": secret, "SLURM_JOB_ID_SECRET": secret, "slurm_procid": secret}
    with Export(tmp_path / "prof_a_3.sqlite", env=env) as export:
        export.kernel(0, 6_000_000, "gemm")
        export.kernel(8_000_000, 9_000_000, "gemm")
        export.string(f"HF_TOKEN={secret}")
        export.capture("PROCESS_0:ENVIRONMENT_VARIABLE", f"={secret}")
        export.capture("PROCESS_1:ENVIRONMENT_VARIABLE", f"SLURM_JOB_ID={secret}")
        export.diagnostic(f"Not all CUDA events might have been collected. {secret}")
        values = {"globalVid": 1, "devStateName": "x", "name": "DeviceEnvironment", "nameEnum": 610}
        export.row("TARGET_INFO_SYSTEM_ENV", **values, value=f"RANK=7;KEY={secret}")
    report = report_of(export.path)
    found = claims(report)
    assert found[0].env_ranks == (("SLURM_PROCID", 3),)
    everything = [found, make_digests(report, found)]
    with SqliteReader(report.path, report.name) as reader:
        capture = read_capture(reader)
        assert set(capture.variables) <= set(VARIABLES)
        everything.append(capture)
    with load(report) as tables:
        names = [row[0] for row in tables.db.sql("SELECT table_name FROM duckdb_tables()").fetchall()]
        assert {"gpu", "launch", "nvtx"} <= set(names)
        everything += [tables.frame(f"SELECT * FROM {name}").rows() for name in names]
    assert secret not in repr(everything)
    assert "cuda_incomplete" in everything[1][0].info.lost_events


def test_no_extension_is_loaded_and_nothing_is_spilled_here(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("RANKDIFF_TMP", str(tmp_path / "spill"))
    with load(report_of(small(tmp_path / "prof_a_0.sqlite"))) as tables:
        settings = dict(tables.db.sql("SELECT name, value FROM duckdb_settings()").fetchall())
    assert settings["autoload_known_extensions"] == "false"
    assert settings["autoinstall_known_extensions"] == "false"
    assert settings["temp_directory"].startswith(str(tmp_path / "spill"))


def test_no_gpu_work(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.osrt(0, 10, "read")
    with pytest.raises(ReportError, match="no GPU work was captured"):
        claims(report_of(export.path))
    with Export(tmp_path / "prof_a_1.sqlite") as export:
        export.kernel(0, 6_000_000, "gemm")
        export.sql("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO CUPTI_ACTIVITY_KIND_KERNEL_V2")
    with pytest.raises(ReportError, match="CUPTI_ACTIVITY_KIND_KERNEL_V2"):
        claims(report_of(export.path))


def test_a_schema_of_the_future(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 6_000_000, "gemm")
        export.sql("UPDATE META_DATA_EXPORT SET value = '4.0.0' WHERE name = 'EXPORT_SCHEMA_VERSION'")
    with pytest.raises(ReportError, match=r"schema version 4\.0\.0, expected 3\.x"):
        claims(report_of(export.path))
