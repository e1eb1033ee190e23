"""Naive twins of the share kernels: plain Python, exact fractions, moment by moment."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction


def skew_shares(arrive, step, n_steps):
    """Shapley values of the skew of each instance, from the definition: mean over all arrival orders."""
    import itertools

    n = len(arrive[0]) if arrive else 0
    out = [[Fraction(0)] * n_steps for _ in range(n)]
    for row, k in zip(arrive, step, strict=True):
        orders = list(itertools.permutations(range(n)))
        base = min(row)
        for order in orders:
            reach = 0
            for r in order:
                # The coalition's cost is its latest arrival beyond the first of all.
                cost = max(reach, row[r] - base)
                out[r][k] += Fraction(cost - reach, len(orders))
                reach = cost
    return out


def swept_shares(instances, n_ranks, n_steps):
    """Share every moment among the awaited.

    instances: list of (step, [(rank, arrival, slot), ...]).
    """
    out = [[Fraction(0)] * n_steps for _ in range(n_ranks)]
    events = sorted(
        (a, e)
        for e, (i, r, a, s) in enumerate(
            (i, r, a, s) for i, (_, ms) in enumerate(instances) for r, a, s in ms
        )
    )
    flat = [(i, r, a, s) for i, (_, ms) in enumerate(instances) for r, a, s in ms]
    arrived = defaultdict(set)
    opened = []
    held = defaultdict(lambda: defaultdict(Fraction))  # (rank, slot) -> holder -> time
    slots_of = defaultdict(set)
    for _, r, _, s in flat:
        slots_of[r].add(s)
    every_slot = sorted({s for _, _, _, s in flat})
    now = None
    for time, e in events:
        dt = 0 if now is None else time - now
        now = time
        if dt and opened:
            waiting = {r: [i for i in opened if r in arrived[i]] for r in range(n_ranks)}
            through = {}
            for i in opened:
                for r, _, s in instances[i][1]:
                    if r not in arrived[i] and r not in through:
                        through[r] = (i, s)
            working = [r for r in through if not waiting[r]]
            blamed = working or list(through)
            passed = {}
            for r in working:
                balance = sum(held[r, through[r][1]].values())
                passed[r] = min(Fraction(1), balance / dt) if balance > 0 else Fraction(0)
            root = {i: defaultdict(Fraction) for i in opened}
            for _ in range(min(len(opened), 8)):
                fresh = {}
                for i in opened:
                    mix, parts = defaultdict(Fraction), 0
                    for r, _, _ in instances[i][1]:
                        if r in arrived[i]:
                            continue
                        if not waiting[r]:
                            parts += 1
                            mix[r] += 1 - passed[r]
                            if passed[r]:
                                account = held[r, through[r][1]]
                                for h, x in account.items():
                                    mix[h] += passed[r] * x / sum(account.values())
                        else:
                            for p in opened:
                                if p != i and r in arrived[p]:
                                    if sum(root[p].values()) > 0:
                                        parts += 1
                                        for h, x in root[p].items():
                                            mix[h] += x
                                    break
                    fresh[i] = defaultdict(Fraction, {h: x / parts for h, x in mix.items()}) if parts else mix
                root = fresh
            for r in sorted(blamed):
                share = Fraction(dt, len(blamed))
                i, s = through[r]
                k = instances[i][0]
                f = passed.get(r, Fraction(0))
                out[r][k] += share * (1 - f)
                if f:
                    account = held[r, s]
                    balance = sum(account.values())
                    for h, x in account.items():
                        out[h][k] += share * f * x / balance
                    used = min(Fraction(dt), balance)
                    for h in account:
                        account[h] *= (balance - used) / balance
            if len(every_slot) > 1:
                seen = set()
                for i in opened:
                    for r, _, s in instances[i][1]:
                        if r in arrived[i] and r not in seen:
                            seen.add(r)
                            for c in every_slot:
                                if c != s:
                                    for h, x in root[i].items():
                                        held[r, c][h] += dt * x
        i, r, _, s = flat[e]
        if i not in opened:
            opened.append(i)
        arrived[i].add(r)
        held[r, s].clear()
        if len(arrived[i]) == len(instances[i][1]):
            opened.remove(i)
            arrived[i] = set()
            # members no longer wait here
    return out
