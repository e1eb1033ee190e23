"""Opening a report, whatever its form."""

from __future__ import annotations

from rankdiff.reports.discover import ENDINGS, NSYS_REP, Report
from rankdiff.reports.nsys_export import exported
from rankdiff.reports.reader import Reader
from rankdiff.reports.sqlite import SqliteReader


def open_reader(report: Report) -> Reader:
    """Open a report for reading.

    Raises
    ------
    ReportError
        When it cannot be opened, or `nsys` cannot export it.
    """
    if report.form in ENDINGS:
        from rankdiff.reports.parquet import FolderReader  # it imports DuckDB, which takes a while

        return FolderReader(report.path, report.name, ENDINGS[report.form])
    if report.form == NSYS_REP:
        made = exported(report.path, report.name)
        reader = SqliteReader(made.path, report.name)
        reader.notes += made.notes
        return reader
    return SqliteReader(report.path, report.name)
