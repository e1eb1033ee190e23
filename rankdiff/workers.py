"""Who does the reading: this process, some processes of this machine, or a cluster (`rankdiff.dask_workers`)."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Protocol, TypeVar

from rankdiff.errors import RankdiffError, ReportError
from rankdiff.reports.discover import NSYS_REP, Report
from rankdiff.reports.engine import memory_limit_bytes, share_machine, usable_cpus
from rankdiff.reports.temporary import private_folder


class Task(Protocol):
    """What a worker is given: something about one report."""

    @property
    def report(self) -> Report:
        """The report."""


Progress = Callable[[int, int, str], None]  # reports done, reports in all, name of the next one

A = TypeVar("A", bound=Task)
B = TypeVar("B")

# Starting a process and its libraries costs as much as reading about so much.
_BYTES_WORTH_A_PROCESS = 384 << 20
# What reading a report takes: libraries and compiled code, and of its size what is kept of it at most.
_BASE_BYTES = 400 << 20
_SHARE_OF_SIZE = 1.0


class Workers(Protocol):
    """Runs one function on many things."""

    elsewhere: bool  # results come from another process, so that large ones should not go as objects
    shares_disk: bool  # and a file that a worker writes into a temporary folder can be read here

    def run(self, task: Callable[[A], B], items: Sequence[A]) -> Iterator[tuple[int, B | ReportError]]:
        """Yield (number of the item, result) as they are done, in any order.

        An item whose worker is lost comes back as the error that says so.

        Raises
        ------
        RankdiffError
            From the task, or when all workers are lost.
        """

    def __enter__(self) -> Workers:
        """Start nothing yet."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them."""


class ThisProcess:
    """One thing after the other."""

    elsewhere = False
    shares_disk = True

    def run(self, task: Callable[[A], B], items: Sequence[A]) -> Iterator[tuple[int, B]]:
        """See `Workers`."""
        for n, item in enumerate(items):
            yield n, task(item)

    def __enter__(self) -> ThisProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class Processes:
    """Processes of this machine, each with its part of the CPUs and the memory.

    They are started anew, not forked: the libraries hold threads, which a fork does not survive. A script that uses
    them needs the usual ``if __name__ == "__main__":``.
    """

    elsewhere = True
    shares_disk = True

    def __init__(self, number: int) -> None:
        self._number = number
        self._pool: ProcessPoolExecutor | None = None

    def run(self, task: Callable[[A], B], items: Sequence[A]) -> Iterator[tuple[int, B]]:
        """See `Workers`."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._number, multiprocessing.get_context("spawn"), _begin, (self._number, self._place)
            )
        waiting: dict[Future[B], int] = {self._pool.submit(task, item): n for n, item in enumerate(items)}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BrokenProcessPool:
            raise RankdiffError(
                "a process that was reading a report has ended, perhaps for want of memory",
                "Use fewer at a time: --jobs 1",
            ) from None

    def __enter__(self) -> Processes:
        self._before = {child.pid for child in multiprocessing.active_children()}
        self._place = private_folder()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            if kind is not None:
                # Whoever has interrupted us does not want to wait for the reports that are being read.
                for child in multiprocessing.active_children():
                    if child.pid not in self._before:
                        child.kill()
            self._pool.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(self._place, ignore_errors=True)


def run_all(
    workers: Workers,
    task: Callable[[A], B],
    items: Sequence[A],
    exporting: Callable[[A], None] | None = None,
) -> Iterator[tuple[int, B | ReportError]]:
    """Run a function on many things, by the workers where that is possible.

    What nsys exports is exported once, by this process, which keeps it in a temporary place of its own.

    Parameters
    ----------
    exporting : callable, optional
        Told of each thing that is about to be exported.

    Yields
    ------
    int, result
        As `Workers.run`.
    """
    there = [n for n, item in enumerate(items) if item.report.form != NSYS_REP]
    for n, result in workers.run(task, [items[m] for m in there]):
        yield there[n], result
    for n, item in enumerate(items):
        if item.report.form == NSYS_REP:
            if exporting is not None:
                exporting(item)
            yield n, task(item)


def local_workers(jobs: int | None, reports: Sequence[Report]) -> Workers:
    """Workers on this machine.

    Parameters
    ----------
    jobs : int or None
        So many at most; None: as many as the CPUs, the memory and the size of the reports make worth it.
    reports : sequence of Report
        What they are to read.
    """
    number = min(jobs, len(reports)) if jobs is not None else worth_it([r.size_bytes for r in reports])
    return Processes(number) if number > 1 else ThisProcess()


def worth_it(sizes: Sequence[int]) -> int:
    """Number of processes to read reports of these sizes (bytes) with."""
    if not sizes:
        return 1
    room = (
        2 * memory_limit_bytes() / (_BASE_BYTES + _SHARE_OF_SIZE * max(sizes))
    )  # the limit is half of what there is
    return max(1, min(usable_cpus(), len(sizes), sum(sizes) // _BYTES_WORTH_A_PROCESS, int(room)))


def _begin(number: int, place: str) -> None:
    """Set up a process of the pool.

    It puts its temporary files into `place`, so that it can be killed at any time: the first process removes them.
    """
    share_machine(number)
    os.environ["RANKDIFF_TMP"] = place
    # The terminal sends its interrupt to all of us; the first process ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
