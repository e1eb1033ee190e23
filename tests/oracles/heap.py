"""Naive twin of the heap kernel: a sorted list."""

from __future__ import annotations


def events(script):
    """What a heap has to give for a script of times to put in and None to take the earliest out.

    Returns the times taken out, one for each None for which something was there.
    """
    waiting, out = [], []
    for at in script:
        if at is not None:
            waiting.append(at)
        elif waiting:
            out.append(min(waiting))
            waiting.remove(min(waiting))
    return out
