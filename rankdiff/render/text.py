"""The answer on a terminal: verdict, next step, one row per rank with the culprit first, clock, quality."""

from __future__ import annotations

from collections.abc import Sequence

from rankdiff.comparison import Comparison
from rankdiff.findings import Finding
from rankdiff.gaps import MIN_GAP_NS, longest_gaps, step_label
from rankdiff.notes import Note, rank_words
from rankdiff.render.document import clean, clean_lines
from rankdiff.render.quality_json import all_defects
from rankdiff.render.rank_table import HEADER, LEGEND, NUMERIC, Row, rows
from rankdiff.render.words import because, certainty, cost, how_often, since, spent, summary, what_if, who
from rankdiff.render.wrapping import fill
from rankdiff.units import duration, share, utc

WIDTH = 80
_NODE = 14
_MOST_SPARKS = 8
_MOST_ROWS = 20
_MOST_DEFECTS = 12
_MOST_GAPS = 3


def to_text(c: Comparison, notes: Sequence[Note] = (), min_gap_ns: int = MIN_GAP_NS) -> str:
    """Render a comparison for a terminal.

    Parameters
    ----------
    c : Comparison
    notes : sequence of Note
        Further warnings, of reading the reports.
    min_gap_ns : int
        Shorter idle gaps are not listed.

    Returns
    -------
    str
        Plain text, no escape sequences, with a final line feed.
    """
    blocks = [
        _verdict(c),
        _others(c),
        _job(c),
        _table(c),
        _spent(c),
        _gaps(c, min_gap_ns),
        _clock(c),
        _quality(c, notes),
    ]
    return clean_lines("\n\n".join(b for b in blocks if b)) + "\n"


def _fill(text: str, first: str = "", rest: str = "") -> str:
    return fill(text, WIDTH, first, rest)


def _wrap(label: str, text: str) -> str:
    return _fill(text, f"  {label:<11}", " " * 13)


def _verdict(c: Comparison) -> str:
    lines = [_fill(summary(c))]
    main = next((f for f in c.verdict.findings if f.severity != "note"), None)
    if main is not None:
        lines.append(_wrap("since", since(c, main)))
        if certainty(main):
            lines.append(_wrap("certainty", certainty(main)))
        lines += [_wrap("evidence", e) for e in main.evidence]
        if what_if(main):
            lines.append(_wrap("what if", what_if(main)))
        if main.advice:
            lines.append(_wrap("next", main.advice))
    return "\n".join(lines)


def _others(c: Comparison) -> str:
    loud = [f for f in c.verdict.findings if f.severity != "note"][1:]
    notes = [f for f in c.verdict.findings if f.severity == "note"]
    lines = [f"also      {_also(c, f)}" for f in loud]
    lines += [f"note      {_note_line(c, f)}" for f in notes[:5]]
    if len(notes) > 5:
        lines.append(f"          (+ {len(notes) - 5} more notes in the JSON)")
    return "\n".join(_fill(x, rest=" " * 10) for x in lines)


def _also(c: Comparison, f: Finding) -> str:
    if f.kind in ("common_stall", "slow_transfer"):
        return f"{'; '.join(f.evidence)}. Next: {f.advice}"
    alone = f"step {f.carried_by_step} alone carries it" if f.carried_by_step is not None else ""
    doubts = "".join(f"; {x}" for x in (certainty(f), alone, what_if(f)) if x)
    return f"{who(f)}: {cost(f)}, {how_often(f)}{because(f)}; {since(c, f)}{doubts}. Next: {f.advice}"


def _spent(c: Comparison) -> str:
    """Where the time goes, and the patterns that say so."""
    if not spent(c):
        return ""
    lines = [_fill(f"time goes into {spent(c)}", rest="  ")]
    lines += [_fill(f"{p.message}: {p.advice}", "  - ", "    ") for p in c.patterns]
    return "\n".join(lines)


def _gaps(c: Comparison, min_gap_ns: int) -> str:
    """The longest idle gaps of the first culprit, else of the whole job."""
    loud = {r for f in c.verdict.findings if f.severity != "note" and f.kind == "late_rank" for r in f.ranks}
    rows = []
    for i, d in zip(c.identities, c.digests, strict=True):
        if loud and i.rank not in loud:
            continue
        for g in longest_gaps(d, min_gap_ns, _MOST_GAPS).iter_rows(named=True):
            rows.append((g["end_ns"] - g["start_ns"], i, d, g))
    if not rows:
        return ""
    rows.sort(key=lambda x: (-x[0], x[1].rank, x[3]["start_ns"]))
    lines = ["longest idle gaps" + (" of the late rank" if len(loud) == 1 else "")]
    for length, i, d, g in rows[:_MOST_GAPS]:
        step = step_label(d, g["step"])
        where = ", ".join(x for x in (g["range"], g["call"]) if x)
        begin = d.info.session_start_utc_ns
        at = utc(begin + g["start_ns"])[11:] if begin is not None else "unknown time"
        lines.append(
            f"  rank {i.label}  {duration(length):>8}  {at}  step {step or '-'}  "
            f"{g['class']} {share(g['class_ns'] / length)}{f' ({where})' if where else ''}"
        )
    return "\n".join(lines)


def _note_line(c: Comparison, f: Finding) -> str:
    if f.kind == "startup":
        return "; ".join(f.evidence)
    tail = f" ({'; '.join(f.evidence)})" if f.evidence else ""
    if f.pattern == "one_off":
        lost = duration((f.delay_ns_per_step or 0) * (f.steps or 1))
        return f"{who(f)} held the others in one step: {lost}, {since(c, f)}{tail}"
    return f"{who(f)}: {cost(f)}, {how_often(f)}{tail}"


def _job(c: Comparison) -> str:
    nodes = len({i.node for i in c.identities})
    captured = len(c.identities)
    who = f"{captured} rank{'s' * (captured != 1)}"
    if c.missing:
        everybody = captured + len(c.missing)
        who = f"{captured} of {everybody} ranks (missing {rank_words(c.missing).partition(' ')[2]})"
    parts = [f"{who} on {nodes} node{'s' * (nodes != 1)}"]
    if c.islands:
        main = max(c.islands, key=lambda i: int(i.included.sum()))
        skipped = int((~main.included).sum())
        left = f", {skipped} left out at the start" if skipped else ""
        parts.append(
            f"{int(main.included.sum())} steps of {duration(main.step_ns)} ({main.steps.source}{left})"
        )
    matched = sum(m.positions.shape[0] for m in c.matching.communicators)
    comms = len(c.matching.communicators)
    parts.append(f"{matched} collectives matched on {comms} communicator{'s' * (comms != 1)}")
    return _fill("; ".join(parts))


def _table(c: Comparison) -> str:
    shown = rows(c, _MOST_ROWS)
    cells = [_cut(r.cells) for r in shown]
    widths = [max(len(x) for x in column) for column in zip(HEADER, *cells, strict=True)]

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            x.rjust(w) if n in NUMERIC else x.ljust(w)
            for n, (x, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()

    out = [line(HEADER), *(line(r) for r in cells)]
    if len(c.identities) > _MOST_ROWS:
        out.append(f"showing {_MOST_ROWS} of {len(c.identities)} ranks, the most delayed first")
    out += [_fill(f"({LEGEND})"), *_sparks(c, shown)]
    return "\n".join(out)


def _cut(cells: Sequence[str]) -> tuple[str, ...]:
    """Shorten a long node name, so that the table fits."""
    node = clean(cells[1])
    return (cells[0], node if len(node) <= _NODE else node[: _NODE - 1] + "~", *cells[2:])


def _sparks(c: Comparison, shown: Sequence[Row]) -> list[str]:
    """Delay by step of the first ranks, where it says more than the sum."""
    if c.verdict.status == "not_assessed" or not any(r.spark for r in shown):
        return []
    wide = max(len(r.cells[0]) for r in shown)
    lines = [f"  rank {r.cells[0].rjust(wide)}  {r.spark}" for r in shown[:_MOST_SPARKS] if r.spark]
    return ["", "delay caused by step, first to last", *lines]


def _clock(c: Comparison) -> str:
    if c.clock.uncertainty_ns is None:
        return "" if not c.islands else f"clock: {c.clock.method}"
    nodes = [n for n in c.clock.nodes if n.node != c.clock.reference]
    shown = ", ".join(
        f"{n.node} {n.offset_ns / 1e6:+.3f} ms" + (f" {n.drift_ppm:+.2f} ppm" if n.drift_ppm else "")
        for n in nodes[:4]
    )
    more = f" and {len(nodes) - 4} more nodes" if len(nodes) > 4 else ""
    against = f"; against {c.clock.reference}: {shown}{more}" if nodes else ""
    return _fill(f"clock: uncertainty {duration(c.clock.uncertainty_ns)}{against}; from {c.clock.method}")


def _quality(c: Comparison, notes: Sequence[Note]) -> str:
    """One line per thing wrong with the captures, or that nothing is."""
    found = all_defects(c, notes)
    if not found:
        return "quality: nothing is missing from these captures"
    lines = [_fill(f"{d.message} [{d.code}]", "  - ", "    ") for d in found[:_MOST_DEFECTS]]
    if len(found) > _MOST_DEFECTS:
        lines.append(
            f"  (showing {_MOST_DEFECTS} of {len(found)}, the gravest first; the rest is in the JSON)"
        )
    if any(d.cure for d in found):
        lines.append("  (rankdiff inspect names the nsys option that would cure each)")
    return "\n".join(["quality of the captures", *lines])
