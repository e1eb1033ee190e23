"""`rankdiff inspect`: what is in each report, and what to capture better."""

from __future__ import annotations

import click

from rankdiff_cli.options import Reading, report_options
from rankdiff_cli.output import write
from rankdiff_cli.progress import progress
from rankdiff_cli.reading import compare_options


@click.command(name="inspect")
@report_options()
def command(
    reports: tuple[str, ...],
    reading: Reading,
) -> int:
    """Show what each report holds: rank, node, GPU, versions, window, tables, collectives, payloads.

    Every gap comes with the option of nsys profile or nsys export that would close it.

    Exit status: 0 done; 1 no report can be used; 2 usage.
    """
    from rankdiff.pipeline import read
    from rankdiff.render.inspection import to_text

    options = compare_options(reading)
    with progress(reading.quiet) as bar:
        found = read(reports, options, bar)
    write(to_text(found))
    return 0
