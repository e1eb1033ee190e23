"""The DuckDB connection of one report: in memory, offline, bounded."""

from __future__ import annotations

import os
import tempfile

import duckdb

_LEAST_MEMORY = 512 << 20
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def open_engine() -> duckdb.DuckDBPyConnection:
    """Open an in-memory database that loads no extension and stays within the job's limits.

    It takes at most half of the memory that the machine or the cgroup allows, as many threads as the process
    may run on, and spills to ``RANKDIFF_TMP``, ``SLURM_TMPDIR`` or the system's temporary folder (never to
    the working directory, as DuckDB would by itself).
    """
    spill = os.environ.get("RANKDIFF_TMP") or os.environ.get("SLURM_TMPDIR") or tempfile.gettempdir()
    return duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "threads": str(usable_cpus()),
            "memory_limit": f"{memory_limit_bytes() // (1 << 20)}MiB",
            "temp_directory": os.path.join(spill, f"rankdiff-{os.getpid()}"),
            "preserve_insertion_order": "true",
        },
    )


def usable_cpus() -> int:
    """CPUs that this process may run on (a Slurm step is often bound to a few)."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)


def memory_limit_bytes() -> int:
    """Half of the memory that the cgroup or the machine allows, at least 512 MiB."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        try:
            with open(path, encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return max(_LEAST_MEMORY, min(limits) // 2)
