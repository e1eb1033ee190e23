"""`rankdiff trace`: all ranks on one clock for a trace viewer."""

from __future__ import annotations

from pathlib import Path

import click

from rankdiff_cli.options import OutputPath, RankList, Reading, StepRange, report_options
from rankdiff_cli.output import say, write
from rankdiff_cli.reading import compare_options, read_and_compare, with_progress

_JSON = (".json", ".json.gz")
_PERFETTO = (".pftrace", ".perfetto-trace")
_MANY = 2_000_000  # events; a browser tab has about 4 GB for the trace


@click.command(name="trace")
@report_options()
@click.option(
    "--step", "steps", type=StepRange(), help="Steps to write, like 12 or 10-19; the default is all."
)
@click.option("--ranks", type=RankList(), help="Ranks to write, like 0-7; the default is all.")
@click.option(
    "-o",
    "--output",
    type=OutputPath(),
    help="The trace to write: .json.gz or .json; .pftrace with the extra rankdiff[perfetto].",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(
    reports: tuple[str, ...],
    reading: Reading,
    steps: tuple[int, int] | None,
    ranks: frozenset[int] | None,
    output: Path | None,
    force: bool,
) -> int:
    """Write all ranks on one clock for ui.perfetto.dev.

    Each rank is a process, sorted by node; arrows lead from the last rank to arrive at a collective to those
    that waited for it.

    Exit status: 0 done; 1 rankdiff could not do it; 2 usage.
    """
    if output is None:
        raise click.UsageError("-o is missing: the trace to write, like -o job.json.gz")
    if not output.name.endswith((*_JSON, *_PERFETTO)):
        raise click.UsageError(f"-o {output}: a trace ends in {', '.join((*_JSON, *_PERFETTO))}")
    from rankdiff.render.newfile import check_new, new_file

    check_new(output, force)  # before the work, not after it
    native = output.name.endswith(_PERFETTO)
    if native:
        from rankdiff.render.perfetto import messages

        messages()
    options = compare_options(reading, need_reports=True)
    job = read_and_compare(reports, options, reading.quiet)
    from rankdiff import windows, witnesses
    from rankdiff.tracks import expected_events, read_tracks

    c = job.comparison
    window = windows.whole_window(c) if steps is None else windows.step_window(c, *steps)
    wanted = windows.of_this_run(c) if ranks is None else witnesses.captured_ranks(c, ranks)
    chosen = witnesses.by_node(c, wanted)
    events = expected_events(c, window, chosen)
    if events > _MANY and not reading.quiet:
        say(
            f"about {events / 1e6:.1f} million events, more than a viewer shows well: "
            "choose steps with --step or ranks with --ranks"
        )
    found = read_tracks(c, job.reports, job.options, window, chosen)
    traces = with_progress(found, len(chosen), reading.quiet, lambda traced: f"rank {traced.identity.label}")
    with new_file(output, force) as file:
        if native:
            from rankdiff.render.perfetto import write_perfetto

            counts = write_perfetto(file, c, traces)
        else:
            from rankdiff.render.trace import write_json

            counts = write_json(file, c, window, traces, output.name.endswith(".gz"))
    write(
        f"{counts.ranks} rank{'s' * (counts.ranks != 1)}, {windows.describe(window)}: {counts.slices:,} slices, {counts.arrows:,} arrows, "
        f"{counts.marks:,} late arrivals; open {output} in ui.perfetto.dev\n"
    )
    return 0
