"""Classes of kernels to communicators: which sets of them fit together, and where such a set falls apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankdiff.kernels.agreement import connected, joining
from rankdiff.pairing import APART, BROKEN_SHARE, GRAIN_NS, KernelClass, Pairs

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

_JUDGED = 0.9  # of a communicator's pairs that must fit
_MANY = 100  # pairs from which on the widest and the nearest of them are extremes of chance


def components(classes: Sequence[KernelClass], pairs: Pairs) -> tuple[list[list[int]], list[int]]:
    """Sets of classes that may be one communicator by causality, split where their ends form heaps.

    Returns
    -------
    groups : list of list of int
        Indices of classes.
    rest : list of int
        Those that fit nobody, or not clearly.
    """
    rank = np.array([c.rank for c in classes], np.int64)
    net = _net_of(rank, pairs)
    groups, rest = [], []
    todo = _parts(np.arange(len(classes)), net, np.inf)
    while todo:
        members, inside = todo.pop()
        n = members.size
        parts = _heaps(members, inside)
        if len(parts) > 1:
            todo += parts
        elif n > 1 and np.unique(rank[members]).size == n and inside.value.size >= _JUDGED * n * (n - 1) / 2:
            groups.append(members.tolist())
        else:
            rest += members.tolist()
    return groups, sorted(rest)


@dataclass(frozen=True)
class _Net:
    """Pairs of classes with the spread of their ends, ascending by (low, high)."""

    low: I64  # (p,)
    high: I64  # (p,)
    value: F64  # (p,) ns

    def where(self, keep: I64 | NDArray[np.bool_]) -> _Net:
        return _Net(self.low[keep], self.high[keep], self.value[keep])


def _net_of(rank: I64, pairs: Pairs) -> _Net:
    """Pairs that fit, each class with that of another rank it fits best, where that is mutual."""
    good = pairs.where((pairs.broken <= BROKEN_SHARE) & np.isfinite(pairs.spread))
    good = good.where(np.lexsort((good.b, good.a, good.spread)))
    count = int(rank.max(initial=0)) + 1
    # Of a class and a rank the first pair counts, whichever side the class is on.
    keys = np.stack((good.a * count + rank[good.b], good.b * count + rank[good.a]), axis=1).ravel()
    best = np.zeros(keys.size, np.bool_)
    best[np.unique(keys, return_index=True)[1]] = True
    mutual = good.where(best[0::2] & best[1::2])
    low, high = np.minimum(mutual.a, mutual.b), np.maximum(mutual.a, mutual.b)
    return _Net(low, high, np.maximum(mutual.spread, GRAIN_NS)).where(np.lexsort((high, low)))


def _parts(members: I64, net: _Net, limit: float) -> list[tuple[I64, _Net]]:
    """Sets of members that pairs with spreads below `limit` connect, with the pairs within each; ascending."""
    label = _labels(members, net, limit)
    low, high = label[np.searchsorted(members, net.low)], label[np.searchsorted(members, net.high)]
    inside = net.where(low == high)
    low = low[low == high]
    order, of_pairs = np.argsort(label, kind="stable"), np.argsort(low, kind="stable")
    each = np.arange(1, int(label.max(initial=-1)) + 1)
    sets = np.split(members[order], np.searchsorted(label[order], each))
    chosen = np.split(of_pairs, np.searchsorted(low[of_pairs], each))
    return [(m, inside.where(p)) for m, p in zip(sets, chosen, strict=True) if m.size]


def _labels(members: I64, net: _Net, limit: float) -> I64:
    """Number of the set of each member that pairs with spreads below `limit` connect."""
    near = net.where(net.value < limit)
    return connected(members.size, np.searchsorted(members, near.low), np.searchsorted(members, near.high))


def _heaps(members: I64, net: _Net) -> list[tuple[I64, _Net]]:
    """Split a set where the ends of its parts agree far better within than between.

    Ranks that run in step pass the causality test without being members; their ends scatter more. A split
    counts when every pair within is closer than any pair between by a clear factor, and no part is alone. A
    spread is known to some 0.8 / sqrt(instances): of many pairs all must still be closer, by the factor the usual ones.
    """
    by_value = np.argsort(net.value, kind="stable")
    low, high = np.searchsorted(members, net.low), np.searchsorted(members, net.high)
    joins = by_value[joining(members.size, low[by_value], high[by_value])]
    # The spreads at which sets come together as the limit rises. Below it only the pairs that join sets matter.
    tree = _Net(net.low[joins], net.high[joins], net.value[joins])
    for limit in np.unique(tree.value)[::-1].tolist():
        label = _labels(members, tree, limit)
        if np.bincount(label).min() < 2:
            break
        apart = label[low] != label[high]
        within, between = net.value[~apart], net.value[apart]
        clear = within.max() * APART <= between.min()
        if min(within.size, between.size) >= _MANY and within.max() < between.min():
            clear = bool(np.median(within) * APART <= np.median(between))
        if clear:
            return _parts(members, net, limit)
    return [(members, net)]
