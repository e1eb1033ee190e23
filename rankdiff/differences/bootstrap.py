"""How far a mean over steps could have come out otherwise: block bootstrap of two captures, many rows at once.

Steps of one job are alike their neighbours (a slow disk stays slow for a while), so neighbouring steps are drawn
together in blocks (circular block bootstrap, Politis and Romano 1992). Rows of one family share the draws, and their
intervals hold all together: each is as wide as the largest deviation of any row of the family demands (max-T).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

FEWEST_STEPS = 8  # on each side: with fewer, no interval is given
DRAWS = 2_000
_SEED = 20_260_102
# More steps than this are averaged in neighbouring batches: the means stay, and the batches hold most of what
# neighbouring steps have in common.
_MOST_BATCHES = 500


@dataclass(frozen=True)
class Estimate:
    """Means over the steps of both sides and what their difference is worth; in the unit of the series."""

    before: float
    after: float
    low: float  # interval of after - before
    high: float

    @property
    def change(self) -> float:
        """After less before."""
        return self.after - self.before


@dataclass(frozen=True)
class Blocks:
    """How a series is cut for drawing.

    Attributes
    ----------
    length : int
        Steps that are drawn together.
    factor : float
        What blocks of that length make too little of the scatter of the mean, where each step follows the one before.
    """

    length: int
    factor: float


def blocks_for(x: F64) -> Blocks:
    """Block length by Carlstein's rule for a series in which each step follows the one before (AR(1)).

    Parameters
    ----------
    x : (k,) float64
        The series whose likeness of neighbours counts.

    Returns
    -------
    Blocks
        Length (6 r^2 / (1 - r^2)^2)^(1/3) k^(1/3) for the correlation r of neighbours, at least k^(1/3) (r is not
        known well) and at most k / 4; 1 where there are too few steps to tell r.
    """
    k = x.size
    if k < 5:
        return Blocks(1, 1.0)
    y = x - x.mean()
    power = float(y @ y)
    seen = float(y[1:] @ y[:-1]) / power if power > 0 else 0.0
    r = min(
        0.95, max(0.0, seen + (1.0 + 3.0 * seen) / k)
    )  # what k steps show is too small by that (Kendall 1954)
    wanted = (6.0 * r * r / (1.0 - r * r) ** 2 * k) ** (1.0 / 3.0)
    length = int(max(1, min(np.ceil(max(wanted, k ** (1.0 / 3.0))), k // 4)))
    held = 1.0 - 2.0 * r * (1.0 - r**length) / (length * (1.0 - r * r))
    return Blocks(length, float(held**-0.5))


def estimates(before: Sequence[F64], after: Sequence[F64], error: float) -> list[Estimate | None]:
    """Compare the means of one family of rows.

    Parameters
    ----------
    before, after : sequences of (k,) float64, equally long
        A row's value in every step of each side. The lengths may differ.
    error : float
        Chance that any row of the family shows a difference that is not there.

    Returns
    -------
    list of (Estimate or None)
        None where a side has fewer than `FEWEST_STEPS` steps.
    """
    usable = [
        n for n, (b, a) in enumerate(zip(before, after, strict=True)) if min(b.size, a.size) >= FEWEST_STEPS
    ]
    out: list[Estimate | None] = [None] * len(before)
    if not usable:
        return out
    old, old_blocks = _deviations([before[n] for n in usable], _SEED)
    new, new_blocks = _deviations([after[n] for n in usable], _SEED + 1)
    apart = new - old
    scale = apart.std(axis=0)
    moving = scale > 0
    reach = 0.0
    if moving.any():
        largest = np.abs(apart[:, moving] / scale[moving]).max(axis=1)
        reach = _as_student(float(np.quantile(largest, 1.0 - error)), old_blocks + new_blocks - 2.0)
    for n, s in zip(usable, scale, strict=True):
        b, a = float(before[n].mean()), float(after[n].mean())
        out[n] = Estimate(b, a, a - b - reach * float(s), a - b + reach * float(s))
    return out


def _deviations(rows: Sequence[F64], seed: int) -> tuple[F64, float]:
    """Draws of each row's mean less the mean, and the fewest blocks that any row was cut into.

    Rows of one length are drawn alike.

    Returns
    -------
    (DRAWS, n) float64, float
    """
    out = np.empty((DRAWS, len(rows)))
    fewest = np.inf
    for k in sorted({r.size for r in rows}):
        at = [n for n, r in enumerate(rows) if r.size == k]
        x = _batches(np.stack([rows[n] for n in at], axis=1))
        cut = max((blocks_for(x[:, j]) for j in _telling(x)), key=lambda c: (c.length, c.factor))
        blocks = x.shape[0] / cut.length
        fewest = min(fewest, blocks)
        drawn = _block_weights(x.shape[0], cut.length, seed) @ (x - x.mean(axis=0))
        # The mean of few blocks scatters about itself less than about the truth.
        out[:, at] = drawn * cut.factor * np.sqrt(blocks / max(blocks - 1.0, 1.0))
    return out, float(fewest)


def _telling(x: F64) -> list[int]:
    """Columns to take the block length from: the few that vary most, where a family has many rows."""
    return [int(j) for j in np.argsort(-x.std(axis=0), kind="stable")[:4]]


def _batches(x: F64) -> F64:
    """(k, n) to at most (_MOST_BATCHES, n): means of neighbouring steps; the first few that fill no batch are left out."""
    size = -(-x.shape[0] // _MOST_BATCHES)
    kept = x[x.shape[0] % size :]
    return np.asarray(kept.reshape(-1, size, x.shape[1]).mean(axis=1))


def _block_weights(k: int, length: int, seed: int) -> F64:
    """How often each step is drawn, divided by the steps drawn.

    Returns
    -------
    (DRAWS, k) float64
    """
    blocks = -(-k // length)
    first = np.random.default_rng(seed).integers(0, k, (DRAWS, blocks))
    steps = ((first[:, :, None] + np.arange(length)) % k).reshape(DRAWS, -1)[:, :k]
    flat = steps + np.arange(0, DRAWS * k, k)[:, None]
    return np.bincount(flat.ravel(), minlength=DRAWS * k).reshape(DRAWS, k) / k


def _as_student(z: float, freedom: float) -> float:
    """Widen a normal quantile to Student's for few blocks (Cornish-Fisher, Abramowitz and Stegun 26.7.5)."""
    v = max(freedom, 2.0)
    z = min(z, NormalDist().inv_cdf(1.0 - 1e-9))
    return z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
