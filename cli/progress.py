"""Progress on stderr: a bar when it is a terminal and the work takes over a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PATIENCE_S = 1.0


class _Bar:
    """Shows nothing for the first second, then a bar over the reports."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, done: int, total: int, name: str) -> None:
        if self._bar is None:
            if time.monotonic() - self._since < _PATIENCE_S or done >= total:
                return
            from rich.console import Console
            from rich.markup import escape
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._escape = escape
            self._bar = Progress(
                TextColumn("reading"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=total)
        self._bar.update(self._task, completed=done, description=self._escape(name))

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def progress(quiet: bool) -> Iterator[_Bar | None]:
    """Progress callback for the library; None where no one would see it."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    bar = _Bar()
    try:
        yield bar
    finally:
        bar.close()
