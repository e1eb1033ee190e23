"""Labels left of rows: ranks, and the nodes they belong to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rankdiff.render.plots import style
from rankdiff.render.plots.rows import Row, blocks
from rankdiff.render.plots.sheet import Sheet, text_px

F64 = NDArray[np.float64]
Span = tuple[int, int]

_EVERY = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # ranks come in powers of two
_HEADING_PX = 14  # of the headings above the rows


def gutter_px(rows: Sequence[Row]) -> int:
    """Width that `label_rows` needs left of the axes, margin included."""
    return round(style.MARGIN + _node_px(rows) + _rank_px(rows) + 26)


def label_rows(sheet: Sheet, rows: Sequence[Row], left: float, top: float, row_px: float) -> None:
    """Label rows drawn from `top` down, each `row_px` high, in axes that begin at `left`.

    Labels are thinned to what fits. Flagged ranks are bold and always labelled, neighbours together where rows
    are narrow.
    """
    room = max(1, int(len(rows) * row_px / style.LINE))
    single = row_px >= style.LINE - 1
    groups = blocks([r.node for r in rows])
    accused = [(n, n) for n, r in enumerate(rows) if r.flagged] if single else _flag_runs(rows)
    every = next((k for k in _EVERY if k * row_px >= style.LINE), _EVERY[-1])
    others = [(n, n) for n in range(0, len(rows), every) if not rows[n].flagged]
    end = top + len(rows) * row_px
    marks = [(_middle(s, top, row_px), _spell(rows, s)) for s in accused[:room]]
    if len(accused) > room:  # half of the job is flagged: the colours say so
        marks[-1] = (end, f"+{len(accused) - room + 1}")
    _column(
        sheet,
        marks,
        [(_middle(s, top, row_px), rows[s[0]].label) for s in others],
        (left, end),
    )
    x = left - _rank_px(rows) - 14
    bold = [s for s in groups if _all_flagged(rows, s)]
    _column(
        sheet,
        [(_middle(s, top, row_px), rows[s[0]].node) for s in bold],
        [(_middle(s, top, row_px), rows[s[0]].node) for s in groups if s not in bold],
        (x, end),
    )
    for first, last in groups:
        if last > first:  # a bracket that holds the node's ranks together
            y = [top + first * row_px + 2, top + (last + 1) * row_px - 2]
            colour = style.CULPRIT if (first, last) in bold else style.FAINT
            sheet.line([x, x], y, color=colour, linewidth=1.0)
    sheet.text(left - 6, top - _HEADING_PX, "rank", ha="right", color=style.FAINT)
    sheet.text(x - 6, top - _HEADING_PX, "node", ha="right", color=style.FAINT)


def _column(
    sheet: Sheet, accused: list[tuple[float, str]], others: list[tuple[float, str]], edge: tuple[float, float]
) -> None:
    """Write one column of labels against its right edge: the accused, then those that have room left."""
    x, end = edge
    placed = spread(np.array([y for y, _ in accused]), style.LINE, end)
    for (row_y, text), y in zip(accused, placed, strict=True):
        sheet.text(x - 6, y, text, ha="right", bold=True, color=style.CULPRIT)
        if abs(row_y - y) > 1:
            sheet.line([x - 5, x - 1], [y, row_y], color=style.CULPRIT, linewidth=0.6)
    taken = placed
    for y, text in others:
        if not taken.size or np.abs(taken - y).min() >= style.LINE - 1:
            sheet.text(x - 6, y, text, ha="right")
            taken = np.append(taken, y)


def spread(wanted: F64, apart: float, end: float) -> F64:
    """Move ascending positions at least `apart`, none beyond `end`, in one pass down and one up."""
    out = np.array(wanted, np.float64)
    for n in range(1, out.size):
        out[n] = max(out[n], out[n - 1] + apart)
    limit = end
    for n in range(out.size - 1, -1, -1):
        out[n] = min(out[n], limit)
        limit = out[n] - apart
    return out


def _middle(span: Span, top: float, row_px: float) -> float:
    return top + (span[0] + span[1] + 1) / 2 * row_px


def _spell(rows: Sequence[Row], span: Span) -> str:
    first, last = (rows[n].label for n in span)
    return first if span[0] == span[1] else f"{first.split('–')[0]}–{last.split('–')[-1]}"


def _flag_runs(rows: Sequence[Row]) -> list[Span]:
    return [s for s in blocks([(r.flagged, r.node) for r in rows]) if rows[s[0]].flagged]


def _all_flagged(rows: Sequence[Row], span: Span) -> bool:
    return all(rows[n].flagged for n in range(span[0], span[1] + 1))


def _node_px(rows: Sequence[Row]) -> float:
    return max([text_px("node"), *(text_px(x, bold=True) for x in {r.node for r in rows})])


def _rank_px(rows: Sequence[Row]) -> float:
    labels = {r.label for r in rows} | {_spell(rows, s) for s in _flag_runs(rows)}
    return max([text_px("rank"), *(text_px(x, bold=True) for x in labels)])
