"""Finding and opening files: odd paths, broken copies, other writers, and never a trace left behind."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest

from rankdiff.digest import make_digests
from rankdiff.errors import ReportError
from rankdiff.reports.capture import VARIABLES, read_capture
from rankdiff.reports.discover import discover
from rankdiff.reports.engine import open_engine
from rankdiff.reports.identity import claims
from rankdiff.reports.nsys import load
from rankdiff.reports.reader import BLOB, INTEGER, TEXT
from rankdiff.reports.sqlite import SqliteReader
from rankdiff.reports.temporary import private_folder, temporary_place
from rankdiff.simulation import Export
from tests.folders import to_folder
from tests.jobs import run
from tests.reading import stored

NOBODY = 65534


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
    """B55."""
    path = small(tmp_path / name)
    assert digest(path).info.nccl_kernels == 1
    assert os.listdir(tmp_path) == [name]


def test_a_name_that_is_not_text(tmp_path):
    path = os.fsencode(tmp_path) + b"/prof_\xff_0.sqlite"
    os.rename(small(tmp_path / "x.sqlite"), path)
    assert digest(os.fsdecode(path)).info.nccl_kernels == 1


def test_what_is_not_a_report(tmp_path):
    """B56."""
    (tmp_path / "empty.sqlite").touch()
    (tmp_path / "a.nsys-rep").write_bytes(b"QDREP")
    (tmp_path / "b.sqlite").write_bytes(b"QDREP and so on")
    (tmp_path / "c.sqlite").write_bytes(gzip.compress(b"SQLite format 3\x00"))
    (tmp_path / "link.sqlite").symlink_to(tmp_path / "gone.sqlite")
    (tmp_path / "folder").mkdir()
    before = sorted(os.listdir(tmp_path))
    assert "no such file" in problem(tmp_path / "gone.sqlite")
    assert "0 bytes" in problem(tmp_path / "empty.sqlite")
    assert "nsys export --type sqlite --include-blobs=true" in problem(tmp_path / "a.nsys-rep")
    assert "expected an SQLite export" in problem(tmp_path / "b.sqlite")
    assert "gunzip" in problem(tmp_path / "c.sqlite")
    assert "a link to a file that does not exist" in problem(tmp_path / "link.sqlite")
    assert "a directory without a report" in problem(tmp_path / "folder")
    assert "not a regular file" in problem("/dev/null")
    assert "cannot be read" in problem("a\0b")
    assert sorted(os.listdir(tmp_path)) == before


@pytest.fixture
def as_nobody():
    """A folder of somebody without privileges, who runs the test: root reads and writes everything."""
    import_module("rankdiff.reports.parquet")  # imported late, from where that somebody may not read
    with tempfile.TemporaryDirectory() as name:
        if os.geteuid() == 0:
            os.chown(name, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        try:
            yield Path(name)
        finally:
            if os.getuid() == 0:
                os.seteuid(0)


def test_an_unreadable_file(as_nobody):
    """B56."""
    path = small(as_nobody / "prof_a_0.sqlite")
    path.chmod(0)
    assert "prof_a_0.sqlite: cannot be read (Permission denied). Check its permissions" in problem(path)


def test_an_unreadable_folder(as_nobody):
    folder = to_folder(small(as_nobody / "prof_a_0.sqlite"), as_nobody)
    table = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    table.chmod(0)
    with pytest.raises(
        ReportError, match=r"prof_a_0_pqtdir: table CUPTI_ACTIVITY_KIND_KERNEL: cannot be read"
    ):
        claims(report_of(folder))
    folder.chmod(0)
    assert "prof_a_0_pqtdir: cannot be read (Permission denied)" in problem(folder)
    folder.chmod(stat.S_IRWXU)


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
    """B57 a."""
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


def with_bulk(path, table, rows, where):
    """Repeat a row of a table until the second half of the file holds nothing else."""
    with closing(sqlite3.connect(path)) as base:
        base.execute(
            f"INSERT INTO {table} SELECT t.* FROM {table} t, (WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL "
            f"SELECT x + 1 FROM n WHERE x < {rows}) SELECT x FROM n) WHERE t.rowid = (SELECT min(rowid) FROM {table} "
            f"WHERE {where})"
        )
        base.commit()
        (size,) = base.execute("PRAGMA page_size").fetchone()
    return size


def test_a_zero_filled_half(tmp_path):
    """B57 b: kernels usable, ranges unreadable, the rank marked as partial."""
    paths = [small(tmp_path / f"prof_n{rank}_{rank}.sqlite", pid=100 + rank) for rank in range(2)]
    whole = run(paths)
    with_bulk(paths[1], "NVTX_EVENTS", 20_000, "eventType = 59")
    half = paths[1].stat().st_size // 2
    with open(paths[1], "r+b") as file:
        file.seek(half)
        file.write(bytes(half))
    report = run(paths)
    (warning,) = (w for w in report["warnings"] if w["code"] == "table_unreadable")
    assert warning["ranks"] == [1]
    assert "prof_n1_1.sqlite: table NVTX_EVENTS: the database is damaged" in warning["message"]
    exact = ("nccl_kernels", "nccl_ns", "span_ns", "busy_ns", "idle_ns", "idle_osrt_ns")
    for key in exact:
        assert report["ranks"][1][key] == whole["ranks"][1][key]
    assert whole["ranks"][1]["idle_data_load_ns"] == 1_500_000
    assert report["ranks"][1]["idle_data_load_ns"] is None
    assert report["ranks"][0] == whole["ranks"][0] | {"report_bytes": report["ranks"][0]["report_bytes"]}


@pytest.mark.parametrize("table", ["OSRT_API", "CUPTI_ACTIVITY_KIND_KERNEL"])
def test_damage_in_the_middle_of_a_scan(tmp_path, table):
    """B57 c: the rows before the damage are not used as if they were all."""
    path = small(tmp_path / "prof_a_0.sqlite")
    page = with_bulk(path, table, 30_000, "1")
    with SqliteReader(path, "x") as reader:
        assert reader.read(table, {"start": INTEGER}).num_rows > 30_000
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size * 3 // 4 // page * page)
        file.write(bytes(page))
    with SqliteReader(path, "x") as reader:
        assert reader.has(table)
        with pytest.raises(ReportError, match=f"x: table {table}: the database is damaged"):
            reader.read(table, {"start": INTEGER})
    if table == "OSRT_API":
        info = digest(path).info
        assert info.idle_osrt_ns is None
        assert "table_unreadable" in {note.code for note in info.notes}
    else:
        with pytest.raises(ReportError, match=f"table {table}: the database is damaged"):
            digest(path)


def test_every_table_but_gpu_work_and_strings_can_be_damaged(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite", env={"RANK": 0}) as export:
        export.kernel(0, 6_000_000, "gemm")
        export.nvtx(0, 7_000_000, "step 0")
        export.osrt(6_000_000, 7_000_000, "read")
        export.nccl("all_reduce", 8_000_000, 9_000_000, comm=0xABC)
        export.overhead(7_100_000, 7_200_000)
        export.sched(7_300_000, inward=False)
        export.mpi_rank(0)
        export.diagnostic("a word of the profiler")
        export.row("TARGET_INFO_GPU", id=0, name="H100", uuid="GPU-1")
    whole = export.path.read_bytes()
    with SqliteReader(export.path, "x") as reader:
        tables = reader.tables()
    needed = {"StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"}
    assert len(tables) > len(needed) + 8
    for table in sorted(set(tables) - needed):
        export.path.write_bytes(whole)
        overwrite_table(export.path, table)
        assert digest(export.path).info.nccl_kernels == 1, table
    for table in sorted(needed):
        export.path.write_bytes(whole)
        overwrite_table(export.path, table)
        with pytest.raises(ReportError, match=f"table {table}: the database is damaged"):
            digest(export.path)


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
    """B58."""
    path = small(tmp_path / "prof_a_0.sqlite")
    to_wal(path)
    info = digest(path).info
    assert info.nccl_kernels == 1
    assert "wal_missing" in {note.code for note in info.notes}
    assert os.listdir(tmp_path) == ["prof_a_0.sqlite"]


def test_wal_mode_with_its_log(tmp_path):
    """B58."""
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


def test_a_live_writer_in_another_process(tmp_path, monkeypatch):
    """B59: never read around a lock that somebody holds."""
    monkeypatch.setattr("rankdiff.reports.sqlite._LOCK_WAIT_S", 0.05)
    path = small(tmp_path / "prof_a_0.sqlite")
    hold = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "db.execute('BEGIN EXCLUSIVE'); print('held', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", hold, str(path)], **pipes) as writer:
        assert writer.stdout.readline() == b"held\n"
        with pytest.raises(ReportError, match=r"prof_a_0\.sqlite: .*still being written\?\)\. Try again"):
            claims(report_of(path))
        writer.communicate()
    info = digest(path).info
    assert info.nccl_kernels == 1
    assert not info.notes


def test_a_file_system_that_refuses_every_lock(tmp_path, monkeypatch):
    """B59: SQLite calls such a file busy, as if somebody held it."""
    monkeypatch.setattr("rankdiff.reports.sqlite._LOCK_WAIT_S", 0.05)
    path = small(tmp_path / "prof_a_0.sqlite")

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr("rankdiff.reports.header.fcntl.lockf", refuse)
        info = digest(path).info
    assert info.nccl_kernels == 1
    assert [note.code for note in info.notes] == ["no_locks"]


def test_an_error_while_locking(tmp_path, monkeypatch):
    """B59: EIO from fcntl."""
    path = small(tmp_path / "prof_a_0.sqlite")
    open_file = SqliteReader._open

    def fail(self, place, immutable):
        if not immutable:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = "SQLITE_IOERR_LOCK"
            raise error
        open_file(self, place, immutable)

    monkeypatch.setattr(SqliteReader, "_open", fail)
    info = digest(path).info
    assert info.nccl_kernels == 1
    assert [note.code for note in info.notes] == ["no_locks"]


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


@pytest.mark.parametrize("log", [False, True])
def test_a_read_only_folder(as_nobody, log):
    """B58 and B66: also with a write-ahead log, which opening in place would have to merge."""
    path = small(as_nobody / "prof_a_0.sqlite")
    folder = as_nobody / "read_only"
    folder.mkdir()
    if log:
        to_wal(path)
    with closing(sqlite3.connect(path)) as base:
        base.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = start - 1000 WHERE start = 0")
        base.commit()
        for file in as_nobody.glob("prof_a_0.sqlite*"):
            shutil.copyfile(file, folder / file.name)
            (folder / file.name).chmod(stat.S_IRUSR)
    assert (folder / "prof_a_0.sqlite-wal").exists() == log
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert digest(folder / "prof_a_0.sqlite").info.span_ns == 9_001_000
    finally:
        folder.chmod(stat.S_IRWXU)


def test_another_file_of_the_same_name_size_and_time(tmp_path):
    """B66: nothing is kept from one run to the next."""
    path = small(tmp_path / "prof_a_0.sqlite", node="one")
    status = path.stat()
    assert claims(report_of(path))[0].hostname == "one"
    small(path, node="two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert claims(report_of(path))[0].hostname == "two"


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
    """B69."""
    rows = [(None,)] * 250_000 + [(5,)]
    path = make_table(tmp_path / "t.sqlite", "CREATE TABLE t (i INTEGER)", rows)
    with SqliteReader(path, "t.sqlite") as reader:
        column = reader.read("t", {"i": INTEGER})["i"]
        assert column.null_count == 250_000
        assert column[-1].as_py() == 5


def test_ranges_without_an_end_before_those_with_one(tmp_path):
    """B69."""
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 6_000_000, "gemm")
        export.kernel(8_000_000, 9_000_000, "gemm")
        for at in range(150):
            export.nvtx(at, None, "open")
        for at in range(3):
            export.nvtx(6_000_000 + at * 100_000, 6_050_000 + at * 100_000, "data_load")
    for path in (export.path, to_folder(export.path, tmp_path)):
        info = digest(path).info
        assert (info.open_ranges, info.data_ranges, info.idle_data_load_ns) == (150, 3, 150_000)


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
    """B52."""
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
        assert tables.gpu.height == 2
        everything += stored(tables)
    assert secret not in repr(everything)
    assert "cuda_incomplete" in everything[1][0].info.lost_events


def test_no_extension_is_loaded_and_nothing_is_spilled_here(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("RANKDIFF_TMP", str(tmp_path / "spill"))
    with open_engine() as engine:
        settings = dict(engine.sql("SELECT name, value FROM duckdb_settings()").fetchall())
    assert settings["autoload_known_extensions"] == "false"
    assert settings["autoinstall_known_extensions"] == "false"
    assert settings["temp_directory"].startswith(str(tmp_path / "spill"))


def test_spilled_data_goes_to_the_temporary_place_and_away(tmp_path, monkeypatch):
    """B65."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path / "other"))
    monkeypatch.setenv("RANKDIFF_TMP", str(tmp_path / "spill"))
    monkeypatch.setattr("rankdiff.reports.engine.memory_limit_bytes", lambda: 48 << 20)
    (tmp_path / "spill").mkdir()
    with open_engine() as one, open_engine() as two:
        for engine in (one, two):
            engine.execute("CREATE TABLE t AS SELECT hash(i) AS x, hash(i + 1) AS y FROM range(6000000) r(i)")
        # Two databases in one folder would take each other's files for their own.
        assert len(os.listdir(tmp_path / "spill")) == 2
        assert [e.sql("SELECT count(*) FROM t").fetchall() for e in (one, two)] == [[(6_000_000,)]] * 2
    assert os.listdir(tmp_path / "spill") == []
    assert os.listdir(tmp_path) == ["spill"]


def test_temporary_places_in_their_order(tmp_path, monkeypatch):
    """B65."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "system"))
    monkeypatch.delenv("RANKDIFF_TMP", raising=False)
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    assert temporary_place() == str(tmp_path / "system")
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path / "slurm"))
    assert temporary_place() == str(tmp_path / "slurm")
    monkeypatch.setenv("RANKDIFF_TMP", str(tmp_path / "own"))
    assert temporary_place() == str(tmp_path / "own")
    assert private_folder().startswith(str(tmp_path / "own" / "rankdiff-"))


def test_offline_without_a_home(tmp_path):
    """B51 and B65: no extension, no network, nothing written at home or in the working directory."""
    path = small(tmp_path / "prof_a_0.sqlite")
    folder = to_folder(small(tmp_path / "prof_b_1.sqlite", pid=7), tmp_path)
    for name in ("home", "here", "temporary"):
        (tmp_path / name).mkdir()
    refused = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    script = (
        "import socket, sys\n"
        "def refuse(*_): raise OSError('the network is down')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from rankdiff.pipeline import read\n"
        "found = read(sys.argv[1:])\n"
        "assert not found.problems, found.problems\n"
        "print([d.info.nccl_kernels for d in found.digests])\n"
    )
    env = {
        **os.environ,
        **refused,
        "HOME": str(tmp_path / "home"),
        "RANKDIFF_TMP": str(tmp_path / "temporary"),
    }
    for home in ("/nonexistent", str(tmp_path / "home")):
        done = subprocess.run(
            [sys.executable, "-c", script, str(path), str(folder)],
            env=env | {"HOME": home, "XDG_CACHE_HOME": f"{home}/.cache"},
            cwd=tmp_path / "here",
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout, done.returncode) == ("[1, 1]\n", 0), done.stderr
    assert [os.listdir(tmp_path / name) for name in ("home", "here", "temporary")] == [[], [], []]


def test_more_reports_than_file_handles(tmp_path):
    """B67."""
    first = small(tmp_path / "prof_n_0.sqlite")
    for rank in range(1, 512):
        shutil.copyfile(first, tmp_path / f"prof_n_{rank}.sqlite")
    for rank in range(512, 520):
        to_folder(first, tmp_path).rename(tmp_path / f"prof_n_{rank}")
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "from rankdiff.pipeline import CompareOptions, read\n"
        "found = read(sys.argv[1:], CompareOptions(ranks=frozenset([0, 300, 511, 519])))\n"
        "assert not found.problems, found.problems[0]\n"
        "print([i.rank for i in found.identities], found.missing)\n"
    )
    paths = [str(path) for path in tmp_path.iterdir()]
    assert len(paths) == 520
    done = subprocess.run([sys.executable, "-c", script, *paths], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[0, 300, 511, 519] ()\n", 0), done.stderr


def test_no_gpu_work(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.osrt(0, 10, "read")
    with pytest.raises(ReportError, match="no GPU work was captured"):
        claims(report_of(export.path))
    with Export(tmp_path / "prof_a_1.sqlite") as export:
        export.kernel(0, 6_000_000, "gemm")
        export.sql("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO CUPTI_ACTIVITY_KIND_KERNEL_V2")
        export.sql("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL_V2 RENAME COLUMN deviceId TO device")
    with pytest.raises(ReportError, match=r"CUPTI_ACTIVITY_KIND_KERNEL_V2.* has no column deviceId"):
        claims(report_of(export.path))
    with Export(tmp_path / "prof_a_2.sqlite") as export:
        export.kernel(0, 6_000_000, "gemm")
        export.sql("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO CUPTI_ACTIVITY_KIND_KERNELS")
    with pytest.raises(ReportError, match="but an unknown one like it: CUPTI_ACTIVITY_KIND_KERNELS"):
        claims(report_of(export.path))


def test_tables_with_newer_names(tmp_path):
    """B32: found by their columns, the newest that has rows."""
    known = digest(small(tmp_path / "prof_a_0.sqlite"))
    path = small(tmp_path / "prof_a_1.sqlite")
    with closing(sqlite3.connect(path)) as base:
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "OSRT_API", "META_DATA_EXPORT"):
            base.execute(f"ALTER TABLE {table} RENAME TO {table}_V2")
            base.execute(f"CREATE TABLE {table} (start)")
            base.execute(f"CREATE TABLE {table}_V3 (start)")
            base.execute(f"CREATE TABLE {table}_V9x AS SELECT * FROM {table}_V2 LIMIT 0")
        base.commit()
    other = digest(path)
    assert other.collectives.equals(known.collectives)
    for key in ("span_ns", "idle_osrt_ns", "idle_data_load_ns", "schema_version", "tables"):
        assert getattr(other.info, key) == getattr(known.info, key)
    assert {note.message for note in other.info.notes} == {
        f"prof_a_1.sqlite: table {table}_V2 is read as {table}"
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "OSRT_API", "META_DATA_EXPORT")
    }


def job(tmp_path, *versions):
    """Reports of one job, exported by different versions; None tells none."""
    return [
        small(tmp_path / f"prof_n{rank}_{rank}.sqlite", pid=100 + rank, version=version)
        for rank, version in enumerate(versions)
    ]


def version_warnings(paths):
    return [
        (w["code"], w["ranks"], w["message"])
        for w in run(paths)["warnings"]
        if w["code"] in ("mixed_versions", "no_export_metadata")
    ]


def test_versions_that_differ(tmp_path):
    """B32."""
    assert version_warnings(job(tmp_path, "3.24.14", "3.24.14")) == []
    paths = job(tmp_path, "3.24.14", "3.9.0", "3.24.14")
    message = "the exports have different schema versions: 3.9.0 in rank 1; 3.24.14 in rank 0, 2"
    assert version_warnings(paths) == [("mixed_versions", [0, 1, 2], message)]


def test_an_export_without_metadata(tmp_path):
    """B32: it is read by its columns, and said so."""
    paths = job(tmp_path, "3.24.14", "3.24.14")
    with closing(sqlite3.connect(paths[1])) as base:
        base.execute("DROP TABLE META_DATA_EXPORT")
        base.commit()
    ((code, ranks, message),) = version_warnings(paths)
    assert (code, ranks) == ("no_export_metadata", [1])
    assert message.startswith("rank 1: the export does not tell its version")
    assert digest(paths[1]).info.nccl_kernels == 1


def test_a_schema_of_the_future(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 6_000_000, "gemm")
        export.sql("UPDATE META_DATA_EXPORT SET value = '4.0.0' WHERE name = 'EXPORT_SCHEMA_VERSION'")
    with pytest.raises(ReportError, match=r"schema version 4\.0\.0, expected 3\.x"):
        claims(report_of(export.path))
