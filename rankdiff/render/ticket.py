"""The ticket: what goes into an incident, in the order in which people read it."""

from __future__ import annotations

from collections.abc import Sequence

from rankdiff import __version__
from rankdiff.comparison import Comparison
from rankdiff.findings import Finding, is_loud
from rankdiff.gaps import MIN_GAP_NS, longest_gaps, step_label
from rankdiff.notes import Note
from rankdiff.render.document import Block, Bullets, Code, Facts, Heading, Paragraph, Picture, Table
from rankdiff.render.quality_json import all_defects
from rankdiff.render.rank_table import HEADER, LEGEND, NUMERIC, rows
from rankdiff.render.words import because, certainty, cost, how_often, since, spent, summary, what_if, who
from rankdiff.units import duration, share, utc

_MOST_RANKS = 24
_MOST_GAPS = 8
_MOST_DEFECTS = 20
_MOST_FINDINGS = 8


def ticket(
    c: Comparison,
    notes: Sequence[Note],
    pictures: Sequence[Picture],
    command: str,
    min_gap_ns: int = MIN_GAP_NS,
) -> list[Block]:
    """Lay out the ticket of a comparison.

    Parameters
    ----------
    c : Comparison
    notes : sequence of Note
        Further warnings, of reading the reports.
    pictures : sequence of Picture
        In the order in which they are shown.
    command : str
        How to make this ticket again.
    min_gap_ns : int
        Shorter idle gaps are not listed.
    """
    loud = [f for f in c.verdict.findings if f.severity != "note"]
    blocks: list[Block] = [Heading(_title(c), 1), Paragraph(summary(c), strong=True)]
    for n, f in enumerate(loud):
        if n:
            blocks.append(Paragraph(_lead(f)))
        blocks.append(Facts(_facts(c, f)))
        if f.evidence:
            blocks.append(Bullets(list(f.evidence)))
    notes_found = [f for f in c.verdict.findings if f.severity == "note"]
    if notes_found:
        items = [f"Note: {_note(c, f)}" for f in notes_found[:_MOST_FINDINGS]]
        if len(notes_found) > _MOST_FINDINGS:
            items.append(
                f"showing {_MOST_FINDINGS} of {len(notes_found)} notes; the others are in report.json"
            )
        blocks.append(Bullets(items))
    blocks += [Heading("Ranks"), _ranks(c), Paragraph(f"{_shown(c)}{LEGEND[0].upper()}{LEGEND[1:]}.")]
    if pictures:
        blocks += [Heading("Pictures"), *pictures]
    blocks += _time(c)
    blocks += _gaps(c, min_gap_ns)
    blocks += _clock(c)
    blocks += _quality(c, notes)
    blocks += _provenance(c, command)
    return blocks


def _title(c: Comparison) -> str:
    loud = [f for f in c.verdict.findings if is_loud(f)]
    if loud:
        return f"{who(loud[0])} holds the job up"
    return {
        "rotating": "Lateness rotates among the ranks",
        "balanced": "No rank is late",
    }.get(c.verdict.status, "Not assessed")


def _lead(f: Finding) -> str:
    if f.kind == "common_stall":
        return "All ranks stall together."
    if f.kind == "slow_transfer":
        return f"Transfers with node {f.node} are slow."
    return f"Also late: {who(f)}, {cost(f)}, {how_often(f)}{because(f)}."


def _facts(c: Comparison, f: Finding) -> list[tuple[str, str]]:
    out = []
    if f.delay_ns_per_step is not None:
        out.append(("Cost", f"{cost(f)}; severity {f.severity}"))
    if f.first_ns is not None:
        out.append(("Since", since(c, f)))
    if f.steps_late is not None and f.pattern is not None:
        out.append(("Pattern", f"{f.pattern.replace('_', '-')}, {how_often(f)}"))
    if certainty(f):
        out.append(("Certainty", certainty(f)))
    if f.cause is not None:
        out.append(("Cause", because(f).removeprefix("; ")))
    if what_if(f):
        out.append(("What if", what_if(f)))
    if f.advice:
        out.append(("Next", f.advice))
    return out


def _note(c: Comparison, f: Finding) -> str:
    if f.kind == "startup":
        return "; ".join(f.evidence)
    tail = f" ({'; '.join(f.evidence)})" if f.evidence else ""
    return f"{who(f)}: {cost(f)}, {how_often(f)}{because(f)}{tail}"


def _ranks(c: Comparison) -> Table:
    shown = rows(c, _MOST_RANKS)
    strong = frozenset(n for n, r in enumerate(shown) if r.culprit)
    return Table(HEADER, [r.cells for r in shown], NUMERIC, strong)


def _shown(c: Comparison) -> str:
    more = len(c.identities) > _MOST_RANKS
    return f"Showing {_MOST_RANKS} of {len(c.identities)} ranks, the most delayed first. " if more else ""


def _time(c: Comparison) -> list[Block]:
    text = spent(c)
    if not text:
        return []
    out: list[Block] = [Heading("Where the time goes"), Paragraph(f"{text[0].upper()}{text[1:]}.")]
    if c.patterns:
        out.append(Bullets([f"{p.message}: {p.advice}" for p in c.patterns]))
    return out


def _gaps(c: Comparison, min_gap_ns: int) -> list[Block]:
    late = {r for f in c.verdict.findings if is_loud(f) for r in f.ranks}
    found = []
    for i, d in zip(c.identities, c.digests, strict=True):
        if late and i.rank not in late:
            continue
        start = d.info.session_start_utc_ns
        for g in longest_gaps(d, min_gap_ns, _MOST_GAPS).iter_rows(named=True):
            length = g["end_ns"] - g["start_ns"]
            where = ", ".join(x for x in (g["range"], g["call"]) if x)
            found.append(
                (
                    -length,
                    i.rank,
                    (
                        i.label,
                        step_label(d, g["step"]) or "-",
                        utc(start + g["start_ns"]) if start is not None else "n/a",
                        duration(length),
                        f"{g['class']} {share(g['class_ns'] / length)}",
                        where,
                    ),
                )
            )
    found.sort(key=lambda x: x[:2])
    if not found:
        return []
    title = "Longest idle gaps" + (" of the late ranks" if late else "")
    table = Table(
        ("rank", "step", "from", "length", "cause", "range, call"),
        [x[2] for x in found[:_MOST_GAPS]],
        frozenset({0, 1, 3}),
    )
    return [Heading(title), table]


def _clock(c: Comparison) -> list[Block]:
    if c.clock.uncertainty_ns is None:
        return []
    table = Table(
        ("node", "offset", "drift", "residual", "ts-shift for nsys export"),
        [
            (
                n.node,
                f"{n.offset_ns / 1e6:+.3f} ms",
                f"{n.drift_ppm:+.2f} ppm" if n.drift_ppm else "none found",
                duration(n.residual_ns),
                f"{round(-n.offset_ns)}",
            )
            for n in c.clock.nodes[:_MOST_RANKS]
        ],
        frozenset({1, 2, 3, 4}),
    )
    text = (
        f"{c.clock.method[0].upper()}{c.clock.method[1:]}. It rests on {c.clock.observations} collectives; uncertainty "
        f"{duration(c.clock.uncertainty_ns)}."
    )
    nodes = len(c.clock.nodes)
    cut = f"Showing {_MOST_RANKS} of {nodes} nodes; the others are in report.json."
    more = [Paragraph(cut)] if nodes > _MOST_RANKS else []
    return [Heading("Clocks"), Paragraph(text), table, *more]


def _quality(c: Comparison, notes: Sequence[Note]) -> list[Block]:
    """What the verdict rests on, then one line per thing wrong with the captures, or that nothing is."""
    matched = sum(m.positions.shape[0] for m in c.matching.communicators)
    items = [f"{matched} collectives matched, {c.matching.unmatched} kernels of such operations in none"]
    if c.quality.common_ns is not None:
        start, end = c.quality.common_ns
        items.append(f"all captured ranks share a window of {duration(end - start)}")
    left = sum(int((~island.included).sum()) for island in c.islands)
    if left:
        items.append(f"{left} step{'s' * (left > 1)} left out at the start")
    if c.verdict.threshold_ns is not None:
        items.append(f"a delay below {duration(c.verdict.threshold_ns)} a step would not have been reported")
    found = all_defects(c, notes)
    items += [f"{d.message} [{d.code}]" for d in found[:_MOST_DEFECTS]]
    if len(found) > _MOST_DEFECTS:
        items.append(
            f"showing {_MOST_DEFECTS} of {len(found)}, the gravest first; the rest is in report.json"
        )
    if not found:
        items.append("nothing is missing from these captures")
    return [Heading("Quality"), Bullets(items)]


def _provenance(c: Comparison, command: str) -> list[Block]:
    table = Table(
        ("rank", "report", "bytes", "session", "nsys", "schema"),
        [
            (
                i.label,
                d.info.claims.report,
                str(d.info.claims.size_bytes),
                d.info.claims.session_uuid or "unknown",
                d.info.product_version or "unknown",
                d.info.schema_version or "unknown",
            )
            for i, d in list(zip(c.identities, c.digests, strict=True))[:_MOST_RANKS]
        ],
        frozenset({0, 2}),
    )
    return [
        Heading("Provenance"),
        Paragraph(f"rankdiff {__version__}. Made again with:"),
        Code(command),
        table,
        *(
            [
                Paragraph(
                    f"Showing {_MOST_RANKS} of {len(c.identities)} reports; the others are in report.json."
                )
            ]
            if len(c.identities) > _MOST_RANKS
            else []
        ),
    ]
