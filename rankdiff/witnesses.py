"""Who matters in a window: delays, waits, and the ranks to show."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankdiff.comparison import Comparison
from rankdiff.court import Island
from rankdiff.errors import RankdiffError
from rankdiff.reports.names import natural_key
from rankdiff.windows import Window, step_begin

_AWAITED = 3  # ranks shown because they came last


def delays_in(c: Comparison, window: Window) -> dict[int, float]:
    """Delay share of each rank in whole steps, in ns: those of `steps_in`."""
    out: dict[int, float] = {}
    for island in c.islands:
        delays = island.delta[:, _inside(c, island, window)].sum(axis=1)
        for r, delay in zip(island.ranks, delays, strict=True):
            number = c.job.ranks[r].identity.rank
            out[number] = out.get(number, 0.0) + float(delay)
    return out


def steps_in(c: Comparison, window: Window) -> list[int]:
    """Numbers of the steps that a window was chosen for, else of all that it touches."""
    found = {
        int(island.steps.labels[k])
        for island in c.islands
        for k in np.flatnonzero(_inside(c, island, window))
    }
    return sorted(found)


def _inside(c: Comparison, island: Island, window: Window) -> NDArray[np.bool_]:
    """(k,) bool: the steps of an island that `steps_in` means."""
    if window.steps:
        return np.asarray(np.isin(island.steps.labels, [label for label, _, _ in window.steps]))
    begin = np.append(step_begin(c, island, 0), island.steps.last_end[:-1])
    return np.asarray((island.steps.last_end > window.start_ns) & (begin < window.end_ns))


def waits_in(c: Comparison, window: Window) -> dict[int, int]:
    """Summed waits of each rank in the instances that end in a window, in ns."""
    return _summed(c, window, imposed=False)


def _summed(c: Comparison, window: Window, imposed: bool) -> dict[int, int]:
    """Waits of each rank, or those that were for it as the last to arrive."""
    out: dict[int, int] = {}
    for island, waited in zip(c.islands, c.waited, strict=True):
        for t, w in zip(island.timed, waited, strict=True):
            end = t.end.max(axis=1)
            keep = (end > window.start_ns) & (end <= window.end_ns)
            sums = w.imposed_by(keep) if imposed else w.wait[keep].sum(axis=0)
            for r, ns in zip(t.comm.members, sums, strict=True):
                number = c.job.ranks[int(r)].identity.rank
                out[number] = out.get(number, 0) + int(ns)
    return out


def culprit(c: Comparison, window: Window) -> int | None:
    """Rank with the largest delay share in a window, the lowest of equals; None: nobody has any."""
    delays = delays_in(c, window)
    best = min(delays, key=lambda r: (-delays[r], r), default=None)
    return best if best is not None and delays[best] > 0 else None


def ranks_to_show(c: Comparison, window: Window, most: int) -> tuple[int, ...]:
    """The culprit of a window, those most waited for, and those that waited longest, in the order of `by_node`."""
    first, waits, imposed = culprit(c, window), waits_in(c, window), _summed(c, window, imposed=True)
    awaited = sorted((r for r, ns in imposed.items() if ns > 0), key=lambda r: (-imposed[r], r))
    waiting = sorted((i.rank for i in c.identities), key=lambda r: (-waits.get(r, 0), r))
    order = dict.fromkeys([*([] if first is None else [first]), *awaited[:_AWAITED], *waiting])
    return by_node(c, frozenset(list(order)[:most]))


def by_node(c: Comparison, ranks: frozenset[int]) -> tuple[int, ...]:
    """Ranks sorted by node (numbers in names as numbers), then by rank."""
    chosen = [i for i in c.identities if i.rank in ranks]
    return tuple(i.rank for i in sorted(chosen, key=lambda i: (natural_key(i.node), i.rank)))


def captured_ranks(c: Comparison, wanted: frozenset[int]) -> frozenset[int]:
    """The wanted ranks, if all of them were captured.

    Raises
    ------
    RankdiffError
        One was not.
    """
    there = {i.rank for i in c.identities}
    gone = sorted(wanted - there)
    if gone:
        shown = ", ".join(map(str, gone[:8])) + (", ..." if len(gone) > 8 else "")
        raise RankdiffError(f"--ranks: no report of rank {shown}", "Choose among the captured ranks")
    return wanted
