"""The answer on a terminal: verdict, next step, one row per rank with the culprit first, clock, warnings."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rankdiff.comparison import Comparison
from rankdiff.digest import Digest
from rankdiff.findings import Finding
from rankdiff.notes import Note
from rankdiff.render.words import cost, how_often, next_step, since, summary, who
from rankdiff.reports.identity import Identity
from rankdiff.units import duration, share

WIDTH = 100
_MOST_ROWS = 20
_MOST_NOTES = 12


def clean(text: str) -> str:
    """Names come from the export and are untrusted: control characters would drive the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def to_text(c: Comparison, notes: Sequence[Note] = ()) -> str:
    """Render a comparison for a terminal.

    Parameters
    ----------
    c : Comparison
    notes : sequence of Note
        Further warnings, of reading the reports.

    Returns
    -------
    str
        Plain text, no escape sequences, with a final line feed.
    """
    blocks = [_verdict(c), _others(c), _job(c), _table(c), _clock(c), _notes([*notes, *c.notes])]
    return clean_lines("\n\n".join(b for b in blocks if b)) + "\n"


def clean_lines(text: str) -> str:
    """`clean` line by line."""
    return "\n".join(clean(line) for line in text.split("\n"))


def _wrap(label: str, text: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=f"  {label:<11}", subsequent_indent=" " * 13, break_on_hyphens=False
    )


def _verdict(c: Comparison) -> str:
    lines = [textwrap.fill(summary(c), WIDTH, break_on_hyphens=False)]
    main = next((f for f in c.verdict.findings if f.severity != "note"), None)
    if main is not None:
        lines.append(_wrap("since", since(c, main)))
        certainty = []
        if main.p_value is not None:
            certainty.append(f"p = {main.p_value:.4f}")
        if main.delay_ci95_ns is not None:
            certainty.append(
                f"95 % interval {duration(main.delay_ci95_ns[0])} to {duration(main.delay_ci95_ns[1])} a step"
            )
        if certainty:
            lines.append(_wrap("certainty", "; ".join(certainty)))
        lines += [_wrap("evidence", e) for e in main.evidence]
        lines.append(_wrap("next", next_step(c, main)))
    return "\n".join(lines)


def _others(c: Comparison) -> str:
    loud = [f for f in c.verdict.findings if f.severity != "note"][1:]
    notes = [f for f in c.verdict.findings if f.severity == "note"]
    lines = [f"also      {who(f)}: {cost(f)}, {how_often(f)}; {since(c, f)}" for f in loud]
    lines += [f"note      {_note_line(c, f)}" for f in notes[:5]]
    if len(notes) > 5:
        lines.append(f"          (+ {len(notes) - 5} more notes in the JSON)")
    return "\n".join(
        textwrap.fill(x, WIDTH, subsequent_indent=" " * 10, break_on_hyphens=False) for x in lines
    )


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
    parts = [f"{len(c.identities)} rank{'s' * (len(c.identities) != 1)} on {nodes} node{'s' * (nodes != 1)}"]
    if c.missing:
        shown = ", ".join(map(str, c.missing[:8])) + (", ..." if len(c.missing) > 8 else "")
        parts.append(f"not captured: rank {shown}")
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
    return textwrap.fill("; ".join(parts), WIDTH, break_on_hyphens=False)


_HEADER = ("rank", "node", "role", "colls", "late by", "waited", "delay caused", "last", "idle", "under data")


def _table(c: Comparison) -> str:
    pairs = list(zip(c.identities, c.digests, strict=True))
    blamed = {
        r: n for n, f in enumerate(f for f in c.verdict.findings if f.severity != "note") for r in f.ranks
    }

    def order(p: tuple[Identity, Digest]) -> tuple[int, float, int]:
        f = c.figures.get(p[0].rank)
        return (blamed.get(p[0].rank, len(blamed) + 1), -(f.delay_ns or 0.0) if f else 0.0, p[0].rank)

    pairs.sort(key=order)
    rows = [_row(c, i, d) for i, d in pairs[:_MOST_ROWS]]
    widths = [max(len(x) for x in column) for column in zip(_HEADER, *rows, strict=True)]
    left = {1, 2}

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            x.ljust(w) if n in left else x.rjust(w)
            for n, (x, w) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()

    out = [line(_HEADER), *(line(r) for r in rows)]
    if len(pairs) > _MOST_ROWS:
        out.append(f"showing {_MOST_ROWS} of {len(pairs)} ranks, the most delayed first")
    return "\n".join(out)


def _row(c: Comparison, i: Identity, d: Digest) -> tuple[str, ...]:
    f, info = c.figures.get(i.rank), d.info
    steps = sum(
        int(isl.included.sum())
        for isl in c.islands
        if any(c.job.ranks[r].identity.rank == i.rank for r in isl.ranks)
    )
    per_step = 1.0 / steps if steps else 0.0
    role = "-"
    if f is not None and c.verdict.status != "not_assessed":
        loud = [x for x in c.verdict.findings if i.rank in x.ranks and x.severity != "note"]
        if any(x.kind != "rotating" for x in loud):
            role = "late"
        else:
            role = "in turn" if loud else ("waiting" if c.verdict.status == "straggler" else "even")
    idle = share(info.idle_ns / info.span_ns) if info.span_ns else "n/a"
    under = (
        share(info.idle_data_load_ns / info.idle_ns)
        if info.idle_data_load_ns is not None and info.idle_ns
        else "n/a"
    )
    return (
        i.label,
        i.node if len(i.node) <= 24 else i.node[:23] + "~",
        role,
        str(f.collectives) if f else "0",
        duration(f.lateness_ns_median) if f else "n/a",
        duration(f.wait_ns * per_step) if f and f.wait_ns is not None else "n/a",
        duration(f.delay_ns * per_step) if f and f.delay_ns is not None else "n/a",
        str(f.last_count) if f and f.last_count is not None else "n/a",
        idle,
        under,
    )


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
    return textwrap.fill(
        f"clock: {c.clock.method}, uncertainty {duration(c.clock.uncertainty_ns)}{against}",
        WIDTH,
        break_on_hyphens=False,
    )


def _notes(notes: Sequence[Note]) -> str:
    merged: dict[tuple[str, str], list[int]] = {}
    for n in notes:
        merged.setdefault((n.code, n.message), []).extend(n.ranks)
    lines = [f"warning: {message} [{code}]" for code, message in sorted(merged)]
    hidden = len(lines) - _MOST_NOTES
    lines = lines[:_MOST_NOTES]
    if hidden > 0:
        lines.append(f"(+ {hidden} more warnings in the JSON)")
    return "\n".join(textwrap.fill(x, WIDTH, subsequent_indent="  ", break_on_hyphens=False) for x in lines)
