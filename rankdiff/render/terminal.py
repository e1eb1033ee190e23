"""The answer on a terminal with colours: the text of `render.text`, its weight made visible."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rankdiff.comparison import Comparison
from rankdiff.findings import is_loud
from rankdiff.gaps import MIN_GAP_NS
from rankdiff.notes import Note
from rankdiff.render.text import WIDTH, to_text

if TYPE_CHECKING:
    from rich.text import Text


def to_terminal(c: Comparison, notes: Sequence[Note] = (), min_gap_ns: int = MIN_GAP_NS) -> str:
    """Render a comparison with colours; plain where ``NO_COLOR`` is set or the terminal is dumb.

    The words are those of the plain text, as rich text objects: a name in them is never read as markup.
    """
    late = {
        i.label for i in c.identities if any(is_loud(f) and i.rank in f.ranks for f in c.verdict.findings)
    }
    color = {"straggler": "bold red", "rotating": "bold yellow", "balanced": "bold green"}.get(
        c.verdict.status, "bold yellow"
    )

    def paint(text: Text, line: str, block: int) -> None:
        words = line.split()
        if block == 0 and not line.startswith(" "):
            text.stylize(color)
        elif line.startswith("  ") and words and words[0] in ("since", "certainty", "evidence", "next"):
            text.stylize("bold", 2, 2 + len(words[0]))
        elif words[:2] == ["rank", "node"]:
            text.stylize("bold")
        elif len(words) > 2 and words[0] in late and "late" in words[1:4]:
            text.stylize("red")
        elif line == "quality of the captures":
            text.stylize("yellow")
        elif line.startswith("("):
            text.stylize("dim")

    return painted(to_text(c, notes, min_gap_ns), WIDTH, paint)


def painted(plain: str, width: int, paint: Callable[[Text, str, int], None]) -> str:
    """Colour a text line by line; plain where ``NO_COLOR`` is set or the terminal is dumb.

    Parameters
    ----------
    plain : str
    width : int
        Of the text; the terminal may be wider.
    paint : callable
        Called with the line to be coloured, its words, and the number of its block: blank lines part them.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in ("", "dumb"):
        return plain
    from rich.console import Console
    from rich.text import Text

    out = io.StringIO()
    width = max(width, shutil.get_terminal_size().columns)
    console = Console(
        file=out, force_terminal=True, width=width, highlight=False, soft_wrap=True, emoji=False
    )
    block = 0
    for line in plain.splitlines():
        block += not line
        text = Text(line)
        paint(text, line, block)
        console.print(text)
    return out.getvalue()
