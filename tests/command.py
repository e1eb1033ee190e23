"""The command line in this process: as quick as a call, and with the statuses and streams of the command."""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import sys
from unittest import mock

from rankdiff_cli.main import main


def called(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `rankdiff` with these arguments in this process."""
    words = ["rankdiff", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    before = signal.getsignal(signal.SIGTERM)
    try:
        with (
            mock.patch.object(sys, "argv", words),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                main()
            except SystemExit as done:
                status = done.code if isinstance(done.code, int) else 1 if done.code else 0
            else:
                raise AssertionError("the command line did not end with a status")
    finally:
        signal.signal(signal.SIGTERM, before)
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())
