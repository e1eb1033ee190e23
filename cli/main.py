"""`rankdiff`: the group of commands and the one place where errors become exit statuses."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType

import click

_COMMANDS = {
    "compare": "Name the rank or node that made the others wait.",
    "diff": "Say what changed between two captures of a job.",
    "digest": "Write compact digests of reports, for compare to read instead.",
    "inspect": "Show what each report holds and what to capture better.",
    "simulate": "Write a synthetic job with planted faults, and the truth about it.",
    "timeline": "Draw what the ranks did around a step, lane by lane.",
    "trace": "Write all ranks on one clock for ui.perfetto.dev.",
}


class _Lazy(click.Group):
    """Load a command's module only when it runs: `--help` needs none of the heavy libraries."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"rankdiff_cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from rankdiff import __version__

        click.echo(f"rankdiff {__version__}")
        ctx.exit()


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
def group() -> None:
    """Find the rank or node that makes a multi-GPU job wait.

    Give it one Nsight Systems export per rank:

        rankdiff compare prof_*.sqlite
    """


_stopped_by = [signal.SIGINT]  # the signal that ends the program


def _terminated(number: int, _: FrameType | None) -> None:
    _stopped_by[:] = [signal.Signals(number)]
    sys.exit(128 + number)


def main() -> None:
    """Run the command line; known errors become one line and their exit status, bugs keep their traceback."""
    from rankdiff.errors import RankdiffError
    from rankdiff.untrusted import clean
    from rankdiff_cli.output import say

    try:
        os.getcwd()
    except OSError:
        # Removed under us, as scratch folders are. Compiling asks for it; nothing relative to it can be read any more.
        os.chdir(os.sep)
    # At the end of its time a Slurm step is sent SIGTERM: leave in order, so that temporary files go as well.
    signal.signal(signal.SIGTERM, _terminated)
    try:
        status = group.main(standalone_mode=False)
    except RankdiffError as error:
        say(f"error: {error}")
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        # DuckDB makes an interruption of whatever a signal's handler raises.
        click.echo("rankdiff: interrupted", err=True)
        sys.exit(128 + _stopped_by[0])
    except click.ClickException as error:
        # It quotes the arguments, among them file names that the shell put for a pattern.
        vars(error)["message"] = clean(error.message)
        error.show()
        sys.exit(error.exit_code)
    sys.exit(status if isinstance(status, int) else 0)
