"""Tables of a difference that text, Markdown and HTML share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankdiff.differences.difference import Difference
from rankdiff.differences.kernels import KernelRow
from rankdiff.differences.rows import CHANGED, NOT_DISTINGUISHABLE, TOO_SMALL, Row
from rankdiff.render.diff_words import interval, signed
from rankdiff.schema import CLASSES
from rankdiff.units import duration
from rankdiff.untrusted import shown

HEADER = ("", "before", "after", "change", "interval", "")
NUMERIC = frozenset({1, 2, 3, 4})
LEGEND = (
    "Means a step. The intervals are of the change, and hold together: between two captures of a job that did not "
    "change, 95 comparisons of 100 show no row as changed. They know how the steps of these two captures vary, not how "
    "one run of the job differs from the next. Changed: the interval excludes zero, and the change is large enough to "
    "matter (1% of the step for the step time and a kernel, 2% for the rest, three times the clock's uncertainty where "
    "clocks are compared, a tenth of its delay's change for a cause of a rank)."
)
_VERDICTS = {
    CHANGED: "changed",
    TOO_SMALL: "too small to matter",
    NOT_DISTINGUISHABLE: "not distinguishable",
}
_MOST_RANKS = 20
_MOST_NODES = 12
_MOST_KERNELS = 6
_LONGEST_KERNEL = 46
_SHOWN_SHARE = 0.01  # of the step: a class below that is shown only if it changed
_PARTS = ("wait", "compute", "exposed_communication", "exposed_wait", "exposed_transfer", "copy", "idle")
_LABELS = {
    "step_time": "step time",
    "wait": "somebody waits",
    "exposed_communication": "exposed communication",
    "exposed_wait": "- of it wait",
    "exposed_transfer": "- of it transfer",
    "copy": "copies",
    "gpu_work": "GPU work",
    "idle": "GPU idle",
}


@dataclass(frozen=True)
class Section:
    """A table with its title; rows as HEADER."""

    title: str
    rows: Sequence[tuple[str, ...]]
    strong: frozenset[int]  # rows that changed
    remark: str = ""  # what is not shown


def sections(d: Difference) -> list[Section]:
    """All tables, in the order in which people ask."""
    by_key = {r.key: r for r in d.parts}
    parts = [d.step, *(by_key[k] for k in _PARTS)]
    if all(r.verdict is None and r.change_ns is None for r in (*parts, *d.ranks)):
        return []
    out = [Section("the step", *_rows([(label(r), r) for r in parts]))]
    out.append(_causes(d))
    out.append(_ranks(d))
    out += _nodes(d)
    if d.gpus:
        named = [(f"{r.node} GPU-{(r.gpu_uuid or '')[:8]}", r) for r in d.gpus]
        out.append(_longest("delay caused by GPUs that another rank has now", named, _MOST_NODES, "GPUs"))
    for rank in dict.fromkeys(r.rank for r in d.rank_causes):
        named = [(r.key, r) for r in d.rank_causes if r.rank == rank]
        out.append(_worth_showing(f"time before the collectives of rank {rank}", named, d))
    out.append(_kernels(d))
    return out


def label(row: Row) -> str:
    """Name of a part of the step."""
    return _LABELS.get(row.key, row.key)


def _rows(named: Sequence[tuple[str, Row]]) -> tuple[list[tuple[str, ...]], frozenset[int]]:
    cells: list[tuple[str, ...]] = [
        (name, duration(r.before_ns), duration(r.after_ns), signed(r.change_ns), interval(r), verdict(r))
        for name, r in named
    ]
    return cells, frozenset(n for n, (_, r) in enumerate(named) if r.changed)


def verdict(row: Row) -> str:
    """What is said of a row."""
    return _VERDICTS.get(row.verdict or "", row.reason or "not compared")


def _longest(name: str, named: list[tuple[str, Row]], most: int, what: str) -> Section:
    """The rows that changed most, in their own order."""
    order = sorted(
        range(len(named)), key=lambda n: (not named[n][1].changed, -abs(named[n][1].change_ns or 0.0), n)
    )
    kept = [named[n] for n in sorted(order[:most])]
    left = len(named) - len(kept)
    remark = f"showing {len(kept)} of {len(named)} {what}, those that changed most" if left else ""
    return Section(name, *_rows(kept), remark)


def _worth_showing(name: str, named: list[tuple[str, Row]], d: Difference) -> Section:
    """Rows that changed or take a share of the step; the others are counted."""
    step = max(d.step.before_ns or 0.0, d.step.after_ns or 0.0)
    named = sorted(named, key=lambda x: CLASSES.index(x[1].key))

    def large(r: Row) -> bool:
        return max(r.before_ns or 0.0, r.after_ns or 0.0) >= _SHOWN_SHARE * step

    kept = [(n, r) for n, r in named if r.changed or (r.verdict is not None and large(r))]
    small = sum(r.verdict is not None for _, r in named) - len(kept)
    absent = [r for _, r in named if r.verdict is None]
    parts = [f"{small} more, each below 1% of the step, did not change"] if small else []
    if absent:
        which = f": {', '.join(r.key for r in absent)}" if len(absent) < len(named) else ""
        parts.append(f"{absent[0].reason or 'not compared'}{which}")
    return Section(name, *_rows(kept), "; ".join(parts))


def _causes(d: Difference) -> Section:
    return _worth_showing("time before collectives, mean over the ranks", [(r.key, r) for r in d.causes], d)


def _ranks(d: Difference) -> Section:
    named = [(f"rank {r.rank} ({r.node}{', moved' if r.moved else ''})", r) for r in d.ranks]
    return _longest("delay caused by rank", named, _MOST_RANKS, "ranks")


def _nodes(d: Difference) -> list[Section]:
    if not d.nodes:
        return []
    return [_longest("delay caused by node", [(str(r.node), r) for r in d.nodes], _MOST_NODES, "nodes")]


def _kernels(d: Difference) -> Section:
    if d.kernels is None:
        reason = next((s.why["kernels"] for s in (d.before, d.after) if "kernels" in s.why), "not known")
        return Section("kernels", [], frozenset(), f"not compared: {reason}")
    kept = list(d.kernels[:_MOST_KERNELS])
    while len(kept) < len(d.kernels) and d.kernels[len(kept)].row.changed and len(kept) < 2 * _MOST_KERNELS:
        kept.append(d.kernels[len(kept)])
    rows, strong = _rows([(kernel_label(k), k.row) for k in kept])
    rows = [
        (*r[:-1], f"{r[-1]}: {k.kind}" if k.row.changed else r[-1]) for r, k in zip(rows, kept, strict=True)
    ]
    left = sum(k.row.changed for k in d.kernels[len(kept) :])
    count = sum(k.row.changed for k in d.kernels)
    remark = f"{len(d.kernels)} kernels compared, those that take most time; {count} changed"
    return Section(
        "kernels, mean over the ranks", rows, strong, remark + (f"; {left} of them not shown" if left else "")
    )


def kernel_label(k: KernelRow) -> str:
    """Name and grid of a kernel, cut to fit."""
    return shown(k.row.key, _LONGEST_KERNEL) + (f" {k.grid}" if k.grid else "")
