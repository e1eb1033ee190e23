"""A comparison to a side of a difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rankdiff.comparison import Comparison
from rankdiff.court import Island
from rankdiff.differences.side import (
    BEFORE_COLLECTIVES,
    KERNELS,
    NO_STEPS,
    NOT_ASSESSED,
    NOT_CAPTURED,
    REPORTS,
    Member,
    Side,
    aligned,
)
from rankdiff.excess import dense, has_lead_up
from rankdiff.idle import idle_by_cause
from rankdiff.instances import Timed, seats
from rankdiff.makeup import PARTS
from rankdiff.schema import CLASSES, check

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

_AT_ONCE = 32  # ranks whose kernels are held before they are summed: those of a thousand do not fit


def measure(c: Comparison, name: str, notes: Sequence[str] = ()) -> Side:
    """Take from a comparison what a difference is made of.

    Parameters
    ----------
    c : Comparison
    name : str
        What the side is called, without folders.
    notes : sequence of str
        Reports that were left out of the comparison, a line each.

    Returns
    -------
    Side
    """
    main = max(c.islands, key=lambda i: int(i.included.sum()), default=None)
    delay = {
        c.job.ranks[r].identity.rank: island.delta[n, island.included]
        for island in c.islands
        for n, r in enumerate(island.ranks)
        if c.figures[c.job.ranks[r].identity.rank].delay_ns is not None
    }
    why: dict[str, str] = {}
    wait = None
    if c.verdict.wait_ns_per_step is not None:
        wait = aligned([(i.delta[:, i.included].sum(axis=0), 1) for i in c.islands])
    else:
        why["wait"] = NOT_ASSESSED
    by_rank = before_by_rank(c)
    before = _mean_over(by_rank, c)
    for what, series in (("before", before), ("before_by_rank", by_rank)):
        if not series:
            why[what] = NOT_CAPTURED
    if not delay:
        why["delay"] = NOT_ASSESSED
    kernels = _kernels(c)
    if kernels is None:
        why["kernels"] = NO_STEPS
    parts = parts_of_steps(c)
    if parts is None:
        why["parts"] = NOT_ASSESSED
    operations, carried = traffic(c)
    ends = [t for island in c.islands for t in island.steps.last_end]
    return Side(
        name=name,
        source=REPORTS,
        status=c.verdict.status,
        reason=c.verdict.reason,
        message=c.verdict.message,
        findings=c.verdict.findings,
        members=tuple(
            Member(i.rank, i.label, i.node, d.info.gpu_uuid, d.info.gpu_name, d.info.claims.session_uuid)
            for i, d in zip(c.identities, c.digests, strict=True)
        ),
        missing=c.missing,
        step_source=main.steps.source if main else None,
        step_count=int(main.included.sum()) if main else 0,
        step_ns_median=main.step_ns if main and not np.isnan(main.step_ns) else None,
        window_ns=int(max(ends) - min(ends)) if ends else None,
        operations=operations,
        bytes_per_step=carried,
        uncertainty_ns=c.clock.uncertainty_ns or 0.0,
        step=main.steps.step_ns[_with_length(main)] if main else np.empty(0),
        wait=wait,
        parts=parts,
        before=before or None,
        delay=delay,
        before_by_rank=by_rank,
        kernels=kernels,
        why=why,
        notes=tuple(notes),
    )


def parts_of_steps(c: Comparison) -> dict[str, F64] | None:
    """Make-up of each step that is judged and has a length, mean over the ranks; None: there is no such step."""
    if not any(_with_length(i).any() for i in c.islands):
        return None
    found: dict[str, list[tuple[F64, int]]] = {p: [] for p in PARTS}
    for island, parts in zip(c.islands, c.step_parts, strict=True):
        for p in PARTS:
            found[p].append((parts[p][_with_length(island)].astype(np.float64), len(island.ranks)))
    return {p: aligned(x) for p, x in found.items()}


def before_by_rank(c: Comparison) -> dict[int, dict[str, F64]]:
    """Time before collectives by rank number and class in each step judged; classes not captured are left out."""
    out = {}
    for island in c.islands:
        placed = seats(island.timed)
        for r in island.ranks:
            if not has_lead_up(c.job, r):
                continue
            rank = c.job.ranks[r]
            hidden = {k for k, ns in idle_by_cause(rank.digest).items() if ns is None}
            sums = _per_step(dense(c.job, r), placed[r], island.steps.size)[island.included]
            out[rank.identity.rank] = {
                k: sums[:, CLASSES.index(k)] for k in BEFORE_COLLECTIVES if k not in hidden
            }
    return out


def _per_step(made: F64, placed: Sequence[tuple[Timed, int]], steps: int) -> F64:
    """(steps, classes) time before a rank's collectives, `made` a row each, in every step of an island."""
    out = np.zeros((steps, made.shape[1]))
    for t, j in placed:
        inside = t.step >= 0
        np.add.at(out, t.step[inside], made[t.comm.positions[inside, j]])
    return out


def _mean_over(by_rank: Mapping[int, Mapping[str, F64]], c: Comparison) -> dict[str, F64]:
    """Mean over the ranks by class, of the classes that every rank has; empty where a rank has none at all."""
    islands = [[c.job.ranks[r].identity.rank for r in i.ranks] for i in c.islands]
    everybody = [r for ranks in islands for r in ranks]
    if not everybody or any(r not in by_rank for r in everybody):
        return {}
    shared = [k for k in BEFORE_COLLECTIVES if all(k in by_rank[r] for r in everybody)]
    return {
        k: aligned([(np.sum([by_rank[r][k] for r in ranks], axis=0), len(ranks)) for ranks in islands])
        for k in shared
    }


def _with_length(island: Island) -> Mask:
    return np.asarray(island.included & ~np.isnan(island.steps.step_ns))


def traffic(c: Comparison) -> tuple[dict[str, float] | None, float | None]:
    """What a rank's N x N collectives of a step are.

    Returns
    -------
    operations : dict of str to float, or None
        Collectives by operation, mean over the ranks, median over the steps judged; None: nothing matched.
    bytes_per_step : float or None
        Their message bytes, mean over ranks and steps; None: not all are known.
    """
    counts: list[dict[str, F64]] = []
    carried: float | None = 0.0
    rank_steps = 0
    for island in c.islands:
        found: dict[str, F64] = {}
        rank_steps += int(island.included.sum()) * len(island.ranks)
        for t in island.timed:
            # Matched collectives are of one operation and size on all members.
            first = c.job.ranks[int(t.comm.members[0])]
            rows = first.digest.collectives.select("op", "bytes")[first.row[t.comm.positions[:, 0]]]
            inside = t.step >= 0
            for op in rows["op"].unique().to_list():
                mine = inside & (rows["op"] == op).to_numpy()
                sums = found.setdefault(op, np.zeros(island.steps.size))
                np.add.at(sums, t.step[mine], t.comm.members.size)
            judged = rows["bytes"].filter(pl.Series(inside & island.included[t.step], dtype=pl.Boolean))
            if judged.null_count():
                carried = None
            elif carried is not None:
                carried += float(judged.sum()) * t.comm.members.size
        counts.append({op: x[island.included] for op, x in found.items()})
    if not rank_steps:
        return None, None
    medians = {}
    for op in sorted({op for found in counts for op in found}):
        parts = [
            (found.get(op, np.zeros(int(i.included.sum()))), len(i.ranks))
            for i, found in zip(c.islands, counts, strict=True)
        ]
        medians[op] = float(np.median(aligned(parts)))
    return {op: n for op, n in medians.items() if n}, None if carried is None else carried / rank_steps


def _kernels(c: Comparison) -> pl.DataFrame | None:
    """Kernels of all ranks by step and signature; None: the kernels of a rank are in no step ranges."""
    tables: list[pl.DataFrame] = []
    for island in c.islands:
        place = np.cumsum(island.included) - 1  # of an island step among those judged
        placed = seats(island.timed)
        for r in island.ranks:
            steps = _steps_of_ranges(c.job.ranks[r].step, placed[r])
            if steps.is_empty():
                return None
            judged = steps.filter(pl.Series(island.included[steps["at"].to_numpy()], dtype=pl.Boolean))
            judged = judged.with_columns(at=pl.Series(place[judged["at"].to_numpy()], dtype=pl.Int64))
            found = c.job.ranks[r].digest.signatures.join(judged, on="step", how="inner")
            tables.append(found.select(pl.col("at").alias("step"), *KERNELS.names()[1:]))
            if len(tables) >= _AT_ONCE:
                tables = [_summed(tables)]
    return _summed(tables) if tables else None


def _summed(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Kernels of several ranks together."""
    by = KERNELS.names()[:4]
    summed = pl.concat(tables).group_by(by).agg(pl.col("count").sum(), pl.col("ns").sum())
    return check(summed.sort(by, nulls_last=False), KERNELS, "kernels of a side")


def _steps_of_ranges(step: I64, placed: Sequence[tuple[Timed, int]]) -> pl.DataFrame:
    """Island step (`at`) of each step range of a rank (`step`), by the collectives launched in it.

    Parameters
    ----------
    step : (k,) int64
        Step range of each collective of the rank, -1: none.
    placed : sequence of (Timed, int)
        Its communicators, and its column in each.
    """
    ranges, places = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for t, j in placed:
        own = step[t.comm.positions[:, j]]
        known = (own >= 0) & (t.step >= 0)
        ranges.append(own[known])
        places.append(t.step[known])
    frame = pl.DataFrame({"step": np.concatenate(ranges), "at": np.concatenate(places)})
    return frame.unique("step", keep="first", maintain_order=True)
