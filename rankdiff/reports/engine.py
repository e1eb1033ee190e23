"""The DuckDB connection: offline, bounded."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rankdiff.reports.temporary import temporary_place

if TYPE_CHECKING:
    import duckdb

_LEAST_MEMORY = 512 << 20
_sharers = [1]  # processes of this run that read reports at the same time


def share_machine(processes: int) -> None:
    """Say that so many processes read reports at the same time, this one among them."""
    _sharers[0] = max(1, processes)


def open_engine(share: int = 1, file: str = ":memory:") -> duckdb.DuckDBPyConnection:
    """Open a database, in memory or in a new file, that loads no extension and stays within the job's limits.

    It takes at most half of the memory that the machine or the cgroup allows (divided by `share`), as many
    threads as the process may run on, and spills to ``RANKDIFF_TMP``, ``SLURM_TMPDIR`` or the system's
    temporary folder (never to the working directory, as DuckDB would by itself), in a folder of its own:
    nodes may share the place, and two databases must not share a folder.
    """
    import duckdb  # takes a while, and SQLite reports do without

    return duckdb.connect(
        file,
        config={
            # By itself the newest DuckDB writes files that the others cannot read.
            "storage_compatibility_version": "v1.0.0",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "threads": str(usable_cpus()),
            "memory_limit": f"{memory_limit_bytes() // share // (1 << 20)}MiB",
            "temp_directory": os.path.join(temporary_place(), f"rankdiff-{uuid.uuid4().hex}"),
            "preserve_insertion_order": "true",
        },
    )


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a signal end a query as it ends everything else: DuckDB hides what the signal's handler has raised.

    Raises
    ------
    KeyboardInterrupt
        A handler raised something while DuckDB was at work.
    """
    import duckdb

    try:
        yield
    except (RuntimeError, duckdb.InterruptException) as error:
        if isinstance(error, duckdb.InterruptException) or str(error) == "Query interrupted":
            raise KeyboardInterrupt from None
        raise


def usable_cpus() -> int:
    """CPUs that this process may run on (a Slurm step is often bound to a few), its part of them if it shares them."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, allowed // _sharers[0])


def memory_limit_bytes(cgroups: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> int:
    """Half of the memory that the process's cgroups or the machine allow, at least 512 MiB.

    Slurm sets the limit on the job's or the step's cgroup, somewhere above the process's own: the least of all
    the way up holds. Processes that share the machine share it, too. The arguments are where Linux tells of cgroups.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_cgroup_limits(cgroups, own)]
    return max(_LEAST_MEMORY, min(limits) // 2 // _sharers[0])


def _cgroup_limits(cgroups: str, own: str) -> Iterator[int]:
    for line in _read(own).splitlines():
        # "0::/path" in version 2, "4:memory:/path" in version 1.
        number, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        if number == "0" and not controllers:
            root, file = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, file = os.path.join(cgroups, "memory"), "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in place.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            text = _read(os.path.join(root, *parts[:depth], file)).strip()
            if text.isdigit():
                yield int(text)


def _read(path: str) -> str:
    """A small file of the kernel's; empty where there is none (no Linux, no such controller, not for us)."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
