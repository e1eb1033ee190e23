"""Digests as files: the same answers as from the reports, whole or not at all, and never a traceback."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankdiff import digest_file
from rankdiff.claims import Claims
from rankdiff.digest import DigestOptions
from rankdiff.digest_cache import DigestCache, write_whole
from rankdiff.digest_file import Provenance, StoredDigest, read_digests, read_provenance, write_digests
from rankdiff.digest_folder import write_folder
from rankdiff.errors import RankdiffError, ReportError
from rankdiff.pipeline import CompareOptions, compare, read
from rankdiff.plain import from_plain, to_plain
from rankdiff.render.json import to_json
from rankdiff.reports.discover import discover
from rankdiff.reports.fingerprint import fingerprint
from rankdiff.schema import DIGEST_TABLES
from rankdiff.simulation import base4
from tests.command import called as rankdiff
from tests.folders import to_folder
from tests.jobs import run

MADE = Provenance("f" * 32, DigestOptions())


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return base4(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def digests(job, tmp_path_factory):
    """Digests of the job by the command, and what it said."""
    folder = tmp_path_factory.mktemp("out") / "digests"
    done = rankdiff("digest", *job.paths, "-o", folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout.split()


def answer(*paths: object, **options: object) -> str:
    outcome = compare([str(path) for path in paths], CompareOptions(**options))  # type: ignore[arg-type]
    return to_json(outcome.comparison, outcome.notes)


def duplicates(paths: list[Path], folder: Path) -> list[Path]:
    return [Path(shutil.copy2(path, folder)) for path in paths]


def stored(folder: Path) -> Path:
    return sorted(folder.glob("*.digest.parquet"))[0]


# --- what is in them ------------------------------------------------------------------------------------


def test_every_table_and_scalar_comes_back(job, tmp_path):
    made = list(read([str(p) for p in job.paths]).digests)
    write_digests(made, MADE, str(tmp_path / "all.parquet"))
    back, provenance = read_digests(str(tmp_path / "all.parquet"))
    assert provenance == MADE
    assert len(back) == len(made) == 4
    for before, after in zip(made, back, strict=True):
        for name in DIGEST_TABLES:
            assert getattr(before, name).equals(getattr(after, name)), name
            assert getattr(after, name).schema == DIGEST_TABLES[name]
        plain = dataclasses.replace(before.info.claims, path=before.info.claims.report)
        assert after.info == dataclasses.replace(before.info, claims=plain)
    assert any(d.lead_up.height for d in back)


def test_tables_without_rows_come_back(tmp_path):
    empty = {name: pl.DataFrame(schema=schema) for name, schema in DIGEST_TABLES.items()}
    (some,) = read([str(base4(tmp_path).paths[0])]).digests
    digest = dataclasses.replace(some, **empty)
    write_digests([digest], MADE, str(tmp_path / "empty.parquet"))
    ((back,), _) = read_digests(str(tmp_path / "empty.parquet"))
    assert all(getattr(back, name).equals(empty[name]) for name in empty)


def test_comparing_digests_gives_the_same_bytes(job, digests):
    folder, paths = digests
    assert sorted(map(os.path.basename, paths)) == [f"{p.stem}.digest.parquet" for p in sorted(job.paths)]
    expected = answer(*job.paths)
    assert answer(*paths) == expected
    assert answer(folder) == expected
    assert answer(job.paths[0], *sorted(paths)[1:]) == expected, "reports and digests, mixed"


def test_real_captures_give_the_same_bytes(captures, tmp_path):
    for name in ("torchrun4", "window4"):
        reports = sorted((captures / name).glob("*.sqlite"))
        done = write_folder([str(r) for r in reports], str(tmp_path / name), DigestOptions())
        assert (len(done.written), done.problems) == (len(reports), ())
        assert answer(tmp_path / name) == answer(*reports)


def test_text_ticket_and_inspection_are_the_same(job, digests, tmp_path):
    folder, _ = digests
    for command in (["compare"], ["inspect"]):
        ours, theirs = rankdiff(*command, folder), rankdiff(*command, *job.paths)
        assert (ours.stdout, ours.returncode) == (theirs.stdout, theirs.returncode)
    assert rankdiff("compare", folder, "-o", tmp_path / "a", "--no-plots").returncode == 0
    assert rankdiff("compare", *job.paths, "-o", tmp_path / "b", "--no-plots").returncode == 0
    assert (tmp_path / "a" / "report.json").read_bytes() == (tmp_path / "b" / "report.json").read_bytes()
    ours, theirs = ((tmp_path / x / "report.md").read_text().splitlines() for x in "ab")
    differing = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    assert [a.split()[:2] for a, _ in differing] == [["rankdiff", "compare"]], "which names the files given"


def test_tables_are_read_when_they_are_asked_for(digests):
    (digest,), _ = read_digests(str(stored(digests[0])))
    assert set(vars(digest)) == {"info", "_place"}
    steps = digest.steps
    assert digest.steps is steps
    kept = dataclasses.replace(digest, gaps=digest.gaps.head(1))
    assert kept.gaps.height == 1
    assert kept.steps.equals(steps)


def test_some_columns_are_those_of_the_table(job, digests):
    names = ("step", "comm", "start_ns")
    for stored_one in read_digests(str(stored(digests[0])))[0]:
        some = stored_one.columns("collectives", *names)
        assert "collectives" not in vars(stored_one)
        assert some.equals(stored_one.collectives.select(names))
        assert stored_one.columns("steps", "number").equals(stored_one.steps.select("number"))
        assert stored_one.columns("lead_up", "ns").equals(stored_one.lead_up.select("ns"))
    plain = read([str(job.paths[0])]).digests[0]
    assert plain.columns("collectives", *names).equals(plain.collectives.select(names))


def test_other_engines_can_read_them(digests):
    import duckdb

    with duckdb.connect() as db:
        (count,) = db.execute(
            "SELECT count(*) FROM (SELECT unnest(collectives, recursive := true) FROM read_parquet(?)) WHERE op = 'all_reduce'",
            [str(digests[0] / "*.digest.parquet")],
        ).fetchall()[0]
    (digest,), _ = read_digests(str(stored(digests[0])))
    assert count == 4 * digest.collectives.filter(pl.col("op") == "all_reduce").height > 0


def test_they_do_not_tell_where_the_reports_were(job, digests):
    for path in digests[0].iterdir():
        assert os.fsencode(job.paths[0].parent) not in path.read_bytes()


def test_scalars_are_checked():
    class Other:
        pass

    with pytest.raises(TypeError, match="expected a dataclass"):
        to_plain(Other())
    plain = to_plain(MADE)
    assert from_plain(Provenance, json.loads(json.dumps(plain))) == MADE
    for wrong, why in (
        ({**plain, "fingerprint": 1}, "expected str, found int"),
        ({**plain, "more": 1}, "unknown field 'more'"),
        ({"options": {}}, "no field 'fingerprint'"),
        ([], "expected fields, found list"),
    ):
        with pytest.raises(ValueError, match=why):
            from_plain(Provenance, wrong)
    claims = {"report": "a", "path": "a", "pid": 1, "device": 0, "gpu_processes": 1}
    assert from_plain(Claims, {**claims, "env_ranks": [["RANK", 3]]}).env_ranks == (("RANK", 3),)
    for wrong, why in (
        ({"pid": 1 << 63}, "beyond 62 bits"),
        ({"pid": True}, "expected int, found bool"),
        ({"env_ranks": [["RANK"]]}, "expected 2 values, found 1"),
        ({"env_ranks": 3}, "expected a list, found int"),
    ):
        with pytest.raises(ValueError, match=why):
            from_plain(Claims, {**claims, **wrong})


# --- damage ---------------------------------------------------------------------------------------------


def test_damaged_digests_are_left_out_in_one_line(digests, tmp_path):
    whole = stored(digests[0]).read_bytes()
    draws = np.random.default_rng(7)
    path = tmp_path / "prof_0.digest.parquet"
    refused = []
    for n in range(150):
        data = bytearray(whole)
        if n % 3 == 0:
            del data[int(draws.integers(1, len(data))) :]
        else:
            for at in draws.integers(4, len(data), 1 + n % 4):
                data[at] ^= int(draws.integers(1, 256))
        path.write_bytes(data)
        try:
            ((digest,), _) = read_digests(str(path))
            tables = {name: getattr(digest, name) for name in DIGEST_TABLES}
        except ReportError as error:
            refused.append(str(error))
            continue
        # What cannot be told from a digest still has its form.
        assert all(table.schema == DIGEST_TABLES[name] for name, table in tables.items())
    assert len(refused) > 100
    assert all("prof_0.digest.parquet" in text and "\n" not in text for text in refused)


def test_hand_made_tables_that_no_digest_can_hold_are_refused(job, tmp_path):
    (made, *_) = read([str(p) for p in job.paths]).digests
    late = made.lead_up.with_columns(pl.lit(made.collectives.height).alias("collective"))
    backwards = made.collectives.with_columns(pl.col("start_ns") + 10**12)
    stray = made.collectives.with_columns(pl.lit(made.steps.height, pl.Int64).alias("step"))
    beyond = made.idle.with_columns(pl.lit((1 << 63) - 1, pl.Int64).alias("ns"))
    for name, table in (
        ("lead_up", late),
        ("collectives", backwards),
        ("collectives", stray),
        ("idle", beyond),
    ):
        write_digests([dataclasses.replace(made, **{name: table})], MADE, str(tmp_path / "x.parquet"))
        ((digest,), _) = read_digests(str(tmp_path / "x.parquet"))
        with pytest.raises(ReportError, match=f"damaged digest \\(table {name}\\)"):
            getattr(digest, name)
    other = made.steps.rename({"number": "numero"})
    write_digests([dataclasses.replace(made, steps=other)], MADE, str(tmp_path / "x.parquet"))
    with pytest.raises(ReportError, match="table steps"):
        _ = read_digests(str(tmp_path / "x.parquet"))[0][0].steps


def test_a_digest_that_turns_out_damaged_is_one_line(job, digests, tmp_path):
    made = list(read([str(p) for p in job.paths]).digests)
    backwards = made[1].collectives.with_columns(pl.col("start_ns") + 10**12)
    folder = tmp_path / "digests"
    shutil.copytree(digests[0], folder)
    bad = sorted(folder.iterdir())[1]
    write_digests([dataclasses.replace(made[1], collectives=backwards)], MADE, str(bad))
    done = rankdiff("compare", folder)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"{bad}: a damaged digest (table collectives). Make it again" in done.stderr


def test_other_parquet_and_other_versions(digests, tmp_path):
    plain = tmp_path / "table.parquet"
    pq.write_table(pa.table({"a": [1]}), plain)
    with pytest.raises(ReportError, match="one Parquet file, expected an export or a digest of rankdiff"):
        read_digests(str(plain))
    table = pq.read_table(stored(digests[0]))
    newer = {b"rankdiff": json.dumps(to_plain(MADE) | {"schema": "rankdiff.digest/9"}).encode()}
    pq.write_table(table.replace_schema_metadata(newer), plain)
    with pytest.raises(ReportError, match=r"digest schema rankdiff\.digest/9, expected rankdiff\.digest/1"):
        read_digests(str(plain))
    pq.write_table(table.drop_columns(["steps"]), plain)
    with pytest.raises(ReportError, match="a digest without the table steps"):
        read_digests(str(plain))


# --- options and identity -------------------------------------------------------------------------------


def test_ranks_are_named_anew(job, digests):
    other = r"prof_(?P<node>.+)_(?P<rank>\d+)"
    assert [i.rank_source for i in read([str(digests[0])], CompareOptions(rank_regex=other)).identities] == [
        "--rank-regex"
    ] * 4


def test_ranges_that_a_digest_was_not_made_with_are_an_error(job, digests, tmp_path):
    done = rankdiff("compare", digests[0], "--data-range", "next.*")
    assert done.returncode == 1
    assert "made without --data-range, asked for 'next.*'. Make it again: rankdiff digest" in done.stderr
    out = tmp_path / "with"
    assert rankdiff("digest", *job.paths, "-o", out, "--data-range", "next.*").returncode == 0
    assert rankdiff("compare", out, "--data-range", "next.*").returncode == 0
    assert rankdiff("compare", out).returncode == 0, "what a digest was made with need not be said again"


def test_a_subset_of_ranks_and_of_nodes(job, digests):
    assert [i.rank for i in read([str(digests[0])], CompareOptions(ranks=frozenset({1, 3}))).identities] == [
        1,
        3,
    ]
    found = read([str(digests[0])], CompareOptions(nodes=frozenset({"nodeB"})))
    assert {i.node for i in found.identities} == {"nodeB"}
    assert found.missing == ()
    done = rankdiff("compare", digests[0], "--nodes", "nodeX")
    assert done.returncode == 1
    assert "Check --ranks and --nodes" in done.stderr
    assert rankdiff("compare", digests[0], "--nodes", "a,,b").returncode == 2


def test_a_report_with_its_digest_counts_once(job, digests, tmp_path):
    folder = tmp_path / "both"
    shutil.copytree(job.paths[0].parent, folder, copy_function=shutil.copy2)
    reports = sorted(folder.glob("*.sqlite"))
    both = [*map(str, reports), str(digests[0])]
    report = run(both)
    assert len(report["ranks"]) == 4
    assert [w["code"] for w in report["warnings"]].count("already_digested") == 4
    shutil.copytree(digests[0], folder, dirs_exist_ok=True)
    codes = [w["code"] for w in run([folder])["warnings"]]
    assert codes.count("already_exported") == 4
    # One that was written after its digest is read itself.
    os.utime(reports[0], ns=(1 << 61, 1 << 61))
    messages = [w["message"] for w in run([folder])["warnings"] if w["code"] == "already_exported"]
    assert sum(m.endswith("prof_nodeA_0.sqlite, which is read") for m in messages) == 1
    assert len(messages) == 4


def test_timeline_and_trace_need_the_reports(job, digests, tmp_path):
    for command in (("timeline", tmp_path / "x.png"), ("trace", tmp_path / "x.json")):
        done = rankdiff(command[0], digests[0], "-o", command[1])
        assert done.returncode == 1
        assert "a digest, which does not hold the single events that this command shows" in done.stderr
        assert not command[1].exists()
    folder = tmp_path / "both"
    shutil.copytree(job.paths[0].parent, folder)
    shutil.copytree(digests[0], folder, dirs_exist_ok=True)
    assert rankdiff("timeline", folder, "-o", tmp_path / "x.png").returncode == 0


def test_a_folder_of_reports(job, tmp_path):
    folder = tmp_path / "reports"
    folder.mkdir()
    duplicates(job.paths[:2], folder)
    to_folder(job.paths[2], folder)
    shutil.copy(job.paths[3], folder / ".prof_hidden_9.sqlite")
    (folder / "slurm-1.out").write_text("log")
    assert [r.name for r in discover([folder]).reports] == [
        "prof_nodeA_0.sqlite",
        "prof_nodeA_1.sqlite",
        "prof_nodeB_2_pqtdir",
    ]
    assert [p.form for p in discover([folder / "prof_nodeB_2_pqtdir"]).reports] == ["parquet"]


# --- writing them ---------------------------------------------------------------------------------------


def test_what_is_unchanged_is_not_done_again(job, tmp_path):
    source = tmp_path / "reports"
    source.mkdir()
    reports = duplicates(job.paths, source)
    out = tmp_path / "digests"
    assert rankdiff("digest", *reports, "-o", out).returncode == 0
    before = {p.name: p.stat().st_ino for p in out.iterdir()}
    again = rankdiff("digest", source, "-o", out)
    assert "4 digests are up to date; 0 written" in again.stderr
    assert {p.name: p.stat().st_ino for p in out.iterdir()} == before
    with closing(sqlite3.connect(reports[0])) as db, db:
        db.execute("UPDATE NVTX_EVENTS SET text = 'another' WHERE rowid = 1")
    changed = rankdiff("digest", *reports, "-o", out)
    assert changed.returncode == 1
    assert "another state of prof_nodeA_0.sqlite" in changed.stderr
    assert {p.name: p.stat().st_ino for p in out.iterdir()} == before
    assert rankdiff("digest", *reports, "-o", out, "--force").returncode == 0
    assert sum(p.stat().st_ino != before[p.name] for p in out.iterdir()) == 1
    bad = out / "prof_nodeA_1.digest.parquet"
    bad.write_bytes(bad.read_bytes()[:-9])
    assert rankdiff("digest", *reports, "-o", out).returncode == 0
    assert answer(out) == answer(*reports)


def test_one_that_cannot_be_read_does_not_stop_the_others(job, tmp_path):
    broken = tmp_path / "prof_nodeC_9.sqlite"
    broken.write_bytes(b"SQLite format 3\x00" + bytes(200))
    same = tmp_path / "more" / job.paths[0].name
    same.parent.mkdir()
    shutil.copy(job.paths[0], same)
    done = rankdiff("digest", job.paths[0], same, broken, "-o", tmp_path / "out")
    assert done.returncode == 1
    assert done.stdout == f"{tmp_path}/out/prof_nodeA_0.digest.parquet\n"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["prof_nodeA_0.digest.parquet"]
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert any("prof_nodeC_9.sqlite" in line for line in lines)
    assert any("the same name as" in line for line in lines)
    assert rankdiff("digest", broken, "-o", tmp_path / "out2", "--strict").returncode == 1
    assert rankdiff("digest", *job.paths).returncode == 2


def test_whoever_comes_second_does_not_replace(tmp_path):
    digest = list(read([str(base4(tmp_path).paths[0])]).digests)
    path = tmp_path / "x.digest.parquet"
    assert write_whole(digest, MADE, str(path), replace=False)
    other = dataclasses.replace(MADE, fingerprint="0" * 32)
    assert not write_whole(digest, other, str(path), replace=False)
    assert read_provenance(str(path)) == MADE
    assert write_whole(digest, other, str(path), replace=True)
    assert read_provenance(str(path)) == other
    assert stat.S_IMODE(path.stat().st_mode) & 0o044 == 0o044 & ~_umask()
    with pytest.raises(RankdiffError, match="cannot be written"):
        write_whole(digest, MADE, str(tmp_path / "no such folder" / "x"), replace=True)
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".tmp")] == []


def test_without_hard_links_the_first_wins_as_well(tmp_path, monkeypatch):
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    test_whoever_comes_second_does_not_replace(tmp_path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# --- the cache ------------------------------------------------------------------------------------------


def test_the_cache_is_used_and_survives_damage(job, tmp_path, monkeypatch):
    source = tmp_path / "reports"
    source.mkdir()
    reports = duplicates(job.paths, source)
    expected = answer(*reports)
    cache = DigestCache(str(tmp_path / "deep" / "cache")).open()
    # Of a subset the whole report is kept.
    read([str(p) for p in reports], CompareOptions(cache=cache, ranks=frozenset({0, 1, 2, 3})))
    kept = sorted((tmp_path / "deep" / "cache").iterdir())
    assert len(kept) == 4
    made = []
    import rankdiff.digest_tasks as tasks

    original = tasks.make_digests
    monkeypatch.setattr(tasks, "make_digests", lambda *a: made.append(a[0].name) or original(*a))
    assert answer(*reports, cache=cache) == expected
    assert made == []
    kept[0].write_bytes(b"PAR1 nonsense")
    assert answer(*reports, cache=cache) == expected
    assert len(made) == 1
    # Under another name, and with other options.
    moved = source / "prof_nodeA_7.sqlite"
    reports[0].rename(moved)
    found = read([str(moved), *map(str, reports[1:])], CompareOptions(cache=cache))
    assert len(made) == 1
    assert "prof_nodeA_7.sqlite" in {i.claims.report for i in found.identities}
    answer(moved, *reports[1:], cache=cache, digest=DigestOptions(data_range="x"))
    assert len(made) == 5


def test_the_cache_notices_every_change(job, tmp_path):
    path = duplicates(job.paths[:1], tmp_path)[0]
    (report,) = discover([path]).reports
    before = fingerprint(report)
    assert fingerprint(report) == before
    os.utime(path, ns=(10**18, 10**18))
    touched = fingerprint(report)
    assert touched != before
    with open(path, "r+b") as file:  # as a program that puts the time back
        file.seek(27)
        file.write(b"\x77")
    os.utime(path, ns=(10**18, 10**18))
    assert fingerprint(report) != touched
    folder = to_folder(job.paths[1], tmp_path)
    (export,) = discover([folder]).reports
    before = fingerprint(export)
    next(folder.glob("OSRT*")).unlink()
    assert fingerprint(export) != before


def test_a_cache_that_cannot_be_used(job, tmp_path):
    (tmp_path / "file").write_text("")
    done = rankdiff("compare", *job.paths, "--cache", tmp_path / "file" / "cache")
    assert done.returncode == 1
    assert "Choose another folder for --cache" in done.stderr


def test_a_cache_that_fills_up_costs_a_warning(job, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rankdiff.digest_cache.write_digests", full)
    report = run(job.paths, cache=DigestCache(str(tmp_path)).open())
    assert [w["code"] for w in report["warnings"]].count("cache_not_written") == 4
    assert report["findings"][0]["rank"] == 2
    assert list(tmp_path.iterdir()) == []


def test_stored_digests_are_digests(digests):
    assert isinstance(read_digests(str(stored(digests[0])))[0][0], StoredDigest)
    with pytest.raises(AttributeError):
        _ = read_digests(str(stored(digests[0])))[0][0].nothing


def test_large_tables_stay_in_memory_up_to_a_limit(digests, monkeypatch):
    opened = [read_digests(str(path))[0][0] for path in sorted(digests[0].iterdir())]
    read = []
    original = digest_file.read_table
    monkeypatch.setattr(digest_file, "read_table", lambda *a, **k: read.append(a[2]) or original(*a, **k))
    monkeypatch.setattr(digest_file, "_tables", digest_file._Tables())
    names = ("start_ns", "end_ns")
    for _ in range(3):
        tables = [d.columns("collectives", *names) for d in opened]
        assert all(t.equals(d.collectives.select(names)) for t, d in zip(tables, opened, strict=True))
    assert len(read) == 2 * len(opened)
    read.clear()
    largest = max(d.collectives.estimated_size() for d in opened)
    monkeypatch.setattr(digest_file, "_tables", digest_file._Tables())
    monkeypatch.setattr(digest_file, "_KEPT_BYTES", 2 * largest)
    for d in (*opened, *opened):
        assert d.collectives.height
        assert sum(t.estimated_size() for t in digest_file._tables._tables.values()) <= 2 * largest
    assert len(read) == 2 * len(opened), "each was gone when it was asked for again"
