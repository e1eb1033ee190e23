"""Whether a report is still the one that it was, without reading all of it."""

from __future__ import annotations

import os
from hashlib import blake2b

from rankdiff.errors import ReportError
from rankdiff.reports.discover import ENDINGS, Report

_SAMPLE_BYTES = 1 << 16
_SAMPLES = 16  # the first covers SQLite's header with its count of changes


def fingerprint(report: Report) -> str:
    """32 hex digits that differ when the report has changed.

    They cover size and time of the last change of every file, and samples of what is in it. Content alone
    would take a whole pass over gigabytes; a file that is copied without its times counts as changed, which costs
    work and never a wrong result.

    Raises
    ------
    ReportError
        When it cannot be read.
    """
    found = blake2b(digest_size=16)
    try:
        for name, path in _files(report):
            with open(path, "rb") as file:
                state = os.fstat(file.fileno())
                found.update(f"{len(name)} {state.st_size} {state.st_mtime_ns} ".encode())
                found.update(os.fsencode(name))
                for n in range(_SAMPLES):
                    file.seek(n * max(0, state.st_size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                    found.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise ReportError(f"{report.path}: cannot be read ({error.strerror})") from error
    return found.hexdigest()


def _files(report: Report) -> list[tuple[str, str]]:
    """Name and path of every file of a report, names without the folder that it lies in."""
    if report.form in ENDINGS:
        names = sorted(name for name in os.listdir(report.path) if name.endswith(ENDINGS[report.form]))
        return [(name, os.path.join(report.path, name)) for name in names]
    # What SQLite has not yet moved from its log into the file belongs to the report as well.
    log = f"{report.path}-wal"
    return [("", report.path), *([("-wal", log)] if os.path.exists(log) else [])]
