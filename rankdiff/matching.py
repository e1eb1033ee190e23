"""Collectives of the ranks to matched instances: which kernels are one and the same all-reduce.

Key of an instance is (communicator, k-th operation on it). Capture windows differ, so k needs a shift per
rank; the shift is chosen by how well the *ends* coincide, one clock offset binding all ranks of a node.
Where counts differ inside the overlap, the sequences are aligned by operation and time instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rankdiff.job import Job, JobRank, span
from rankdiff.kernels.clocks import best_step
from rankdiff.kernels.matching import align_in_time, shift_scores
from rankdiff.notes import Note

I64 = NDArray[np.int64]

# Two shifts whose scores differ by less than this factor (and this much) are as good as each other.
_TIE_FACTOR = 2.0
_TIE_NS = 50_000.0
# Sessions of one job start within minutes of each other; NTP errs by far less.
_OTHER_RUN_NS = 60_000_000_000


@dataclass(frozen=True)
class Group:
    """Members of one communicator and their operations on it, before matching."""

    id: str
    source: str  # payload or inferred
    positions: dict[int, I64]  # job rank index -> positions in its N x N arrays, in order


@dataclass(frozen=True)
class Communicator:
    """A communicator with its matched instances (all members present)."""

    id: str
    source: str
    members: I64  # (n,) job rank indices, ascending
    positions: I64  # (m, n) positions in each member's N x N arrays, in order
    trimmed: I64  # (n,) operations before or after the common window
    lost: I64  # (n,) operations inside the common window that not all members have
    first_divergence: int | None = None  # instance index at which the sequences first part
    minority: tuple[int, ...] = ()  # job rank indices that part from the rest there

    def starts(self, job: Job) -> I64:
        """(m, n) int64, ns since the job's origin on the session clocks."""
        return np.stack(
            [job.ranks[r].start[self.positions[:, j]] for j, r in enumerate(self.members)], axis=1
        )

    def ends(self, job: Job) -> I64:
        """(m, n) int64, as `starts`."""
        return np.stack([job.ranks[r].end[self.positions[:, j]] for j, r in enumerate(self.members)], axis=1)


@dataclass
class Matching:
    """All communicators of a job, and what was found on the way."""

    communicators: list[Communicator]
    notes: list[Note] = field(default_factory=list)
    unmatched: int = 0  # N x N kernels in no instance
    refused: tuple[int, ...] = ()  # job rank indices that belong to another run


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


def payload_groups(job: Job) -> list[Group]:
    """Group by the communicator hash of the payloads."""
    found: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for r in job.ranks:
        for i, comm in enumerate(r.comm):
            if comm is not None:
                found[comm][r.index].append(i)
    return [
        Group(comm, "payload", {r: np.array(p, np.int64) for r, p in sorted(found[comm].items())})
        for comm in sorted(found)
    ]


def match(job: Job, groups: Iterable[Group]) -> Matching:
    """Match the operations of each group across its members.

    Parameters
    ----------
    job : Job
    groups : iterable of Group
        Groups with a single captured member are left out (their kernels count as unmatched).

    Returns
    -------
    Matching
    """
    groups = [g for g in groups if len(g.positions) > 1]
    choices = [c for i, g in enumerate(groups) for c in _choices(job, i, g)]
    offsets, notes = settle(job, choices)
    communicators = []
    for i, group in enumerate(groups):
        made = _instances(job, group, [c for c in choices if c.group == i], offsets)
        if made is not None:
            communicators.append(made)
            notes += _divergence_notes(job, made)
    total = sum(r.row.size for r in job.ranks)
    used = sum(c.positions.size for c in communicators)
    return Matching(communicators, notes, unmatched=total - used)


def _sequence(rank: JobRank, positions: I64) -> tuple[I64, I64, I64]:
    return rank.token[positions], rank.start[positions], rank.end[positions]


def _reference(group: Group) -> int:
    """Member with the most operations: the others' windows lie in its window most often."""
    return max(group.positions, key=lambda r: (group.positions[r].size, -r))


def _choices(job: Job, index: int, group: Group) -> list[Choice]:
    ref = _reference(group)
    return [
        shifts_between(job, index, (ref, group.positions[ref]), (r, positions))
        for r, positions in group.positions.items()
        if r != ref
    ]


def shifts_between(job: Job, group: int, reference: tuple[int, I64], other: tuple[int, I64]) -> Choice:
    """Judge how a rank's sequence fits a reference rank's.

    Parameters
    ----------
    job : Job
    group : int
        Carried into the result.
    reference, other : (job rank index, positions in its N x N arrays)

    Returns
    -------
    Choice
        Some 64 shifts, ascending; none when no part of the sequences fits.
    """
    (ref, base), (r, positions) = reference, other
    a, b = _sequence(job.ranks[ref], base), _sequence(job.ranks[r], positions)
    na, nb = a[0].size, b[0].size
    least = (min(na, nb) + 1) // 2
    shift, score, offset = shift_scores(*a, *b, least - nb, na - least)
    # A lost event displaces all that follows, so that no shift fits the whole; pieces still fit.
    more = _pieces(a, b)
    shift, score, offset = (np.concatenate(pair) for pair in zip((shift, score, offset), more, strict=True))
    order = np.lexsort((score, shift))  # of the same shift, the best only
    order = order[np.unique(shift[order], return_index=True)[1]]
    shift, score, offset = shift[order], score[order], offset[order]
    x, y = job.ranks[ref].step_number[base], job.ranks[r].step_number[positions]
    # The best, and whatever the session clocks or the step numbers speak for.
    best = np.argsort(score, kind="stable")[:48]
    near = np.argsort(np.abs(offset), kind="stable")[:16]
    keep = np.unique(np.concatenate([best, near, np.flatnonzero(np.isin(shift, _anchor_shifts(x, y)))]))
    shift, score, offset = shift[keep], score[keep], offset[keep]
    return Choice(group, ref, r, shift, score, offset, np.array([_anchor(x, y, int(k)) for k in shift]))


def _pieces(
    a: tuple[I64, I64, I64], b: tuple[I64, I64, I64]
) -> tuple[I64, NDArray[np.float64], NDArray[np.float64]]:
    """Shifts under which a piece of `b` fits: when an event is lost, no single shift fits the whole."""
    na, nb = a[0].size, b[0].size
    size = max(4, min(64, nb // 4))
    found = []
    for at in sorted({0, (nb - size) // 2, nb - size}):
        if at < 0:
            continue
        token, start, end = (x[at : at + size] for x in b)
        shift, score, offset = shift_scores(*a, token, start, end, 0, na - size)
        found.append((shift - at, score, offset))
    if not found:
        none = np.empty(0)
        return np.empty(0, np.int64), none, none
    return tuple(np.concatenate(x) for x in zip(*found, strict=True))  # type: ignore[return-value]


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
    node = job.node_of
    parent = list(range(len(job.nodes)))
    potential = [0.0] * len(job.nodes)  # clock of the node less clock of its set's root

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
        out[c.group, c.rank] = nearest(c, 0.0)
    # Many operations and a clear winner say most.
    cross = sorted(
        (c for c in todo if node[c.rank] != node[c.reference]), key=lambda c: (-_clarity(c), c.group, c.rank)
    )
    for c in cross:
        p, q = int(node[c.reference]), int(node[c.rank])
        if root(p) == root(q):
            known = potential[q] - potential[p]
            out[c.group, c.rank] = nearest(c, known)
            continue
        offset, clear = _prior(c)
        if not clear:
            a, b = job.ranks[c.reference].identity, job.ranks[c.rank].identity
            notes.append(
                Note(
                    "ambiguous_shift",
                    f"the steps are so regular that {a.node} and {b.node} fit together in several ways; the "
                    "session clocks chose one (numbered NVTX step ranges would settle it)",
                    (b.rank,),
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


def nearest(c: Choice, known: float) -> float:
    """Offset of the candidate that agrees best with a known clock offset, among those not absurd."""
    ok = c.score <= 5 * c.score.min() + 1_000_000
    offsets = c.offset[ok]
    return float(offsets[np.argmin(np.abs(offsets - known))])


def _prior(c: Choice) -> tuple[float, bool]:
    """Offset of the best shift; ties are settled by the session clocks, and said when these are too coarse."""
    ok = _plausible(c)
    offsets = c.offset[ok]
    by_clock = np.sort(np.abs(offsets))
    chosen = float(offsets[np.argmin(np.abs(offsets))])
    return chosen, bool(by_clock.size == 1 or by_clock[1] > 1.5 * by_clock[0] + 1_000_000)


def _instances(
    job: Job, group: Group, choices: list[Choice], offsets: dict[tuple[int, int], float]
) -> Communicator | None:
    """Line all members up with the reference; keep the instances that all of them have."""
    if not choices:
        return None
    ref = choices[0].reference
    base = group.positions[ref]
    a = _sequence(job.ranks[ref], base)
    members = sorted(group.positions)
    place = np.full((base.size, len(members)), -1, np.int64)  # position of each member in each instance
    placed_from = np.zeros(len(members), np.int64)
    place[:, members.index(ref)] = base
    sizes = np.array([group.positions[r].size for r in members])
    for c in choices:
        if (c.group, c.rank) not in offsets:
            return None
        positions = group.positions[c.rank]
        b = _sequence(job.ranks[c.rank], positions)
        partner = _partners(a, b, c, offsets[c.group, c.rank])
        j = members.index(c.rank)
        hit = partner >= 0
        place[partner[hit], j] = positions[hit]
        placed_from[j] = hit.sum()
    full = (place >= 0).all(axis=1)
    if not full.any():
        return None
    at = np.flatnonzero(full)
    inside = slice(at[0], at[-1] + 1)
    complete = place[full]
    lost = np.zeros(len(members), np.int64)
    for j, r in enumerate(members):
        own = np.searchsorted(group.positions[r], [complete[0, j], complete[-1, j]])
        lost[j] = own[1] - own[0] + 1 - complete.shape[0]
    divergence, minority = _divergence(place[inside], complete, members, group)
    return Communicator(
        id=group.id,
        source=group.source,
        members=np.array(members, np.int64),
        positions=complete,
        trimmed=sizes - complete.shape[0] - lost,
        lost=lost,
        first_divergence=divergence,
        minority=minority,
    )


def _partners(a: tuple[I64, I64, I64], b: tuple[I64, I64, I64], c: Choice, offset: float) -> I64:
    """For each operation of `b` the matching one of `a`, or -1."""
    shift = int(c.shift[np.argmin(np.abs(c.offset - offset))])
    first, last = max(0, -shift), min(b[0].size, a[0].size - shift)
    j = np.arange(first, last)
    d = b[2][j] - a[2][j + shift]
    gap = _gap_cost(a[2], d)
    partner = np.full(b[0].size, -1, np.int64)
    if np.array_equal(a[0][j + shift], b[0][j]) and not _event_lost(np.asarray(d - offset, np.float64), gap):
        partner[j] = j + shift
        return partner
    moved = b[2] - np.int64(round(offset))
    by_time: I64 = align_in_time(a[0], a[2], b[0], moved, gap, 16)
    return by_time


def _event_lost(off: NDArray[np.float64], gap: float) -> bool:
    """Whether end differences leave the offset and stay away: a lost event displaces all that follow it.

    Single collectives that end far apart (a preempted GPU) come back at once and do not count.
    """
    if off.size < 6:
        return False
    _, size = best_step(off, 3)
    if abs(size) > gap:
        return True
    width = 7  # a loss made good by a loss on the other side displaces a stretch only
    if off.size < 2 * width:
        return False
    rolling = np.median(np.lib.stride_tricks.sliding_window_view(off, width), axis=1)
    displaced = np.abs(rolling) > gap
    return bool(np.lib.stride_tricks.sliding_window_view(displaced, width).all(axis=1).any())


def _gap_cost(end: I64, d: I64) -> float:
    """How far apart two ends may be and still rather be one instance than two lost ones.

    Half of the usual distance of operations, but not less than the ends scatter from one operation to the
    next (differences of neighbours, so that the jump at a lost event does not count as scatter).
    """
    if end.size < 2 or d.size < 2:
        return 1e9
    scatter = float(np.median(np.abs(np.diff(d))))
    return max(100_000.0, 0.5 * float(np.median(np.diff(end))), 6.0 * scatter)


def _divergence(
    place: I64, complete: I64, members: list[int], group: Group
) -> tuple[int | None, tuple[int, ...]]:
    """Where inside the common window the members' sequences first part, and who is in the minority."""
    gaps = np.flatnonzero((place < 0).any(axis=1))
    extra = []
    for j, r in enumerate(members):
        own = np.searchsorted(group.positions[r], complete[:, j])
        jump = np.flatnonzero(np.diff(own) > 1)
        if jump.size:
            extra.append((int(jump[0]) + 1, r))
    if not gaps.size and not extra:
        return None, ()
    if gaps.size:
        at = int(gaps[0])
        without = [r for j, r in enumerate(members) if place[at, j] < 0]
        with_it = [r for r in members if r not in without]
        return at, tuple(without if len(without) <= len(with_it) else with_it)
    at = min(x for x, _ in extra)
    return at, tuple(r for x, r in extra if x == at)


def _divergence_notes(job: Job, c: Communicator) -> list[Note]:
    if c.first_divergence is None:
        return []
    who = [job.ranks[r].identity for r in c.minority]
    names = ", ".join(i.label for i in who)
    return [
        Note(
            "counts_differ",
            f"communicator {c.id} ({c.members.size} ranks): the sequences part at operation {c.first_divergence}; "
            f"rank {names} differs from the rest (lost events, or the ranks issued other collectives)",
            tuple(i.rank for i in who),
        )
    ]


def other_runs(job: Job) -> tuple[int, ...]:
    """Ranks whose capture belongs to another run: their window is minutes away from the others'.

    Ranks that share a communicator hash are of one run, whatever their clocks say.

    Returns
    -------
    tuple of int
        Job rank indices outside the largest set.
    """
    known = [r for r in job.ranks if r.digest.info.session_start_utc_ns is not None]
    if len(known) < len(job.ranks):
        return ()
    parent = {r.index: r.index for r in known}

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    by_start = sorted(known, key=lambda r: span(r)[0])
    reach = by_start[0] if by_start else None
    for r in by_start[1:]:
        if reach is not None and span(r)[0] - span(reach)[1] <= _OTHER_RUN_NS:
            parent[root(r.index)] = root(reach.index)
        if reach is None or span(r)[1] > span(reach)[1]:
            reach = r
    seen: dict[str, int] = {}
    for r in known:
        for comm in set(r.comm) - {None}:
            first = seen.setdefault(str(comm), r.index)
            parent[root(r.index)] = root(first)
    sets: dict[int, list[int]] = defaultdict(list)
    for r in known:
        sets[root(r.index)].append(r.index)
    if len(sets) < 2:
        return ()
    largest = max(sets.values(), key=lambda s: (len(s), -min(s)))
    return tuple(sorted(i for s in sets.values() if s is not largest for i in s))
