"""Plain twins of `rankdiff.kernels.agreement`."""

from __future__ import annotations

import numpy as np


def drift(pairs):
    """(rate, time at which it is nothing) of pairs (start_a, end_a, start_b, end_b)."""
    when = np.array([p[1] for p in pairs], float)
    d = np.array([p[3] - p[1] for p in pairs], float)
    half = np.median(when)
    early = when < half
    if len(pairs) < 16 or not early.any():
        return 0.0, half
    x = np.median(when[~early]) - np.median(when[early])
    first, second = np.median(d[early]), np.median(d[~early])
    away = np.where(early, abs(d - first), abs(d - second))
    error = 1.9 * np.median(away) / np.sqrt(len(pairs) / 4)
    sure = x > 0 and abs(second - first) > 2 * error
    return (float(np.clip((second - first) / x, -1e-4, 1e-4)) if sure else 0.0), half


def how_near(pairs):
    """Column of `end_agreement` for pairs (start_a, end_a, start_b, end_b)."""
    rate, half = drift(pairs)
    d = [eb - ea - rate * (ea - half) for _, ea, _, eb in pairs]
    middle = float(np.median(d))
    away = [abs(x - middle) for x in d]
    slack = 50_000 + 2 * float(np.median(away))
    broken = 0
    for sa, ea, sb, eb in pairs:
        moved = middle + rate * (ea - half)
        broken += ea + moved + slack < sb or eb + slack < sa + moved
    return [np.quantile(away, 0.95), broken / len(pairs), middle, rate, half, np.mean(away)]


def connected(count, pairs):
    """Label of each point, sets numbered by their lowest point; and whether each pair joined two sets."""
    sets = [{i} for i in range(count)]
    joins = []
    for a, b in pairs:
        one, other = (next(s for s in sets if x in s) for x in (a, b))
        joins.append(one is not other)
        if one is not other:
            sets.remove(other)
            one |= other
    sets.sort(key=min)
    return [next(n for n, s in enumerate(sets) if i in s) for i in range(count)], joins
