"""How long the comparison takes, and what memory, at a thousand ranks.

    python -m benchmarks.scale --ranks 1024 --instances 5000 --steps 300
    python -m benchmarks.scale --ranks 1024 --instances 5000 --steps 300 --tensor 8
    python -m benchmarks.scale --ranks 1024 --instances 20000 --steps 300
    python -m benchmarks.scale --ranks 64 --instances 2000 --steps 200 --tensor 4 --no-payloads

A played job (`benchmarks.plays`) goes as digests in memory through `compare_digests`; with `--ticket` what
`compare -o` writes and draws comes on top. Every measurement has a process of its own, whose peak memory counts from
when the digests are there. The kernels are compiled before, on a small job.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import rankdiff.comparison as comparison
import rankdiff.judging as judging
import rankdiff.verdict as verdict
from benchmarks.plays import Play, perform
from rankdiff import digest_file
from rankdiff.digest import Digest, DigestOptions

# Stages of the comparison: module, function, and its name in the table. Indented ones are parts of the one above.
STAGES: tuple[tuple[Any, str, str], ...] = (
    (comparison, "build_job", "arrays of all ranks"),
    (comparison, "other_runs", "other runs"),
    (comparison, "payload_groups", "communicators"),
    (comparison, "inferred_groups", "communicators, inferred"),
    (comparison, "match", "matching"),
    (comparison, "_labelled", "steps"),
    (comparison, "fit_clocks", "clocks"),
    (comparison, "_island", "waits and delay shares"),
    (comparison, "compared_quality", "quality"),
    (comparison, "judged", "verdict, twin, margin, what-if"),
    (judging, "judge", "  permutation tests, causes, margin"),
    (verdict, "margin", "    margin"),
    (judging, "gains_nothing", "    what-if, first"),
    (judging, "replayed_without", "  what-if"),
    (comparison, "rank_figures", "figures of the ranks"),
    (comparison, "time_spent", "bottlenecks"),
)


class Clocked:
    """Seconds spent in the stages, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        for module, name, label in STAGES:
            setattr(module, name, self._timed(getattr(module, name), label))

    def _timed(self, function: Callable[..., Any], label: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.seconds[label] = self.seconds.get(label, 0.0) + time.perf_counter() - begin

        return run


def _status(key: str) -> float:
    """Resident memory of this process in GB: now (VmRSS), or at most since `_forget_peak` (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024 / 1e9
    raise RuntimeError(f"no {key} in /proc/self/status: this benchmark runs on Linux")


def _forget_peak() -> None:
    """Let the peak of resident memory count from now."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def play_of(options: argparse.Namespace) -> Play:
    """Return the job of the command line: healthy, or with a rank that is late in every step."""
    per_step = max(2, round(options.instances / options.steps))
    step_ns = per_step * 6e6
    late = {options.ranks // 3: 0.15 * step_ns} if options.late else {}
    return Play(
        ranks=options.ranks,
        per_node=8,
        steps=options.steps,
        step_ns=step_ns,
        jitter_share=0.004,
        per_step=per_step,
        tensor=options.tensor,
        late=late,
        offset_ns={1: 2e6, 3: -1.5e6},
        drift_ppm={2: 4.0},
        payloads=not options.no_payloads,
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Play the job and compare it, in this process."""
    small = argparse.Namespace(
        **{**vars(options), "ranks": 72 * options.tensor, "instances": 80, "steps": 20}
    )
    for late in (False, True):
        warm = perform(play_of(argparse.Namespace(**{**vars(small), "late": late})))
        comparison.compare_digests(warm.digests, warm.identities, ())
    played = perform(play_of(options))
    digests, identities = played.digests, played.identities
    del played
    if options.stored is not None:
        digests = stored(digests, options.stored)
    _forget_peak()
    out: dict[str, Any] = {"digests_gb": _status("VmRSS")}
    clocked = Clocked()
    begin, used = time.perf_counter(), _processor_s()
    compared = comparison.compare_digests(digests, identities, ())
    out |= {
        "seconds": time.perf_counter() - begin,
        "processor_seconds": _processor_s() - used,
        "peak_gb": _status("VmHWM"),
        "stages": clocked.seconds,
        "verdict": compared.verdict.status,
        "ranks_found": [r for f in compared.verdict.findings for r in f.ranks],
        "matched": sum(c.positions.shape[0] for c in compared.matching.communicators),
    }
    if options.keep_files is not None:
        files = importlib.import_module("rankdiff.render.package").ticket_files(
            compared, (), "rankdiff compare"
        )
        importlib.import_module("rankdiff.render.folder").write_folder(options.keep_files, files, force=True)
    if options.ticket:
        out["ticket"] = _ticket(compared)
    return out


def stored(digests: list[Digest], folder: Path) -> list[Digest]:
    """Write digests into a folder, one file each, and open them as `rankdiff compare` does: tables are read when needed."""
    folder.mkdir(parents=True, exist_ok=True)
    out: list[Digest] = []
    digests.reverse()
    while digests:  # memory goes as they are written
        path = str(folder / f"{len(out)}{digest_file.ENDING}")
        provenance = digest_file.Provenance(path, DigestOptions())
        digest_file.write_digests([digests.pop()], provenance, path)
        out += digest_file.read_digests(path)[0]
    return out


def _ticket(compared: comparison.Comparison) -> dict[str, float]:
    """Seconds and sizes of what `compare -o` writes, and of the text on the terminal."""
    package = importlib.import_module("rankdiff.render.package")
    plots = importlib.import_module("rankdiff.render.plots")
    text = importlib.import_module("rankdiff.render.text")
    out = {}
    with tempfile.TemporaryDirectory() as place:
        begin = time.perf_counter()
        for plot in plots.draw_all(compared):
            plots.save(plot, Path(place))
            out[f"{plot.name}, s"] = time.perf_counter() - begin
            begin = time.perf_counter()
    begin = time.perf_counter()
    files = package.ticket_files(compared, (), "rankdiff compare", plots=True)
    out["whole ticket, s"] = time.perf_counter() - begin
    out |= {f"{name}, kB": len(data) / 1e3 for name, data in files.items()}
    begin = time.perf_counter()
    lines = text.to_text(compared)
    return out | {"text, s": time.perf_counter() - begin, "text, lines": float(len(lines.splitlines()))}


def table(found: dict[str, Any]) -> list[str]:
    """Lines of a Markdown table: seconds of each stage, of the whole, and the memory."""
    rows = [(label, found["stages"][label]) for *_, label in STAGES if label in found["stages"]]
    lines = ["| stage | s |", "|---|---:|"]
    lines += [f"| {label.replace('  ', '&nbsp;&nbsp;')} | {seconds:.2f} |" for label, seconds in rows]
    lines.append(f"| **whole comparison** | **{found['seconds']:.2f}** |")
    lines.append(f"| processor | {found['processor_seconds']:.2f} |")
    lines += [f"| ticket: {label} | {value:.2f} |" for label, value in found.get("ticket", {}).items()]
    words = f"peak {found['peak_gb']:.2f} GB, of which {found['digests_gb']:.2f} GB were there before (digests, program)"
    verdict = f"{found['verdict']}, ranks {found['ranks_found'][:8]}, {found['matched']} instances matched"
    return [*lines, "", words, verdict]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure one job in a process of its own and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--instances", type=int, default=5000, help="collectives of a rank")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tensor", type=int, default=1, help="ranks of a tensor-parallel group")
    parser.add_argument("--late", action="store_true", help="one rank is late in every step")
    parser.add_argument("--no-payloads", action="store_true", help="communicators must be inferred")
    parser.add_argument("--ticket", action="store_true", help="write and draw as `compare -o` does")
    parser.add_argument(
        "--stored", type=Path, metavar="DIR", help="write the digests into this folder first, and read them"
    )
    parser.add_argument("--keep-files", type=Path, metavar="DIR", help="leave the ticket in this folder")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        json.dump(measure(options), sys.stdout)
        return
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = [sys.executable, "-m", "benchmarks.scale", "--child", *given]
    print("\n".join(table(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))))


if __name__ == "__main__":
    main()
