"""Reports of Nsight Systems itself: exported once with the user's nsys, into a temporary place, safely."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankdiff.errors import ReportError
from rankdiff.gathering import gather
from rankdiff.pipeline import CompareOptions, read
from rankdiff.reports.discover import discover
from rankdiff.reports.identity import claims
from rankdiff.reports.nsys_export import remove_exports
from rankdiff.simulation import Export
from rankdiff_cli.main import group
from tests.folders import to_folder

# `nsys export` as far as rankdiff uses it. Reports of this nsys are SQLite after one line; it keeps a log of its
# arguments, and the environment says how it fails.
FAKE = """#!{python}
import os, sys, time, json
log = os.environ["FAKE_LOG"]
with open(log, "a") as file:
    file.write(json.dumps([sys.argv[1:], os.getcwd()]) + "\\n")
how = os.environ.get("FAKE_NSYS", "")
args = sys.argv[1:]
assert args[0] == "export", args
if "--help" in args:
    print("--type=" + ("" if "old" in how else "  --include-blobs=<true|false>"))
    sys.exit(0)
if "old" in how and any(a.startswith("--include-blobs") for a in args):
    print("unrecognised option '--include-blobs=true'" if how == "old" else "usage: nsys export", file=sys.stderr)
    sys.exit(1)
if how == "newer":
    sys.stdout.write("Processing [=====   50%]\\r")
    print("\\x1b[31mReport was created in Nsight Systems version 2026.2,\\x1b[0m newer than your current version " + "x" * 999, file=sys.stderr)
    print("Processing [==========100%]", file=sys.stderr)
    sys.exit(1)
if how == "nothing":
    sys.exit(0)
if how == "hang":
    if os.fork() == 0:
        with open(log + ".child", "w") as file:
            file.write(str(os.getpid()))
    time.sleep(600)
source = args[-1]
target = args[args.index("--output") + 1]
assert args[args.index("--type") + 1] == "sqlite" and os.path.isabs(source) and os.path.isabs(target)
with open(source, "rb") as file, open(target, "wb") as out:
    assert file.readline() == b"NSYS\\n"
    out.write(file.read())
"""


@pytest.fixture
def nsys(tmp_path, monkeypatch):
    """A fake nsys on PATH; says what it was called with, and in which folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "nsys"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(0o755)
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_LOG", str(log))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("RANKDIFF_TMP", str(tmp_path / "temporary"))
    remove_exports()
    yield lambda: [json.loads(line) for line in log.read_text().splitlines()]
    remove_exports()
    assert os.listdir(tmp_path / "temporary") == []


@pytest.fixture
def no_nsys(tmp_path, monkeypatch):
    """A PATH without nsys."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


def nsys_rep(path, **settings):
    """A report as the fake nsys understands it."""
    base = path.with_name("base.sqlite")
    with Export(base, **settings) as export:
        for step in range(3):
            at = step * 10_000_000
            export.kernel(at, at + 6_000_000, "gemm")
            export.nccl("all_reduce", at + 8_000_000, at + 9_000_000, comm=0xABC)
    path.write_bytes(b"NSYS\n" + base.read_bytes())
    base.unlink()
    return path


def exports(calls):
    """Calls that export."""
    return [args for args, _ in calls if "--help" not in args]


def test_exported_once_and_said_so(tmp_path, nsys):
    path = nsys_rep(tmp_path / "prof_gpu01_0.nsys-rep")
    before = path.read_bytes(), sorted(os.listdir(tmp_path))
    told = []
    found = read([str(path)], CompareOptions(on_note=told.append))
    read([str(path)])
    (digest,) = found.digests
    assert digest.info.nccl_kernels == 3
    assert digest.info.has_payloads
    assert (digest.info.claims.file_node, digest.info.claims.file_rank) == ("gpu01", 0)
    assert digest.info.claims.report == "prof_gpu01_0.nsys-rep"
    assert digest.info.claims.size_bytes == len(before[0])
    (args,) = exports(nsys())
    assert "--include-blobs=true" in args
    assert [note.code for note in told] == ["exporting_with_nsys"]
    note = next(note for note in found.notes if note.code == "exported_with_nsys")
    assert note.message == "prof_gpu01_0.nsys-rep: exported with nsys to a temporary place"
    assert note.ranks == (0,)
    assert (path.read_bytes(), sorted(os.listdir(tmp_path))) == before


def test_an_old_report_file(tmp_path, nsys):
    (digest,) = read([str(nsys_rep(tmp_path / "prof_a_2.qdrep"))]).digests
    assert digest.info.claims.file_rank == 2


def test_a_report_that_was_replaced_is_exported_again(tmp_path, nsys):
    path = nsys_rep(tmp_path / "prof_a_0.nsys-rep", node="one")
    status = path.stat()
    assert claims(discover([path]).reports[0])[0].hostname == "one"
    nsys_rep(path, node="two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    assert claims(discover([path]).reports[0])[0].hostname == "two"


@pytest.mark.parametrize(("how", "calls"), [("old", 2), ("old, says nothing", 3)])
def test_an_old_nsys_exports_without_payloads(tmp_path, nsys, monkeypatch, how, calls):
    monkeypatch.setenv("FAKE_NSYS", how)
    paths = [nsys_rep(tmp_path / f"prof_a_{rank}.nsys-rep", pid=100 + rank) for rank in range(2)]
    found = read([str(path) for path in paths])
    assert len(found.digests) == 2
    assert [note.code for note in found.notes].count("exported_without_blobs") == 2
    # It is asked once, not for every report.
    assert len(nsys()) == calls + 1
    assert not any("--include-blobs=true" in args for args in exports(nsys())[1:])


def problem(path):
    """The only problem of a report."""
    gathered = gather([str(path)])
    assert not gathered.identities
    (error,) = gathered.problems
    return str(error)


def test_a_report_newer_than_nsys(tmp_path, nsys, monkeypatch):
    monkeypatch.setenv("FAKE_NSYS", "newer")
    path = nsys_rep(tmp_path / "prof_a_0.nsys-rep")
    said = problem(path)
    start = "prof_a_0.nsys-rep: nsys export failed with status 1: Report was created in Nsight Systems version 2026.2, newer than your current version xxx"
    assert said.startswith(start)
    assert "x" * 300 not in said
    assert (
        "Export it with the version of Nsight Systems that captured it, or a newer one: nsys export" in said
    )
    assert said.isprintable()
    # Once is enough to know.
    problem(path)
    assert len(exports(nsys())) == 1


def test_an_export_that_is_not_there(tmp_path, nsys, monkeypatch):
    monkeypatch.setenv("FAKE_NSYS", "nothing")
    path = nsys_rep(tmp_path / "prof_a_0.nsys-rep")
    assert problem(path).startswith("prof_a_0.nsys-rep: nsys export left no export. Export it")


def alive(pid):
    """Whether a process runs; one that is done and not yet waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pid):
    """Wait for a process that was sent its end."""
    for _ in range(1000):
        if not alive(pid):
            return True
        time.sleep(0.01)
    return False


def test_an_export_that_hangs_is_ended_with_its_children(tmp_path, nsys, monkeypatch):
    monkeypatch.setenv("FAKE_NSYS", "hang")
    monkeypatch.setattr("rankdiff.reports.nsys_export._PATIENCE_S", 1.5)
    path = nsys_rep(tmp_path / "prof_a_0.nsys-rep")
    assert "nsys export was not done after 0.025 minutes and was ended. Export it beforehand" in problem(path)
    assert gone(int((tmp_path / "log.child").read_text()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_stays_after_an_interruption(tmp_path, nsys, monkeypatch, number):
    monkeypatch.setenv("FAKE_NSYS", "hang")
    path = nsys_rep(tmp_path / "prof_a_0.nsys-rep")
    command = [sys.executable, "-c", "from rankdiff_cli.main import main; main()", "compare", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        child = tmp_path / "log.child"
        while not (child.exists() and child.read_text()):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        process.communicate()
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    assert os.listdir(tmp_path / "temporary") == []
    assert gone(int(child.read_text()))


@pytest.mark.parametrize(
    "name", ["-o x.nsys-rep", "a 'b' \"c\".nsys-rep", "$(touch x);`touch x`.nsys-rep", "a\nb.nsys-rep"]
)
def test_a_name_is_never_more_than_a_name(tmp_path, nsys, monkeypatch, name):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    nsys_rep(folder / name)
    (digest,) = read([name]).digests
    assert digest.info.nccl_kernels == 3
    (args,) = exports(nsys())
    assert args[-1] == str(folder / name)
    assert os.listdir(folder) == [name]
    assert all(cwd.startswith(str(tmp_path / "temporary")) for _, cwd in nsys())


def test_the_export_of_a_report_is_read_if_it_is_there(tmp_path, nsys):
    reports = [nsys_rep(tmp_path / f"prof_a_{rank}.nsys-rep", pid=100 + rank) for rank in range(3)]
    for report in reports[:2]:
        report.with_suffix(".sqlite").write_bytes(report.read_bytes()[5:])
    to_folder(reports[1].with_suffix(".sqlite"), tmp_path)
    reports[1].with_suffix(".sqlite").unlink()
    found = gather([str(path) for path in tmp_path.glob("prof_*")])
    assert [report.name for report in found.reports] == [
        "prof_a_0.sqlite",
        "prof_a_1_pqtdir",
        "prof_a_2.nsys-rep",
    ]
    assert [note.message for note in found.notes if note.code == "already_exported"] == [
        "prof_a_0.nsys-rep is the same report as prof_a_0.sqlite, which is read",
        "prof_a_1.nsys-rep is the same report as prof_a_1_pqtdir, which is read",
    ]
    assert [args[-1] for args in exports(nsys())] == [str(reports[2])]


def test_without_nsys_the_line_says_how_to_export(tmp_path, no_nsys):
    path = nsys_rep(tmp_path / "prof_a b_0.nsys-rep")
    said = problem(path)
    assert "there is no nsys on PATH" in said
    assert "nsys export --type sqlite --include-blobs=true" in said
    assert shlex.quote(str(path)) in said
    # Beside its export it is no problem.
    path.with_suffix(".sqlite").write_bytes(path.read_bytes()[5:])
    found = discover([path, path.with_suffix(".sqlite")])
    assert not found.problems
    assert [note.code for note in found.notes] == ["already_exported"]


def test_an_nsys_that_cannot_be_run(tmp_path, nsys):
    (tmp_path / "bin" / "nsys").write_text("#!/nonexistent/interpreter\n")
    assert "nsys cannot be run (No such file or directory)" in problem(
        nsys_rep(tmp_path / "prof_a_0.nsys-rep")
    )


def test_a_report_that_is_gone_when_it_is_read(tmp_path, nsys):
    path = nsys_rep(tmp_path / "prof_a_0.nsys-rep")
    (report,) = discover([path]).reports
    path.unlink()
    with pytest.raises(
        ReportError, match=r"prof_a_0\.nsys-rep: cannot be read \(No such file or directory\)"
    ):
        claims(report)


def test_once_also_where_a_command_reads_twice(tmp_path, nsys):
    paths = [nsys_rep(tmp_path / f"prof_n{rank}_{rank}.nsys-rep", pid=100 + rank) for rank in range(2)]
    target = tmp_path / "job.json.gz"
    result = CliRunner().invoke(group, ["trace", *map(str, paths), "-o", str(target)])
    assert result.exit_code == 0, result.output
    assert target.stat().st_size > 0
    assert [args[-1] for args in exports(nsys())] == [str(path) for path in paths]


def test_the_command_line_says_what_it_waits_for(tmp_path, nsys):
    path = nsys_rep(tmp_path / "prof_a_0.nsys-rep")
    result = CliRunner().invoke(group, ["inspect", str(path)])
    assert result.exit_code == 0
    assert "rankdiff: prof_a_0.nsys-rep: exporting with nsys to a temporary place" in result.output
    assert "exporting with nsys" not in CliRunner().invoke(group, ["inspect", "-q", str(path)]).output
    assert len(exports(nsys())) == 1
