"""Time before collectives beyond that of the peers, class by class."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rankdiff.instances import Timed
from rankdiff.job import Job
from rankdiff.schema import CLASSES

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Scene:
    """What a finding is explained from.

    Attributes
    ----------
    ranks : tuple of int
        Job rank indices of the island.
    timed : tuple of Timed
        Its communicators.
    steps : (k,) int64
        Island step of each included step.
    delta : (n, k) float64, ns
        Delay shares over the included steps, rows as `ranks`.
    """

    ranks: tuple[int, ...]
    timed: tuple[Timed, ...]
    steps: I64
    delta: F64


_MOST_PEERS = 64


@dataclass(frozen=True)
class Sides:
    """The ranks of a finding, those to compare them with, and the steps that count."""

    own: tuple[int, ...]  # job rank indices of the finding
    peers: tuple[int, ...]  # to compare with
    late: I64  # island steps


def own_steps(job: Job, scene: Scene, rank: int, late: I64) -> frozenset[int] | None:
    """Step ordinals of a rank (as its digest counts them) that are these island steps; None: it has no steps."""
    found: set[int] = set()
    for t in scene.timed:
        for j in np.flatnonzero(t.comm.members == rank):
            steps = job.ranks[rank].step[t.comm.positions[np.isin(t.step, late), j]]
            found.update(int(s) for s in np.unique(steps) if s >= 0)
    return frozenset(found) or None


def dense(job: Job, rank: int) -> F64:
    """Make-up of the time before each N x N collective of a rank.

    Returns
    -------
    (k, c) float64, ns
        Rows as the rank's N x N arrays, columns as `CLASSES`.
    """
    r = job.ranks[rank]
    out = np.zeros((r.kind.size, len(CLASSES)))
    position = np.full(r.height, -1, np.int64)
    position[r.row] = np.arange(r.kind.size)
    table = _lead_up(job, rank)
    at = position[table["collective"].to_numpy()]
    code = {c: n for n, c in enumerate(CLASSES)}
    column = table["class"].replace_strict(code, return_dtype=pl.Int64).to_numpy()
    keep = at >= 0
    np.add.at(out, (at[keep], column[keep]), table["ns"].to_numpy()[keep].astype(np.float64))
    return out


def excess_of(job: Job, scene: Scene, sides: Sides) -> F64 | None:
    """Time per class beyond the median of the peers at the same instance, summed over the late steps.

    A rank of the finding that meets no peer in one of its communicators, as when its whole tensor-parallel group
    is accused, is compared with the peers' steps as a whole: what made it late may lie before just those collectives.
    """
    made = {r: dense(job, r) for r in (*sides.own, *sides.peers) if has_lead_up(job, r)}
    if not any(p in made for p in sides.peers):
        return None
    out = np.zeros(len(CLASSES))
    seen = False
    lonely = _lonely(scene, sides, frozenset(made))
    for t in scene.timed:
        keep = np.isin(t.step, sides.late)
        with_us = [j for j, r in enumerate(t.comm.members) if int(r) in sides.own and int(r) not in lonely]
        if not keep.any() or not with_us:
            continue
        seen = True
        usual = np.median(
            np.stack(
                [made[int(t.comm.members[j])][t.comm.positions[keep, j]] for j in _peers(t, sides, made)]
            ),
            axis=0,
        )
        for j in with_us:
            out += (made[int(t.comm.members[j])][t.comm.positions[keep, j]] - usual).sum(axis=0)
    if lonely:
        seen = True
        usual_step = np.median(
            np.stack([_per_step(scene, made[p], p, sides.late) for p in sides.peers if p in made]), axis=0
        )
        for r in sorted(lonely):
            out += (_per_step(scene, made[r], r, sides.late) - usual_step).sum(axis=0)
    return out if seen else None


def _peers(t: Timed, sides: Sides, made: Collection[int]) -> list[int]:
    """Columns of a communicator's members to compare with."""
    return [j for j, r in enumerate(t.comm.members) if int(r) in sides.peers and int(r) in made]


def _lonely(scene: Scene, sides: Sides, made: Collection[int]) -> frozenset[int]:
    """Ranks of the finding with a communicator in which, in the late steps, none of its members can be compared with."""
    return frozenset(
        int(r)
        for t in scene.timed
        if np.isin(t.step, sides.late).any() and not _peers(t, sides, made)
        for r in t.comm.members
        if int(r) in sides.own
    )


def _per_step(scene: Scene, made: F64, rank: int, late: I64) -> F64:
    """(steps, classes) time before a rank's collectives, summed per late step."""
    out = np.zeros((late.size, made.shape[1]))
    for t in scene.timed:
        for j in np.flatnonzero(t.comm.members == rank):
            place = np.searchsorted(late, t.step)
            hit = (place < late.size) & (late[np.minimum(place, late.size - 1)] == t.step)
            np.add.at(out, place[hit], made[t.comm.positions[hit, j]])
    return out


def rows_of(job: Job, scene: Scene, rank: int, late: I64) -> pl.DataFrame:
    """The pieces of a rank's time before its collectives of the late steps."""
    r = job.ranks[rank]
    mine = [
        r.row[t.comm.positions[np.isin(t.step, late), j]]
        for t in scene.timed
        for j in np.flatnonzero(t.comm.members == rank)
    ]
    wanted = pl.Series("collective", np.concatenate(mine) if mine else np.empty(0, np.int64), dtype=pl.Int64)
    return r.digest.lead_up.join(wanted.to_frame(), on="collective", how="semi")


def has_lead_up(job: Job, rank: int) -> bool:
    """Whether the digest of a rank says what its time before collectives was made of."""
    return _lead_up(job, rank).height > 0


def _lead_up(job: Job, rank: int) -> pl.DataFrame:
    """What is summed of a rank's LEAD_UP; the same columns everywhere, so that they are read once."""
    return job.ranks[rank].digest.columns("lead_up", "collective", "class", "ns")


def enough_peers(scene: Scene, own: Sequence[int], peers: Sequence[int]) -> tuple[int, ...]:
    """Peers whose median tells what is usual as well as that of all of them.

    Up to 64 of each communicator of the finding's ranks, and of all, evenly spread over the numbers and so over the nodes:
    the error of their median is a sixth of the scatter between ranks (1.25 sigma / sqrt(n) for a normal one). More would
    only take reading: a thousand ranks' make-up does not fit into memory.
    """
    if len(peers) <= _MOST_PEERS:
        return tuple(peers)
    allowed = set(peers)
    kept = set(_spread(sorted(allowed)))
    for t in scene.timed:
        members = [int(r) for r in t.comm.members]
        if not set(own).isdisjoint(members):
            kept.update(_spread([r for r in members if r in allowed]))
    return tuple(r for r in peers if r in kept)


def _spread(ranks: Sequence[int]) -> list[int]:
    if len(ranks) <= _MOST_PEERS:
        return list(ranks)
    return [ranks[n * len(ranks) // _MOST_PEERS] for n in range(_MOST_PEERS)]
