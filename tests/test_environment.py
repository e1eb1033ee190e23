"""Where it runs: one CPU, small cgroups, no home, no working directory, an empty cache that many start with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankdiff.reports.engine import memory_limit_bytes, open_engine, usable_cpus
from rankdiff.simulation import synthetic

GIB = 1 << 30
COMMAND = [sys.executable, "-c", "from rankdiff_cli.main import main; main()"]
KERNELS = (
    "from rankdiff.kernels.intervals import union; "
    "import sys; sys.stdout.write(str(union([5, 0], [9, 3])[1].tolist()))"
)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return synthetic(tmp_path_factory.mktemp("job"), ranks=2, nodes=1, steps=10, late={1: 1_500_000}).paths


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_least_limit_on_the_way_up_holds(tmp_path):
    # B64: Slurm limits the job's cgroup, above that of the process.
    write(tmp_path / "own", "0::/system.slice/job_7/step_0/task\n")
    write(tmp_path / "cg/system.slice/memory.max", "max\n")
    write(tmp_path / "cg/system.slice/job_7/memory.max", f"{2 * GIB}\n")
    write(tmp_path / "cg/system.slice/job_7/step_0/task/memory.max", f"{4 * GIB}\n")
    assert memory_limit_bytes(str(tmp_path / "cg"), str(tmp_path / "own")) == GIB


def test_cgroups_of_the_first_version(tmp_path):
    write(tmp_path / "own", "9:cpu,cpuacct:/slurm\n4:memory:/slurm/uid_1/job_7\n1:name=systemd:/x\n")
    write(tmp_path / "cg/memory/slurm/uid_1/job_7/memory.limit_in_bytes", f"{3 * GIB}\n")
    assert memory_limit_bytes(str(tmp_path / "cg"), str(tmp_path / "own")) == 3 * GIB // 2


def test_without_cgroups_the_machine_is_the_limit(tmp_path):
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory_limit_bytes(str(tmp_path), str(tmp_path / "none")) == max(512 << 20, whole // 2)


def test_the_engine_keeps_to_what_it_may_use():
    with open_engine() as db:
        found = dict(db.sql("SELECT name, value FROM duckdb_settings()").fetchall())
    assert int(found["threads"]) == usable_cpus() == len(os.sched_getaffinity(0))


def test_one_cpu_gives_the_same_answer(reports):
    # B74: what is printed does not depend on how many CPUs it may use.
    def run(cpus: set[int]) -> bytes:
        command = [*COMMAND, "compare", "--format", "json", *map(str, reports)]
        pinned = [sys.executable, "-c", PIN.format(cpus=sorted(cpus)), *command]
        return subprocess.run(pinned, check=True, capture_output=True).stdout

    allowed = os.sched_getaffinity(0)
    assert run({min(allowed)}) == run(allowed)


PIN = "import os, sys; os.sched_setaffinity(0, {cpus}); os.execv(sys.argv[1], sys.argv[1:])"


def test_no_home_and_no_working_directory(reports, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$0" && rmdir "$0" && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, str(gone), *COMMAND, "compare", *map(str, reports)],
        env={**os.environ, "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Rank 1 on nodeA")
    assert done.stderr == ""


def test_a_removed_working_directory_is_left(tmp_path):
    # Compiling a kernel asks for the working directory, and with a warm cache nobody would notice.
    code = (
        "import os, sys; from rankdiff_cli.main import main; sys.argv = ['rankdiff', '--help']\n"
        f"os.mkdir({str(tmp_path / 'x')!r}); os.chdir({str(tmp_path / 'x')!r}); os.rmdir(os.getcwd())\n"
        "try:\n    main()\nexcept SystemExit:\n    sys.stderr.write(os.getcwd())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == os.sep


def test_many_start_at_once_with_an_empty_cache(tmp_path, repository):
    # B71: a shared home directory, and every task of a job step compiles at the same moment.
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(repository)}
    started = [
        subprocess.Popen([sys.executable, "-c", KERNELS], env=env, stdout=subprocess.PIPE) for _ in range(4)
    ]
    assert [p.communicate()[0] for p in started] == [b"[3, 9]"] * 4
    assert [p.returncode for p in started] == [0] * 4
