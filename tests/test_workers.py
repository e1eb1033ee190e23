"""Reports read by several processes: the same answer, and clear words when one of them dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass

import pytest

from rankdiff.errors import RankdiffError
from rankdiff.reports import engine
from rankdiff.reports.discover import Report
from rankdiff.reports.temporary import temporary_place
from rankdiff.simulation import base4
from rankdiff.workers import Processes, ThisProcess, local_workers, worth_it
from tests.test_cli import rankdiff


@dataclass(frozen=True)
class Item:
    report: Report
    number: int


def items(count: int) -> list[Item]:
    return [Item(Report(f"prof_{n}", f"prof_{n}", 0), n) for n in range(count)]


def double(item: Item) -> int:
    return 2 * item.number


def die(item: Item) -> int:
    if item.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return item.number


def share(item: Item) -> int:
    return engine.usable_cpus()


def test_results_come_with_their_numbers_and_each_process_knows_its_part():
    cpus = engine.usable_cpus()
    with Processes(2) as workers:
        assert sorted(workers.run(double, items(5))) == [(n, 2 * n) for n in range(5)]
        assert {n for _, n in workers.run(share, items(2))} == {max(1, cpus // 2)}
    with ThisProcess() as alone:
        assert list(alone.run(double, items(3))) == [(0, 0), (1, 2), (2, 4)]


def test_a_process_that_dies_is_an_error_with_a_remedy():
    with Processes(2) as workers, pytest.raises(RankdiffError, match=r"want of memory.*--jobs 1"):
        list(workers.run(die, items(2)))


def wait_for_ever(item: Item) -> int:
    with open(os.path.join(temporary_place(), "begun"), "w"):
        time.sleep(3600)
    return 0


def test_an_interrupted_run_waits_for_nobody_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKDIFF_TMP", str(tmp_path))
    before = set(multiprocessing.active_children())

    lost: list[RankdiffError] = []

    def wait_for(workers: Processes) -> None:
        try:
            list(workers.run(wait_for_ever, items(2)))
        except RankdiffError as error:
            lost.append(error)

    def interrupted() -> None:
        with Processes(2) as workers:
            list(workers.run(double, items(2)))
            threading.Thread(target=wait_for, args=(workers,), daemon=True).start()
            while not list(tmp_path.glob("*/begun")):
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert set(multiprocessing.active_children()) <= before
    assert list(tmp_path.iterdir()) == []


def test_as_many_as_are_worth_it(monkeypatch):
    mib = 1 << 20
    monkeypatch.setattr("rankdiff.workers.usable_cpus", lambda: 8)
    monkeypatch.setattr("rankdiff.workers.memory_limit_bytes", lambda: 16_000 * mib)
    assert worth_it([]) == 1
    assert worth_it([mib] * 100) == 1, "small reports are read before a process has started"
    assert worth_it([400 * mib] * 4) == 4
    assert worth_it([400 * mib] * 100) == 8
    monkeypatch.setattr("rankdiff.workers.memory_limit_bytes", lambda: 1_000 * mib)
    assert worth_it([400 * mib] * 100) == 2, "2,000 MiB hold two readers of 800 MiB"
    assert worth_it([4_000 * mib] * 100) == 1
    assert isinstance(local_workers(1, [Report("a", "a", 1 << 40)] * 9), ThisProcess)
    assert isinstance(local_workers(3, [Report("a", "a", 1)] * 9), Processes), "what is asked for is done"


def test_two_jobs_give_the_same_bytes_and_leave_nothing(tmp_path):
    job = base4(tmp_path)
    place = tmp_path / "tmp"
    place.mkdir()
    bad = tmp_path / "prof_nodeC_9.sqlite"
    bad.write_bytes(b"SQLite format 3\x00" + bytes(200))
    commands = ("compare", "--format", "json", *job.paths, bad)
    one = rankdiff(*commands)
    two = rankdiff(*commands, "--jobs", "2", RANKDIFF_TMP=str(place))
    assert (two.returncode, two.stdout, two.stderr) == (one.returncode, one.stdout, one.stderr)
    assert one.returncode == 0
    assert list(place.iterdir()) == []
    made = rankdiff("digest", *job.paths, "-o", tmp_path / "digests", "--jobs", "2")
    assert made.returncode == 0, made.stderr
    assert rankdiff("compare", "--format", "json", tmp_path / "digests", bad).stdout == one.stdout
