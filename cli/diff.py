"""`rankdiff diff`: did the fix help."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rankdiff_cli.options import (
    NAMING,
    OutputPath,
    Reading,
    Regression,
    format_option,
    given,
    ranks_option,
    reading_options,
    skip_steps_option,
)
from rankdiff_cli.output import NOT_ASSESSED, gate_status, say, write
from rankdiff_cli.progress import progress
from rankdiff_cli.reading import compare_options

if TYPE_CHECKING:
    from rankdiff.differences.difference import Difference
    from rankdiff.differences.gate import Gate


@click.command(name="diff")
@click.argument("sides", nargs=-1, metavar="BEFORE AFTER")
@reading_options()
@click.option(
    "--before",
    "more_before",
    multiple=True,
    metavar="REPORT",
    help="A report of the side before; repeatable.",
)
@click.option(
    "--after", "more_after", multiple=True, metavar="REPORT", help="A report of the side after; repeatable."
)
@ranks_option
@skip_steps_option("Steps to leave out at the start of both sides.")
@format_option
@click.option(
    "-o",
    "--output",
    type=OutputPath(),
    help="Write the difference into this folder: diff.md, diff.html, diff.json and plots/.",
)
@click.option("--no-plots", is_flag=True, help="No picture.")
@click.option(
    "--fail-on",
    type=Regression(),
    help="Exit with status 3 when the step time grew by more than this, like regression:5%.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Compare what should not be compared (a gate is not assessed then), and replace files of an earlier "
    "difference in the folder.",
)
def command(
    sides: tuple[str, ...],
    reading: Reading,
    more_before: tuple[str, ...],
    more_after: tuple[str, ...],
    ranks: frozenset[int] | None,
    skip_steps: int,
    form: str,
    output: Path | None,
    no_plots: bool,
    fail_on: float | None,
    force: bool,
) -> int:
    """Say what changed between two captures of a job: did the fix help.

    BEFORE and AFTER are each a folder of reports or digests, a report.json that compare -o wrote (or the folder it
    lies in), a single report, or a quoted pattern like 'before/prof_*.sqlite'. --before and --after name single
    reports instead.

    Exit status: 0 done, whatever changed; 1 rankdiff could not do it, or the sides are not of the same job; 2 usage;
    3 the threshold of --fail-on was met; 4 the step time, or that threshold, could not be assessed.
    """
    from rankdiff.differences.difference import differ
    from rankdiff.differences.gate import regression
    from rankdiff.differences.inputs import load_side

    before, after = _sides(sides, more_before, more_after)
    if output is not None:
        from rankdiff.render.folder import check_free

        check_free(output, force)  # before the work, not after it
    options = compare_options(
        reading,
        ranks=ranks,
        skip_steps=skip_steps,
    )
    with progress(reading.quiet) as bar:
        old = load_side(before, options, bar)
    with progress(reading.quiet) as bar:
        new = load_side(after, options, bar)
    d = differ(old, new, force)
    gate = regression(d, fail_on) if fail_on is not None else None
    line = _command_line(before, after, output)
    write(_rendered(d, gate, form, line))
    if output is not None:
        from rankdiff.render.diff_package import diff_files
        from rankdiff.render.folder import write_folder

        files = diff_files(d, line, not no_plots, gate)
        write_folder(output, files, force)
        say(f"difference in {output}: {', '.join(sorted(f for f in files if '/' not in f))}")
    if gate is not None:
        say(f"--fail-on: {gate.message}")
        return gate_status(gate)
    return NOT_ASSESSED if d.status == "not_assessed" else 0


def _sides(
    sides: tuple[str, ...], more_before: tuple[str, ...], more_after: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The paths of both sides."""
    wanted = (not more_before) + (not more_after)
    if len(sides) != wanted:
        what = {2: "BEFORE and AFTER", 1: "AFTER" if more_before else "BEFORE", 0: "no argument"}[wanted]
        hint = (
            " (a folder or a quoted pattern is one argument; or --before and --after)"
            if len(sides) > 2
            else ""
        )
        raise click.UsageError(f"expected {what}, got {len(sides)} arguments{hint}")
    rest = iter(sides)
    before = more_before or (next(rest),)
    return before, more_after or (next(rest),)


def _rendered(d: Difference, gate: Gate | None, form: str, line: str) -> str:
    """The answer for stdout."""
    if form == "json":
        from rankdiff.render.diff_json import to_json

        return to_json(d, gate)
    if form == "markdown":
        from rankdiff.render.diff_document import document
        from rankdiff.render.markdown import to_markdown

        return to_markdown(document(d, (), line, gate))
    from rankdiff.render.diff_text import to_terminal, to_text

    said = [f"{gate.status.replace('_', ' ')}: {gate.message}"] if gate is not None else []
    return to_terminal(d, said) if sys.stdout.isatty() else to_text(d, said)


def _command_line(before: tuple[str, ...], after: tuple[str, ...], output: Path | None) -> str:
    """How to make the result again, by names alone: paths are nobody's business."""
    from rankdiff.untrusted import argument

    words = ["rankdiff diff"]
    for flag, paths in (("--before", before), ("--after", after)):
        names = [argument(os.path.basename(p.rstrip("/")) or p) for p in paths]
        words += names if len(names) == 1 else [f"{flag} {name}" for name in names]
    words += given(*NAMING, "skip_steps", "ranks", "fail_on")
    return " ".join([*words, *([f"-o {argument(output.name)}"] if output else [])])
