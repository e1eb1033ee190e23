"""What a program or a notebook calls."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import index

from rankdiff import pipeline
from rankdiff.diff_result import Difference
from rankdiff.differences.difference import differ
from rankdiff.differences.inputs import load_side
from rankdiff.digest import Digest, DigestOptions
from rankdiff.digest_cache import DigestCache
from rankdiff.digest_file import read_digests
from rankdiff.errors import RankdiffError
from rankdiff.result import Comparison, StrPath


def compare(
    paths: StrPath | Iterable[StrPath],
    *,
    ranks: Iterable[int] | None = None,
    nodes: Iterable[str] | None = None,
    steps: tuple[int, int] | None = None,
    skip_steps: int = 0,
    data_range: str | None = None,
    step_range: str | None = None,
    comm_regex: str | None = None,
    rank_regex: str | None = None,
    strict: bool = False,
    jobs: int | None = 1,
    cache: StrPath | None = None,
    dask: str | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Comparison:
    """Compare the ranks of one job.

    Parameters
    ----------
    paths : path or iterable of paths
        One export of Nsight Systems per rank, or per node with several ranks in it, digests, or folders of them; the
        order does not matter.
    ranks, nodes : iterable of int, of str, optional
        Compare these ranks, or the ranks of these nodes, only.
    steps : tuple of (int, int), optional
        First and last step to compare, by the numbers in the names of their ranges.
    skip_steps : int
        Steps to leave out at the start.
    data_range, step_range : str, optional
        Regular expressions, anchored: NVTX ranges that are data loading, or steps.
    comm_regex : str, optional
        Regular expression: kernels that communicate besides NCCL's.
    rank_regex : str, optional
        Regular expression on the file name with the named groups ``rank`` and, if wanted, ``node``.
    strict : bool
        A report that cannot be used is an error; otherwise the others are compared, and it is among `problems`.
    jobs : int or None
        Reports read at the same time, each by a process of its own; None: as many as is worth it.
    cache : path, optional
        Folder that keeps what was read of each report for the next time; made if need be.
    dask : str, optional
        Address of the scheduler of a Dask cluster that reads the reports, or ``local``.
    progress : callable, optional
        Called with (reports done, reports in all, name of the next one).

    Returns
    -------
    Comparison

    Raises
    ------
    RankdiffError
        No report can be used, two claim the same rank, an option makes no sense, or `strict` and a report cannot be
        used.
    """
    found = _listed(paths)
    options = _options(
        *(skip_steps, ranks, jobs),
        data_range=data_range,
        step_range=step_range,
        comm_regex=comm_regex,
        rank_regex=rank_regex,
    )
    options = replace(
        options,
        nodes=None if nodes is None else frozenset([nodes] if isinstance(nodes, str) else nodes),
        steps=None if steps is None else _steps(steps),
        strict=strict,
        cache=None if cache is None else DigestCache(os.fspath(cache)).open(),
        dask=dask,
    )
    return Comparison(pipeline.compare(found, options, progress), found, options)


def diff(
    before: StrPath | Iterable[StrPath] | Comparison,
    after: StrPath | Iterable[StrPath] | Comparison,
    *,
    ranks: Iterable[int] | None = None,
    skip_steps: int = 0,
    data_range: str | None = None,
    step_range: str | None = None,
    comm_regex: str | None = None,
    rank_regex: str | None = None,
    jobs: int | None = 1,
    force: bool = False,
) -> Difference:
    """Say what changed between two captures of a job.

    Parameters
    ----------
    before, after : path or iterable of paths or Comparison
        Reports, digests, a folder of them, a report.json, or what `compare` gave.
    ranks, skip_steps, data_range, step_range, comm_regex, rank_regex, jobs
        As for `compare`, for both sides; what is compared already stays as it is.
    force : bool
        Compare what is not of the same job, too.

    Returns
    -------
    Difference

    Raises
    ------
    RankdiffError
        A side cannot be read, or they are not of the same job and not `force`.
    """
    options = _options(
        *(skip_steps, ranks, jobs),
        data_range=data_range,
        step_range=step_range,
        comm_regex=comm_regex,
        rank_regex=rank_regex,
    )
    old, new = (
        each.as_side() if isinstance(each, Comparison) else load_side(_listed(each), options)
        for each in (before, after)
    )
    return Difference(differ(old, new, force))


def _listed(paths: StrPath | Iterable[StrPath]) -> list[str]:
    found = [os.fspath(p) for p in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    if not found:
        raise RankdiffError("no reports given", "Give one export per rank, or the folder that they are in")
    return found


def _options(
    skip_steps: int, ranks: Iterable[int] | None, jobs: int | None, **patterns: str | None
) -> pipeline.CompareOptions:
    """Check what both functions take."""
    if skip_steps < 0:
        raise RankdiffError(f"skip_steps: {skip_steps}, expected 0 or more")
    if jobs is not None and jobs < 1:
        raise RankdiffError(f"jobs: {jobs}, expected 1 or more, or None")
    for name, pattern in patterns.items():
        _check_pattern(name, pattern)
    digest = DigestOptions(
        data_range=patterns["data_range"],
        step_range=patterns["step_range"],
        comm_regex=patterns["comm_regex"],
    )
    return pipeline.CompareOptions(
        rank_regex=patterns["rank_regex"],
        digest=digest,
        ranks=None if ranks is None else _ranks(ranks),
        skip_steps=skip_steps,
        jobs=jobs,
    )


def _ranks(ranks: Iterable[int]) -> frozenset[int]:
    try:
        return frozenset(map(index, ranks))
    except TypeError:
        raise RankdiffError(f"ranks: {ranks!r}, expected numbers", "Give them like range(8)") from None


def _steps(steps: tuple[int, int]) -> tuple[int, int]:
    try:
        first, last = map(index, steps)
    except (TypeError, ValueError):
        raise RankdiffError(f"steps: {steps!r}, expected two numbers", "Give them like (100, 199)") from None
    if last < first:
        raise RankdiffError(f"steps: {steps!r} runs backwards")
    return first, last


def load_digest(path: StrPath) -> tuple[Digest, ...]:
    """Open a file that ``rankdiff digest`` wrote.

    Returns
    -------
    tuple of Digest
        One for each GPU process of the report; their tables are read when they are asked for.

    Raises
    ------
    ReportError
        It is no digest, is damaged, or of another version.
    """
    return tuple(read_digests(os.fspath(path))[0])


def _check_pattern(name: str, pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise RankdiffError(f"{name}: not a regular expression: {error}") from None
