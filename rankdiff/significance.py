"""Who is late beyond chance: step-down permutation tests over ranks or nodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankdiff.kernels.permutation import max_sum_exceedances

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

DRAWS = 2_000
ALPHA = 0.01  # chance that a job without a late rank gets one flagged
_SEED = 20_260_101
# Enough exceedances to know that p is far above alpha, and roughly how far.
_STOP = 200
# More units than this are summed in neighbouring blocks: the sums, which are what is tested, stay the same.
_MOST_BLOCKS = 200


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
    reached, done = max_sum_exceedances(rows, float(delta[unit].sum()), DRAWS, _SEED, _STOP)
    return (reached + 1) / (done + 1)


def fewest_steps(units: int, alpha: float = ALPHA) -> int:
    """Steps below which no unit can be told from chance: n^(1 - K) must not exceed alpha."""
    return 1 + int(np.ceil(np.log(1 / alpha) / np.log(units))) if units > 1 else 0


def mean_ci95(x: F64) -> tuple[float, float]:
    """Bootstrap 95 % interval of a mean over steps (percentile method, Efron 1979; seeded).

    Parameters
    ----------
    x : (k,) float64

    Returns
    -------
    low, high : float
    """
    rng = np.random.default_rng(_SEED)
    means = x[rng.integers(0, x.size, (DRAWS, x.size))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def _blocks(delta: F64) -> F64:
    n, k = delta.shape
    if k <= _MOST_BLOCKS:
        return delta
    edges = np.linspace(0, k, _MOST_BLOCKS + 1).astype(np.int64)[:-1]
    return np.asarray(np.add.reduceat(delta, edges, axis=1)).reshape(n, -1)
