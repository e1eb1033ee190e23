"""Results on stdout."""

from __future__ import annotations

import os
import sys


def write(text: str) -> None:
    """Write a result; a reader that has gone (`rankdiff ... | head`) is no error of ours."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
