"""What is written around the lanes: title, labels of the ranks, legend, small print."""

from __future__ import annotations

from collections.abc import Sequence

from rankdiff.comparison import Comparison
from rankdiff.lanes import Lanes
from rankdiff.render.plots import style
from rankdiff.render.plots.rows import flagged, late, named, who
from rankdiff.render.plots.sheet import Entry
from rankdiff.reports.identity import Identity
from rankdiff.schema import IDLE_CLASSES
from rankdiff.units import duration, utc
from rankdiff.windows import Window, origin_utc_ns
from rankdiff.witnesses import culprit, delays_in, steps_in, waits_in

Line = tuple[str, float, bool, str]  # text, size, bold, colour

RANGE, DATA_RANGE, OTHER_CALL, UNMATCHED = "#DDE3EA", "#F7DDA6", "#A9B1BC", "#B8C4D6"
READING = (
    "All ranks on one clock. A rank that arrives late at a collective finds the others waiting (hatched) and has the "
    "shortest NCCL bar itself; what kept it is in its GPU lane, where idle gaps are coloured by cause."
)
_FINE = (
    "GPU lane: blank where only NCCL or copies run. NVTX and calls: those of the launching thread. Where events are "
    "shorter than a pixel, the height of a colour is its share of the time."
)


def title_of(c: Comparison, window: Window) -> str:
    """Who made whom wait in the window."""
    what = f"{window.words[0].upper()}{window.words[1:]}"
    steps = steps_in(c, window)
    if not window.steps and steps:
        # Delays are those of whole steps.
        what += f", step {steps[0]}" if len(steps) == 1 else f", steps {steps[0]} to {steps[-1]}"
    delays = delays_in(c, window)
    total, first = sum(delays.values()), culprit(c, window)
    if not delays:
        return f"{what}: waiting was not assessed"
    if first is None:
        return f"{what}: nobody waits for anybody"
    for f in late(c):
        held = sum(delays.get(r, 0.0) for r in f.ranks)
        if held >= 0.5 * total:
            name = who(f)
            return f"{what}: {name[0].lower()}{name[1:]} holds the others for {duration(held)}"
    if delays[first] < 0.5 * total:
        return f"{what}: {duration(total)} of waiting for no rank in particular"
    node = next(i.node for i in c.identities if i.rank == first)
    return f"{what}: rank {first} on {style.name(node)} holds the others for {duration(delays[first])}"


def labels(c: Comparison, window: Window, i: Identity) -> list[Line]:
    """Rank, node, and whether it waited or was waited for."""
    delays, wait = delays_in(c, window), waits_in(c, window).get(i.rank)
    delay = delays.get(i.rank)
    guilty = i.rank in flagged(c) or (delay or 0.0) >= max(0.5 * sum(delays.values()), 1.0)
    colour = style.CULPRIT if guilty else style.INK
    name = (f"rank {style.name(i.label, 8)}", style.TEXT, True, colour)
    node = (style.name(i.node, 16), style.SMALL, False, style.FAINT)
    if delay is None or wait is None:
        return [name, node, ("not compared", style.SMALL, False, style.FAINT)]
    if delay > wait:
        return [name, node, (f"holds others {duration(delay)}", style.SMALL, False, colour)]
    return [name, node, (f"waits {duration(wait)}", style.SMALL, False, style.FAINT)]


def legend(lanes: Sequence[Lanes]) -> list[Entry]:
    """Entries for what there is to see."""
    out = [
        Entry("compute", {"facecolor": style.PART_COLOURS["compute"]}),
        Entry("NCCL: waiting", style.WAIT),
        Entry("NCCL: transfer", {"facecolor": style.PART_COLOURS["exposed_transfer"]}),
    ]
    if not all(x.nccl["matched"].all() for x in lanes):
        out.append(Entry("NCCL: not compared", {"facecolor": UNMATCHED}))
    out.append(Entry("copies", {"facecolor": style.PART_COLOURS["copy"]}))
    kinds = {kind for x in lanes if x.calls is not None for kind in x.calls["class"].to_list()}
    for name in IDLE_CLASSES:
        if name in kinds or any(x.idle[name][0].size for x in lanes):
            out.append(Entry(style.CAUSE_LABELS[name], {"facecolor": style.CAUSE_COLOURS[name]}))
    out.append(Entry("NVTX range", {"facecolor": RANGE}))
    return [*out, Entry("vertical red line: a late arrival", {"facecolor": style.CULPRIT})]


def notes(c: Comparison, window: Window, ranks: Sequence[int]) -> list[str]:
    """Where time 0 is, how good the clocks are, and who is not shown."""
    origin, good = origin_utc_ns(c), c.clock.uncertainty_ns
    when = f", {utc(origin + window.zero_ns)}" if origin is not None else ""
    clocks = f"; clocks agree to {duration(good)}" if good is not None else ""
    out = [f"Time 0 is {window.zero_ns / 1e9:.4f} s after the first session start{when}{clocks}. {_FINE}"]
    if len(ranks) < len(c.identities):
        out.append(f"Shown: {named(ranks)}, {len(ranks)} of {len(c.identities)} ranks.")
    return out


def zero_of(window: Window) -> str:
    """What the time axis counts from."""
    if not window.steps:
        return f"{window.zero_ns / 1e9:.6g} s"
    return "the step began" if len(window.steps) == 1 else "the first step began"
