"""Who is late beyond chance: step-down permutation tests over ranks or nodes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rankdiff.kernels.permutation import many_sum_exceedances, max_sum_exceedances

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

DRAWS = 2_000
ALPHA = 0.01  # chance that a job without a late rank gets one flagged
_SEED = 20_260_101
# Enough exceedances to know that p is far above alpha, and roughly how far.
_STOP = 200
# Of more units than this, so many of the largest values of each step are drawn first: they decide most draws.
_MANY_UNITS = 64
_LARGEST = 16
# More units than this are summed in neighbouring blocks: the sums, which are what is tested, stay the same.
_MOST_BLOCKS = 200
# Weights of bootstrap draws held at once.
_MOST_WEIGHTS = 1 << 21


def p_value(delta: F64, unit: int, among: Mask) -> float:
    """Permutation p-value of one unit's sum against the largest sum of any unit.

    Parameters
    ----------
    delta : (n, k) float64, ns
        Delay share of every unit in every step.
    unit : int
    among : (n,) bool
        The units that are exchangeable with it under the null hypothesis (itself included).

    Returns
    -------
    float
        (reached + 1) / (draws + 1); 1.0 when there is nobody to exchange with.
    """
    if among.sum() < 2:
        return 1.0
    rows = np.ascontiguousarray(_blocks(delta[among]).T)
    observed = float(delta[unit].sum())
    if rows.shape[1] > _MANY_UNITS:
        ranked = np.ascontiguousarray(np.sort(rows, axis=1)[:, ::-1])
        reached, done = many_sum_exceedances(ranked, _LARGEST, observed, DRAWS, _SEED, _STOP)
    else:
        reached, done = max_sum_exceedances(rows, observed, DRAWS, _SEED, _STOP)
    return (reached + 1) / (done + 1)


def fewest_steps(units: int, alpha: float = ALPHA) -> int:
    """Steps below which no unit can be told from chance: n^(1 - K) must not exceed alpha."""
    return 1 + int(np.ceil(np.log(1 / alpha) / np.log(units))) if units > 1 else 0


def resampled_sums(x: F64) -> F64:
    """Sums over steps drawn with replacement (Efron 1979; seeded): what another run of the job might have had.

    All rows are drawn alike, so that sums of rows are draws as well.

    Parameters
    ----------
    x : (n, k) float64, k at least 1

    Returns
    -------
    (n, 2000) float64
    """
    k = x.shape[1]
    times = _times_drawn(k)
    out = np.empty((x.shape[0], DRAWS))
    chunk = max(1, _MOST_WEIGHTS // k)
    for a in range(0, DRAWS, chunk):
        out[:, a : a + chunk] = x @ times[a : a + chunk].T.astype(np.float64)
    return out


@lru_cache(maxsize=2)  # a job has one number of steps, and many figures by step
def _times_drawn(k: int) -> NDArray[np.uint8]:
    """How often each of k steps is drawn, (2000, k): one step much more often than once does not happen."""
    out = np.empty((DRAWS, k), np.uint8)
    rng = np.random.default_rng(_SEED)
    chunk = max(1, _MOST_WEIGHTS // k)
    for a in range(0, DRAWS, chunk):
        rows = min(chunk, DRAWS - a)
        drawn = rng.integers(0, k, (rows, k)) + np.arange(0, rows * k, k)[:, None]
        out[a : a + rows] = np.bincount(drawn.ravel(), minlength=rows * k).reshape(rows, k)
    return out


def interval95(draws: F64) -> F64:
    """95 % interval of bootstrap draws (percentile method).

    Parameters
    ----------
    draws : (n, m) float64

    Returns
    -------
    (n, 2) float64
    """
    return np.quantile(draws, [0.025, 0.975], axis=1).T


def mean_ci95(x: F64) -> tuple[float, float]:
    """Bootstrap 95 % interval of a mean over steps.

    Parameters
    ----------
    x : (k,) float64

    Returns
    -------
    low, high : float
    """
    low, high = interval95(resampled_sums(x[None, :]))[0] / x.size
    return float(low), float(high)


def _blocks(delta: F64) -> F64:
    n, k = delta.shape
    if k <= _MOST_BLOCKS:
        return delta
    edges = np.linspace(0, k, _MOST_BLOCKS + 1).astype(np.int64)[:-1]
    return np.asarray(np.add.reduceat(delta, edges, axis=1)).reshape(n, -1)
