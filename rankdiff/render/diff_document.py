"""A difference as a document, for a ticket."""

from __future__ import annotations

from collections.abc import Sequence

from rankdiff import __version__
from rankdiff.differences.difference import Difference
from rankdiff.differences.gate import Gate
from rankdiff.render.diff_tables import HEADER, LEGEND, NUMERIC, sections
from rankdiff.render.diff_words import fates, hosts, moves, side_line, summary, title
from rankdiff.render.document import Block, Bullets, Code, Facts, Heading, Paragraph, Picture, Table


def document(
    d: Difference, pictures: Sequence[Picture] = (), command: str = "", gate: Gate | None = None
) -> list[Block]:
    """Lay out a difference.

    Parameters
    ----------
    d : Difference
    pictures : sequence of Picture
    command : str
        How to make this document again.
    gate : Gate, optional
    """
    facts = [("Before", side_line(d.before)), ("After", side_line(d.after)), ("Nodes", hosts(d))]
    facts += [(what.capitalize(), text) for what, text in fates(d)]
    facts += [("Moved", text) for text in moves(d)]
    if gate is not None:
        facts.append(("Gate", f"{gate.status.replace('_', ' ')}: {gate.message}"))
    blocks: list[Block] = [Heading(title(d), 1), Paragraph(summary(d), strong=True), Facts(facts)]
    warned = [n.message for n in (*d.refused, *d.cautions)]
    if warned:
        blocks += [Heading("Bear in mind"), Bullets(warned)]
    if pictures:
        blocks += [Heading("Pictures"), *pictures]
    found = sections(d)
    for s in found:
        blocks.append(Heading(s.title[0].upper() + s.title[1:]))
        if s.rows:
            blocks.append(Table(HEADER, s.rows, NUMERIC, s.strong))
        if s.remark:
            blocks.append(Paragraph(f"{s.remark[0].upper()}{s.remark[1:]}."))
    if found:
        blocks += [Heading("How to read this"), Paragraph(LEGEND)]
    if command:
        blocks += [Paragraph(f"rankdiff {__version__}; made with:"), Code(command)]
    return blocks
