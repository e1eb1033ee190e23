"""Results on stdout, remarks on stderr."""

from __future__ import annotations

import os
import sys

import click


def write(text: str) -> None:
    """Write a result; a reader that has gone (`rankdiff ... | head`) is no error of ours."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Write a line on stderr, without what could drive the terminal."""
    from rankdiff.render.document import clean

    click.echo(f"rankdiff: {clean(text)}", err=True)


def left_out(problem: Exception) -> None:
    """Say why a report is not compared."""
    say(f"left out: {problem}")
