"""Sentences in lines of a terminal."""

from __future__ import annotations

import re
import textwrap


def fill(text: str, width: int, first: str = "", rest: str = "") -> str:
    """Wrap a sentence; a number stays with its unit."""
    glued = re.sub(r"(\d) (ns|us|ms|s|ppm)\b", "\\1\u00a0\\2", text)
    lines = textwrap.fill(
        glued,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return lines.replace("\u00a0", " ")
