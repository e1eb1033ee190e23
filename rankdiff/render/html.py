"""A document as one self-contained HTML page: opens offline, needs no script, prints."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape as escape_html

from rankdiff.render.document import (
    Block,
    Bullets,
    Code,
    Facts,
    Heading,
    Paragraph,
    Picture,
    Table,
    clean,
)

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; color: #1b1f24; background: #fff;
  max-width: 62rem; margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .75rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid #d0d7de; padding-bottom: .25rem; }
p.strong { font-size: 1.12rem; font-weight: 600; border-left: .3rem solid #b3261e; padding: .2rem 0 .2rem .8rem; }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; }
div.wide { overflow-x: auto; }
th, td { text-align: left; padding: .3rem .7rem; border-bottom: 1px solid #e4e8ec; vertical-align: top; }
th { font-weight: 600; border-bottom: 2px solid #afb8c1; }
td.n, th.n { text-align: right; white-space: nowrap; }
tr.strong td { font-weight: 600; background: #fdf1f0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.2rem; margin: .6rem 0; }
dt { color: #57606a; } dd { margin: 0; }
figure { margin: 1.2rem 0 1.8rem; break-inside: avoid; }
figure img { width: 100%; height: auto; border: 1px solid #e4e8ec; }
figcaption { color: #3d444d; font-size: .94rem; margin-top: .35rem; }
pre { background: #f6f8fa; padding: .8rem 1rem; overflow-x: auto; font-size: .88rem; }
@media print { body { margin: 0; max-width: none; font-size: 11pt; } }
"""


def to_html(blocks: Sequence[Block], pictures: Mapping[str, bytes]) -> str:
    """Render blocks.

    Parameters
    ----------
    blocks : sequence of Block
    pictures : mapping of str to bytes
        SVG files by name; they are shown as images, so that nothing in them can run.
    """
    title = next((b.text for b in blocks if isinstance(b, Heading) and b.level == 1), "rankdiff")
    body = "\n".join(_block(b, pictures) for b in blocks)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def to_html_blocks(blocks: Sequence[Block]) -> str:
    """Render blocks without pictures as a piece of a page, for who has a page already."""
    return "\n".join(_block(b, {}) for b in blocks)


def _text(text: str) -> str:
    return escape_html(clean(text), quote=True)


def _block(block: Block, pictures: Mapping[str, bytes]) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{_text(block.text)}</h{block.level}>"
    if isinstance(block, Paragraph):
        return f'<p class="strong">{_text(block.text)}</p>' if block.strong else f"<p>{_text(block.text)}</p>"
    if isinstance(block, Facts):
        rows = "".join(f"<dt>{_text(a)}</dt><dd>{_text(b)}</dd>" for a, b in block.rows)
        return f"<dl>{rows}</dl>"
    if isinstance(block, Bullets):
        return "<ul>" + "".join(f"<li>{_text(x)}</li>" for x in block.items) + "</ul>"
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Picture):
        data = base64.b64encode(pictures[block.name]).decode("ascii")
        return (
            f'<figure><img alt="{_text(block.title)}" src="data:image/svg+xml;base64,{data}">'
            f"<figcaption><b>{_text(block.title)}.</b> {_text(block.caption)}</figcaption></figure>"
        )
    if isinstance(block, Code):
        return "<pre><code>" + "\n".join(_text(x) for x in block.text.split("\n")) + "</code></pre>"
    raise TypeError(f"no HTML for {type(block).__name__}")


def _table(table: Table) -> str:
    def cell(tag: str, n: int, text: str) -> str:
        right = ' class="n"' if n in table.numeric else ""
        return f"<{tag}{right}>{_text(text)}</{tag}>"

    head = "".join(cell("th", n, x) for n, x in enumerate(table.header))
    body = "".join(
        ('<tr class="strong">' if k in table.strong_rows else "<tr>")
        + "".join(cell("td", n, x) for n, x in enumerate(row))
        + "</tr>"
        for k, row in enumerate(table.rows)
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
