"""`rankdiff digest`: the heavy half of a comparison, where the reports are."""

from __future__ import annotations

from pathlib import Path

import click

from rankdiff_cli.options import OutputPath, Reading, report_options
from rankdiff_cli.output import left_out, say, told, write
from rankdiff_cli.progress import progress
from rankdiff_cli.reading import digest_options


@click.command(name="digest")
@report_options(cache=False)
@click.option("-o", "--output", type=OutputPath(), help="Folder for the digests; made if need be.")
@click.option("--force", is_flag=True, help="Replace digests of other reports of the same name.")
def command(
    reports: tuple[str, ...],
    reading: Reading,
    output: Path | None,
    force: bool,
) -> int:
    """Write one compact digest per report, for `rankdiff compare` to read instead.

    Reports of one job can be digested one by one, at the same time, on any machine, into one folder. A digest that is
    there is left alone when its report is unchanged. The paths of all digests go to stdout.

    Exit status: 0 done; 1 a report could not be digested, the others are; 2 usage.
    """
    if output is None:
        raise click.UsageError("-o is missing: the folder for the digests, like -o digests")
    from rankdiff.digest_folder import write_folder

    with progress(reading.quiet) as bar:
        done = write_folder(
            reports,
            str(output),
            digest_options(reading),
            rank_regex=reading.rank_regex,
            jobs=reading.jobs,
            strict=reading.strict,
            force=force,
            progress=bar,
            on_note=None if reading.quiet else told,
        )
    for problem in done.problems:
        left_out(problem)  # with --quiet too: it is why the status is 1
    write("".join(f"{path}\n" for path in sorted({*done.written, *done.unchanged})))
    if not reading.quiet and done.unchanged:
        count = len(done.unchanged)
        say(f"{count} digest{'s are' if count > 1 else ' is'} up to date; {len(done.written)} written")
    return 1 if done.problems else 0
