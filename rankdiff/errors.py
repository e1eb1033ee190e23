"""Errors with an exit status and a remedy; the command line prints them as they are.

One base class, one boundary (the command line). Anything that is not a `RankdiffError` is a bug and
keeps its traceback.
"""

from __future__ import annotations

from rankdiff.untrusted import shown

_LONGEST_MESSAGE = 5_000  # characters; a path may have 4,096


class RankdiffError(Exception):
    """Something rankdiff could not do, said in one line.

    Parameters
    ----------
    what : str
        What went wrong, with the file it concerns, what was expected and what was found.
    remedy : str, optional
        What the user can do about it.
    """

    exit_code = 1

    def __init__(self, what: str, remedy: str | None = None) -> None:
        # One line whatever the names in it, and Python's own traceback shows it like that too.
        self.what = shown(what, _LONGEST_MESSAGE)
        self.remedy = None if remedy is None else shown(remedy, _LONGEST_MESSAGE)
        super().__init__(self.what)

    def __str__(self) -> str:
        """Return the message, followed by the remedy when there is one."""
        return f"{self.what}. {self.remedy}" if self.remedy else self.what


class ReportError(RankdiffError):
    """One report cannot be read or used; the other ranks can still be compared."""


class IdentityError(RankdiffError):
    """The ranks of the reports contradict each other."""
