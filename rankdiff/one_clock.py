"""Sequences of collectives of many ranks on one clock, and how well the ends of all pairs of them agree.

Members of an N x N collective leave it together, as one clock would show. To look at each pair of ranks at length
takes minutes from some fifty ranks on. So the clocks are brought together first, by one pair of ranks for each; then a
glance at a sample of ends tells each pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankdiff.job import Job
from rankdiff.kernels.agreement import end_agreement, joining
from rankdiff.shifts import Choice, Line, clear_offset, likely_offset, line, shifts_between

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

# Shifts to either side that are tried while clocks are known by one pair of ranks, and how alike two of them are.
_AROUND, _FACTOR, _GRAIN_NS = 8, 2.0, 10_000.0
# The same once the clocks are known: then a shift must be far worse to be passed over for one further away.
_AROUND_KNOWN, _FACTOR_KNOWN, _GRAIN_KNOWN_NS = 1, 5.0, 1_000_000.0
_GLANCE = 64  # elements of a sequence that a pair is judged by first
_SAMPLE = 512  # and of pairs that may be one communicator
_MAYBE = 4.0  # times as far apart as the nearest pair of either sequence that a pair may be and still be looked at again
_CLOSE_NS = 20_000.0  # below this nothing is told by how near ends are
_TRIES = 4  # pairs of sequences by which the difference of two clocks is looked for
_NEIGHBOURS = 12  # clocks with which that is tried until it is clear
_ALIKE = 0.8  # of the operations of the sequence with more that the other has, to be tried first
_FAR_NS = 5_000_000.0  # ends of one collective cannot be further apart on one clock


@dataclass(frozen=True)
class OneClock:
    """What brings the times of each clock of a job to one clock.

    Attributes
    ----------
    start, end : tuple of (k,) int64, ns
        The collectives of each rank.
    island : (n,) int64
        Ranks with different numbers could not be brought to one clock: nothing they did ended together.
    """

    start: tuple[I64, ...]
    end: tuple[I64, ...]
    island: I64


@dataclass(frozen=True)
class Sequences:
    """Sequences of collectives one after the other.

    Attributes
    ----------
    rank, kind : (c,) int64
        Job rank index; only sequences of equal kind may be one communicator's.
    start, end : (e,) int64, ns
        On one clock, as far as that is known.
    first : (c + 1,) int64
        Sequence i is elements first[i] to first[i + 1] - 1.
    """

    rank: I64
    kind: I64
    start: I64
    end: I64
    first: I64


def sequences(
    clock: OneClock, ranks: Sequence[int], kinds: Sequence[tuple[int, ...]], positions: Sequence[I64]
) -> Sequences:
    """Lay sequences out: of each its rank, its kind, and its positions in the rank's arrays."""
    number = {k: n for n, k in enumerate(sorted(set(kinds)))}
    return Sequences(
        rank=np.array(ranks, np.int64),
        kind=np.array([number[k] for k in kinds], np.int64),
        start=np.concatenate([clock.start[r][p] for r, p in zip(ranks, positions, strict=True)]),
        end=np.concatenate([clock.end[r][p] for r, p in zip(ranks, positions, strict=True)]),
        first=np.append(0, np.cumsum([p.size for p in positions])),
    )


def pairs_of(s: Sequences, island: I64, own: Sequence[int] | None = None) -> tuple[I64, I64]:
    """All pairs of sequences of equal kind on different ranks of an island; of some with all others if they are given."""
    low, high = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for kind in range(int(s.kind.max(initial=-1)) + 1):
        mine = np.flatnonzero(s.kind == kind)
        if own is None:
            i, j = np.triu_indices(mine.size, 1)
            a, b = mine[i], mine[j]
        else:
            these = np.intersect1d(mine, np.array(own, np.int64))
            a, b = np.repeat(these, mine.size), np.tile(mine, these.size)
        keep = (s.rank[a] != s.rank[b]) & (island[s.rank[a]] == island[s.rank[b]])
        low.append(a[keep])
        high.append(b[keep])
    return np.concatenate(low), np.concatenate(high)


def agreement(s: Sequences, a: I64, b: I64) -> tuple[F64, F64]:
    """Spread of the ends and broken share of pairs of sequences, as `pairing.Pair` has them."""
    options = (_AROUND_KNOWN, _FACTOR_KNOWN, _GRAIN_KNOWN_NS)
    spread, broken, middle, *_ = _judged(s, a, b, _GLANCE, *options)
    # What is far apart from both sides' nearest is a bystander, by how much does not matter.
    nearest = np.full(s.rank.size, np.inf)
    np.minimum.at(nearest, a, spread)
    np.minimum.at(nearest, b, spread)
    close = np.maximum(np.maximum(nearest[a], nearest[b]), _CLOSE_NS)
    again = np.flatnonzero(np.isfinite(spread) & (spread <= _MAYBE * close))
    spread[again], broken[again], middle[again], *_ = _judged(s, a[again], b[again], _SAMPLE, *options)
    spread[np.abs(middle) >= _FAR_NS] = np.inf
    return spread, broken


def _judged(s: Sequences, a: I64, b: I64, sample: int, around: int, factor: float, grain: float) -> F64:
    return end_agreement(s.start, s.end, s.first, a, b, around, sample, factor, grain)


def on_one_clock(job: Job, ranks: Sequence[int], kinds: Sequence[int], positions: Sequence[I64]) -> OneClock:
    """Bring the clocks of a job together by the ends of its collectives.

    Parameters
    ----------
    job : Job
    ranks, kinds, positions : sequences of equal length
        Sequences of collectives: job rank index, operation, positions in the rank's arrays.
    """
    clock = job.clock_of
    offset, island = _first_look(job, ranks, kinds, positions)
    start = [r.start - offset[clock[r.index]] for r in job.ranks]
    end = [r.end - offset[clock[r.index]] for r in job.ranks]
    rough = OneClock(tuple(start), tuple(end), island[clock])
    return refined(job, rough, sequences(rough, ranks, [(k,) for k in kinds], positions))


def refined(job: Job, rough: OneClock, s: Sequences) -> OneClock:
    """Set the clocks by the sequences whose ends agree best: they are members of one communicator."""
    count = len(job.clocks)
    if count == 1:
        return rough
    clock = job.clock_of
    a, b = pairs_of(s, rough.island)
    across = clock[s.rank[a]] != clock[s.rank[b]]
    a, b = a[across], b[across]
    options = (_AROUND, _FACTOR, _GRAIN_NS)
    spread, broken, *_ = _judged(s, a, b, _GLANCE, *options)
    order = np.lexsort((b, a, spread))
    order = order[np.isfinite(spread[order]) & (broken[order] <= 0.02)]
    order = order[joining(count, clock[s.rank[a[order]]], clock[s.rank[b[order]]])]
    a, b = a[order], b[order]
    _, _, middle, rate, at, _ = _judged(s, a, b, _SAMPLE, *options)
    origin = float(np.median(s.end)) if s.end.size else 0.0
    ahead = middle + rate * (origin - at)
    root, offset, gains = np.arange(count), np.zeros(count), np.zeros(count)
    for n in range(a.size):
        i, j = int(clock[s.rank[a[n]]]), int(clock[s.rank[b[n]]])
        joined = root == root[j]
        offset[joined] += offset[i] + ahead[n] - offset[j]
        gains[joined] += gains[i] + rate[n] - gains[j]
        root[joined] = root[i]

    def moved(times: tuple[I64, ...]) -> tuple[I64, ...]:
        of_rank = zip(times, clock.tolist(), strict=True)
        return tuple(t - np.rint(offset[c] + gains[c] * (t - origin)).astype(np.int64) for t, c in of_rank)

    return OneClock(moved(rough.start), moved(rough.end), rough.island)


def _first_look(
    job: Job, ranks: Sequence[int], kinds: Sequence[int], positions: Sequence[I64]
) -> tuple[I64, I64]:
    """Offset of each clock, ns, and the island it is in: by the pair of ranks that fits best."""
    of_clock: list[list[int]] = [[] for _ in job.clocks]
    for i, r in enumerate(ranks):
        of_clock[job.clock_of[r]].append(i)
    # Others' windows lie in the longest one most often.
    most = [max((positions[i].size for i in mine), default=0) for mine in of_clock]
    offset, island = np.zeros(len(job.clocks), np.int64), np.arange(len(job.clocks))

    def line_of(i: int) -> Line:
        return line(job.ranks[ranks[i]], positions[i])

    placed: list[int] = []
    for c in sorted(range(len(job.clocks)), key=lambda c: (-most[c], c)):
        heads = [q for q in placed if island[q] == q]
        # Where lost events or other communicators blur it, the nearest clocks' ranks may be clearer.
        others = sorted((q for q in placed if island[q] != q), key=lambda q: (abs(q - c), q))[:_NEIGHBOURS]
        best: tuple[tuple[bool, bool, float], int, Choice] | None = None
        for q in [*heads, *others]:
            for i, j in _likely_pairs(of_clock[q], of_clock[c], ranks, kinds, positions):
                choice = shifts_between(0, line_of(i), line_of(j))
                if choice.shift.size:
                    order = (clear_offset(choice) is None, not choice.fits, float(choice.score.min()))
                    if best is None or order < best[0]:
                        best = order, q, choice
                if best is not None and not best[0][0]:
                    break
            if best is not None and not best[0][0]:
                break
        if best is not None:
            _, q, choice = best
            clear = clear_offset(choice)
            found = clear if clear is not None else likely_offset(job, choice)
            offset[c], island[c] = round(offset[q] + (found or 0.0)), island[q]
        placed.append(c)
    return offset, island


def _likely_pairs(
    first: Sequence[int],
    second: Sequence[int],
    ranks: Sequence[int],
    kinds: Sequence[int],
    positions: Sequence[I64],
) -> list[tuple[int, int]]:
    """Pairs of sequences of two clocks by which their difference may be told, the likeliest first.

    One rank of the first is enough: where its partners are on other clocks, its steps still run with those here.
    Members have about as many operations, and are at one place of their nodes most often.
    """
    place = {r: n for n, r in enumerate(dict.fromkeys(ranks[j] for j in second))}
    pairs = [(i, j) for i in first if ranks[i] == ranks[first[0]] for j in second if kinds[i] == kinds[j]]

    def order(pair: tuple[int, int]) -> tuple[bool, int, int]:
        a, b = positions[pair[0]].size, positions[pair[1]].size
        return min(a, b) < _ALIKE * max(a, b), place[ranks[pair[1]]], -b

    return sorted(pairs, key=order)[:_TRIES]
