"""`compare --save-db`: what is in the database, and that it is there whole or not at all."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import duckdb
import pytest
from click.testing import CliRunner

import rankdiff
from benchmarks.plays import Play, perform
from rankdiff import array_frames, database
from rankdiff.comparison import Comparison, compare_digests
from rankdiff.database import write_database
from rankdiff.job_tables import JOB_TABLES, RANK_TABLES
from rankdiff.pipeline import CompareOptions, Outcome
from rankdiff.reports.engine import interruptible, open_engine
from rankdiff.result import Comparison as Result
from rankdiff_cli import main
from rankdiff_cli.main import group
from tests.doc_pages import DOCS
from tests.golden import SAMPLES

FOLDER = SAMPLES / "late_rank"
PLAY = Play(ranks=4, per_node=2, steps=8, per_step=2, late={1: 9e6})


@pytest.fixture(scope="module")
def played() -> Comparison:
    made = perform(PLAY)
    return compare_digests(made.digests, made.identities, ())


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> tuple[rankdiff.Comparison, Path]:
    """A job with rows in every table but two, and its database."""
    c = rankdiff.compare(FOLDER)
    path = tmp_path_factory.mktemp("db") / "job.duckdb"
    c.save_db(path)
    return c, path


@contextmanager
def opened(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(str(path), read_only=True) as db:
        yield db


def content(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables, in their order."""
    with opened(path) as db:
        names = db.execute(
            "SELECT schema_name || '.' || table_name FROM duckdb_tables() ORDER BY ALL"
        ).fetchall()
        return {name: db.execute(f"FROM {name}").fetchall() for (name,) in names}


def test_the_page_names_what_is_there(sample):
    page = (DOCS / "database.md").read_text(encoding="utf-8")
    documented = {}
    for name, body in re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", page, re.M | re.S):
        full = name if "." in name else f"main.{name}"
        documented[full] = re.findall(r"^\| `(\w+)` \| (.+?) \|", body, re.M)
    with opened(sample[1]) as db:
        rows = db.execute(
            "SELECT schema_name || '.' || table_name, column_name, replace(data_type, '\"', '') "
            "FROM duckdb_columns() WHERE NOT internal ORDER BY table_oid, column_index"
        ).fetchall()
    found: dict[str, list[tuple[str, str]]] = {}
    for table, column, kind in rows:
        found.setdefault(table, []).append((column, kind))
    assert found == documented
    assert set(found) == {f"main.{n}" for n in JOB_TABLES} | {f"digest.{n}" for n in RANK_TABLES}


def test_the_same_as_the_frames(sample):
    c, path = sample
    found = content(path)
    for name in c.table_names:
        full = name if name.startswith("digest.") else f"main.{name}"
        assert [list(map(plain, row)) for row in found[full]] == [
            list(map(plain, r)) for r in c.table(name).rows()
        ]
    assert [n for n, rows in found.items() if not rows] == ["digest.clocks", "main.notes"]


def plain(x: object) -> object:
    """Lists and structs of polars and DuckDB alike."""
    return list(x) if isinstance(x, tuple) else x


def test_the_same_job_gives_the_same_content(sample, tmp_path):
    c = rankdiff.compare(sorted(FOLDER.glob("*.sqlite"), reverse=True))
    c.save_db(tmp_path / "again.duckdb")
    assert content(tmp_path / "again.duckdb") == content(sample[1])


def test_many_parts_are_the_whole(played, tmp_path, monkeypatch):
    write_database(tmp_path / "one.duckdb", played)
    monkeypatch.setattr(database, "_ROWS_AT_ONCE", 20)
    monkeypatch.setattr(array_frames.waits, "__defaults__", (20,))
    write_database(tmp_path / "parts.duckdb", played)
    assert content(tmp_path / "parts.duckdb") == content(tmp_path / "one.duckdb")
    assert len(content(tmp_path / "one.duckdb")["main.waits"]) == 4 * 16


def test_nothing_assessed_has_all_tables(tmp_path):
    made = perform(PLAY)
    alone = compare_digests(made.digests[:1], made.identities[:1], ())
    write_database(tmp_path / "job.duckdb", alone)
    found = content(tmp_path / "job.duckdb")
    assert len(found) == len(JOB_TABLES) + len(RANK_TABLES)
    assert (found["main.waits"], len(found["main.ranks"])) == ([], 1)


def test_nothing_is_replaced_by_mistake(played, tmp_path):
    path = tmp_path / "job.duckdb"
    write_database(path, played)
    before = path.read_bytes()
    with pytest.raises(rankdiff.RankdiffError, match="exists"):
        write_database(path, played)
    assert path.read_bytes() == before
    write_database(path, played, command="again", force=True)
    assert content(path)["main.provenance"][0][-1] == "again"
    report = tmp_path / "prof_0.sqlite"
    report.write_bytes(b"SQLite format 3\0 and the rest of a report")
    with pytest.raises(rankdiff.RankdiffError, match="is no DuckDB database"):
        write_database(report, played, force=True)
    assert report.read_bytes().startswith(b"SQLite")
    with pytest.raises(rankdiff.RankdiffError, match="no such folder"):
        write_database(tmp_path / "none" / "job.duckdb", played)
    with pytest.raises(rankdiff.RankdiffError, match="DuckDB takes no such name"):
        write_database(tmp_path / os.fsdecode(b"job\xff.duckdb"), played)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["job.duckdb", "prof_0.sqlite"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, KeyError, rankdiff.ReportError])
def test_nothing_is_left_of_half_a_database(played, tmp_path, monkeypatch, error):
    before = {"job.duckdb": b"\0" * 8 + b"DUCK, an older one"}
    (tmp_path / "job.duckdb").write_bytes(before["job.duckdb"])
    half = database.rank_tables

    def broken(c):
        parts = half(c)
        yield from (next(parts) for _ in range(15))
        there = {p.name for p in tmp_path.iterdir()}
        assert any(name.endswith(".part") for name in there)
        raise error("in the middle")

    monkeypatch.setattr(database, "rank_tables", broken)
    monkeypatch.setattr(database, "_ROWS_AT_ONCE", 1)
    with pytest.raises(error):
        write_database(tmp_path / "job.duckdb", played, force=True)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_signal_ends_a_query():
    def stop(number, frame):
        sys.exit(128 + number)

    before = signal.signal(signal.SIGALRM, stop)
    endless = "SELECT sum(a.range * b.range) FROM range(100_000_000) a, range(100_000_000) b"
    try:
        with open_engine() as db:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt), interruptible():
                db.execute(endless)
        with pytest.raises(RuntimeError, match="another"), interruptible():
            raise RuntimeError("another")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_status_tells_the_signal(monkeypatch, capsys, number):
    def interrupted(**_):
        if number == signal.SIGTERM:
            with pytest.raises(SystemExit):
                main._terminated(number, None)
        raise click.exceptions.Abort

    monkeypatch.setattr(main, "_stopped_by", [signal.SIGINT])
    monkeypatch.setattr(main.group, "main", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as done:
            main.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.value.code == 128 + number
    assert capsys.readouterr().err == "rankdiff: interrupted\n"


@pytest.mark.parametrize("room", [5_000, 15_000, 300_000])  # for the file's head, the log, and the tables
def test_no_room(played, tmp_path, room):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(rankdiff.RankdiffError, match=r"job\.duckdb: cannot be written: ") as raised:
            write_database(tmp_path / "job.duckdb", played)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ".part" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_others_may_read_it(sample, tmp_path):
    (tmp_path / "usual").touch()
    assert sample[1].stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert [p.name for p in sample[1].parent.iterdir()] == ["job.duckdb"]


def test_the_command(sample, tmp_path):
    path = tmp_path / "job.duckdb"
    arguments = ["compare", str(FOLDER), "--save-db", str(path)]
    done = CliRunner().invoke(group, arguments, standalone_mode=False)
    assert (done.exception, done.return_value) == (None, 0)
    assert f"rankdiff: database in {path}" in done.output
    made, expected = content(path), content(sample[1])
    assert made.pop("main.provenance")[0][:-1] == expected["main.provenance"][0][:-1]
    assert made == {name: rows for name, rows in expected.items() if name != "main.provenance"}
    with opened(path) as db:
        assert db.execute("SELECT command FROM provenance").fetchall() == [("rankdiff compare late_rank",)]
    # Refused before the work: the reports are not even looked for.
    again = CliRunner().invoke(
        group, ["compare", "no/such/report", "--save-db", str(path)], standalone_mode=False
    )
    assert str(again.exception) == f"{path}: exists. Choose another name, or --force to replace it"


def test_a_job_that_is_given_as_digests(played, tmp_path):
    c = Result(Outcome(played, (), ()), (), CompareOptions())
    c.save_db(str(tmp_path / "job.duckdb"))
    with opened(tmp_path / "job.duckdb") as db:
        late = db.execute("SELECT rank, severity FROM findings").fetchall()
        sums = db.execute(
            "SELECT w.rank, sum(w.wait_ns) FROM waits w JOIN instances USING (instance) WHERE judged GROUP BY ALL ORDER BY 1"
        ).fetchall()
        expected = db.execute("SELECT rank, wait_ns FROM ranks ORDER BY rank").fetchall()
    assert [rank for rank, severity in late if severity != "note"] == [1]
    assert sums == expected


def test_a_name_as_long_as_names_can_be(played, tmp_path):
    path = tmp_path / f"{'j' * 248}.duckdb"
    write_database(path, played)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
