"""What SQLite's errors mean for somebody who only wants a report read."""

from __future__ import annotations

import sqlite3

from rankdiff.errors import ReportError
from rankdiff.reports.header import EXPORT_AGAIN


class DamagedError(ReportError):
    """A table of an export is damaged; others may be whole."""


def explained(error: sqlite3.Error, name: str, table: str | None) -> ReportError:
    """Translate an error of SQLite.

    Parameters
    ----------
    error : sqlite3.Error
    name : str
        What messages call the file.
    table : str or None
        Table that was being read.
    """
    code = getattr(error, "sqlite_errorname", "") or ""
    place = f"{name}: " + (f"table {table}: " if table else "")
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        what = f"{place}locked by another process (still being written?)"
        return ReportError(what, "Try again when the export is done")
    if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")):
        what = f"{place}cannot be opened; an unfinished transaction may lie beside it (-journal)"
        return ReportError(what, EXPORT_AGAIN)
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR_SHORT_READ")):
        return DamagedError(f"{place}the database is damaged ({error})", EXPORT_AGAIN)
    return ReportError(f"{place}cannot be read ({error})", EXPORT_AGAIN)
