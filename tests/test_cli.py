"""The command line: results, streams, exit statuses, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankdiff.simulation import base4, synthetic
from rankdiff_cli.main import group

HEAVY = ("numba", "duckdb", "matplotlib", "polars", "pyarrow", "numpy")


def rankdiff(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command in a process of its own."""
    command = Path(sys.executable).with_name("rankdiff")
    return subprocess.run(
        [command, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | env,
        timeout=300,
    )


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return base4(tmp_path_factory.mktemp("job"))


def test_text_goes_to_stdout_and_nothing_else(job):
    done = rankdiff("compare", *job.paths)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("Rank 2 on nodeB made the others wait: 1.50 ms a step")
    assert max(map(len, done.stdout.splitlines())) <= 100
    # A rank that waits is waiting, not slow.
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [r[2] for r in rows if r[:1] in (["0"], ["1"], ["3"])] == ["waiting"] * 3
    assert not [line for line in done.stdout.splitlines() if "slow" in line and "waiting" in line]


def test_json(job):
    done = rankdiff("compare", "--format", "json", *job.paths)
    report = json.loads(done.stdout)
    assert report["schema"] == "rankdiff.report/1"
    assert report["findings"][0]["rank"] == 2
    assert str(job.paths[0].parent) not in done.stdout


def test_nothing_assessed_is_status_4(job):
    done = rankdiff("compare", job.paths[0])
    assert done.returncode == 4
    assert done.stdout.startswith("Not assessed: only one rank was captured")


@pytest.mark.parametrize(
    "arguments", [[], ["--ranks", "5-3", "x"], ["--rank-regex", "x", "x"], ["--data-range", "(", "x"]]
)
def test_usage_is_status_2(arguments):
    done = rankdiff("compare", *arguments)
    assert done.returncode == 2
    assert "Usage:" in done.stderr
    assert done.stdout == ""


def bad_files(folder: Path) -> dict[str, Path]:
    """Files that are no export, by what is wrong with them."""
    folder.mkdir()
    empty, text, gzip, raw = (
        folder / n for n in ("empty.sqlite", "text.sqlite", "packed.sqlite", "prof.nsys-rep")
    )
    empty.touch()
    text.write_text("hello")
    gzip.write_bytes(b"\x1f\x8b\x08" + b"0" * 200)
    raw.write_bytes(b"x" * 200)
    (folder / "logs").mkdir()
    (folder / "dangling.sqlite").symlink_to(folder / "gone")
    return {
        "no such file": folder / "missing.sqlite",
        "a directory": folder / "logs",
        "empty (0 bytes)": empty,
        "expected an SQLite export": text,
        "gzip": gzip,
        "nsys export --type sqlite": raw,
        "dangling": folder / "dangling.sqlite",
    }


def test_bad_input_gets_one_line_each_and_the_rest_is_compared(job, tmp_path):
    bad = bad_files(tmp_path / "bad")
    before = sorted(p.name for p in (tmp_path / "bad").iterdir())
    done = rankdiff("compare", *job.paths, *bad.values())
    assert done.returncode == 0
    assert done.stdout.startswith("Rank 2 on nodeB")
    lines = done.stderr.splitlines()
    assert len(lines) == len(bad)
    for words, path in bad.items():
        assert [
            line for line in lines if line.startswith(f"rankdiff: left out: {path}: ") and words in line
        ], words
    assert sorted(p.name for p in (tmp_path / "bad").iterdir()) == before


@pytest.mark.parametrize(
    "words", ["no such file", "a directory", "empty (0 bytes)", "expected an SQLite export"]
)
def test_strict_and_nothing_usable_are_status_1(job, tmp_path, words):
    path = bad_files(tmp_path / "bad")[words]
    for arguments in (["--strict", *job.paths, path], [path]):
        done = rankdiff("compare", *arguments)
        assert done.returncode == 1
        assert done.stdout == ""
        assert words in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.splitlines()[-1].startswith("rankdiff: error: ")


def test_quiet_says_why_all_the_same(tmp_path):
    done = rankdiff("compare", "-q", tmp_path / "missing.sqlite")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "no such file" in done.stderr


def test_no_kernels_at_all(tmp_path):
    job = synthetic(
        tmp_path, ranks=2, steps=3, edit=lambda rank, export: export.drop("CUPTI_ACTIVITY_KIND_KERNEL")
    )
    done = rankdiff("compare", *job.paths)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 3
    assert "Traceback" not in done.stderr


def test_names_from_the_export_cannot_drive_the_terminal(tmp_path):
    job = synthetic(
        tmp_path,
        nodes=["a\x1b[31m", "a\x1b[31m", "[/b]", "[/b]"],
        late={2: 3_000_000},
        pattern="prof_{rank}.sqlite",
    )
    done = rankdiff("compare", *job.paths)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "Rank 2 on [/b] made" in done.stdout


def test_inspect(job):
    done = rankdiff("inspect", job.paths[2])
    assert done.returncode == 0
    assert done.stdout.startswith("rank 2 on nodeB: prof_nodeB_2.sqlite\n")
    assert "10 all_reduce; payloads, 1 communicator" in done.stdout


def test_inspect_says_what_to_capture_better(tmp_path):
    def edit(rank, export):
        if rank == 1:
            export.drop("OSRT_API")

    job = synthetic(tmp_path, ranks=2, steps=3, payload=False, step_ranges=None, edit=edit)
    text = rankdiff("inspect", *job.paths).stdout
    assert "no NCCL payloads (all ranks): communicators and sizes are unknown [no_payloads]" in text
    assert "nsys export --include-blobs=true" in text
    assert "OS calls not captured (rank 1): no system call to blame [no_os_calls]" in text
    assert "cure: nsys profile --trace=cuda,nvtx,osrt" in text
    assert "no step ranges (all ranks)" in text
    assert "or --step-range for other names" in text


def test_help_is_light():
    code = (
        "import sys; sys.argv = ['rankdiff', '--help']\n"
        "from rankdiff_cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code\n"
        f"heavy = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "compare" in done.stdout


def test_every_command_has_help():
    runner = CliRunner()
    for name in group.list_commands(None):
        shown = runner.invoke(group, [name, "--help"])
        assert shown.exit_code == 0
        assert "Exit status:" in shown.output


def test_a_cache_that_cannot_be_written_is_no_error(job, tmp_path):
    # A home that does not exist and a cache directory that is a file.
    blocked = tmp_path / "file"
    blocked.touch()
    done = rankdiff("compare", *job.paths, HOME="/nonexistent", NUMBA_CACHE_DIR=str(blocked))
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("Rank 2 on nodeB")


def test_a_closed_pipe_is_no_error(job):
    command = Path(sys.executable).with_name("rankdiff")
    script = f"set -o pipefail; '{command}' inspect {' '.join(str(p) for p in job.paths * 1)} | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
