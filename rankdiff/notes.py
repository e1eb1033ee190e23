"""Warnings as data: what a reader of the result should know, with a code that scripts can test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """One warning.

    Attributes
    ----------
    code : str
        Stable identifier, snake case.
    message : str
        One sentence for people; names the file or rank and both values where two disagree.
    ranks : tuple of int
        The ranks it concerns; empty when it concerns the job or when the rank is not known yet.
    """

    code: str
    message: str
    ranks: tuple[int, ...] = ()
