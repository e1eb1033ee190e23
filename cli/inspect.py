"""`rankdiff inspect`: what is in each report, and what to capture better."""

from __future__ import annotations

from pathlib import Path

import click

from rankdiff_cli.options import report_options, speed_options
from rankdiff_cli.output import write
from rankdiff_cli.progress import progress
from rankdiff_cli.reading import compare_options


@click.command(name="inspect")
@report_options
@speed_options
def command(
    reports: tuple[str, ...],
    rank_regex: str | None,
    data_range: str | None,
    step_range: str | None,
    comm_regex: str | None,
    strict: bool,
    quiet: bool,
    jobs: int | None,
    cache: Path | None,
) -> int:
    """Show what each report holds: rank, node, GPU, versions, window, tables, collectives, payloads.

    Every gap comes with the option of nsys profile or nsys export that would close it.

    Exit status: 0 done; 1 no report can be used; 2 usage.
    """
    from rankdiff.pipeline import read
    from rankdiff.render.inspection import to_text

    options = compare_options(rank_regex, data_range, step_range, comm_regex, strict, quiet, jobs, cache)
    with progress(quiet) as bar:
        found = read(reports, options, bar)
    write(to_text(found))
    return 0
