"""`rankdiff compare`: the main job."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rankdiff_cli.options import (
    NAMING,
    Duration,
    NodeList,
    OutputPath,
    Reading,
    StepRange,
    format_option,
    given,
    ranks_option,
    report_options,
    skip_steps_option,
)
from rankdiff_cli.output import NOT_ASSESSED, gate_status, say, write
from rankdiff_cli.progress import progress
from rankdiff_cli.reading import compare_options

if TYPE_CHECKING:
    from rankdiff.pipeline import Outcome


@click.command(name="compare")
@report_options()
@click.option(
    "--dask",
    metavar="ADDRESS",
    help="Let a Dask cluster read the reports: tcp://scheduler:8786, or local; with the extra rankdiff[dask].",
)
@ranks_option
@click.option("--nodes", type=NodeList(), help="Compare the ranks of these nodes only, like gpu01,gpu07.")
@click.option(
    "--steps", type=StepRange(), help="Compare these steps only, like 10-49, by the numbers of their ranges."
)
@skip_steps_option("Steps to leave out at the start.")
@click.option(
    "--min-gap",
    type=Duration(),
    default="50us",
    show_default=True,
    help="Shortest idle gap to list, like 50us or 1.5ms.",
)
@format_option
@click.option(
    "-o",
    "--output",
    type=OutputPath(),
    help="Write the ticket into this folder: report.md, report.html, report.json and plots/.",
)
@click.option("--no-plots", is_flag=True, help="A ticket without pictures.")
@click.option(
    "--save-db",
    type=OutputPath(),
    help="Write all tables into one DuckDB database, like job.duckdb, for your own SQL.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["major", "minor"]),
    help="Exit with status 3 when there is a finding of this severity or worse, with 4 when that cannot be told.",
)
@click.option(
    "--force", is_flag=True, help="Replace the files of an earlier ticket in the folder, and the database."
)
def command(
    reports: tuple[str, ...],
    reading: Reading,
    dask: str | None,
    ranks: frozenset[int] | None,
    nodes: frozenset[str] | None,
    steps: tuple[int, int] | None,
    skip_steps: int,
    min_gap: int,
    form: str,
    output: Path | None,
    no_plots: bool,
    save_db: Path | None,
    fail_on: str | None,
    force: bool,
) -> int:
    """Name the rank or node that made the others wait.

    REPORT is one export of Nsight Systems per rank (nsys export --type sqlite or parquetdir), or per node with
    several ranks in it; a digest of one (rankdiff digest); or a folder of either. Where nsys is on PATH a
    .nsys-rep will do.

    Exit status: 0 done, whatever the verdict; 1 rankdiff could not do it; 2 usage; 3 a finding met --fail-on;
    4 nothing could be assessed, or with --fail-on not all of it.
    """
    from rankdiff.pipeline import compare

    options = compare_options(
        reading,
        ranks=ranks,
        nodes=nodes,
        steps=steps,
        skip_steps=skip_steps,
        dask=dask,
    )
    if output is not None:
        from rankdiff.render.folder import check_free

        check_free(output, force)  # before the work, not after it
    if save_db is not None:
        from rankdiff.database import check_database

        check_database(save_db, force)
    with progress(reading.quiet) as bar:
        outcome = compare(reports, options, bar)
    write(_rendered(outcome, form, min_gap, command_line(reports, output)))
    if output is not None:
        from rankdiff.render.folder import write_folder
        from rankdiff.render.package import ticket_files

        files = ticket_files(
            outcome.comparison, outcome.notes, command_line(reports, output), not no_plots, min_gap
        )
        write_folder(output, files, force)
        click.echo(
            f"rankdiff: ticket in {output}: {', '.join(sorted(f for f in files if '/' not in f))}", err=True
        )
    if save_db is not None:
        from rankdiff.database import write_database

        write_database(save_db, outcome.comparison, outcome.notes, command_line(reports, None), force)
        click.echo(f"rankdiff: database in {save_db}", err=True)
    if fail_on is not None:
        return _gate(outcome, fail_on)
    return NOT_ASSESSED if outcome.comparison.verdict.status == "not_assessed" else 0


def _gate(outcome: Outcome, severity: str) -> int:
    """Exit status of --fail-on, its reason said."""
    from rankdiff.gates import findings_gate

    gate = findings_gate(outcome.comparison, severity, len(outcome.problems), outcome.absent)
    say(f"--fail-on {severity}: {gate.message}")
    return gate_status(gate)


def _rendered(outcome: Outcome, form: str, min_gap: int, line: str) -> str:
    """The answer for stdout."""
    c, notes = outcome.comparison, outcome.notes
    if form == "json":
        from rankdiff.render.json import to_json

        return to_json(c, notes, min_gap)
    if form == "markdown":
        from rankdiff.render.markdown import to_markdown
        from rankdiff.render.ticket import ticket

        return to_markdown(ticket(c, notes, (), line, min_gap))
    if sys.stdout.isatty():
        from rankdiff.render.terminal import to_terminal

        return to_terminal(c, notes, min_gap)
    from rankdiff.render.text import to_text

    return to_text(c, notes, min_gap)


def command_line(reports: tuple[str, ...], output: Path | None) -> str:
    """How to make the result again, by the reports' names alone: paths are nobody's business."""
    from rankdiff.untrusted import argument

    names = sorted({os.path.basename(r.rstrip("/")) for r in reports})
    if len(names) > 8:
        start, end = _common_start(names), _common_start([n[::-1] for n in names])[::-1]
        shown = f"{argument(start) if start else './'}*{shlex.quote(end) if end else ''}"
    else:
        shown = " ".join(argument(n) for n in names)
    more = given(*NAMING, "skip_steps", "ranks", "nodes", "steps")
    return " ".join(["rankdiff compare", shown, *more, *(["-o", argument(output.name)] if output else [])])


def _common_start(names: list[str]) -> str:
    """Longest common beginning of sorted or reversed names."""
    first, last = min(names), max(names)
    same = next(
        (n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last))
    )
    return first[:same]
