"""How fast `rankdiff compare` is, against other ways to load the same columns, all in one run and in turns.

    python -m benchmarks.performance REPORT... [--write]

The reports are those of one job; they are repeated in time up to `--megabytes` each (`benchmarks.tile`). The others
(DuckDB's SQLite scanner and connectorx) run in an environment that is made for them with pip; where that cannot be
made, the tables say so. With `--write` the tables in docs/performance.md are replaced.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks import reader
from benchmarks.calibrate import put_into
from benchmarks.measuring import Run, in_turns, run
from benchmarks.tile import tile
from rankdiff.reports.nsys import KERNEL, RUNTIME
from rankdiff.reports.threads import OSRT

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
SMALL = Path(__file__).parents[1] / "sample_reports" / "late_rank"
PEERS = ("duckdb==1.5.5", "duckdb-extension-sqlite-scanner==1.5.5", "connectorx", "pyarrow")

_LIBRARIES = ("numba", "numpy", "polars", "pyarrow")
_TABLES = {
    KERNEL: [*reader.KERNEL_COLUMNS, "shortName", *reader.SHAPE],
    RUNTIME: list(reader.API_COLUMNS),
    OSRT: list(reader.OSRT_COLUMNS),
}
_NAMES = {"duckdb": "DuckDB's SQLite scanner", "connectorx": "connectorx", "sqlite3": "Python's sqlite3"}
_TENTH = 10
_NOT_ASSESSED = 4  # exit status of a comparison of one rank

# Seconds of the stages of a comparison in this process: wall and processors.
_STAGES = """
import json, sys, time
clock = lambda: (time.perf_counter(), time.process_time())
at = [clock()]
from rankdiff.comparison import compare_digests
from rankdiff.gathering import gather
from rankdiff.pipeline import CompareOptions, read
import rankdiff.render.text
at.append(clock())
found = read(sys.argv[1:], CompareOptions(jobs=1))
at.append(clock())
compare_digests(found.digests, found.identities, found.missing, 0)
at.append(clock())
print(json.dumps([[b[0] - a[0], b[1] - a[1]] for a, b in zip(at, at[1:])]))
"""


def peers(folder: Path) -> Path | None:
    """Python of an environment with the other readers; None when it cannot be made."""
    python = folder / "bin" / "python"
    if python.exists():
        return python
    venv.create(folder, with_pip=True)
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", *PEERS], capture_output=True, text=True, check=False
    )
    return python if done.returncode == 0 else None


def compare(reports: Iterable[Path], *options: str) -> Callable[[], Run]:
    """The whole command."""
    command = [Path(sys.executable).parent / "rankdiff", "compare", *options, *reports]
    return lambda: run(command, _NOT_ASSESSED)


def loading(python: Path | str, way: str, reports: Sequence[Path]) -> Callable[[], Run]:
    """Loading the columns another way: the seconds are those that it says."""
    script = Path(__file__).with_name("peers.py")
    command = [python, "-W", "ignore", script, way, json.dumps(_TABLES), *reports]
    return lambda: _told(run(command))


def pages(way: str, reports: Sequence[Path]) -> Callable[[], Run]:
    """Loading them as `rankdiff compare` does, or only the bytes of the files."""
    command = [sys.executable, "-m", "benchmarks.reader", "--alone", way, *reports]
    return lambda: _told(run(command))


def _told(done: Run) -> Run:
    seconds = json.loads(done.output.splitlines()[-1])
    return Run(seconds["wall"], seconds["cpu"], done.peak, done.output)


def machine(python: Path | None, rounds: int) -> list[str]:
    """What it was measured on, in lines."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    libraries = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    busy = os.getloadavg()[0]
    lines = [
        f"- {len(os.sched_getaffinity(0))} CPUs ({cpu}), {memory} GiB of memory, {platform.system()}",
        f"- Python {platform.python_version()}, {libraries}",
    ]
    lines.append(
        "- the others: " + ", ".join(PEERS[:3])
        if python
        else "- the others could not be installed here: " + ", ".join(PEERS[:3])
    )
    return [
        *lines,
        f"- medians of {rounds} runs, after one for warmth",
        f"- processes that wanted a CPU before it began, on average over a minute: {busy:.1f}",
    ]


def _row(name: str, found: Run, *others: str) -> str:
    cells = (name, f"{found.wall:.2f}", f"{found.cpu:.2f}", f"{found.peak}", *others)
    return f"| {' | '.join(cells)} |"


def _head(first: str, *others: str) -> list[str]:
    names = (first, "seconds", "processor seconds", "peak MiB", *others)
    return [f"| {' | '.join(names)} |", "|---" + "|---:" * (len(names) - 1) + "|"]


def _times(a: float, b: float) -> str:
    return f"{a / b:.2f}"


def reading(report: Path, python: Path | None, rounds: int) -> list[str]:
    """Table of loading one report."""
    ways = {"rankdiff's page reader": pages("page reader", [report])}
    for way in ("duckdb", "connectorx"):
        if python:
            ways[_NAMES[way]] = loading(python, way, [report])
    ways[_NAMES["sqlite3"]] = loading(sys.executable, "sqlite3", [report])
    ways["the bytes of the file alone"] = pages("bytes alone", [report])
    found = in_turns(ways, rounds)
    scanner = found.get(_NAMES["duckdb"])
    rows = _head("way", "wall, DuckDB's = 1", "processors, DuckDB's = 1")
    for name, each in found.items():
        ratios = (_times(each.wall, scanner.wall), _times(each.cpu, scanner.cpu)) if scanner else ("?", "?")
        rows.append(_row(name, each, *ratios))
    return rows


def whole(reports: Sequence[Path], python: Path | None, rounds: int) -> list[str]:
    """Table of comparing the job, against DuckDB's scanner that merely loads."""
    ways = {
        "`rankdiff compare`": compare(reports),
        "`rankdiff compare --jobs 1`": compare(reports, "--jobs", "1"),
    }
    if python:
        ways["DuckDB's SQLite scanner, loading only"] = loading(python, "duckdb", reports)
    found = in_turns(ways, rounds)
    rows = _head(f"{len(reports)} reports", "wall, DuckDB's = 1", "processors, DuckDB's = 1")
    *_, scanner = found.values()
    for name, each in found.items():
        ratios = (_times(each.wall, scanner.wall), _times(each.cpu, scanner.cpu)) if python else ("?", "?")
        rows.append(_row(name, each, *ratios))
    return rows


def growth(small: Sequence[Path], large: Sequence[Path], rounds: int) -> list[str]:
    """Table of comparing more ranks, and larger reports."""
    ways = {}
    for reports in (small, large):
        size = max(each.stat().st_size for each in reports) >> 20
        counts = [n for n in (1, 2, 4, 8) if n < len(reports)] + [len(reports)]
        ways |= {f"{n} × {size} MiB": compare(reports[:n]) for n in counts}
    found = in_turns(ways, rounds)
    rows = _head("reports", "processor seconds a GiB")
    for (name, each), count in zip(found.items(), ways, strict=True):
        n, _, size = count.split()[:3]
        rows.append(_row(name, each, f"{each.cpu / (int(n) * int(size) / 1024):.1f}"))
    return rows


def stages(reports: Sequence[Path], rounds: int) -> list[str]:
    """Table of where the time of a comparison in one process goes."""
    names = ("start, libraries", "reading and digests", "comparison of the digests")
    rows = ["| stage | seconds | processor seconds |", "|---|---:|---:|"]
    command = [sys.executable, "-c", _STAGES, *reports]
    _, *runs = [json.loads(run(command).output) for _ in range(rounds + 1)]  # the first for warmth
    for at, name in enumerate(names):
        wall, cpu = (sorted(each[at][which] for each in runs)[rounds // 2] for which in (0, 1))
        rows.append(f"| {name} | {wall:.2f} | {cpu:.2f} |")
    return rows


def small_jobs(rounds: int) -> list[str]:
    """Table of what takes no time to read."""
    command = [Path(sys.executable).parent / "rankdiff", "--help"]
    sample = sorted(SMALL.glob("*.sqlite"))
    ways = {
        f"`rankdiff compare` of {len(sample)} reports of 1 MB": compare(sample),
        "`rankdiff --help`": lambda: run(command),
    }
    return _head("command") + [_row(name, each) for name, each in in_turns(ways, rounds).items()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.performance", description=__doc__.splitlines()[0]
    )
    parser.add_argument("report", type=Path, nargs="+", help="of one job, as many as are to be compared")
    parser.add_argument("--megabytes", type=int, default=460, help="size of the reports, before rounding")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--scratch", type=Path, help="folder for the reports and the others' environment, kept"
    )
    parser.add_argument("--write", action="store_true", help=f"put the tables into docs/{PAGE.name}")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        scratch = chosen.scratch or Path(temporary)
        python = peers(scratch / "peers")
        large, small = (
            _tiled(chosen.report, scratch, size) for size in (chosen.megabytes, chosen.megabytes // _TENTH)
        )
        made = {"machine": machine(python, chosen.rounds)}
        for name, measure in (
            ("reading", lambda: reading(large[0], python, chosen.rounds)),
            ("whole", lambda: whole(large, python, chosen.rounds)),
            ("stages", lambda: stages(large, chosen.rounds)),
            ("growth", lambda: growth(small, large, chosen.rounds)),
            ("small", lambda: small_jobs(chosen.rounds)),
        ):
            made[name] = measure()
            print(f"\n{name}\n" + "\n".join(made[name]), flush=True)
    if chosen.write:
        PAGE.write_text(put_into(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")


def _tiled(reports: Sequence[Path], scratch: Path, megabytes: int) -> list[Path]:
    folder = scratch / f"{megabytes}MB"
    there = [folder / report.name for report in reports]
    return there if all(each.exists() for each in there) else tile(reports, folder, megabytes)


if __name__ == "__main__":
    main()
