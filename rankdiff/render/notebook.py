"""A comparison in a cell of a notebook: the answer, the findings and the ranks."""

from __future__ import annotations

from collections.abc import Sequence

from rankdiff.comparison import Comparison
from rankdiff.errors import ReportError
from rankdiff.findings import Finding
from rankdiff.notes import Note
from rankdiff.render.document import Block, Bullets, Heading, Paragraph, Table
from rankdiff.render.html import to_html_blocks
from rankdiff.render.quality_json import all_defects
from rankdiff.render.rank_table import HEADER, LEGEND, NUMERIC, rows
from rankdiff.render.words import because, cost, how_often, since, summary, who

_MOST_RANKS = 16
_MOST_FINDINGS = 8
_MOST_DEFECTS = 8
_FINDINGS = ("severity", "what", "cost", "how often", "since", "cause")
# Notebooks set all cells flush right, and know none of the classes.
_STYLE = (
    "<style>.rankdiff .strong, .rankdiff .strong td { font-weight: 600; } .rankdiff td, .rankdiff th { text-align: left; } "
    ".rankdiff td.n, .rankdiff th.n { text-align: right; }</style>"
)
_JOB = {
    "common_stall": "All ranks together",
    "startup": "The first steps",
    "rotating": "One rank after another",
}


def to_fragment(c: Comparison, notes: Sequence[Note], problems: Sequence[ReportError]) -> str:
    """Render a comparison as a piece of HTML.

    Parameters
    ----------
    c : Comparison
    notes : sequence of Note
        Further warnings, of reading the reports.
    problems : sequence of ReportError
        Reports that were left out.

    Returns
    -------
    str
        Names in it are escaped, and notebooks do not take them for formulas.
    """
    blocks: list[Block] = [Paragraph(summary(c), strong=True)]
    found = c.verdict.findings
    if found:
        blocks.append(Table(_FINDINGS, [_row(c, f) for f in found[:_MOST_FINDINGS]]))
    if len(found) > _MOST_FINDINGS:
        blocks.append(Paragraph(f"Showing {_MOST_FINDINGS} of {len(found)} findings."))
    shown = rows(c, _MOST_RANKS)
    strong = frozenset(n for n, r in enumerate(shown) if r.culprit)
    more = len(c.identities) > _MOST_RANKS
    cut = f"Showing {_MOST_RANKS} of {len(c.identities)} ranks, the most delayed first. " if more else ""
    blocks += [Table(HEADER, [r.cells for r in shown], NUMERIC, strong), Paragraph(f"{cut}{LEGEND}")]
    defects = [f"{d.message} [{d.code}]" for d in all_defects(c, notes)]
    if len(defects) > _MOST_DEFECTS:
        defects[_MOST_DEFECTS:] = [f"and {len(defects) - _MOST_DEFECTS} more defects of the captures"]
    left_out = [f"left out: {p}" for p in problems[:_MOST_DEFECTS]]
    if len(problems) > _MOST_DEFECTS:
        left_out.append(f"and {len(problems) - _MOST_DEFECTS} more reports left out")
    if defects or left_out:
        blocks += [Heading("Quality", 4), Bullets([*left_out, *defects])]
    return cell(blocks)


def cell(blocks: Sequence[Block]) -> str:
    """Render blocks as the piece of HTML that a cell of a notebook shows."""
    # What lies between dollar signs would be set as a formula.
    return f'<div class="rankdiff tex2jax_ignore mathjax_ignore">\n{_STYLE}\n{to_html_blocks(blocks)}\n</div>'


def _row(c: Comparison, f: Finding) -> tuple[str, ...]:
    whose = _JOB.get(f.kind) or (f"Transfers with node {f.node}" if f.kind == "slow_transfer" else who(f))
    return (
        f.severity,
        whose,
        cost(f) if f.delay_ns_per_step is not None else "n/a",
        how_often(f) if f.steps_late is not None else "n/a",
        since(c, f) or "n/a",
        because(f).removeprefix("; ") or "n/a",
    )
