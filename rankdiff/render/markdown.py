"""A document as Markdown that GitHub, GitLab and Jira's importer show alike."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rankdiff.render.document import (
    Block,
    Bullets,
    Facts,
    Heading,
    Paragraph,
    Picture,
    Table,
    clean,
    clean_lines,
)

# Everything that could start markup in the middle of a line, or at its beginning. An underscore between letters
# starts none, and escaped it would only be harder to read where Markdown is not rendered.
# An address in a name shall not become a link.
_SPECIAL = re.compile(
    r"([\\`*\[\]<>|~$]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)|:(?=//)|(?<=\bwww)\.)", re.IGNORECASE
)
_AT_START = re.compile(r"^(\s*)([-+=]|#+|\d+[.)])(?=\s|$)")


def escape(text: str) -> str:
    """Text that shows as it is, whatever it holds."""
    shown = _SPECIAL.sub(r"\\\1", clean(text))
    return _AT_START.sub(lambda m: f"{m[1]}{m[2][:-1]}\\{m[2][-1]}", shown)


def to_markdown(blocks: Sequence[Block]) -> str:
    """Render blocks; pictures link to ``plots/NAME.png``."""
    return "\n\n".join(_block(b) for b in blocks) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {escape(block.text)}"
    if isinstance(block, Paragraph):
        return f"**{escape(block.text)}**" if block.strong else escape(block.text)
    if isinstance(block, Facts):
        return _table(Table(("", ""), block.rows))
    if isinstance(block, Bullets):
        return "\n".join(f"- {escape(x)}" for x in block.items)
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Picture):
        return f"![{escape(block.title)}](plots/{block.name}.png)\n\n*{escape(block.caption)}*"
    fence = "`" * max(3, 1 + max((len(m) for m in re.findall(r"`+", block.text)), default=0))
    return f"{fence}sh\n{clean_lines(block.text)}\n{fence}"


def _table(table: Table) -> str:
    rule = ["---:" if n in table.numeric else "---" for n in range(len(table.header))]
    lines = [_row([escape(x) for x in table.header]), _row(rule)]
    for n, row in enumerate(table.rows):
        cells = [escape(x) for x in row]
        lines.append(_row([f"**{x}**" if x else x for x in cells] if n in table.strong_rows else cells))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
