"""How two ranks' sequences of collectives fit together: candidate shifts, and one clock offset per pair of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rankdiff.job import Job, JobRank
from rankdiff.kernels.matching import equal_shares, shift_scores
from rankdiff.notes import Note

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

# Two shifts whose scores differ by less than this factor (and this much) are as good as each other.
_TIE_FACTOR = 2.0
_TIE_NS = 10_000.0
# Elements that a shift is judged by: enough for a 95th percentile; and when thousands of shifts are sifted first.
_SAMPLE = 400
_ROUGH_SAMPLE = 24
_BROKEN_SHARE = 0.02  # of collectives in which one may end before the other starts (a preempted GPU)
_CLEAR = 4.0  # times as far as the best shift's ends the second best's must be apart
# A shift fits the whole when it covers this share of the shorter sequence, with ends this near to each other: in ns,
# or as a share of the distance from one end to the next.
_WHOLE = 0.8
_STANDS_OUT = 2.0
_CLOSE_NS = 50_000.0
_CLOSE_SHARE = 0.02
_NEAR = 24  # shifts to either side of where a known clock puts an element: some were lost, and clocks err
# How far a shift's offset may be from a clock that is known: one clock, or one fitted from other collectives.
_SAME_CLOCK_NS = 500_000.0
_KNOWN_CLOCK_NS = 3_000_000.0


@dataclass(frozen=True)
class Choice:
    """The plausible shifts of one rank's sequence against a reference rank's."""

    group: int
    reference: int
    rank: int
    shift: I64
    score: NDArray[np.float64]
    offset: NDArray[np.float64]
    anchored: NDArray[np.float64]  # share of overlapping operations with equal step numbers; nan: unknown
    overlap: I64  # operations that both sequences have
    whole: bool = False  # the best fits the whole of both sequences, and no other comes near it
    fits: bool = False  # the best fits the whole of both sequences: no events were lost
    guessed: bool = False  # searched near what was merely the likeliest: it says nothing about the clock


@dataclass(frozen=True)
class Line:
    """The collectives of a rank that are taken to be one communicator's, in order."""

    rank: int  # job rank index
    events: I64  # (3, k) tokens, starts and ends
    number: I64  # (k,) number in the name of the step range, -1: none

    @cached_property
    def numbers(self) -> I64:
        """The step numbers that occur, ascending."""
        change = np.flatnonzero(np.diff(self.number, prepend=-1))  # steps come in runs: few are left to sort
        found = np.unique(self.number[change])
        return found[found >= 0]


def line(rank: JobRank, positions: I64) -> Line:
    """Take a rank's collectives at these positions of its N x N arrays."""
    return Line(rank.index, sequence(rank, positions), rank.step_number[positions])


def shifts_between(group: int, reference: Line, other: Line, known: float | None = None) -> Choice:
    """Judge how a rank's sequence fits a reference rank's.

    Parameters
    ----------
    group : int
        Carried into the result.
    reference, other : Line
    known : float, optional, ns
        The rank's clock less the reference's where it is known: only what lies near it is tried, unless nothing
        there fits.

    Returns
    -------
    Choice
        Some 64 shifts, ascending; none when no part of the sequences fits.
    """
    found = None if known is None else _judged(group, reference, other, known)
    return found if found is not None and found.shift.size else _judged(group, reference, other)


def _judged(group: int, reference: Line, other: Line, known: float | None = None) -> Choice:
    a, b = reference.events, other.events
    na, nb = a.shape[1], b.shape[1]
    least = (min(na, nb) + 1) // 2
    pieces = _places(nb)
    if known is None:
        tried = np.arange(least - nb, na - least + 1)
        of_pieces = [np.arange(-at, na - size - at + 1) for at, size in pieces]
    else:
        of_pieces = [_near(a, b, at, known) for at, _ in pieces]
        tried = np.unique(np.concatenate([*of_pieces, _near(a, b, nb // 2, known)]))
        tried = tried[(tried >= least - nb) & (tried <= na - least)]
    # The best, and whatever the session clocks or the step numbers speak for.
    rough = shift_scores(a, b, tried, _ROUGH_SAMPLE, na + nb, 1.0)
    anchors = np.intersect1d(np.array(_anchor_shifts(reference, other), np.int64), rough[0])
    best, near = (48, 16) if known is None else (12, 6)
    parts = [
        shift_scores(a, b, order, _SAMPLE, most, _BROKEN_SHARE)
        for order, most in (
            (rough[0][np.argsort(rough[1], kind="stable")], best),
            (rough[0][np.argsort(np.abs(rough[2]), kind="stable")], near),
            (anchors, anchors.size + 1),
        )
    ]
    # A lost event displaces all that follows, so that no shift fits the whole; pieces still fit.
    fits_whole, whole = _whole_fits(*_merged(parts)[:2], a[2], nb)
    if not fits_whole:
        for (at, size), shifts in zip(pieces, of_pieces, strict=True):
            fits = shifts[(shifts + at >= 0) & (shifts + at <= na - size)] + at
            piece = np.ascontiguousarray(b[:, at : at + size])
            moved, score, offset = shift_scores(a, piece, fits, size, na, _BROKEN_SHARE)
            parts.append((moved - at, score, offset))
    shift, score, offset = _merged(parts)
    kept = np.argsort(score, kind="stable")[:48]
    close = np.argsort(np.abs(offset), kind="stable")[:16]
    keep = np.unique(np.concatenate([kept, close, np.flatnonzero(np.isin(shift, anchors))]))
    shift, score, offset = shift[keep], score[keep], offset[keep]
    overlap = np.minimum(nb, na - shift) - np.maximum(0, -shift)
    anchored = equal_shares(reference.number, other.number, shift)
    return Choice(
        group, reference.rank, other.rank, shift, score, offset, anchored, overlap, whole, fits_whole
    )


def _merged(parts: Sequence[tuple[I64, F64, F64]]) -> tuple[I64, F64, F64]:
    """Shifts of several searches with scores and offsets; of the same shift the best only."""
    shift, score, offset = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.lexsort((score, shift))
    order = order[np.unique(shift[order], return_index=True)[1]]
    return shift[order], score[order], offset[order]


def _whole_fits(shift: I64, score: F64, end: I64, other: int) -> tuple[bool, bool]:
    """Whether a shift fits the whole of both sequences so well that no piece of them can tell more; and if it alone does.

    Where events were lost the true shift is not among those of the whole, and a wrong one can stand out from the
    rest: by luck in a short overlap, and never as closely as ends agree.
    """
    if not score.size:
        return False, False
    best = int(np.argmin(score))
    k = int(shift[best])
    overlap = min(other, end.size - k) - max(0, -k)
    # A mean deviation of `n` values is known to some 0.8 / sqrt(n), the ratio of two to 1.1 / sqrt(n): five such errors.
    clear = max(_STANDS_OUT, float(np.exp(5.5 / np.sqrt(min(overlap, _SAMPLE)))))
    close = max(_CLOSE_NS, _CLOSE_SHARE * float(np.median(np.diff(end)))) if end.size > 1 else _CLOSE_NS
    fits = overlap >= _WHOLE * min(other, end.size) and float(score[best]) <= close
    return fits, fits and _stands_out(score, clear)


def _stands_out(score: F64, factor: float) -> bool:
    """Whether the best of some scores is that much better than the next."""
    if score.size < 2:
        return False
    first, second = np.partition(score, 1)[:2]
    return bool(second >= factor * (first + 1_000.0))


def _places(count: int) -> list[tuple[int, int]]:
    """Where pieces of a sequence begin, and their size."""
    size = max(4, min(16, count // 4))
    return [(at, size) for at in sorted({(count - size) * n // 8 for n in range(9)})] if count >= size else []


def _near(a: I64, b: I64, at: int, known: float) -> I64:
    """Shifts that bring element `at` of `b` to those of `a` that end at the same time by a known clock."""
    shift = int(np.searchsorted(a[2], b[2, at] - np.int64(round(known)))) - at
    return np.arange(shift - _NEAR, shift + _NEAR + 1)


def _anchor_shifts(a: Line, b: Line) -> list[int]:
    """Shifts that bring the first operation of a common numbered step together; the middle one of such steps."""
    common = np.intersect1d(a.numbers, b.numbers)
    if not common.size:
        return []
    middle = common[common.size // 2]
    return [int(np.argmax(a.number == middle) - np.argmax(b.number == middle))]


def tokens_agree(a: I64, b: I64) -> bool:
    """Whether operations and bytes are equal, as far as they are known on both sides."""
    return bool(np.all((a == b) | (a < 0) | (b < 0)))


def sequence(rank: JobRank, positions: I64) -> I64:
    """(3, k) int64: tokens, starts and ends of a rank's collectives at these positions."""
    return np.stack((rank.token[positions], rank.start[positions], rank.end[positions]))


class KnownClocks:
    """Offsets between clocks as far as they are known: sets of clocks, each with its offset from the set's root."""

    def __init__(self, clocks: int) -> None:
        self._root = np.arange(clocks)
        self._offset = np.zeros(clocks)  # clock less clock of its set's root

    def between(self, p: int, q: int) -> float | None:
        """Clock `q` less clock `p`, ns; None: not known."""
        return float(self._offset[q] - self._offset[p]) if self._root[p] == self._root[q] else None

    def learn(self, p: int, q: int, offset: float) -> None:
        """Note that clock `q` less clock `p` is `offset` ns, where it was not known."""
        joined = self._root == self._root[q]
        self._offset[joined] += self._offset[p] + offset - self._offset[q]
        self._root[joined] = self._root[p]


def settle(job: Job, choices: Sequence[Choice]) -> tuple[dict[tuple[int, int], float], list[Note]]:
    """Choose one clock offset per pair of nodes that meets all choices.

    The clearest choices come first; each joins two sets of nodes whose offsets are thereby known, and
    later choices between them take the candidate nearest to what is known.

    Returns
    -------
    offsets : dict
        (group, job rank index) to the chosen offset in ns, the rank's clock less its reference's.
    notes : list of Note
    """
    notes: list[Note] = []
    node = job.clock_of
    clocks = KnownClocks(len(job.clocks))
    out: dict[tuple[int, int], float] = {}
    todo = [c for c in choices if c.shift.size]
    for c in choices:
        if not c.shift.size:
            notes.append(
                Note(
                    "no_common_window",
                    f"rank {job.ranks[c.rank].identity.label} and rank {job.ranks[c.reference].identity.label} "
                    "share a communicator, but no part of their captures fits together",
                    (job.ranks[c.rank].identity.rank,),
                )
            )
    same = [c for c in todo if node[c.rank] == node[c.reference]]
    for c in same:
        out[c.group, c.rank] = nearest(c, 0.0, _SAME_CLOCK_NS)
    # Many operations and a clear winner say most.
    cross = sorted(
        (c for c in todo if node[c.rank] != node[c.reference]), key=lambda c: (-_clarity(c), c.group, c.rank)
    )
    for c in cross:
        p, q = int(node[c.reference]), int(node[c.rank])
        known = clocks.between(p, q)
        if known is not None:
            out[c.group, c.rank] = nearest(c, known, _KNOWN_CLOCK_NS)
            continue
        told = _told(job, c)
        offset, clear = _prior(c, told)
        if not clear:
            a, b = job.ranks[c.reference], job.ranks[c.rank]
            how = "the session clocks chose one" if told else "the one with the most in common was taken"
            notes.append(
                Note(
                    "ambiguous_shift",
                    f"the steps are so regular that {a.clock} and {b.clock} fit together in several ways; {how} "
                    "(numbered NVTX step ranges would settle it)",
                    (b.identity.rank,),
                )
            )
        out[c.group, c.rank] = offset
        clocks.learn(p, q, offset)
    return out, notes


def _plausible(c: Choice) -> NDArray[np.bool_]:
    ok = c.score <= _TIE_FACTOR * c.score.min() + _TIE_NS
    # Numbered steps decide where they are not contradicted by the ends. Of many collectives a step, one too few or
    # too many leaves most of the numbers equal: the ends decide between such neighbours where they can.
    if np.nanmax(c.anchored, initial=-1.0) >= 0.9:
        anchored = (c.anchored >= 0.9) & (c.score <= 4 * c.score.min() + 1_000_000)
        if (anchored & ok).any():
            return np.asarray(anchored & ok)
        if anchored.any():
            return np.asarray(anchored)
    return np.asarray(ok)


def _clarity(c: Choice) -> float:
    """How far the second-best shift is behind the best; larger is clearer."""
    if c.guessed:
        return -1.0
    ok = _plausible(c)
    if ok.sum() > 1:
        return 0.0
    rest = c.score[~ok]
    best = c.score[ok].min()
    return float(rest.min() / (best + 1_000.0)) if rest.size else 1e9


def clear_offset(c: Choice) -> float | None:
    """Offset of the best shift where no other comes near it; None: it is not clear."""
    clear = c.whole or (c.shift.size and _clarity(c) >= _CLEAR)
    return float(c.offset[np.argmin(c.score)]) if clear else None


def likely_offset(job: Job, c: Choice) -> float | None:
    """Offset that is taken where several fit equally well; None: none fits."""
    return _prior(c, _told(job, c))[0] if c.shift.size else None


def _told(job: Job, c: Choice) -> bool:
    """Whether both sessions know when they started."""
    return all(job.ranks[r].digest.info.session_start_utc_ns is not None for r in (c.reference, c.rank))


def nearest(c: Choice, known: float, within: float) -> float:
    """Offset of the candidate that agrees best with a known clock offset; the known one when none is near.

    A shift far from a known clock is wrong however well it fits: then events were lost, and the sequences are to
    be aligned in time.
    """
    ok = c.score <= 5 * c.score.min() + 1_000_000
    close = np.abs(c.offset - known) <= within
    if (ok & close).any():
        offsets = c.offset[ok & close]
    elif close.any():
        offsets = c.offset[close]
    else:
        return known
    return float(offsets[np.argmin(np.abs(offsets - known))])


def _prior(c: Choice, told: bool) -> tuple[float, bool]:
    """Offset of the best shift; ties are settled by the session clocks, and said when these are too coarse.

    `told` says whether both sessions know when they started; else of equally good shifts that with the most in
    common is taken.
    """
    ok = _plausible(c)
    offsets = c.offset[ok]
    if not told:
        best = np.lexsort((-c.overlap[ok], c.score[ok]))[0]
        return float(offsets[best]), offsets.size == 1
    by_clock = np.sort(np.abs(offsets))
    chosen = float(offsets[np.argmin(np.abs(offsets))])
    return chosen, bool(by_clock.size == 1 or by_clock[1] > 1.5 * by_clock[0] + 1_000_000)
