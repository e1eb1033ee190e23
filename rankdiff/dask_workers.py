"""A Dask cluster that reads the reports; needs the extra ``rankdiff[dask]``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, TypeVar

from rankdiff.errors import RankdiffError, ReportError
from rankdiff.notes import Note
from rankdiff.reports.engine import usable_cpus
from rankdiff.workers import Task

A = TypeVar("A", bound=Task)
B = TypeVar("B")

LOCAL = "local"
_PATIENCE_S = 30  # for the scheduler to answer


class DaskWorkers:
    """Workers of a `dask.distributed` cluster that see the reports under the same paths as this process.

    The report of a worker that is lost goes to another one. One whose workers are lost again and again
    (`distributed.scheduler.allowed-failures`) is left out.

    Parameters
    ----------
    address : str
        Of the scheduler, like ``tcp://host:8786``; or ``local``: processes of this machine, for this run.
    jobs : int or None
        Number of processes when ``local``; None: one for each CPU.
    on_note : callable or None
        Told when there is no worker yet.
    """

    elsewhere = True
    shares_disk = False

    def __init__(
        self, address: str, jobs: int | None = None, on_note: Callable[[Note], None] | None = None
    ) -> None:
        self._address = address
        self._jobs = jobs
        self._on_note = on_note
        self._client: Any = None
        self._cluster: Any = None

    def run(self, task: Callable[[A], B], items: Sequence[A]) -> Iterator[tuple[int, B | ReportError]]:
        """See `workers.Workers`."""
        from distributed import KilledWorker, as_completed

        if self._on_note is not None and not self._client.scheduler_info()["workers"]:
            self._on_note(
                Note("waiting_for_workers", f"{self._address} has no workers yet; waiting for them")
            )
        # pure=False: today's result must not be taken for that of a report of the same path tomorrow.
        futures: list[Any] = [self._client.submit(task, item, pure=False) for item in items]
        number = {future.key: n for n, future in enumerate(futures)}
        lost = []
        try:
            for done in as_completed(futures, loop=self._client.loop):
                n = number[done.key]
                futures[n] = None  # the cluster can forget the result once it is here
                try:
                    yield n, done.result()
                except KilledWorker:
                    lost.append(n)
            # Whatever waited at a worker that was lost counts as what may have killed it. Alone it shows.
            for n in sorted(lost):
                try:
                    yield n, self._client.submit(task, items[n], pure=False).result()
                except KilledWorker as error:
                    yield n, _killed(items[n], error.allowed_failures + 1)
        except ModuleNotFoundError as error:
            raise RankdiffError(
                f"{self._address}: a worker has no module {error.name}",
                "Install the same version of rankdiff where the workers run",
            ) from None
        except (CancelledError, OSError) as error:
            raise RankdiffError(
                f"{self._address}: the cluster was lost ({str(error) or type(error).__name__})",
                "See the scheduler's log; with --cache what has been read is not read again",
            ) from error

    def __enter__(self) -> DaskWorkers:
        try:
            from distributed import Client, LocalCluster
            from distributed.comm import get_address_host
        except ModuleNotFoundError as error:
            raise RankdiffError(
                f"--dask needs the package {error.name}", "Install it: pip install 'rankdiff[dask]'"
            ) from None
        try:
            if self._address != LOCAL:
                get_address_host(self._address)  # a client with an impossible address would wait at the end
            if self._address == LOCAL:
                self._cluster = LocalCluster(
                    n_workers=self._jobs or usable_cpus(),
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address=None,
                    silence_logs=logging.ERROR,
                )
            self._client = Client(self._cluster or self._address, timeout=_PATIENCE_S, set_as_default=False)
        except (OSError, ValueError) as error:
            self.__exit__(None, None, None)
            raise RankdiffError(
                f"{self._address}: no Dask scheduler answers ({error})",
                "Give its address as it logs it, like tcp://host:8786, or --dask local",
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self._client, self._cluster):
            if each is not None:
                each.close()


def _killed(item: Task, tries: int) -> ReportError:
    return ReportError(
        f"{item.report.name}: each of the {tries} workers that read it was lost, perhaps for want of memory",
        "Give the workers more memory, or each of them one thread",
    )
