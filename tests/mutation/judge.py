"""Run the product on a job in this process, and check what must hold whatever is in the files."""

from __future__ import annotations

import faulthandler
import json
import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import CliRunner

from rankdiff.digest import Digest, make_digests
from rankdiff.errors import RankdiffError
from rankdiff.pipeline import CompareOptions, compare
from rankdiff.render.html import to_html
from rankdiff.render.json import to_dict, to_json
from rankdiff.render.markdown import to_markdown
from rankdiff.render.text import to_text
from rankdiff.render.ticket import ticket
from rankdiff_cli.main import group

# Generous: a mutant takes half a second. The first raises in Python; the second ends the process where compiled
# code does not come back, which pytest-xdist reports as a failure of the test that ran.
HANGS_S, NEVER_RETURNS_S = 120, 300

_digests: dict[Any, list[Digest]] = {}

_NOT_NEGATIVE = (
    "collectives",
    "nccl_kernels",
    "nccl_ns",
    "wait_ns",
    "imposed_wait_ns",
    "delay_ns",
    "delay_share",
    "last_count",
    "span_ns",
    "busy_ns",
    "idle_ns",
    "idle_data_load_ns",
    "idle_osrt_ns",
)


@dataclass(frozen=True)
class Answer:
    """What the product says: report.json, or the error that it ends with."""

    report: dict[str, Any] | None
    error: str | None
    comparison: Any = None
    notes: tuple[Any, ...] = ()


def answer(paths: Sequence[Path]) -> Answer:
    """Compare; only rankdiff's own errors are an answer, everything else is raised.

    Digests of unmutated reports are made once a process: a mutant costs one digest and one comparison.
    """
    with mock.patch("rankdiff.digest_tasks.make_digests", _cached), watched():
        try:
            outcome = compare([str(p) for p in paths], CompareOptions())
        except RankdiffError as error:
            return Answer(None, str(error))
        return Answer(
            to_dict(outcome.comparison, outcome.notes), None, outcome.comparison, tuple(outcome.notes)
        )


def accused(report: dict[str, Any]) -> set[tuple[str, int]]:
    """Whom a loud finding names, by itself or through its node, as (report, process).

    Not as rank numbers: where no report tells them, they count the processes that are there.
    """
    found: set[int] = set()
    for f in report["findings"]:
        if f["kind"] in ("late_rank", "late_node") and f["severity"] in ("major", "minor"):
            found.update(f["ranks"] if f["kind"] == "late_node" else [f["rank"]])
    of = {rank["rank"]: (rank["report"], rank["pid"]) for rank in report["ranks"]}
    return {of[rank] for rank in found}


def check(found: Answer, base: dict[str, Any]) -> None:
    """Check a report against what must always hold, and against the keys of an unmutated one."""
    report = found.report
    if report is None:
        assert found.error, "an error without words"
        assert found.error.isprintable()
        return
    with watched():
        text = to_json(found.comparison, found.notes)  # raises on NaN and infinity
        blocks = ticket(found.comparison, found.notes, (), "rankdiff compare")
        for words in (
            to_text(found.comparison, found.notes),
            to_markdown(blocks),
            to_html(blocks, {}),
        ):
            assert words.strip()
            assert all(c.isprintable() or c == "\n" for c in words if c != "\u2028")
    text.encode()
    assert json.loads(text) == report
    _same_keys(report, base)
    for rank in report["ranks"]:
        _figures(rank)
    for f in report["findings"]:
        for key in ("delay_ns_per_step", "delay_share", "p_value", "steps_late", "steps"):
            assert f[key] is None or f[key] >= 0, (key, f[key])
        assert f["p_value"] is None or f["p_value"] <= 1
        assert f["steps"] is None or f["steps_late"] is None or f["steps_late"] <= f["steps"]
    accused(report)  # ranks of the report, all of them
    for share in (report["verdict"]["wait_share_of_step"], *(s["top_share"] for s in report["steps"])):
        assert share is None or (share >= -1e-9 and math.isfinite(share))
    for step in report["steps"]:
        assert step["delay_ns"] is None or step["delay_ns"] >= 0, step


def run_commands(reports: Sequence[Path], folder: Path) -> None:
    """Run the other commands on a job; each ends well or with one of our errors."""
    paths = [str(p) for p in reports]
    for arguments in (
        ["compare", *paths, "-o", str(folder / "ticket")],
        ["inspect", *paths],
        ["timeline", *paths, "-o", str(folder / "step.svg")],
        ["trace", *paths, "-o", str(folder / "job.json")],
    ):
        with mock.patch("rankdiff.digest_tasks.make_digests", _cached), watched():
            result = CliRunner().invoke(group, arguments, standalone_mode=False)
        error = result.exception
        if error is not None and not isinstance(error, RankdiffError):
            raise error
        trace = folder / "job.json"
        if trace.exists():
            json.loads(trace.read_text(encoding="utf-8"))


@contextmanager
def watched() -> Iterator[None]:
    """Fail on a hang, with the stack that hangs."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"no answer after {HANGS_S} s")

    faulthandler.dump_traceback_later(NEVER_RETURNS_S, exit=True)
    alarm = threading.current_thread() is threading.main_thread()
    before: Callable[..., Any] | int | None = signal.signal(signal.SIGALRM, stop) if alarm else None
    if alarm:
        signal.alarm(HANGS_S)
    try:
        yield
    finally:
        if alarm:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        faulthandler.cancel_dump_traceback_later()


def _cached(report: Any, claims: Sequence[Any], *options: Any) -> list[Digest]:
    if "mutant" in Path(report.path).parent.name:
        return make_digests(report, claims, *options)
    key = (report.path, tuple(claims), options)
    if key not in _digests:
        _digests[key] = make_digests(report, claims, *options)
    return _digests[key]


def _figures(rank: dict[str, Any]) -> None:
    for key in _NOT_NEGATIVE:
        assert rank[key] is None or rank[key] >= 0, (rank["rank"], key, rank[key])
    assert rank["busy_ns"] + rank["idle_ns"] == rank["span_ns"], rank["rank"]
    causes = rank["idle_by_cause_ns"]
    assert sum(x for x in causes.values() if x is not None) == rank["idle_ns"], (causes, rank["idle_ns"])
    assert all(x is None or x >= 0 for x in causes.values()), causes
    for key in ("idle_data_load_ns", "idle_osrt_ns"):
        assert rank[key] is None or rank[key] <= rank["idle_ns"], (
            key,
            rank["rank"],
            rank[key],
            rank["idle_ns"],
        )
    if rank["make_up_ns"] is not None:
        assert all(x is None or x >= 0 for x in rank["make_up_ns"].values()), rank["make_up_ns"]
    for gap in rank["longest_gaps"]:
        assert 0 < gap["ns"] <= rank["idle_ns"], gap


def _same_keys(report: dict[str, Any], base: dict[str, Any]) -> None:
    assert list(report) == list(base)
    for key, value in base.items():
        if isinstance(value, dict) and report[key] is not None:
            assert list(report[key]) == list(value), key
    for key in ("ranks", "nodes", "steps", "communicators"):
        for row in report[key]:
            assert list(row) == list(base[key][0]), key
