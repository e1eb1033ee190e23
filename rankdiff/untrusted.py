"""Text from exports and file names, made fit to be shown: one line, no control characters, bounded.

Names come from whatever program was profiled. They are made harmless where they enter, so that no output has to
think of it; outputs still escape them for their own syntax.
"""

from __future__ import annotations

import shlex

LONGEST_NAME = 240  # characters; kernels and ranges of real jobs stay below
_KEPT_END = 80


def clean(text: str) -> str:
    """Replace control characters by ``?``, line feeds too.

    Invisible format characters go as well: a right-to-left override would turn a line around.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def shown(text: str, longest: int = LONGEST_NAME) -> str:
    """A name as outputs show it: `clean`, and a long one by its beginning and its end.

    The end is kept because it holds the number of a step and tells hosts apart.
    """
    if len(text) <= longest:
        return clean(text)
    end = min(_KEPT_END, longest // 3)
    return clean(f"{text[: longest - end - 1]}…{text[-end:]}")


def argument(path: str) -> str:
    """A path as one word of a shell command to copy, and no option, whatever it begins with."""
    return shlex.quote(clean(f"./{path}" if path.startswith("-") else path))
