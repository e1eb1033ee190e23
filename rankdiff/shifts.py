"""How two ranks' sequences of collectives fit together: candidate shifts, and one clock offset per pair of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankdiff.job import Job, JobRank
from rankdiff.kernels.matching import shift_scores
from rankdiff.notes import Note

I64 = NDArray[np.int64]

# Two shifts whose scores differ by less than this factor (and this much) are as good as each other.
_TIE_FACTOR = 2.0
_TIE_NS = 10_000.0
# Elements that a shift is judged by: enough for a 95th percentile; and when thousands of shifts are sifted first.
_SAMPLE = 400
_ROUGH_SAMPLE = 24
_BROKEN_SHARE = 0.02  # of collectives in which one may end before the other starts (a preempted GPU)
_CLEAR = 4.0  # times as far as the best shift's ends the second best's must be apart
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


def shifts_between(
    job: Job, group: int, reference: tuple[int, I64], other: tuple[int, I64], known: float | None = None
) -> Choice:
    """Judge how a rank's sequence fits a reference rank's.

    Parameters
    ----------
    job : Job
    group : int
        Carried into the result.
    reference, other : (job rank index, positions in its N x N arrays)
    known : float, optional, ns
        The rank's clock less the reference's where it is known: only what lies near it is tried, unless nothing
        there fits.

    Returns
    -------
    Choice
        Some 64 shifts, ascending; none when no part of the sequences fits.
    """
    (ref, base), (r, positions) = reference, other
    a, b = sequence(job.ranks[ref], base), sequence(job.ranks[r], positions)
    found = None if known is None else _judged(job, group, reference, other, a, b, known)
    return found if found is not None and found.shift.size else _judged(job, group, reference, other, a, b)


def _judged(
    job: Job,
    group: int,
    reference: tuple[int, I64],
    other: tuple[int, I64],
    a: I64,
    b: I64,
    known: float | None = None,
) -> Choice:
    (ref, base), (r, positions) = reference, other
    na, nb = a.shape[1], b.shape[1]
    least = (min(na, nb) + 1) // 2
    x, y = job.ranks[ref].step_number[base], job.ranks[r].step_number[positions]
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
    anchors = np.intersect1d(np.array(_anchor_shifts(x, y), np.int64), rough[0])
    parts = [
        shift_scores(a, b, order, _SAMPLE, most, _BROKEN_SHARE)
        for order, most in (
            (rough[0][np.argsort(rough[1], kind="stable")], 48),
            (rough[0][np.argsort(np.abs(rough[2]), kind="stable")], 16),
            (anchors, anchors.size + 1),
        )
    ]
    # A lost event displaces all that follows, so that no shift fits the whole; pieces still fit.
    for (at, size), shifts in zip(pieces, of_pieces, strict=True):
        fits = shifts[(shifts + at >= 0) & (shifts + at <= na - size)] + at
        piece = np.ascontiguousarray(b[:, at : at + size])
        moved, score, offset = shift_scores(a, piece, fits, size, na, _BROKEN_SHARE)
        parts.append((moved - at, score, offset))
    shift, score, offset = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.lexsort((score, shift))  # of the same shift, the best only
    order = order[np.unique(shift[order], return_index=True)[1]]
    shift, score, offset = shift[order], score[order], offset[order]
    best = np.argsort(score, kind="stable")[:48]
    near = np.argsort(np.abs(offset), kind="stable")[:16]
    keep = np.unique(np.concatenate([best, near, np.flatnonzero(np.isin(shift, anchors))]))
    shift, score, offset = shift[keep], score[keep], offset[keep]
    overlap = np.minimum(nb, na - shift) - np.maximum(0, -shift)
    return Choice(
        group, ref, r, shift, score, offset, np.array([_anchor(x, y, int(k)) for k in shift]), overlap
    )


def _places(count: int) -> list[tuple[int, int]]:
    """Where pieces of a sequence begin, and their size."""
    size = max(4, min(16, count // 4))
    return [(at, size) for at in sorted({(count - size) * n // 8 for n in range(9)})] if count >= size else []


def _near(a: I64, b: I64, at: int, known: float) -> I64:
    """Shifts that bring element `at` of `b` to those of `a` that end at the same time by a known clock."""
    shift = int(np.searchsorted(a[2], b[2, at] - np.int64(round(known)))) - at
    return np.arange(shift - _NEAR, shift + _NEAR + 1)


def _anchor_shifts(a: I64, b: I64) -> list[int]:
    """Shifts that bring the first operation of a common numbered step together; the middle one of such steps."""
    common = np.intersect1d(a[a >= 0], b[b >= 0])
    if not common.size:
        return []
    middle = common[common.size // 2]
    return [int(np.argmax(a == middle) - np.argmax(b == middle))]


def _anchor(a: I64, b: I64, shift: int) -> float:
    """Share of overlapping operations whose step numbers agree; nan when steps have no numbers."""
    first, last = max(0, -shift), min(b.size, a.size - shift)
    x, y = a[first + shift : last + shift], b[first:last]
    both = (x >= 0) & (y >= 0)
    return float(np.mean(x[both] == y[both])) if both.any() else float("nan")


def tokens_agree(a: I64, b: I64) -> bool:
    """Whether operations and bytes are equal, as far as they are known on both sides."""
    return bool(np.all((a == b) | (a < 0) | (b < 0)))


def sequence(rank: JobRank, positions: I64) -> I64:
    """(3, k) int64: tokens, starts and ends of a rank's collectives at these positions."""
    return np.stack((rank.token[positions], rank.start[positions], rank.end[positions]))


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
    parent = list(range(len(job.clocks)))
    potential = [0.0] * len(job.clocks)  # clock of the node less clock of its set's root

    def root(h: int) -> int:
        while parent[h] != h:
            h = parent[h]
        return h

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
        if root(p) == root(q):
            known = potential[q] - potential[p]
            out[c.group, c.rank] = nearest(c, known, _KNOWN_CLOCK_NS)
            continue
        told = all(job.ranks[r].digest.info.session_start_utc_ns is not None for r in (c.reference, c.rank))
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
        rp, rq = root(p), root(q)
        # potential[q] - potential[p] must become `offset` for all nodes of q's set.
        delta = potential[p] + offset - potential[q]
        for h in range(len(parent)):
            if root(h) == rq and h != rq:
                potential[h] += delta
        potential[rq] += delta
        parent[rq] = rp
    return out, notes


def _plausible(c: Choice) -> NDArray[np.bool_]:
    ok = c.score <= _TIE_FACTOR * c.score.min() + _TIE_NS
    # Numbered steps decide where they are not contradicted by the ends.
    if np.nanmax(c.anchored, initial=-1.0) >= 0.9:
        anchored = (c.anchored >= 0.9) & (c.score <= 4 * c.score.min() + 1_000_000)
        if anchored.any():
            return np.asarray(anchored)
    return np.asarray(ok)


def _clarity(c: Choice) -> float:
    """How far the second-best shift is behind the best; larger is clearer."""
    ok = _plausible(c)
    if ok.sum() > 1:
        return 0.0
    rest = c.score[~ok]
    best = c.score[ok].min()
    return float(rest.min() / (best + 1_000.0)) if rest.size else 1e9


def clear_offset(c: Choice) -> float | None:
    """Offset of the best shift where no other comes near it; None: it is not clear."""
    return float(c.offset[np.argmin(c.score)]) if c.shift.size and _clarity(c) >= _CLEAR else None


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
