"""`rankdiff inspect`: what is in each report, and what to capture better."""

from __future__ import annotations

import click

from rankdiff_cli.options import report_options
from rankdiff_cli.output import left_out, told, write


@click.command(name="inspect")
@report_options
def command(
    reports: tuple[str, ...],
    rank_regex: str | None,
    data_range: str | None,
    step_range: str | None,
    comm_regex: str | None,
    strict: bool,
    quiet: bool,
) -> int:
    """Show what each report holds: rank, node, GPU, versions, window, tables, collectives, payloads.

    Every gap comes with the option of nsys profile or nsys export that would close it.

    Exit status: 0 done; 1 no report can be used; 2 usage.
    """
    from rankdiff.digest import DigestOptions
    from rankdiff.pipeline import CompareOptions, read
    from rankdiff.render.inspection import to_text
    from rankdiff_cli.progress import progress

    options = CompareOptions(
        rank_regex=rank_regex,
        digest=DigestOptions(data_range=data_range, step_range=step_range, comm_regex=comm_regex),
        strict=strict,
        on_problem=None if quiet else left_out,
        on_note=None if quiet else told,
    )
    with progress(quiet) as bar:
        found = read(reports, options, bar)
    write(to_text(found))
    return 0
