"""How long a command takes, and how much memory it and its processes need together."""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_EVERY_S = 0.05


@dataclass(frozen=True)
class Run:
    """One run: seconds by the clock and of processors, memory in MiB, and what it printed."""

    wall: float
    cpu: float
    peak: int
    output: str


def run(command: Sequence[str | Path], *accepted: int) -> Run:
    """Run a command to its end.

    Memory is the largest sum over its processes of the proportional set size, so that what they share counts once.

    Raises
    ------
    RuntimeError
        When it ends with a status that is neither 0 nor `accepted`; with what it wrote to stderr.
    """
    before, began = os.times(), time.perf_counter()
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    peak, over = [0], threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, peak, over))
    watcher.start()
    output, errors = process.communicate()
    wall, after = time.perf_counter() - began, os.times()
    over.set()
    watcher.join()
    if process.returncode not in (0, *accepted):
        raise RuntimeError(f"{command[0]} failed: {errors}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(wall, cpu, peak[0] >> 10, output)


def in_turns(ways: Mapping[str, Callable[[], Run]], rounds: int) -> dict[str, Run]:
    """Run all ways once for warmth and then in turns, so that a busy machine slows all alike; medians of each."""
    for way in ways.values():
        way()
    found: dict[str, list[Run]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way())
    return {
        name: Run(
            statistics.median(each.wall for each in runs),
            statistics.median(each.cpu for each in runs),
            max(each.peak for each in runs),
            runs[-1].output,
        )
        for name, runs in found.items()
    }


def _watch(pid: int, peak: list[int], over: threading.Event) -> None:
    while not over.wait(_EVERY_S):
        peak[0] = max(peak[0], sum(map(_kilobytes, _family(pid))))


def _family(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for each in found:
        for listed in Path(f"/proc/{each}/task").glob("*/children"):
            found += [int(child) for child in _text(listed).split()]
    return found


def _kilobytes(pid: int) -> int:
    lines = _text(Path(f"/proc/{pid}/smaps_rollup")).splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended meanwhile
        return ""
