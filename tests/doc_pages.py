"""Documentation pages whose examples are run: docs/library.md, docs/database.md and docs/notebook.ipynb.

Write them anew with ``python -m tests.doc_pages`` and read the difference before committing it. A page is made of itself:
its code is run, in order and on sample_reports/, and the outputs that it shows are replaced by what came out. What
docs/database.md says of the columns comes from the comments on the schemas.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

import rankdiff
from rankdiff import job_tables, schema
from tests.golden import ROOT, SAMPLES

DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^```(python|sql)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
_TABLES = re.compile(r"(?<=<!-- tables: made by tests.doc_pages -->\n)(.*)(?=<!-- end of tables -->)", re.S)
_CONSTANT = re.compile(r"((?:^# [^\n]*\n)+)^([A-Z_]+) = pl\.Schema\(\n    \{\n(.*?)^    \}\n\)", re.M | re.S)
_SQL = (
    (pl.Int64, "BIGINT"),
    (pl.UInt64, "UBIGINT"),
    (pl.Float64, "DOUBLE"),
    (pl.String, "VARCHAR"),
    (pl.Boolean, "BOOLEAN"),
)
_COLUMN = re.compile(r'^        "(\w+)": (.*?),(?:  # (.*))?$', re.M)


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A working directory in which sample_reports/ is to be found, and where examples may write."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(SAMPLES, Path(folder) / "sample_reports")
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def renewed(text: str, run: Callable[[str, str], str | None]) -> str:
    """A Markdown page with the output of every block of code after it; `run` is given language and code."""

    def block(found: re.Match[str]) -> str:
        language, code, _ = found.groups()
        output = run(language, code)
        shown = f"\n```text\n{output}```\n" if output else ""
        return f"```{language}\n{code}```\n{shown}"

    return _BLOCK.sub(block, text)


class Python:
    """Runs blocks of Python one after the other in one namespace, with frames as wide as the page."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "example"}

    def printed(self, code: str) -> str:
        """What a block prints."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), _config():
            exec(compile(code, "<example>", "exec"), self.names)
        return _trimmed(out.getvalue())

    def value(self, code: str) -> tuple[str, Any]:
        """What a cell prints, and the value of its last expression; None: it has none."""
        tree = ast.parse(code)
        out, value = io.StringIO(), None
        with contextlib.redirect_stdout(out), _config():
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "<cell>", "exec"), self.names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), self.names)
        return _trimmed(out.getvalue()), value


def _config() -> pl.Config:
    return pl.Config(
        tbl_width_chars=110,
        tbl_cols=20,
        fmt_str_lengths=60,
        tbl_hide_column_data_types=True,
        tbl_hide_dataframe_shape=True,
    )


def _trimmed(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def library(text: str) -> str:
    """docs/library.md, run."""
    example = Python()
    with workplace():
        return renewed(text, lambda _, code: example.printed(code))


def database(text: str) -> str:
    """docs/database.md, with its queries run on the database of a sample job, and its tables."""
    text = _TABLES.sub(lambda _: columns(), text)
    with workplace() as folder:
        rankdiff.compare("sample_reports/late_rank").save_db(folder / "job.duckdb")
        with duckdb.connect(str(folder / "job.duckdb"), read_only=True) as db:
            return renewed(text, lambda _, sql: _rows(db.sql(sql)))


def _rows(found: duckdb.DuckDBPyRelation) -> str:
    """A result as aligned columns."""
    rows = [found.columns, *([_cell(x) for x in row] for row in found.fetchall())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)) for row in rows)
    return _trimmed("\n".join(lines))


def _cell(x: object) -> str:
    return "NULL" if x is None else f"{x:.6g}" if isinstance(x, float) else str(x)


def described(module: Any) -> dict[str, tuple[str, dict[str, tuple[str, str]]]]:
    """What the comments say of each schema of a module and of its columns: name to (rows, column to (type, words))."""
    out = {}
    for comment, name, body in _CONSTANT.findall(Path(module.__file__).read_text(encoding="utf-8")):
        rows = " ".join(line.removeprefix("# ") for line in comment.splitlines())
        out[name] = rows, {column: (kind, words) for column, kind, words in _COLUMN.findall(body)}
    return out


def columns() -> str:
    """The section on tables of docs/database.md."""
    job, digest = described(job_tables), described(schema)
    parts = ["\n## Tables of the job\n"]
    parts += [
        _section(name, *job[name.upper()], job_tables.JOB_TABLES[name]) for name in job_tables.JOB_TABLES
    ]
    parts.append(
        "## Tables of the ranks\n\nTimes are session times of the rank, and `step` is the ordinal of its own step range.\n"
    )
    for name, whole in job_tables.RANK_TABLES.items():
        rows, known = digest[name.upper()]
        first = {"rank": ("", "whose row it is")}
        if name == "collectives":
            first["collective"] = ("", "row number in the rank's table, from 0")
        parts.append(_section(f"digest.{name}", rows, first | known, whole))
    return "\n".join(parts) + "\n"


def _section(name: str, rows: str, known: dict[str, tuple[str, str]], whole: pl.Schema) -> str:
    lines = [f"### {name}\n", f"{_linked(rows)}\n", "| column | type | |", "|---|---|---|"]
    for column, kind in whole.items():
        words = _linked(known[column][1]).replace("|", "\\|").replace("<", "\\<")
        lines.append(f"| `{column}` | {_sql(kind)} | {words} |")
    return "\n".join(lines) + "\n"


def _linked(words: str) -> str:
    """A comment with the names of constants as the reader knows them."""
    words = re.sub(r"\b(?:IDLE_|BUSY_)?CLASSES\b", "the classes above", words)
    for name in (*job_tables.JOB_TABLES, *schema.DIGEST_TABLES):
        place = name if name in job_tables.JOB_TABLES else f"digest.{name}"
        words = re.sub(rf"\b{name.upper()}\b", f"`{place}`", words)
    return words


def _sql(kind: Any) -> str:
    """The type that a column of a frame has in DuckDB."""
    if isinstance(kind, pl.List):
        return f"{_sql(kind.inner)}[]"
    if isinstance(kind, pl.Struct):
        return f"STRUCT({', '.join(f'{field.name} {_sql(field.dtype)}' for field in kind.fields)})"
    return next(name for plain, name in _SQL if kind == plain)


def notebook(text: str) -> str:
    """docs/notebook.ipynb, run cell by cell."""
    book, example, count = json.loads(text), Python(), 0
    with workplace():
        for cell in book["cells"]:
            if cell["cell_type"] != "code":
                continue
            count += 1
            printed, value = example.value("".join(cell["source"]))
            cell["execution_count"], cell["outputs"] = count, list(_outputs(printed, value, count))
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def _outputs(printed: str, value: object, count: int) -> Iterator[dict[str, Any]]:
    if printed:
        yield {"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)}
    if value is not None:
        with _config():
            data = {"text/plain": _trimmed(repr(value)).removesuffix("\n").splitlines(keepends=True)}
            html = getattr(value, "_repr_html_", lambda: None)()
        # Frames are shown as text: their HTML depends on the version of polars.
        if html is not None and not isinstance(value, pl.DataFrame):
            data["text/html"] = html.splitlines(keepends=True)
        yield {"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"}


PAGES: dict[str, Callable[[str], str]] = {
    "library.md": library,
    "database.md": database,
    "notebook.ipynb": notebook,
}


def main() -> None:
    """Write the pages anew."""
    for name, renew in PAGES.items():
        page = DOCS / name
        page.write_text(renew(page.read_text(encoding="utf-8")), encoding="utf-8")
        sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main()
