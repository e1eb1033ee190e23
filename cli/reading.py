"""What commands do first: options for the library, and the job read and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rankdiff_cli.options import Reading
from rankdiff_cli.output import left_out, say, told
from rankdiff_cli.progress import progress

if TYPE_CHECKING:
    from rankdiff.comparison import Comparison
    from rankdiff.digest import DigestOptions
    from rankdiff.pipeline import CompareOptions
    from rankdiff.reports.discover import Report

T = TypeVar("T")


@dataclass(frozen=True)
class Compared:
    """A compared job whose reports can be read again."""

    comparison: Comparison
    reports: tuple[Report, ...]
    options: DigestOptions


def compare_options(reading: Reading, **more: Any) -> CompareOptions:
    """Options of the library from those of the command line.

    Raises
    ------
    RankdiffError
        The folder of the cache cannot be used.
    """
    from rankdiff.digest_cache import DigestCache
    from rankdiff.pipeline import CompareOptions

    return CompareOptions(
        rank_regex=reading.rank_regex,
        digest=digest_options(reading),
        strict=reading.strict,
        jobs=reading.jobs,
        cache=None if reading.cache is None else DigestCache(str(reading.cache)).open(),
        on_problem=None if reading.quiet else left_out,
        on_note=None if reading.quiet else told,
        **more,
    )


def digest_options(reading: Reading) -> DigestOptions:
    """What the user says about names."""
    from rankdiff.digest import DigestOptions

    return DigestOptions(reading.data_range, reading.step_range, reading.comm_regex)


def read_and_compare(reports: tuple[str, ...], options: CompareOptions, quiet: bool) -> Compared:
    """Compare all ranks: the clock and who waited for whom need every one, whatever is shown of them."""
    from rankdiff.pipeline import compare
    from rankdiff.reports.discover import discover

    with progress(quiet) as bar:
        c = compare(reports, options, bar).comparison
    if not quiet:
        _warn(c)
    return Compared(c, discover(reports, need_reports=True).reports, options.digest)


def with_progress(items: Iterable[T], total: int, quiet: bool, name: Callable[[T], str]) -> Iterator[T]:
    """Pass items on under a progress bar."""
    with progress(quiet) as bar:
        for n, item in enumerate(items):
            if bar is not None:
                bar(n, total, name(item))
            yield item


def _warn(c: Comparison) -> None:
    for note in c.clock.notes:
        say(f"warning: {note.message}")
    fitted = {c.job.ranks[r].identity.rank for island in c.islands for r in island.ranks}
    alone = [i.label for i in c.identities if i.rank not in fitted]
    if alone:
        shown = ", ".join(alone[:8]) + (", ..." if len(alone) > 8 else "")
        say(
            f"warning: rank {shown}: no matched N x N collective, so its clock is that of its session, good to "
            "milliseconds against other nodes"
        )
