"""`rankdiff timeline`: the picture of one step."""

from __future__ import annotations

from pathlib import Path

import click

from rankdiff_cli.options import Duration, OutputPath, RankList, Reading, report_options
from rankdiff_cli.output import write
from rankdiff_cli.reading import compare_options, read_and_compare, with_progress

_RANKS = 8


@click.command(name="timeline")
@report_options()
@click.option("--step", type=click.IntRange(0), help="Step to show; the default is the worst one.")
@click.option("--around", type=Duration(), help="Time to show, since the first session start, like 1.25s.")
@click.option("--span", type=Duration(), help="Length of the window, like 80ms.")
@click.option(
    "--ranks",
    type=RankList(),
    help=f"Ranks to draw, like 0-3; the default is the one waited for and {_RANKS - 1} others.",
)
@click.option("-o", "--output", type=OutputPath(), help="The picture to write: .png or .svg.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(
    reports: tuple[str, ...],
    reading: Reading,
    step: int | None,
    around: int | None,
    span: int | None,
    ranks: frozenset[int] | None,
    output: Path | None,
    force: bool,
) -> int:
    """Draw what the ranks did around a step or a time, lane by lane on one clock.

    Exit status: 0 done; 1 rankdiff could not do it; 2 usage.
    """
    if output is None:
        raise click.UsageError("-o is missing: the picture to write, like -o step.png")
    if output.suffix not in (".png", ".svg"):
        raise click.UsageError(f"-o {output}: a picture ends in .png or .svg")
    if step is not None and around is not None:
        raise click.UsageError("--step and --around: choose one")
    if span is not None and span <= 0:
        raise click.UsageError("--span: a window has some length")
    from rankdiff.errors import RankdiffError
    from rankdiff.render.newfile import check_new, new_file

    check_new(output, force)  # before the work, not after it
    options = compare_options(reading, need_reports=True)
    job = read_and_compare(reports, options, reading.quiet)
    from rankdiff import windows, witnesses
    from rankdiff.render import lanes
    from rankdiff.render.document import clean
    from rankdiff.tracks import spans_of

    c = job.comparison
    if around is not None:
        window = windows.moment_window(c, around, span)
    else:
        number = windows.worst_step(c) if step is None else step
        window = windows.step_window(c, number, number, span)
    if ranks is None:
        chosen = witnesses.ranks_to_show(c, window, _RANKS)
    else:
        chosen = witnesses.by_node(c, witnesses.captured_ranks(c, ranks))
    if len(chosen) > lanes.MOST_RANKS:
        raise RankdiffError(
            f"--ranks: {len(chosen)} ranks, and a picture holds {lanes.MOST_RANKS}",
            "Choose fewer, or write all of them with rankdiff trace",
        )
    spans = spans_of(c, job.reports, job.options, window, chosen)
    plot = lanes.draw(
        c, window, with_progress(spans, len(chosen), reading.quiet, lambda pair: f"rank {pair[0].label}")
    )
    with new_file(output, force) as file:
        lanes.save(plot, file, output.suffix[1:])
    drawn = f"{len(chosen)} of {len(c.identities)} ranks, {windows.describe(window)}: {output}"
    write(f"{clean(plot.title)}. {drawn}\n")
    return 0
