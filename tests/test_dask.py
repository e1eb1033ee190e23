"""Reports read by a Dask cluster of separate processes, with workers that are lost."""

from __future__ import annotations

import logging
import os
import signal
import sys

import pytest

from rankdiff import dask_workers
from rankdiff.errors import RankdiffError
from rankdiff.pipeline import CompareOptions, compare, read
from rankdiff.render.json import to_json
from rankdiff.simulation import base4
from tests.test_cli import rankdiff

distributed = pytest.importorskip("distributed", reason="the extra rankdiff[dask] is not installed")
pytestmark = pytest.mark.filterwarnings("default")  # what the cluster's libraries think of each other


class _Deadly(distributed.WorkerPlugin):
    """Lets a worker be killed when it reads a report, always or once."""

    def __init__(self, name: str, marker: str | None) -> None:
        self._report = name
        self._marker = marker

    def setup(self, worker: object) -> None:
        """Put it in the way of reading."""
        from rankdiff import digest_tasks

        original = digest_tasks.make_digests

        def make(report, *rest):
            if report.name == self._report and not (self._marker and os.path.exists(self._marker)):
                if self._marker:
                    with open(self._marker, "w") as file:
                        file.write("killed")
                os.kill(os.getpid(), signal.SIGKILL)
            return original(report, *rest)

        digest_tasks.make_digests = make


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return base4(tmp_path_factory.mktemp("job"))


@pytest.fixture
def cluster():
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        silence_logs=logging.CRITICAL,
    ) as made:
        yield made


def deadly(cluster, name, marker):
    with distributed.Client(cluster, set_as_default=False) as client:
        client.register_plugin(_Deadly(name, marker))


def answer(job, **options) -> str:
    outcome = compare([str(p) for p in job.paths], CompareOptions(**options))
    return to_json(outcome.comparison, outcome.notes)


def test_a_worker_killed_in_the_middle_costs_nothing(job, cluster, tmp_path):
    marker = tmp_path / "marker"
    deadly(cluster, job.paths[1].name, str(marker))
    told = []
    paths = [str(p) for p in job.paths]
    options = CompareOptions(dask=cluster.scheduler_address)
    outcome = compare(paths, options, lambda done, total, name: told.append((done, total)))
    assert marker.read_text() == "killed"
    assert to_json(outcome.comparison, outcome.notes) == answer(job)
    assert told == [(n, 4) for n in range(5)]


def test_a_report_that_kills_every_worker_is_left_out(job, cluster):
    deadly(cluster, job.paths[1].name, None)
    found = read([str(p) for p in job.paths], CompareOptions(dask=cluster.scheduler_address))
    (problem,) = found.problems
    assert f"{job.paths[1].name}: each of the 4 workers that read it was lost" in str(problem)
    assert [i.rank for i in found.identities] == [0, 2, 3]
    assert found.missing == (1,)


def test_the_command_with_a_cluster_of_its_own(job):
    alone = rankdiff("compare", *job.paths)
    done = rankdiff("compare", *job.paths, "--dask", "local", "--jobs", "2")
    assert (done.returncode, done.stdout) == (0, alone.stdout), done.stderr


@pytest.mark.parametrize("address", ["nonsense://x", "tcp://127.0.0.1:9", "nowhere.invalid:8786"])
def test_an_address_where_nobody_answers(address, monkeypatch):
    monkeypatch.setattr(dask_workers, "_PATIENCE_S", 1)
    with (
        pytest.raises(RankdiffError, match=f"^{address}: no Dask scheduler answers"),
        dask_workers.DaskWorkers(address),
    ):
        pass


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(RankdiffError, match=r"rankdiff\[dask\]"), dask_workers.DaskWorkers("local"):
        pass
