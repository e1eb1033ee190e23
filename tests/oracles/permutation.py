"""Naive twins of the permutation tests: all permutations of every step, and single draws made in full."""

from __future__ import annotations

import itertools


def exact_p(delta, observed):
    """Share of all arrangements (rows permuted independently) whose largest column sum reaches `observed`."""
    reached = total = 0
    for rows in itertools.product(*(list(itertools.permutations(row)) for row in delta)):
        total += 1
        reached += max(map(sum, zip(*rows, strict=True))) >= observed - 1e-9
    return reached / total


def exceedances(ranked, top, observed, draws, seed, stop):
    """Draw whole permutations of every step: first where the `top` largest values fall, then all the others.

    The same generator as the kernel's (xorshift64), on plain integers.
    """
    word = (1 << 64) - 1

    def step(state):
        state ^= (state << 13) & word
        state ^= state >> 7
        return state ^ ((state << 17) & word)

    n = len(ranked[0])
    reached = 0
    for draw in range(draws):
        state = ((seed + 1) * 2654435761 + (draw + 1) * 40503) & word
        for _ in range(8):
            state = step(state)
        places = []
        for _ in ranked:
            row = []
            while len(row) < top:
                state = step(state)
                at = (state >> 33) % n
                if at not in row:
                    row.append(at)
            places.append(row)
        after = state
        sums = [0.0] * n
        for values, row in zip(ranked, places, strict=True):
            for at, value in zip(row, values, strict=False):
                sums[at] += value
            rest = list(values[top:])
            for at in range(n):
                if at not in row:
                    after = step(after)
                    other = (after >> 33) % len(rest)
                    sums[at] += rest[other]
                    rest[other] = rest[-1]
                    rest.pop()
        reached += max(sums) >= observed * (1 - 1e-12)
        if reached == stop:
            return reached, draw + 1
    return reached, draws
