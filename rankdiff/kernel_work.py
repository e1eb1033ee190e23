"""More work, or the same work done slower: kernel signatures of late ranks against their peers'."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from rankdiff.digest import Digest
from rankdiff.units import duration, share

# A digest, the steps of it to look at (None: all of it), and how many steps that is.
Part = tuple[Digest, frozenset[int] | None, int]

_SLOWER = 1.03  # duration ratio at equal grid and block that is no scatter
_MOST_TIME = 0.80  # share of kernel time that must be slower to call the device slow


@dataclass(frozen=True)
class KernelWork:
    """Kernels of late ranks against their peers'.

    Attributes
    ----------
    slower : bool
        The same launches take longer (``gpu_slow``); else more launches or larger grids (``gpu_work``).
    ratio : float or None
        Duration ratio of equal signatures, weighted by time; None when none is equal.
    top : list of dict
        The kernels that hold most of the excess: name, grid, block, count and ns a step here and there.
    words : tuple of str
        Evidence lines.
    more_ns : float
        Kernel time a step beyond the peers'.
    """

    slower: bool
    ratio: float | None
    top: list[dict[str, Any]]
    words: tuple[str, ...]
    more_ns: float


def compare_kernels(own: Sequence[Part], peers: Sequence[Part]) -> KernelWork | None:
    """Compare kernel signatures (name, grid, block) per step.

    Parameters
    ----------
    own, peers : sequences of (Digest, steps, count)
        The steps to look at, as step ordinals of that rank (None: the whole capture), and their number.

    Returns
    -------
    KernelWork or None
        None when one side has no kernels.
    """
    here, there = _per_step(own), _per_step(peers)
    if not here.height or not there.height:
        return None
    both = here.join(
        there, on=["kernel", "grid", "block"], how="full", coalesce=True, suffix="_peers"
    ).with_columns(pl.col("count", "ns", "count_peers", "ns_peers").fill_null(0.0))
    common = both.filter((pl.col("count") > 0) & (pl.col("count_peers") > 0)).with_columns(
        ratio=(pl.col("ns") / pl.col("count")) / (pl.col("ns_peers") / pl.col("count_peers"))
    )
    total = float(here["ns"].sum())
    equal = common.filter((pl.col("count") - pl.col("count_peers")).abs() <= 0.01 * pl.col("count_peers"))
    slow_time = float(equal.filter(pl.col("ratio") > _SLOWER)["ns"].sum())
    # Excess by longer kernels, and by more of them.
    apart = pl.col("ns") / pl.col("count") - pl.col("ns_peers") / pl.col("count_peers")
    longer = float(common.select((pl.min_horizontal("count", "count_peers") * apart).sum()).item())
    more = float(both["ns"].sum()) - float(both["ns_peers"].sum()) - longer
    slower = total > 0 and slow_time >= _MOST_TIME * total and longer > more
    usual = float(equal["ns_peers"].sum())
    ratio = round(float(equal["ns"].sum()) / usual, 4) if usual > 0 else None
    ranked = both.with_columns(excess=pl.col("ns") - pl.col("ns_peers")).sort(
        ["excess", "kernel", "grid", "block"], descending=[True, False, False, False]
    )
    top = [
        {
            "kernel": row["kernel"],
            "grid": row["grid"],
            "block": row["block"],
            "count_per_step": round(row["count"], 2),
            "peers_count_per_step": round(row["count_peers"], 2),
            "ns_per_step": round(row["ns"]),
            "peers_ns_per_step": round(row["ns_peers"]),
        }
        for row in ranked.head(5).iter_rows(named=True)
        if row["excess"] > 0
    ]
    swaps = {(t["kernel"], t["grid"]): _other_grid(both, t) for t in top}
    words = _words(slower, ratio, top, swaps, slow_time / total if total else 0.0)
    return KernelWork(slower, ratio, top, words, longer + more)


def _blocks(grid: str) -> int:
    """Blocks of a grid written as 128x1x1; 0 when it is not known."""
    sides = grid.split("x")
    return math.prod(map(int, sides)) if all(side.isdigit() for side in sides) else 0


def _other_grid(both: pl.DataFrame, t: dict[str, Any]) -> tuple[str, float] | None:
    """Grid, and ns a step, with which the peers launch a kernel as often; None: that is not the difference."""
    if t["peers_count_per_step"] > 0 or not _blocks(t["grid"]):
        return None
    alike = both.filter(
        (pl.col("kernel") == t["kernel"])
        & (pl.col("block") == t["block"])
        & (pl.col("count") == 0)
        & ((pl.col("count_peers") - t["count_per_step"]).abs() <= 0.01 * t["count_per_step"])
    )
    known = [(g, ns) for g, ns in alike.select("grid", "ns_peers").iter_rows() if _blocks(g)]
    return known[0] if len(known) == 1 else None


def _words(
    slower: bool,
    ratio: float | None,
    top: list[dict[str, Any]],
    swaps: dict[tuple[str, str], tuple[str, float] | None],
    slow_share: float,
) -> tuple[str, ...]:
    if slower:
        return (
            f"the same kernels with the same grids take {ratio:.2f} times as long ({share(slow_share)} of the kernel time "
            "is slower): clocks, temperature or a neighbour on the GPU; without GPU metrics this cannot be proven",
        )
    words = []
    for t in top[:2]:
        extra = t["count_per_step"] - t["peers_count_per_step"]
        cost = duration(t["ns_per_step"] - t["peers_ns_per_step"])
        name = f"{t['kernel'][:60]} (grid {t['grid']})"
        swap = swaps[t["kernel"], t["grid"]]
        if swap is not None:
            times, more = _blocks(t["grid"]) / _blocks(swap[0]), duration(t["ns_per_step"] - swap[1])
            words.append(
                f"{t['kernel'][:60]}: grid {t['grid']} here, {swap[0]} elsewhere (x{times:.2g}), {more} more a step"
            )
        elif t["peers_count_per_step"] == 0:
            words.append(f"{name}: {t['count_per_step']:.4g} a step here and none elsewhere, {cost} a step")
        elif extra >= 0.5:
            words.append(f"{name}: {extra:.3g} more a step than elsewhere, {cost} a step")
    return tuple(words) if words else ("more kernel time than the other ranks, spread over many kernels",)


def _per_step(digests: Sequence[Part]) -> pl.DataFrame:
    """Count and time per step of every signature: median over the digests, absent ones counting as 0."""
    parts = []
    for n, (d, wanted, steps) in enumerate(digests):
        used = d.signatures
        if wanted is not None:
            used = used.filter(pl.col("step").is_in(sorted(wanted)))
        parts.append(
            used.with_columns(pl.col("grid", "block").fill_null("unknown"))
            .group_by("kernel", "grid", "block")
            .agg(count=pl.col("count").sum() / steps, ns=pl.col("ns").sum() / steps)
            .with_columns(digest=pl.lit(n))
        )
    if not parts:
        names = {"kernel": pl.String, "grid": pl.String, "block": pl.String}
        return pl.DataFrame(schema=names | {"count": pl.Float64, "ns": pl.Float64})
    every = pl.concat(parts)
    size = len(parts)

    def middle(column: str) -> pl.Expr:
        padded = pl.concat([pl.col(column), pl.repeat(0.0, size - pl.len())])
        return padded.median().alias(column)

    return (
        every.group_by("kernel", "grid", "block")
        .agg(middle("count"), middle("ns"))
        .sort("kernel", "grid", "block")
    )
