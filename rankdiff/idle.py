"""Idle time by cause, as the reports give it: what could not be seen is None, never 0."""

from __future__ import annotations

from collections.abc import Iterator

from rankdiff.digest import Digest, DigestInfo
from rankdiff.schema import IDLE_CLASSES

_NEEDS = {
    "profiler": "PROFILER_OVERHEAD",
    "io": "OSRT_API",
    "os_wait": "OSRT_API",
    "preempted": "SCHED_EVENTS",
}
_CUDA_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_WITHOUT_THREAD = ("profiler", "unknown")


def idle_by_cause(digest: Digest) -> dict[str, int | None]:
    """Idle time of a rank by class.

    Parameters
    ----------
    digest : Digest

    Returns
    -------
    dict of str to (int or None)
        Every class of IDLE_CLASSES, in that order, in ns; None: what would show it was not captured. The
        numbers sum to the rank's idle time.
    """
    sums: dict[str, int] = {}
    for name, ns in digest.idle.select("class", "ns").iter_rows():  # some dozens
        sums[name] = sums.get(name, 0) + ns
    hidden = set(_hidden(digest.info))
    return {name: None if name in hidden else sums.get(name, 0) for name in IDLE_CLASSES}


def _hidden(info: DigestInfo) -> Iterator[str]:
    if not info.data_ranges:
        yield "data_load"
    for name in IDLE_CLASSES:
        # Without CUDA calls nothing tells which thread ends a gap.
        needed = {_NEEDS.get(name), None if name in _WITHOUT_THREAD else _CUDA_CALLS} - {None}
        if not needed <= info.tables.keys():
            yield name
