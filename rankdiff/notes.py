"""Warnings as data: what a reader of the result should know, with a code that scripts can test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rankdiff.untrusted import shown

_MOST_NAMES = 8
_LONGEST_MESSAGE = 2_000  # characters


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

    def __post_init__(self) -> None:
        """Keep the message on one line: it names files and hosts."""
        object.__setattr__(self, "message", shown(self.message, _LONGEST_MESSAGE))


def counted(notes: Sequence[Note], what: str) -> list[Note]:
    """Notes of one kind; of many, which would hide all others, their number and the first.

    Parameters
    ----------
    notes : sequence of Note
        Of one code, of no ranks.
    what : str
        What each of them says, as ``reports are given twice``.
    """
    if len(notes) <= _MOST_NAMES:
        return list(notes)
    return [Note(notes[0].code, f"{len(notes):,} {what}: {notes[0].message}, ...")]


def rank_words(ranks: Sequence[int], of: int | None = None) -> str:
    """Name ranks: ``rank 3``, ``ranks 0-2, 7``, ``all ranks`` where `of` is their number."""
    if of is not None and len(ranks) == of and of > 1:
        return "all ranks"
    names = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in _runs(ranks)]
    more = f", ... ({len(ranks)} in all)" if len(names) > _MOST_NAMES else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(names[:_MOST_NAMES])}{more}"


def rank_list(ranks: Iterable[int]) -> str:
    """All of some ranks as --ranks takes them: ``0-3,5``."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in _runs(ranks))


def _runs(ranks: Iterable[int]) -> list[list[int]]:
    """First and last of each run of neighbouring numbers."""
    runs: list[list[int]] = []
    for r in sorted(ranks):
        if runs and r == runs[-1][1] + 1:
            runs[-1][1] = r
        else:
            runs.append([r, r])
    return runs
