"""The scripts and the query of docs/many_ranks.md do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from rankdiff.simulation import base4
from tests.command import called


@pytest.fixture(scope="module")
def text(repository):
    return (repository / "docs" / "many_ranks.md").read_text()


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return base4(tmp_path_factory.mktemp("job"))


def block(text: str, mark: str) -> str:
    found = re.search(rf"<!-- {mark} -->\n```sh\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def bash(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-eu", "-c", script],
        cwd=folder,
        env=os.environ | variables | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_srun(text, job, tmp_path):
    for report in job.paths:
        (tmp_path / report.name).symlink_to(report)
    # What srun does: the command once for each task, all at the same time.
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin" / "srun"
    srun.write_text(
        '#!/bin/bash\nn=${1#--ntasks=}\nshift\nfor ((i = 0; i < n; i++)); do SLURM_PROCID=$i "$@" & pids+=($!); done\n'
        'for pid in "${pids[@]}"; do wait "$pid" || exit 1; done\n'
    )
    srun.chmod(0o755)
    done = bash(block(text, "slurm:srun").replace("--ntasks=8", "--ntasks=4"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "digests").iterdir())) == 4
    assert "Rank 2 on nodeB made the others wait" in done.stdout
    assert (tmp_path / "ticket" / "report.json").read_text() == called(
        "compare", *job.paths, "--format", "json"
    ).stdout


@pytest.mark.parametrize("first", [0, 5])
def test_job_array(text, job, tmp_path, first):
    for report in job.paths:
        (tmp_path / report.name).symlink_to(report)
    script = block(text, "slurm:array").replace("rankdiff digest", "echo >> log")
    for task in range(first, first + 6):  # more tasks than reports
        variables = {
            "SLURM_ARRAY_TASK_ID": str(task),
            "SLURM_ARRAY_TASK_MIN": str(first),
            "SLURM_ARRAY_TASK_COUNT": "6" if first else "3",
        }
        if first or task < 3:
            done = bash(script, tmp_path, **variables)
            assert done.returncode == 0, done.stderr
    lines = (tmp_path / "log").read_text().splitlines()
    assert sorted(word for line in lines for word in line.split() if word.startswith("prof_")) == sorted(
        p.name for p in job.paths
    ), "every report once"
    assert all(line.endswith("-o digests") for line in lines)


def test_the_query(text, job, tmp_path):
    assert called("digest", *job.paths, "-o", tmp_path / "digests").returncode == 0
    (query,) = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    with duckdb.connect() as db:
        rows = db.execute(
            query.replace("'digests/", f"'{tmp_path}/digests/").replace("data_load", "unknown")
        ).fetchall()
        everything = db.execute(
            query.replace("'digests/", f"'{tmp_path}/digests/").replace("WHERE idle.class = 'data_load'", "")
        ).fetchall()
    assert {name for name, _ in everything} == {p.name for p in job.paths}
    assert {name for name, _ in rows} <= {p.name for p in job.paths}
