"""`rankdiff compare`: the main job."""

from __future__ import annotations

import click

from rankdiff_cli.options import RankList, report_options
from rankdiff_cli.output import write

NOTHING_ASSESSED = 4


@click.command(name="compare")
@report_options
@click.option("--ranks", type=RankList(), help="Compare these ranks only, like 0-7,12.")
@click.option(
    "--skip-steps",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Steps to leave out at the start.",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(
    reports: tuple[str, ...],
    rank_regex: str | None,
    data_range: str | None,
    step_range: str | None,
    comm_regex: str | None,
    strict: bool,
    quiet: bool,
    ranks: frozenset[int] | None,
    skip_steps: int,
    form: str,
) -> int:
    """Name the rank or node that made the others wait.

    REPORT is one SQLite export of Nsight Systems per rank (nsys export --type sqlite), or per node with
    several ranks in it.

    Exit status: 0 done, whatever the verdict; 1 rankdiff could not do it; 2 usage; 4 nothing could be
    assessed.
    """
    from rankdiff.compare import CompareOptions, compare
    from rankdiff.digest import DigestOptions
    from rankdiff_cli.progress import progress

    options = CompareOptions(
        rank_regex=rank_regex,
        digest=DigestOptions(data_range=data_range, step_range=step_range, comm_regex=comm_regex),
        ranks=ranks,
        skip_steps=skip_steps,
        strict=strict,
        on_problem=None if quiet else _say,
    )
    with progress(quiet) as bar:
        outcome = compare(reports, options, bar)
    if form == "json":
        from rankdiff.render.json import to_json as render
    else:
        from rankdiff.render.text import to_text as render
    write(render(outcome.comparison, outcome.notes))
    return NOTHING_ASSESSED if outcome.comparison.verdict.status == "not_assessed" else 0


def _say(problem: Exception) -> None:
    click.echo(f"rankdiff: left out: {problem}", err=True)
