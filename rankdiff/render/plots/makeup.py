"""Make-up of the mean judged step on each rank: compute, exposed transfer and wait, copies, idle by cause."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rankdiff.comparison import Comparison
from rankdiff.idle import idle_by_cause
from rankdiff.makeup import PARTS
from rankdiff.render.plots import style
from rankdiff.render.plots.gutter import gutter_px, label_rows
from rankdiff.render.plots.rows import Row, accused_and_peers, all_rows, left_out_note, subject, worst
from rankdiff.render.plots.sheet import Entry, Plot, Sheet, text_px
from rankdiff.units import duration, share

_MOST = 40
_RIGHT_PX = 40
_TOP_PX = 20
_BUSY = ("compute", "exposed_transfer", "exposed_wait", "copy")
_ORDER = (*_BUSY, *style.CAUSE_COLOURS)
_LEAST = 0.005  # of the step: smaller parts are drawn, but get no entry in the legend
_READING = "The mean step, ending with its last collective. Exposed is what no compute on the rank hides."


@style.styled
def draw(c: Comparison) -> Plot | None:
    """Draw the make-up of a step per rank; None when no step has a length.

    Parameters
    ----------
    c : Comparison

    Returns
    -------
    Plot or None
        Its data: ``rows`` (ranks of each), ``parts_ns`` by part (one number a row, nan where not measured) and
        ``step_ns`` (one a row), to which the parts sum.
    """
    parts = _parts(c)
    if not parts:
        return None
    delay = {r: f.delay_ns or 0.0 for r, f in c.figures.items()}
    everyone = all_rows(c)
    rows = worst(everyone, delay, _MOST)
    kinds = [k for k in _ORDER if any(p.get(k) for p in parts.values())]
    values = {k: np.array([_of(parts, row, k) for row in rows]) for k in kinds}
    step = np.array([_of(parts, row, None) for row in rows])
    most = float(np.nanmax([*step, 0.0]))
    if most <= 0:
        return None
    scale, unit = style.unit_of(most)

    row_px = 28 if len(rows) <= 16 else 20
    left, high = gutter_px(rows), row_px * len(rows)
    hidden = _hidden(c)
    told = [k for k in kinds if np.nanmax(values[k]) >= _LEAST * most]
    notes = []
    if len(rows) < len(everyone):
        notes.append(left_out_note(rows, everyone))
    if any((~d.collectives["op_class"].is_in(["nxn"])).any() for d in c.digests):
        notes.append(
            "Waiting in send/recv and in rooted collectives cannot be told from transfer and counts as such."
        )
    if hidden:
        notes.append(f"Not captured, so not told apart in idle time: {', '.join(hidden)}.")
    sheet = Sheet(_title(c, parts), _READING, _legend(told, rows, parts), _TOP_PX + high + 48, notes)
    wide = style.WIDTH - left - _RIGHT_PX
    ax = sheet.axes(left, _TOP_PX, wide, high)
    ax.set(xlim=(0, most / scale), ylim=(len(rows) - 0.5, -0.5), yticks=[])
    _bars(ax, values, step, scale, wide / most)
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(10))
    ax.xaxis.set_major_formatter(FuncFormatter(style.number))
    ax.set_xlabel(f"mean step [{unit}]")
    label_rows(sheet, rows, left, _TOP_PX, row_px)
    data = {"rows": [r.ranks for r in rows], "parts_ns": values, "step_ns": step}
    return Plot("makeup", _title(c, parts), _caption(c, parts), sheet.figure, data)


def _parts(c: Comparison) -> dict[int, dict[str, float]]:
    """Mean judged step in ns by rank and part; the idle part divided as the rank's whole idle time is."""
    out = {}
    digests = {i.rank: d for i, d in zip(c.identities, c.digests, strict=True)}
    for island in c.islands:
        steps = int((island.included & ~np.isnan(island.steps.step_ns)).sum())
        for r in island.ranks:
            rank = c.job.ranks[r].identity.rank
            made = c.figures[rank].make_up_ns
            if made is None or not steps:
                continue
            parts = {p: made[p] / steps for p in PARTS}
            idle = parts.pop("idle")
            known = {k: n for k, n in idle_by_cause(digests[rank]).items() if n}
            total = sum(known.values())
            out[rank] = (
                parts | {k: idle * n / total for k, n in known.items()}
                if total
                else parts | {"unknown": idle}
            )
    return out


def _of(parts: dict[int, dict[str, float]], row: Row, kind: str | None) -> float:
    mine = parts.get(row.ranks[0])
    if mine is None:
        return float("nan")
    return sum(mine.values()) if kind is None else mine.get(kind, 0.0)


def _patch(kind: str) -> style.Patch:
    """How a part of the step is drawn."""
    if kind == "unknown":
        return {**style.NOT_MEASURED, "linewidth": 0.0}
    if kind == "exposed_wait":
        return {**style.WAIT, "linewidth": 0.6}
    colour = style.PART_COLOURS.get(kind) or style.CAUSE_COLOURS[kind]
    return {"facecolor": colour, "edgecolor": "white", "hatch": style.CAUSE_HATCHES.get(kind)}


def _bars(ax: Axes, values: dict[str, np.ndarray], step: np.ndarray, scale: float, px_per_ns: float) -> None:
    rows = np.arange(step.size)
    known = ~np.isnan(step)
    begin = np.zeros(step.size)
    for kind, x in values.items():
        patch = {"linewidth": 0.6, **_patch(kind)}
        ax.barh(rows[known], x[known] / scale, 0.78, left=begin[known] / scale, **patch)
        for n in rows[known]:
            text = duration(x[n])
            if x[n] * px_per_ns >= text_px(text) + 8:
                ax.text(
                    (begin[n] + x[n] / 2) / scale,
                    n,
                    text,
                    ha="center",
                    va="center",
                    fontproperties=style.font(style.SMALL),
                    color=style.ink_on(patch["facecolor"]),
                    bbox={"facecolor": patch["facecolor"], "edgecolor": "none", "pad": 1.5}
                    if patch.get("hatch")
                    else None,
                )
        begin += np.nan_to_num(x)
    if (~known).any():
        ax.barh(rows[~known], np.nanmax(step) / scale, 0.6, **style.NOT_MEASURED)


def _legend(kinds: Sequence[str], rows: Sequence[Row], parts: dict[int, dict[str, float]]) -> list[Entry]:
    out = []
    for k in kinds:
        label = style.PART_LABELS.get(k) or f"idle: {style.CAUSE_LABELS[k]}"
        out.append(Entry(label, {**_patch(k), "linewidth": 0.0}))
    if any(r.ranks[0] not in parts for r in rows):
        out.append(Entry("not captured or not measured", style.NOT_MEASURED))
    return out


def _hidden(c: Comparison) -> list[str]:
    """Causes that no rank could show."""
    causes = [idle_by_cause(d) for d in c.digests]
    return [
        style.CAUSE_LABELS[k]
        for k in style.CAUSE_LABELS
        if k != "unknown" and all(x[k] is None for x in causes)
    ]


def _largest_excess(
    own: Sequence[dict[str, float]], peers: Sequence[dict[str, float]]
) -> tuple[str, float, float]:
    """Part in which ranks exceed the median of their peers most: (part, their mean, the peers' median)."""
    kinds = [k for k in _ORDER if k not in ("exposed_wait", "exposed_transfer")]
    usual = {k: float(np.median([p.get(k, 0.0) for p in peers])) for k in kinds}
    mine = {k: float(np.mean([p.get(k, 0.0) for p in own])) for k in kinds}
    most = max(kinds, key=lambda k: mine[k] - usual[k])
    return most, mine[most], usual[most]


def _title(c: Comparison, parts: dict[int, dict[str, float]]) -> str:
    first, accused, others = accused_and_peers(c)
    own, peers = ([parts[r] for r in some if r in parts] for some in (accused, others))
    if first is not None and own and peers:
        kind, mine, usual = _largest_excess(own, peers)
        does, where = _DOES.get(kind, ("idle", f" {style.CAUSE_WORDS.get(kind, '')}"))
        verb = does if len(first.ranks) > 1 else f"{does}s"
        return f"{subject(first)} {verb} {duration(mine)} a step{where}, the others {duration(usual)}"
    kind, part = _largest(list(parts.values()))
    return f"The median rank spends {share(part)} of the step {_SPENT.get(kind) or f'idle {style.CAUSE_WORDS[kind]}'}"


_DOES = {"compute": ("compute", ""), "copy": ("move", " in copies")}
_SPENT = {
    "compute": "computing",
    "exposed_transfer": "in exposed NCCL transfer",
    "exposed_wait": "waiting for others in NCCL",
    "copy": "in copies",
}


def _largest(parts: Sequence[dict[str, float]]) -> tuple[str, float]:
    middle = {k: float(np.median([p.get(k, 0.0) for p in parts])) for k in _ORDER}
    most = max(_ORDER, key=lambda k: middle[k])
    return most, middle[most] / max(sum(middle.values()), 1.0)


def _caption(c: Comparison, parts: dict[int, dict[str, float]]) -> str:
    first, accused, others = accused_and_peers(c)
    peers = [parts[r] for r in others if r in parts] or list(parts.values())
    step = float(np.median([sum(p.values()) for p in peers]))
    wait, transfer = (float(np.median([p[k] for p in peers])) for k in ("exposed_wait", "exposed_transfer"))
    whose = "the ranks not flagged" if first is not None and accused else "the ranks"
    return (
        f"The parts of a bar sum to the mean judged step ({duration(step)}). In it {whose} wait {duration(wait)} for "
        f"others and are in NCCL without waiting for {duration(transfer)} that compute does not hide (medians)."
    )
