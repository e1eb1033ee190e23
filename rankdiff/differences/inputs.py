"""What the user gives as a side: reports, digests, folders, patterns, or a report.json."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence

from rankdiff.differences.measure import measure
from rankdiff.differences.side import Side
from rankdiff.differences.stored import is_stored, load_stored
from rankdiff.errors import RankdiffError, ReportError
from rankdiff.notes import rank_words
from rankdiff.pipeline import CompareOptions, compare
from rankdiff.reports.discover import discover
from rankdiff.untrusted import shown
from rankdiff.workers import Progress

REPORT_JSON = "report.json"


def load_side(
    paths: Sequence[str], options: CompareOptions | None = None, progress: Progress | None = None
) -> Side:
    """Read one side of a difference.

    Parameters
    ----------
    paths : sequence of str
        Reports or digests, folders of them, or patterns that the shell did not expand; or one report.json, or the
        folder of a ticket that holds one and no reports.
    options : CompareOptions, optional
    progress : callable, optional
        As for `compare`.

    Raises
    ------
    RankdiffError
        Nothing can be used, a pattern fits nothing, or a report.json is given together with something else, or holds
        ranks that were not asked for.
    """
    options = options or CompareOptions()
    name = _name(paths[0])
    every = [each for path in paths for each in _matching(path)]
    stored = [each for each in every if _stored_in(each) is not None]
    if stored and len(every) > 1:
        raise RankdiffError(
            f"{stored[0]}: a report.json together with {len(every) - 1} more, expected it alone",
            "Give one report.json, or reports, for each side",
        )
    if stored:
        side = load_stored(_stored_in(stored[0]) or stored[0], name, options.skip_steps)
        more = {m.rank for m in side.members} - (options.ranks or {m.rank for m in side.members})
        if more:
            raise RankdiffError(
                f"{stored[0]}: a report.json, which holds {rank_words(sorted(more))} as well",
                "Ranks cannot be taken out of it: make it again with compare --ranks, or give the reports",
            )
        return side
    outcome = compare(every, options, progress)
    return measure(outcome.comparison, name, without_folders(outcome.problems, every))


def without_folders(problems: Iterable[ReportError], paths: Iterable[str]) -> list[str]:
    """Why reports were left out, for results that are passed on: their folders, some of `paths`, are not named."""
    folders = {shown(f"{folder.rstrip('/')}/") for p in paths for folder in (p, os.path.dirname(p)) if folder}
    words = "|".join(map(re.escape, sorted(folders - {"/"}, key=len, reverse=True)))
    return [re.sub(rf"(?<![^\s'\"])(?:{words})", "", str(p)) if words else str(p) for p in problems]


def _matching(path: str) -> list[str]:
    """The path, or what fits it as a pattern where nothing has that name."""
    if os.path.lexists(path) or not glob.has_magic(path):
        return [path]
    found = sorted(glob.glob(path))
    if not found:
        raise RankdiffError(f"{path}: no file fits this pattern", "Check the path")
    return found


def _stored_in(path: str) -> str | None:
    """The report.json that a path is or, as the folder of a ticket, holds; None: it is something else."""
    if os.path.isdir(path):
        inside = os.path.join(path, REPORT_JSON)
        return inside if os.path.isfile(inside) and not discover([path]).reports else None
    if not os.path.isfile(path):
        return None  # opening what is no file might wait for ever
    try:
        with open(path, "rb") as file:
            return path if is_stored(file.read(64)) else None
    except OSError:
        return None  # reading it as a report says why


def _name(path: str) -> str:
    """What a side is called: without folders, but a report.json by the folder it lies in."""
    path = os.path.abspath(path)
    if os.path.basename(path) == REPORT_JSON or glob.has_magic(os.path.basename(path)):
        path = os.path.dirname(path) or path
    return shown(os.path.basename(path) or path, 80)
