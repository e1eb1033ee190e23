"""Exports that are a folder with one file per table: Parquet, read by DuckDB itself, and Arrow.

DuckDB reads only the columns and rows that a query asks for. What it refuses, text that is not UTF-8, goes
through pyarrow batch by batch, and so do Arrow files, of which it knows nothing without an extension.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import duckdb
import numpy as np
import pyarrow as pa

from rankdiff.errors import ReportError
from rankdiff.reports.engine import interruptible, open_engine
from rankdiff.reports.reader import BLOB, INTEGER, TEXT, DamagedError, Reader, quote
from rankdiff.reports.table_files import TableFile, kind_of, open_table
from rankdiff.reports.temporary import private_folder

T = TypeVar("T")

_EXPORT_AGAIN = (
    "Copy it again, or export it again: nsys export --type parquetdir --include-blobs=true REPORT.nsys-rep"
)
_GLOB = frozenset("*?[")  # DuckDB takes paths with these for patterns
_WRONG_TYPE = (duckdb.BinderException, duckdb.ConversionException, duckdb.OutOfRangeException)


class FolderReader(Reader):
    """An export of one file per table.

    Parameters
    ----------
    path : str
        The folder.
    name : str
        How messages call it.
    endings : tuple of str
        What the files of tables end in.

    Raises
    ------
    ReportError
        When the folder cannot be listed.
    """

    def __init__(self, path: str, name: str, endings: tuple[str, ...]) -> None:
        super().__init__(name)
        self.path = os.path.abspath(path)
        self._private: str | None = None
        self._db: duckdb.DuckDBPyConnection | None = None
        self._views: set[str] = set()
        self._streamed: set[str] = set()
        self._open_files: dict[str, TableFile] = {}
        try:
            self._files = table_paths(self.path, endings)
        except OSError as error:
            raise ReportError(
                f"{name}: cannot be read ({error.strerror})", "Check its permissions"
            ) from error

    def close(self) -> None:
        """Close the database."""
        self._disconnect()
        self._open_files.clear()
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)
            self._private = None

    def tables(self) -> list[str]:
        """Names of the tables that have a file with something in it, sorted."""
        return sorted(self._files)

    def query(self, sql: str, parameters: Sequence[Any], table: str) -> list[tuple[Any, ...]]:
        """Run one small query on `table`."""
        source = self._source(table)
        if not source:
            raise ReportError(f"{self.name}: no table {table}")
        # The columns that the query names, and maybe a few more: all that a stream has to hold.
        names = [column for column in self._columns(source) if column in sql]
        rows: list[tuple[Any, ...]] = self._run(
            source, sql, parameters, names, (), lambda relation: relation.fetchall()
        )
        return rows

    def _strings(self, ids: list[int]) -> pa.Table:
        # In one pass over the file, which has no index.
        if not ids:
            return super()._strings(ids)
        chosen = '"id" IN (SELECT unnest(CAST(? AS BIGINT[])))'
        kinds = {"id": INTEGER, "value": TEXT}
        found = self.read("StringIds", kinds, required=tuple(kinds), where=chosen, parameters=[ids])
        return found.sort_by("id")

    def _filled(self, table: str) -> bool:
        return self._file(table).rows > 0

    def _columns(self, table: str) -> tuple[str, ...]:
        return tuple(self._file(table).schema.names)

    def _select(
        self, table: str, columns: Mapping[str, pa.DataType], where: str, parameters: Sequence[Any]
    ) -> pa.Table:
        schema = self._file(table).schema
        there = {name: kind_of(schema.field(name).type) for name in columns if name in schema.names}
        # Exporters differ in what they take the column of payloads for; its bytes are the same.
        raw = [name for name, kind in there.items() if kind == TEXT and columns[name] == BLOB]
        wrong = [name for name, kind in there.items() if kind != columns[name] and name not in raw]
        chosen = [f"{quote(n)} IS NOT NULL AS {quote(n)}" if n in wrong else quote(n) for n in there]
        sql = f"SELECT {', '.join(chosen) or '1 AS present'} FROM {quote(table)}" + (
            f" WHERE {where}" if where else ""
        )
        names = [name for name in schema.names if name in there or quote(name) in where]
        found = self._run(table, sql, parameters, names, raw, lambda relation: relation.to_arrow_table())
        arrays = []
        for name, kind in columns.items():
            if name in wrong and (count := int(np.count_nonzero(found[name].to_numpy()))):
                self.wrong_type(count, table, name, kind)
            whole = name in there and name not in wrong
            arrays.append(found[name].cast(kind) if whole else pa.nulls(found.num_rows, kind))
        return pa.table(arrays, schema=pa.schema(list(columns.items())))

    def _run(
        self,
        table: str,
        sql: str,
        parameters: Sequence[Any],
        names: Sequence[str],
        raw: Sequence[str],
        fetch: Callable[[duckdb.DuckDBPyRelation], T],
    ) -> T:
        """Run a query on one table: through DuckDB's own reader if it can, else through a stream.

        `names` are the columns that it needs, `raw` those whose text is wanted as bytes.
        """
        file = self._file(table)
        try:
            if file.is_parquet and not raw and table not in self._streamed:
                try:
                    self._make_view(table, file)
                    with interruptible():
                        return fetch(self._connection.sql(sql, params=list(parameters)))
                except duckdb.InvalidInputException as error:
                    self._disconnect()
                    if "UTF" not in str(error):
                        raise
                    self._streamed.add(table)
            self._drop_view(table)
            self._connection.register(table, file.stream(names, raw))
            try:
                with interruptible():
                    return fetch(self._connection.sql(sql, params=list(parameters)))
            finally:
                self._connection.unregister(table)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            self._disconnect()  # some errors leave a connection that repeats them
            # The engine's own words may quote values, and these files hold secrets.
            raise self._explained(error, table) from None

    def _file(self, table: str) -> TableFile:
        if table not in self._open_files:
            path = self._files[table]
            try:
                self._open_files[table] = open_table(path)
            except PermissionError as error:
                raise ReportError(
                    f"{self.name}: table {table}: cannot be read ({error.strerror})", "Check its permissions"
                ) from error
            except (pa.ArrowException, OSError, ValueError) as error:
                raise self._explained(error, table) from None
        return self._open_files[table]

    def _make_view(self, table: str, file: TableFile) -> None:
        if table in self._views:
            return
        where = self._plain_path(file.path).replace("'", "''")
        columns = ", ".join(_expression(field) for field in file.schema)
        # A folder called a=b would add a column.
        source = f"read_parquet('{where}', hive_partitioning = false)"
        self._connection.execute(f"CREATE TEMP VIEW {quote(table)} AS SELECT {columns} FROM {source}")
        self._views.add(table)

    def _drop_view(self, table: str) -> None:
        if table in self._views:
            self._connection.execute(f"DROP VIEW {quote(table)}")
            self._views.discard(table)

    def _plain_path(self, path: str) -> str:
        """The path, or one through a link where DuckDB would take it for a pattern or cannot spell it."""
        if not _GLOB & set(path) and path.isprintable():
            return path
        if self._private is None:
            self._private = private_folder()
            os.symlink(os.path.dirname(path), os.path.join(self._private, "export"))
        return os.path.join(self._private, "export", os.path.basename(path))

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        if self._db is None:
            self._db = open_engine(share=4)
        return self._db

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        self._views.clear()

    def _explained(self, error: Exception, table: str) -> ReportError:
        place = f"{self.name}: table {table}: "
        if isinstance(error, (duckdb.OutOfMemoryException, pa.ArrowMemoryError)):
            return ReportError(f"{place}not enough memory to read it", "Allow the job more memory")
        if isinstance(error, _WRONG_TYPE):
            return DamagedError(f"{place}holds values of a type that was not expected", _EXPORT_AGAIN)
        return DamagedError(f"{place}the file is damaged or cut short", _EXPORT_AGAIN)


def table_paths(folder: str, endings: tuple[str, ...]) -> dict[str, str]:
    """Paths of the files with tables in a folder, by table; empty files are none."""
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            stem, dot, ending = entry.name.rpartition(".")
            if stem and dot + ending in endings and entry.is_file() and entry.stat().st_size:
                found[stem] = os.path.join(folder, entry.name)
    return found


def _expression(field: pa.Field) -> str:
    """A column as one of the three types that an export has, or as it is."""
    name = quote(field.name)
    if kind_of(field.type) != INTEGER or field.type == pa.int64():
        return name
    if field.type == pa.uint64():
        # SQLite has no unsigned integers: the same bits, as there.
        wrapped = f"CAST(CAST({name} AS HUGEINT) - 18446744073709551616 AS BIGINT)"
        return f"CASE WHEN {name} > 9223372036854775807 THEN {wrapped} ELSE TRY_CAST({name} AS BIGINT) END AS {name}"
    return f"CAST({name} AS BIGINT) AS {name}"
