"""Results on stdout, remarks on stderr."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rankdiff.gates import Answer
    from rankdiff.notes import Note


# Exit statuses besides those of errors.
THRESHOLD_MET = 3
NOT_ASSESSED = 4


def gate_status(answer: Answer) -> int:
    """Exit status that a gate gives."""
    from rankdiff.gates import MET, PASSED

    return 0 if answer.status == PASSED else THRESHOLD_MET if answer.status == MET else NOT_ASSESSED


def write(text: str) -> None:
    """Write a result; a reader that has gone (`rankdiff ... | head`) is no error of ours."""
    # A name may hold what the terminal's encoding lacks.
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Write a line on stderr, without what could drive the terminal."""
    from rankdiff.untrusted import clean

    click.echo(f"rankdiff: {clean(text)}", err=True)


def told(note: Note) -> None:
    """Say what the user should know while waiting."""
    say(note.message)


def left_out(problem: Exception) -> None:
    """Say why a report is not compared."""
    say(f"left out: {problem}")
