"""A report.json to a side of a difference: what it holds by step, and why the rest is absent."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankdiff.differences.side import NOT_ASSESSED, NOT_STORED, STORED, Member, Side, aligned
from rankdiff.errors import RankdiffError
from rankdiff.findings import Finding
from rankdiff.makeup import PARTS
from rankdiff.untrusted import shown

F64 = NDArray[np.float64]

SCHEMA = "rankdiff.report/1"
_LARGEST_BYTES = 1 << 30
_BEYOND = 1 << 62  # ns and bytes that no job can have
_REMEDY = "Give a report.json that rankdiff compare -o wrote, or the reports themselves"


def is_stored(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a JSON object."""
    return head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{"  # some editors put that mark


def load_stored(path: str, name: str, skip_steps: int = 0) -> Side:
    """Read a report.json.

    Parameters
    ----------
    path : str
    name : str
        What the side is called, without folders.
    skip_steps : int
        Steps to leave out at the start.

    Raises
    ------
    RankdiffError
        It cannot be read, or is no report.json of this schema.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise RankdiffError(f"{path}: cannot be read ({error.strerror})", "Check its permissions") from error
    if len(data) > _LARGEST_BYTES:
        raise RankdiffError(f"{path}: larger than 1 GiB, expected a report.json", _REMEDY)
    try:
        report = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RankdiffError(
            f"{path}: expected a report.json, found no valid JSON ({error})", _REMEDY
        ) from None
    schema = report.get("schema") if isinstance(report, dict) else None
    if schema != SCHEMA:
        raise RankdiffError(f"{path}: expected the schema {SCHEMA}, found {schema!r}", _REMEDY)
    try:
        return _side(report, name, skip_steps)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        what = f"{type(error).__name__}: {error}"
        raise RankdiffError(f"{path}: not a report.json as rankdiff writes it ({what})", _REMEDY) from error


def _side(report: Mapping[str, Any], name: str, skip_steps: int) -> Side:
    job, verdict = report["job"], report["verdict"]
    islands = [[int(r) for r in ranks] for ranks in job["islands"]]
    steps = [[s for s in report["steps"] if s.get("island", 0) == n] for n in range(len(islands))]
    judged = [[s for s in of[skip_steps:] if s["judged"]] for of in steps]
    main = max(range(len(islands)), key=lambda n: len(judged[n]), default=None)
    why = {"before": NOT_STORED, "before_by_rank": NOT_STORED, "kernels": NOT_STORED}
    wait = None
    if verdict["wait_ns_per_step"] is not None and judged:
        wait = aligned([(_floats([s["delay_ns"] for s in of]), 1) for of in judged])
    else:
        why["wait"] = NOT_ASSESSED
    parts = _parts(islands, judged)
    if parts is None:
        why["parts"] = NOT_STORED if any(judged) else NOT_ASSESSED
    members = tuple(_member(r) for r in report["ranks"])
    delay, reason = _delay(report, islands, judged)
    if reason is not None:
        why["delay"] = reason
    lengths = [s["step_ns"] for s in judged[main] if s["step_ns"] is not None] if main is not None else []
    operations = job.get("operations_per_step")
    return Side(
        name=name,
        source=STORED,
        status=_text(verdict["status"]),
        reason=_text(verdict["reason"]) if verdict["reason"] is not None else None,
        message=_text(verdict["summary"]) if verdict["status"] == "not_assessed" else None,
        findings=tuple(_finding(f) for f in report["findings"]),
        members=members,
        missing=tuple(int(r) for r in job["missing_ranks"]),
        step_source=_text(job["step_source"]) if job["step_source"] is not None else None,
        step_count=len(judged[main]) if main is not None else 0,
        step_ns_median=_number(job["step_ns_median"]),
        window_ns=_number(job["window_ns"]),
        operations={_text(k): float(_floats([n])[0]) for k, n in operations.items()} if operations else None,
        bytes_per_step=_number(job.get("bytes_per_step")),
        uncertainty_ns=_number(report["clock"]["uncertainty_ns"]) or 0.0,
        step=_floats(lengths),
        wait=wait,
        parts=parts,
        before=None,
        delay=delay,
        before_by_rank={},
        kernels=None,
        why=why,
    )


def _parts(islands: list[list[int]], judged: list[list[Any]]) -> dict[str, F64] | None:
    """Make-up by step; None where no step has one."""
    known = [
        [s["make_up_ns"] for s in of if s["step_ns"] is not None and s.get("make_up_ns")] for of in judged
    ]
    if not any(known):
        return None
    sizes = [len(ranks) for ranks in islands]
    return {
        p: aligned([(n * _floats([m[p] for m in of]), n) for of, n in zip(known, sizes, strict=True)])
        for p in PARTS
    }


def _delay(
    report: Mapping[str, Any], islands: list[list[int]], judged: list[list[Any]]
) -> tuple[dict[int, F64], str | None]:
    """Delay by rank and step; and why there is none."""
    assessed = {int(r["rank"]) for r in report["ranks"] if r["delay_ns"] is not None}
    if not assessed:
        return {}, NOT_ASSESSED
    out: dict[int, F64] = {}
    for ranks, of in zip(islands, judged, strict=True):
        rows = [s.get("delay_by_rank_ns") for s in of]
        if not rows or any(r is None or len(r) != len(ranks) for r in rows):
            return {}, NOT_STORED
        table = _floats(rows, 2)
        out |= {r: table[:, n] for n, r in enumerate(ranks) if r in assessed}
    return out, None


def _member(r: Mapping[str, Any]) -> Member:
    def optional(key: str) -> str | None:
        return _text(r[key]) if r.get(key) is not None else None

    gpu, model, uuid = optional("gpu_uuid"), optional("gpu_name"), optional("session_uuid")
    return Member(int(r["rank"]), _text(r["label"]), _text(r["node"]), gpu, model, uuid)


def _finding(f: Mapping[str, Any]) -> Finding:
    detail = f["cause_detail"] or {}
    named = {k: _text(detail[k]) for k in ("range", "osrt", "cuda") if detail.get(k) is not None}
    return Finding(
        kind=_text(f["kind"]),
        severity=_text(f["severity"]),
        pattern=f["pattern"] if f["pattern"] is None else _text(f["pattern"]),
        rank=None if f["rank"] is None else int(f["rank"]),
        node=None if f["node"] is None else _text(f["node"]),
        ranks=tuple(int(r) for r in f["ranks"]),
        delay_ns_per_step=_number(f["delay_ns_per_step"]),
        delay_share=_number(f["delay_share"]),
        cause=None if f["cause"] is None else _text(f["cause"]),
        cause_detail=named,
        evidence=tuple(_text(x) for x in f["evidence"]),
    )


def _text(x: Any) -> str:
    """A name from the file, fit to be shown."""
    if not isinstance(x, str):
        raise TypeError(f"expected a text, found {type(x).__name__}")
    return shown(x, 2_000)


def _number(x: Any) -> float | None:
    return None if x is None else float(_floats([x])[0])


def _floats(x: list[Any], dimensions: int = 1) -> F64:
    """Numbers in a list, or in lists of one length; not those that are no number or beyond all bounds."""
    out = np.array(x, np.float64)
    if out.ndim != dimensions or not (np.abs(out) < _BEYOND).all():  # neither is a NaN
        raise ValueError("expected numbers")
    return out
