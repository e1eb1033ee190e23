"""Digests where things go wrong: odd names, full disks, files that change, folders of two purposes, mixed options."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from rankdiff import digest_folder, digest_tasks
from rankdiff.digest import DigestOptions
from rankdiff.digest_cache import DigestCache
from rankdiff.digest_file import Provenance, read_digests, write_digests
from rankdiff.errors import RankdiffError, ReportError
from rankdiff.gathering import gather
from rankdiff.pipeline import CompareOptions, compare, read
from rankdiff.render.json import to_json
from rankdiff.reports.discover import discover
from rankdiff.simulation import Export, base4
from tests.command import called as rankdiff
from tests.jobs import run


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    base4(folder)
    return folder


@pytest.fixture(scope="module")
def digests(job, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "digests"
    assert rankdiff("digest", job, "-o", folder).returncode == 0
    return folder


@pytest.fixture(scope="module")
def truth(job) -> str:
    return answer(job)


def answer(*paths: Path, **options: object) -> str:
    outcome = compare([str(path) for path in paths], CompareOptions(**options))  # type: ignore[arg-type]
    return to_json(outcome.comparison, outcome.notes)


def codes(report: dict[str, object]) -> list[str]:
    return [w["code"] for w in report["warnings"]]  # type: ignore[attr-defined]


@contextmanager
def no_room(size: int = 4_096) -> Iterator[None]:
    """No file can grow beyond so many bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# --- names ----------------------------------------------------------------------------------------------


def test_names_that_are_no_text(job, truth, tmp_path):
    reports = tmp_path / os.fsdecode(b"re\xffports\n'\"")
    reports.mkdir()
    for n, path in enumerate(sorted(job.iterdir())):
        shutil.copy(path, reports / os.fsdecode(b"prof_\xfe\nnode%d_%d.sqlite" % (n // 2, n)))
    out, cache = reports / "digests", reports / "cache"
    assert rankdiff("digest", reports, "-o", out).returncode == 0
    assert len(list(out.iterdir())) == 4
    expected = answer(reports)
    assert answer(out) == expected
    assert json.loads(expected)["verdict"] == json.loads(truth)["verdict"]
    for _ in range(2):
        assert answer(reports, cache=DigestCache(str(cache)).open()) == expected
    assert len(list(cache.iterdir())) == 4


def test_a_name_as_long_as_names_can_be(job, tmp_path):
    report = tmp_path / f"{'p' * 246}_0.sqlite"
    shutil.copy(sorted(job.iterdir())[0], report)
    done = rankdiff("digest", report, "-o", tmp_path / "out")
    assert done.returncode == 1
    assert "cannot be written (File name too long). Give the report a shorter name" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("command", [("compare", "-o"), ("compare", "--cache"), ("digest", "-o")])
def test_an_empty_name_is_not_the_working_directory(job, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    done = rankdiff(command[0], job, command[1], "")
    assert done.returncode == 2
    assert "an empty name" in done.stderr
    assert list(tmp_path.iterdir()) == []


# --- no room --------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_nothing_behind(job, truth, tmp_path):
    with no_room():
        done = rankdiff("digest", job, "-o", tmp_path / "out")
        cached = run([job], cache=DigestCache(str(tmp_path / "cache")).open())
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 4
    assert "cannot be written (File too large)" in done.stderr
    assert codes(cached).count("cache_not_written") == 4
    assert cached["verdict"] == json.loads(truth)["verdict"]
    assert [list((tmp_path / name).iterdir()) for name in ("out", "cache")] == [[], []]


def test_a_full_temporary_place_is_an_error_that_says_so(job, tmp_path):
    report = read([str(sorted(job.iterdir())[0])])
    (claims,) = (d.info.claims for d in report.digests)
    (found,) = discover([claims.path]).reports
    task = digest_tasks.DigestTask(found, (claims,), DigestOptions(), None, True, str(tmp_path), 0)
    with no_room(), pytest.raises(RankdiffError, match="cannot be written") as caught:
        digest_tasks.digest_report(task)
    assert caught.value.remedy == "Point RANKDIFF_TMP at a folder with room"


def test_pictures_need_no_room_but_their_own(job, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "there is no such folder"))
    done = rankdiff("compare", job, "-o", tmp_path / "ticket")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ticket" / "plots" / "lateness.png").read_bytes().startswith(b"\x89PNG")


# --- files that change ----------------------------------------------------------------------------------


def test_a_digest_that_is_replaced_is_not_mixed_with_the_new_one(job, tmp_path):
    reports = [str(p) for p in sorted(job.iterdir())]
    (first,), (other,) = (read([path]).digests for path in reports[1:3])
    path = tmp_path / "x.digest.parquet"
    write_digests([first], Provenance("1" * 32, DigestOptions()), str(path))
    ((opened,), _) = read_digests(str(path))
    assert opened.collectives.equals(first.collectives)
    # By its equal, as by another run into the same cache.
    write_digests([first], Provenance("1" * 32, DigestOptions()), str(tmp_path / "y"))
    os.replace(tmp_path / "y", path)
    assert opened.lead_up.equals(first.lead_up)
    write_digests([other], Provenance("2" * 32, DigestOptions()), str(tmp_path / "y"))
    os.replace(tmp_path / "y", path)
    for name in ("steps", "gaps"):
        with pytest.raises(ReportError, match="replaced or changed since it was opened"):
            getattr(opened, name)
    # A notebook that compares again sees the new one.
    ((again,), _) = read_digests(str(path))
    assert again.collectives.equals(other.collectives)
    path.unlink()
    with pytest.raises(ReportError, match="cannot be read"):
        _ = again.steps


def test_a_report_that_changes_while_it_is_read_has_no_digest(job, tmp_path, monkeypatch):
    path = Path(shutil.copy(sorted(job.iterdir())[0], tmp_path))
    for module in (digest_folder, digest_tasks):
        original = module.make_digests

        def make(*a: object, original=original) -> object:
            os.utime(path, ns=(10**18, 10**18 + path.stat().st_mtime_ns % 10**9 + 1))
            return original(*a)

        monkeypatch.setattr(module, "make_digests", make)
    done = rankdiff("digest", path, "-o", tmp_path / "out")
    assert done.returncode == 1
    assert "changed while it was read; is it still being written?" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []
    read([str(path)], CompareOptions(cache=DigestCache(str(tmp_path / "cache")).open()))
    assert list((tmp_path / "cache").iterdir()) == []


def test_only_what_may_be_a_digest_is_replaced(job, digests, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(digests, out)
    mine, empty, cut, old = sorted(out.iterdir())
    mine.write_text("something of mine")
    empty.write_bytes(b"")
    cut.write_bytes(cut.read_bytes()[:-9])
    made = read_digests(str(old))
    write_digests(
        made[0],
        Provenance(made[1].fingerprint, made[1].options, rankdiff_version="0.0.1"),
        str(tmp_path / "y"),
    )
    os.replace(tmp_path / "y", old)
    done = rankdiff("digest", job, "-o", out)
    assert done.returncode == 1
    assert f"{mine}: holds something else" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert mine.read_text() == "something of mine"
    assert [p.read_bytes() for p in (empty, cut, old)] == [
        (digests / p.name).read_bytes() for p in (empty, cut, old)
    ]
    assert rankdiff("digest", job, "-o", out, "--force").returncode == 0
    assert mine.read_bytes() == (digests / mine.name).read_bytes()


# --- folders of two purposes, and options ---------------------------------------------------------------


def test_a_folder_of_digests_may_be_the_cache_too(job, truth, tmp_path):
    folder = tmp_path / "both"
    assert rankdiff("compare", job, "--cache", folder, "-q").returncode == 0
    assert rankdiff("digest", job, "-o", folder).returncode == 0
    assert len(list(folder.iterdir())) == 8
    report = run([folder])
    assert codes(report).count("already_digested") == 4
    assert report["findings"] == json.loads(truth)["findings"]
    assert str(tmp_path) not in json.dumps(report), "results name no folders"
    assert str(job) not in json.dumps(run([folder, job])), "results name no folders"


def test_many_that_are_there_twice_are_one_line(job, digests, tmp_path):
    (tmp_path / "digests").mkdir()
    (tmp_path / "reports").mkdir()
    for n in range(10):
        name = f"prof_nodeA_{n}"
        shutil.copy(sorted(digests.iterdir())[0], tmp_path / "digests" / f"{name}.digest.parquet")
        shutil.copy(sorted(job.iterdir())[0], tmp_path / "reports" / f"{name}.sqlite")
        shutil.copy(sorted(digests.iterdir())[0], tmp_path / "reports" / f"{name}.digest.parquet")
    (note,) = discover([tmp_path / "reports"]).notes
    assert note.message == (
        "10 reports are given in several forms: prof_nodeA_0.sqlite is the same report as "
        "prof_nodeA_0.digest.parquet, which is read, ..."
    )
    (note,) = (n for n in gather([str(tmp_path / "digests")]).notes if n.code == "already_digested")
    assert note.message == (
        "9 reports and digests are there twice: prof_nodeA_1.digest.parquet is a digest of the same report as "
        "prof_nodeA_0.digest.parquet, which is read, ..."
    )


def test_a_report_beside_a_digest_that_will_not_do_is_read(job, digests, tmp_path):
    folder = tmp_path / "both"
    shutil.copytree(job, folder, copy_function=shutil.copy2)
    shutil.copytree(digests, folder, dirs_exist_ok=True)
    expected = json.loads(answer(job, digest=DigestOptions(data_range="next.*")))
    found = json.loads(answer(folder, digest=DigestOptions(data_range="next.*")))
    assert found["ranks"] == expected["ranks"]
    damaged = sorted(folder.glob("*.digest.parquet"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert read([str(folder)]).problems == ()


def test_digests_of_different_options_are_told(job, tmp_path):
    reports = sorted(job.iterdir())
    assert rankdiff("digest", *reports[:1], "-o", tmp_path, "--data-range", "x\x1b.*").returncode == 0
    assert rankdiff("digest", *reports[1:], "-o", tmp_path).returncode == 0
    (note,) = [w for w in run([tmp_path])["warnings"] if w["code"] == "mixed_options"]
    assert "without --data-range of ranks 1-3" in note["message"]
    assert "\x1b" not in note["message"]
    assert note["ranks"] == [0, 1, 2, 3]
    assert "mixed_options" not in codes(run([tmp_path], ranks=frozenset({1, 2, 3})))


def test_some_ranks_of_a_report_of_several_are_the_same_from_its_digest(tmp_path):
    report = tmp_path / "prof_nodeA.sqlite"
    with Export(report, pid=144) as export:
        for process in (export, export.process(145, 1, gpu=1)):
            for n in range(3):
                process.kernel(n * 10_000_000, n * 10_000_000 + 5_000_000, "gemm")
                process.osrt(n * 10_000_000 + 6_000_000, n * 10_000_000 + 7_000_000, "read")
    assert rankdiff("digest", report, "-o", tmp_path / "out").returncode == 0
    one = frozenset({1})
    assert answer(tmp_path / "out", ranks=one) == answer(report, ranks=one)
    (digest,) = read([str(report)], CompareOptions(ranks=one)).digests
    assert digest.info.tables["OSRT_API"] == 6, "calls of both processes"
    assert digest.work.filter(pl.col("kind") == "compute").height == 3


def test_what_was_asked_for_and_is_not_there_is_told(digests):
    report = run([digests], ranks=frozenset({0, 1, 2, 7}), nodes=frozenset({"nodeA", "nodeB", "nodeX"}))
    told = [w["message"] for w in report["warnings"] if w["code"] == "not_found"]
    assert told == [
        "node nodeX asked for, but in none of the reports",
        "rank 7 asked for, but in none of the reports",
    ]
    done = rankdiff("compare", digests, "--ranks", "7")
    assert (
        "none of the ranks asked for is in these reports: they hold ranks 0-3 on nodeA, nodeB" in done.stderr
    )


@pytest.mark.parametrize(
    "command",
    [("compare", "-o"), ("compare", "--save-db"), ("compare", "--cache"), ("digest", "-o"), ("diff", "-o")],
)
def test_a_place_that_cannot_be_is_one_line(job, tmp_path, command):
    reports = [job, job] if command[0] == "diff" else [job]
    done = rankdiff(command[0], *reports, command[1], tmp_path / ("x" * 300))
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr.endswith("name too long. Choose another name\n") or "(File name too long)" in done.stderr
    )
    assert list(tmp_path.iterdir()) == []
