"""A difference on a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rankdiff.differences.difference import Difference
from rankdiff.render.diff_tables import HEADER, LEGEND, NUMERIC, Section, sections
from rankdiff.render.diff_words import fates, hosts, moves, side_line, summary
from rankdiff.render.document import clean_lines
from rankdiff.render.terminal import painted
from rankdiff.render.wrapping import fill

if TYPE_CHECKING:
    from rich.text import Text

_WIDTH = 96
_LABEL = 28  # of a row


def to_text(d: Difference, remarks: Sequence[str] = ()) -> str:
    """Render a difference for a terminal.

    Parameters
    ----------
    d : Difference
    remarks : sequence of str
        Lines below the answer: what a gate says.

    Returns
    -------
    str
        Plain text, no escape sequences, with a final line feed.
    """
    answer = [_fill(summary(d))]
    answer += [_wrap(what, text) for what, text in fates(d)]
    answer += [_wrap("moved", text) for text in moves(d)]
    answer += [_wrap("gate", text) for text in remarks]
    sides = [
        _wrap("before", side_line(d.before)),
        _wrap("after", side_line(d.after)),
        _wrap("nodes", hosts(d)),
    ]
    warned = [f"  - {n.message} [{n.code}]" for n in (*d.refused, *d.cautions)]
    blocks = ["\n".join(answer), "\n".join(sides)]
    if warned:
        blocks.append("\n".join(["bear in mind", *(_fill(w, rest="    ") for w in warned)]))
    found = sections(d)
    if found:
        blocks += [_tables(found), _fill(f"({LEGEND})")]
    return clean_lines("\n\n".join(blocks)) + "\n"


def to_terminal(d: Difference, remarks: Sequence[str] = ()) -> str:
    """`to_text` with colours; plain where ``NO_COLOR`` is set or the terminal is dumb."""
    first = {"faster": "bold green", "slower": "bold red"}.get(d.status, "bold yellow")

    def paint(text: Text, line: str, block: int) -> None:
        if block == 0 and not line.startswith(" "):
            text.stylize(first)
        elif re.search(r"  changed(: \w+)?$", line):
            text.stylize("green" if re.search(r"  -[\d.]+ \w+  ", line) else "red")
        elif line.startswith("(") or line.endswith("not distinguishable"):
            text.stylize("dim")
        elif line == "bear in mind":
            text.stylize("yellow")
        elif line and not line.startswith(" ") and block > 1:
            text.stylize("bold")

    return painted(to_text(d, remarks), _WIDTH, paint)


def _fill(text: str, first: str = "", rest: str = "") -> str:
    return fill(text, _WIDTH, first, rest)


def _wrap(label: str, text: str) -> str:
    return _fill(text, f"  {label:<8}", " " * 10)


def _tables(found: Sequence[Section]) -> str:
    """All tables with columns of one width, so that the eye can run down."""
    rows = [r for s in found for r in s.rows]
    name = min(_LABEL, max((len(r[0]) for r in rows), default=0))
    widths = [name + 2, *(max(len(x) for x in (HEADER[n], *(r[n] for r in rows))) for n in range(1, 6))]

    def line(cells: Sequence[str], indent: str) -> str:
        label = f"{indent}{cells[0]}"
        # A label that does not fit has a line of its own.
        above = [label] if len(label) > widths[0] else []
        first = "" if above else label
        rest = (
            x.rjust(w) if n in NUMERIC else x for n, (x, w) in enumerate(zip(cells, widths, strict=True)) if n
        )
        return "\n".join([*above, "  ".join([first.ljust(widths[0]), *rest]).rstrip()])

    blocks = []
    for n, s in enumerate(found):
        head = line((s.title, *HEADER[1:]), "") if n == 0 else s.title
        remark = [_fill(f"({s.remark})", "  ", "  ")] if s.remark else []
        blocks.append("\n".join([head, *(line(r, "  ") for r in s.rows), *remark]))
    return "\n\n".join(blocks)
