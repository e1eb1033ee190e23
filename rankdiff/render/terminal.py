"""The answer on a terminal with colours: the text of `render.text`, its weight made visible."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Sequence

from rankdiff.comparison import Comparison
from rankdiff.findings import is_loud
from rankdiff.gaps import MIN_GAP_NS
from rankdiff.notes import Note
from rankdiff.render.text import to_text


def to_terminal(c: Comparison, notes: Sequence[Note] = (), min_gap_ns: int = MIN_GAP_NS) -> str:
    """Render a comparison with colours; plain where ``NO_COLOR`` is set or the terminal is dumb.

    The words are those of the plain text, as rich text objects: a name in them is never read as markup.
    """
    plain = to_text(c, notes, min_gap_ns)
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in ("", "dumb"):
        return plain
    from rich.console import Console
    from rich.text import Text

    out = io.StringIO()
    width = max(80, shutil.get_terminal_size().columns)
    console = Console(
        file=out, force_terminal=True, width=width, highlight=False, soft_wrap=True, emoji=False
    )
    late = {
        i.label for i in c.identities if any(is_loud(f) and i.rank in f.ranks for f in c.verdict.findings)
    }
    color = {"straggler": "bold red", "rotating": "bold yellow", "balanced": "bold green"}.get(
        c.verdict.status, "bold yellow"
    )
    block = 0
    for line in plain.splitlines():
        block += not line
        text = Text(line)
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
        console.print(text)
    return out.getvalue()
