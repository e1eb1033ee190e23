"""Which stretch of time to show: a step, a moment, or all of it, on the common clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rankdiff.comparison import Comparison
from rankdiff.court import Island
from rankdiff.errors import RankdiffError
from rankdiff.findings import is_loud
from rankdiff.kernels.intervals import I64
from rankdiff.units import duration

_MS = 1_000_000
_DEFAULT_SPAN_NS = 100 * _MS  # around a moment, in a job without steps
_AROUND_STEPS = 2.0  # steps around a moment
_MARGIN = 0.04  # of the step, shown before and after it
_SLACK_NS = 1_000_000  # clocks drift less than this within a window


@dataclass(frozen=True)
class Window:
    """A stretch of time on the common clock, in ns since the job's origin.

    Attributes
    ----------
    words : str
        What it is, as in "step 12".
    steps : tuple of (str, int, int)
        Label, begin and end of each step that it was chosen for; empty when it was chosen by time.
    """

    start_ns: int
    end_ns: int
    words: str
    steps: tuple[tuple[str, int, int], ...] = ()

    @property
    def length_ns(self) -> int:
        """From start to end."""
        return self.end_ns - self.start_ns

    @property
    def zero_ns(self) -> int:
        """Where its own time begins: at the begin of its first step, else in its middle."""
        return self.steps[0][1] if self.steps else (self.start_ns + self.end_ns) // 2


def common_time(c: Comparison, rank: int) -> Callable[[I64], I64]:
    """What makes times on the common clock, in ns since the job's origin, of session times of a rank.

    Parameters
    ----------
    c : Comparison
    rank : int
        Rank number. One without N x N collectives has no fitted clock; its session start must do.
    """
    for r in c.job.ranks:
        if r.identity.rank == rank:
            index, shift = r.index, r.origin_shift_ns
            return lambda t: c.clock.common(c.job, index, t + shift)
    own = next(
        d.info.session_start_utc_ns for i, d in zip(c.identities, c.digests, strict=True) if i.rank == rank
    )
    origin = origin_utc_ns(c)
    shift = own - origin if own is not None and origin is not None else 0
    return lambda t: t + shift


def origin_utc_ns(c: Comparison) -> int | None:
    """Where the job's time begins; None: no report knows when its session started."""
    if c.job.origin_utc_ns is not None:
        return c.job.origin_utc_ns
    starts = [d.info.session_start_utc_ns for d in c.digests]
    return min((s for s in starts if s is not None), default=None)


def session_window(c: Comparison, rank: int, window: Window) -> tuple[int, int]:
    """Session times of a rank that surely contain a window, with some slack on both sides."""
    to_common = common_time(c, rank)
    edges = np.array([window.start_ns, window.end_ns], np.int64)
    away = edges - to_common(edges)
    away += edges - to_common(edges + away)  # the clock drifts: its error is that at the session time
    slack = _SLACK_NS + int(max((abs(n.step_ns) for n in c.clock.nodes), default=0.0))
    return int(edges[0] + away[0]) - slack, int(edges[1] + away[1]) + slack


def step_begin(c: Comparison, island: Island, k: int) -> int:
    """Begin of a step: the last end of the one before; of the first its own first kernel, as far as it is seen.

    The first step has no step before it; what lies more than two steps before its end is starting up.
    """
    ends = island.steps.last_end
    if k > 0:
        return int(ends[k - 1])
    first = min(
        int(common_time(c, c.job.ranks[r].identity.rank)(_one(c.job.ranks[r].digest.info.window_start_ns))[0])
        for r in island.ranks
    )
    usual = island.step_ns
    return first if np.isnan(usual) else max(first, int(ends[0] - 2 * usual))


def step_window(c: Comparison, first: int, last: int, span_ns: int | None = None) -> Window:
    """The time of some steps, with a margin.

    Parameters
    ----------
    c : Comparison
    first, last : int
        Their numbers, as the reports show them; both ends belong to it.
    span_ns : int, optional
        Length of the window around the middle of the steps.

    Raises
    ------
    RankdiffError
        There is no such step.
    """
    steps = [
        (island.steps.labels[k], step_begin(c, island, k), int(island.steps.last_end[k]))
        for island in c.islands
        for k in range(island.steps.size)
        if first <= int(island.steps.labels[k]) <= last
    ]
    if not steps:
        numbers = [int(label) for island in c.islands for label in island.steps.labels]
        asked = f"no step {first}" if first == last else f"no steps {first} to {last}"
        if not numbers:
            raise RankdiffError(f"{asked}: no steps were found in these reports", "Choose a time instead")
        raise RankdiffError(f"{asked}: the steps are {min(numbers)} to {max(numbers)}", "Choose among them")
    begin, end = min(s for _, s, _ in steps), max(e for _, _, e in steps)
    margin = round(_MARGIN * (end - begin))
    low, high = begin - margin, end + margin
    if span_ns is not None:
        low = (begin + end - span_ns) // 2
        high = low + span_ns
    words = f"step {first}" if first == last else f"steps {first} to {last}"
    distinct = {label: (label, b, e) for label, b, e in reversed(steps)}  # islands may number alike
    return Window(low, high, words, tuple(distinct[label] for label in sorted(distinct, key=int)))


def moment_window(c: Comparison, at_ns: int, span_ns: int | None = None) -> Window:
    """The time around a moment.

    Parameters
    ----------
    c : Comparison
    at_ns : int
        ns since the first session start, common clock.
    span_ns : int, optional
        Length of the window; by default two steps.

    Raises
    ------
    RankdiffError
        Nothing was captured at that time.
    """
    if span_ns is None:
        usual = [i.step_ns for i in c.islands if not np.isnan(i.step_ns)]
        span_ns = round(_AROUND_STEPS * max(usual)) if usual else _DEFAULT_SPAN_NS
    span_ns = max(span_ns, 2)
    window = Window(at_ns - span_ns // 2, at_ns + span_ns - span_ns // 2, f"around {at_ns / 1e9:.6g} s")
    whole = _extent(c)
    if window.end_ns <= whole[0] or window.start_ns >= whole[1]:
        raise RankdiffError(
            f"nothing was captured around {at_ns / 1e9:.6g} s: the GPU work lies between "
            f"{whole[0] / 1e9:.3f} s and {whole[1] / 1e9:.3f} s after the first session start",
            "Choose a time between them",
        )
    return window


def whole_window(c: Comparison) -> Window:
    """All that was captured, from one step before the first GPU activity: there the first step is prepared."""
    low, high = _extent(c)
    usual = [i.step_ns for i in c.islands if not np.isnan(i.step_ns)]
    return Window(low - round(max(usual, default=float(_DEFAULT_SPAN_NS))), high + 1, "all of the capture")


def worst_step(c: Comparison) -> int:
    """Number of the judged step that the first finding cost most; without a finding, that cost most.

    Raises
    ------
    RankdiffError
        No step was judged.
    """
    loud = [f for f in c.verdict.findings if is_loud(f) or f.kind == "rotating"]
    best: tuple[float, int] | None = None
    for island in c.islands:
        numbers = [c.job.ranks[r].identity.rank for r in island.ranks]
        rows = np.isin(numbers, loud[0].ranks) if loud else np.ones(len(numbers), np.bool_)
        cost = np.where(island.included, island.delta[rows].sum(axis=0), -1.0)
        if cost.size and (best is None or cost.max() > best[0]):
            best = float(cost.max()), int(island.steps.labels[int(cost.argmax())])
    if best is None or best[0] < 0:
        raise RankdiffError("no step was judged, so there is no worst one", "Choose a time to show: --around")
    return best[1]


def of_this_run(c: Comparison) -> frozenset[int]:
    """Captured ranks but those of another run, whose time has nothing to do with ours."""
    others = {r for note in c.notes if note.code == "other_run" for r in note.ranks}
    return frozenset(i.rank for i in c.identities) - others


def describe(window: Window) -> str:
    """A window in words, with its length and its place."""
    return f"{window.words} ({duration(window.length_ns)} from {window.start_ns / 1e9:.4f} s)"


def _extent(c: Comparison) -> tuple[int, int]:
    edges = list(_edges(c))
    return min(low for low, _ in edges), max(high for _, high in edges)


def _edges(c: Comparison) -> Iterator[tuple[int, int]]:
    ours = of_this_run(c)
    for i, d in zip(c.identities, c.digests, strict=True):
        if i.rank not in ours:
            continue
        low, high = common_time(c, i.rank)(np.array([d.info.window_start_ns, d.info.window_end_ns], np.int64))
        yield int(low), int(high)


def _one(t: int) -> I64:
    return np.array([t], np.int64)
