"""Importing matplotlib on a compute node: no display, a home that cannot be written, an inherited MPLBACKEND."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def quietly() -> Iterator[None]:
    """Keep matplotlib's log about its cache folder and fonts off the terminal; errors still show."""
    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def import_matplotlib() -> None:
    """Import matplotlib, whatever backend the environment asks for: figures here bring their own canvas.

    A backend it does not know, such as that of a notebook in which the job was submitted, makes the import
    itself fail. A known one is set as the import would have done, for the program that embeds rankdiff.
    """
    with quietly():
        if "matplotlib" not in sys.modules:
            wanted = os.environ.pop("MPLBACKEND", None)
            try:
                matplotlib = importlib.import_module("matplotlib")
            finally:
                if wanted is not None:
                    os.environ["MPLBACKEND"] = wanted
            if wanted:
                with suppress(ValueError):
                    matplotlib.rcParams["backend"] = wanted
        # Reads or builds the list of fonts, which is what the log would talk about.
        importlib.import_module("matplotlib.font_manager")
