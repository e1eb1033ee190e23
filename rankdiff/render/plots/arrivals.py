"""Arrival fan: one collective of each of the worst steps, all its ranks on one clock, first arrival on top."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from rankdiff.comparison import Comparison
from rankdiff.instances import Timed
from rankdiff.render.plots import style
from rankdiff.render.plots.rows import assessed, flagged, named
from rankdiff.render.plots.sheet import Entry, Plot, Sheet, text_px
from rankdiff.units import duration

I64 = NDArray[np.int64]

_PANELS = 3
_LEAST = 0.05  # of the worst step: after a single event, the steps that follow have nothing to show
_MOST = 20  # rows of one panel
_ROW_PX, _HEAD_PX, _AXIS_PX = 18, 30, 42
_RIGHT_PX = 40
_READING = "Bars are NCCL kernels from start to end. Nobody leaves before the last arrives: who arrives last has the shortest."


@dataclass(frozen=True)
class Fan:
    """One collective on its members, in order of arrival; times in ns."""

    step: str
    op: str
    ranks: tuple[int, ...]
    start: I64  # since the first arrival
    end: I64
    wait: I64  # from the start
    delay_ns: float  # of the whole step

    @property
    def last(self) -> int:
        """When the last arrived."""
        return int(self.start[-1])


@style.styled
def draw(c: Comparison) -> Plot | None:
    """Draw the arrivals of the steps with the largest delay; None when no delay was assessed.

    Parameters
    ----------
    c : Comparison

    Returns
    -------
    Plot or None
        Its data: ``fans`` (all members of each collective), ``shown`` (ranks drawn, per fan).
    """
    fans = _worst(c)
    if not fans:
        return None
    accused = flagged(c)
    shown = [_chosen(f, accused) for f in fans]
    nodes = {i.rank: style.name(i.node) for i in c.identities}
    labels = [
        [f"{f.ranks[n]}  ({nodes[f.ranks[n]]})" for n in keep] for f, keep in zip(fans, shown, strict=True)
    ]
    left = round(
        style.MARGIN
        + max(text_px(x, bold=True) for x in ("rank (node)", *(x for each in labels for x in each)))
        + 14
    )
    high = [_HEAD_PX + _ROW_PX * len(keep) + _AXIS_PX for keep in shown]
    notes = []
    if any(len(keep) < len(f.ranks) for f, keep in zip(fans, shown, strict=True)):
        notes = [
            "Shown are the flagged ranks, the first and the last to arrive, and an even choice of the others."
        ]
    title = _title(fans)
    sheet = Sheet(title, _READING, _legend(), sum(high), notes)
    top = 0
    for fan, keep, names, px in zip(fans, shown, labels, high, strict=True):
        _panel(sheet, fan, keep, names, accused, (left, top + _HEAD_PX))
        top += px
    data = {"fans": fans, "shown": [tuple(f.ranks[n] for n in k) for f, k in zip(fans, shown, strict=True)]}
    return Plot("arrivals", title, _caption(fans), sheet.figure, data)


def _worst(c: Comparison) -> list[Fan]:
    """The collective with the largest skew in each of the steps with the largest delay."""
    islands = sorted({n for n, _ in assessed(c).values()})
    steps = [
        (float(c.islands[n].delta[:, k].sum()), n, int(k))
        for n in islands
        for k in np.flatnonzero(c.islands[n].included)
    ]
    steps.sort(key=lambda s: (-s[0], s[1], s[2]))
    out = []
    for delay, n, k in [s for s in steps[:_PANELS] if s[0] >= _LEAST * steps[0][0]]:
        best: tuple[int, Timed, int] | None = None
        for t in c.islands[n].timed:
            inside = np.flatnonzero(t.step == k)
            if inside.size:
                skew = np.ptp(t.start[inside], axis=1)
                at = int(skew.argmax())
                if best is None or int(skew[at]) > best[0]:
                    best = int(skew[at]), t, int(inside[at])
        if best is not None and delay > 0:
            out.append(_fan(c, best[1], best[2], c.islands[n].steps.labels[k], delay))
    return out


def _fan(c: Comparison, t: Timed, at: int, step: str, delay: float) -> Fan:
    order = np.argsort(t.start[at], kind="stable")
    start, end = t.start[at][order], t.end[at][order]
    members = t.comm.members[order]
    first = c.job.ranks[int(t.comm.members[0])]
    row = int(first.row[int(t.comm.positions[at, 0])])
    return Fan(
        step=step,
        op=str(first.digest.collectives["op"][row]),
        ranks=tuple(c.job.ranks[int(r)].identity.rank for r in members),
        start=start - start[0],
        end=end - start[0],
        wait=np.clip(start[-1] - start, 0, end - start),
        delay_ns=delay,
    )


def _chosen(fan: Fan, accused: frozenset[int]) -> list[int]:
    """Positions of the ranks to draw, in order of arrival."""
    n = len(fan.ranks)
    if n <= _MOST:
        return list(range(n))
    marked = [i for i in reversed(range(n)) if fan.ranks[i] in accused][: _MOST // 2]
    kept = {0, n - 3, n - 2, n - 1, *marked}
    return sorted(kept | set(np.linspace(0, n - 1, _MOST - len(kept)).astype(int).tolist()))


def _panel(
    sheet: Sheet,
    fan: Fan,
    keep: list[int],
    names: list[str],
    accused: frozenset[int],
    corner: tuple[int, int],
) -> None:
    left, top = corner
    scale, unit = style.unit_of(float(fan.end.max()))
    ax = sheet.axes(left, top, style.WIDTH - left - _RIGHT_PX, _ROW_PX * len(keep))
    start, wait, end = (x[keep] / scale for x in (fan.start, fan.wait, fan.end))
    rows = np.arange(len(keep))
    ax.barh(rows, wait, 0.72, left=start, **style.WAIT)
    ax.barh(rows, end - start - wait, 0.72, left=start + wait, color=style.PART_COLOURS["compute"])
    _ticks(ax, fan, scale, unit, len(keep))
    for n, (position, text) in enumerate(zip(keep, names, strict=True)):
        bold = fan.ranks[position] in accused
        y = top + (n + 0.5) * _ROW_PX
        sheet.text(left - 6, y, text, ha="right", bold=bold, color=style.CULPRIT if bold else style.INK)
    sheet.text(left - 6, top - 12, "rank (node)", ha="right", color=style.FAINT)
    heading = f"step {style.name(fan.step)}, {style.name(fan.op)} of {len(fan.ranks)} ranks"
    if len(keep) < len(fan.ranks):
        heading += f" ({len(keep)} shown)"
    sheet.text(left, top - 12, heading, style.TEXT, bold=True)
    told = f"last: rank {fan.ranks[-1]}, {duration(fan.last)} after the first"
    sheet.text(style.WIDTH - _RIGHT_PX, top - 12, told, style.TEXT, ha="right", color=style.CULPRIT)


def _ticks(ax: Axes, fan: Fan, scale: float, unit: str, rows: int) -> None:
    ax.axvline(fan.last / scale, color=style.CULPRIT, linewidth=1.0)
    ax.set(xlim=(0, float(fan.end.max()) / scale * 1.01), ylim=(rows - 0.4, -0.6), yticks=[])
    ax.spines["left"].set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(10))
    ax.xaxis.set_major_formatter(FuncFormatter(style.number))
    ax.set_xlabel(f"since the first arrival [{unit}]", labelpad=1)


def _legend() -> list[Entry]:
    return [
        Entry("waits for the last to arrive", style.WAIT),
        Entry("transfer", {"facecolor": style.PART_COLOURS["compute"]}),
        Entry("the last arrives", {"color": style.CULPRIT, "linewidth": 1.5}, is_line=True),
    ]


def _title(fans: list[Fan]) -> str:
    last = [f.ranks[-1] for f in fans]
    if len(fans) > 1 and len(set(last)) == 1:
        return f"Rank {last[0]} arrives last in the {len(fans)} worst steps"
    if len(fans) == 1:
        return f"The worst step: rank {last[0]} arrives last"
    return f"The {len(fans)} worst steps: last to arrive are {named(sorted(set(last)))}"


def _caption(fans: list[Fan]) -> str:
    told = "; ".join(
        f"in step {style.name(f.step)} rank {f.ranks[-1]} came {duration(f.last)} after rank {f.ranks[0]}"
        for f in fans
    )
    return f"{told[0].upper()}{told[1:]}. The hatched part of a bar is waiting, not network time."
