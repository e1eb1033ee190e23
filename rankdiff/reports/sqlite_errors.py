"""What SQLite's errors mean for somebody who only wants a report read."""

from __future__ import annotations

import sqlite3

from rankdiff.errors import ReportError
from rankdiff.reports.header import EXPORT_AGAIN
from rankdiff.reports.reader import DamagedError as DamagedError

# Python raises the second where the text of SQLite's error quotes bytes of a damaged file that are no UTF-8, and the
# third where SQLite asks for more memory than there is, as it does when a damaged page claims absurd sizes.
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError, MemoryError)


def explained(
    error: sqlite3.Error | UnicodeDecodeError | MemoryError, name: str, table: str | None
) -> ReportError:
    """Translate an error of SQLite, by its code alone.

    Its text may quote the file ("malformed database schema (...)"), and in a damaged file what stands in the
    place of a table's name can be a row of the environment.

    Parameters
    ----------
    error : sqlite3.Error, UnicodeDecodeError or MemoryError
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
    if isinstance(error, MemoryError):
        return DamagedError(f"{place}the database is damaged, or there is too little memory", EXPORT_AGAIN)
    if isinstance(error, UnicodeDecodeError):
        return DamagedError(f"{place}the database is damaged", EXPORT_AGAIN)
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR_SHORT_READ")):
        return DamagedError(f"{place}the database is damaged ({code})", EXPORT_AGAIN)
    return ReportError(f"{place}cannot be read ({code or type(error).__name__})", EXPORT_AGAIN)
