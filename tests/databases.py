"""Seeded SQLite databases of every shape, and what the page reader makes of them: equal to SQLite, or refused.

python -m tests.databases 5000            so many databases, from seed 0 on
python -m tests.databases 5000 --damage   each with some damage
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from rankdiff.errors import ReportError
from rankdiff.reports.filters import Filter, condition
from rankdiff.reports.pages import read_pages
from rankdiff.reports.reader import BLOB, INTEGER, TEXT, quote
from rankdiff.reports.sqlite import SqliteReader

PAGE_SIZES = (512, 512, 1024, 4096, 4096, 8192, 65536)
DECLARED = (*("INTEGER", "INT", "BIGINT", "TEXT", "BLOB") * 3, "", "NUMERIC", "REAL")
KINDS = (INTEGER, TEXT, BLOB)
NO_UTF8 = "no UTF-8"  # stands for such a text
EDGES = (
    *(
        sign * (1 << bits) + add
        for bits in (0, 7, 8, 15, 16, 23, 31, 47, 62)
        for sign in (-1, 1)
        for add in (-1, 0, 1)
    ),
    *((1 << 63) - 1, -(1 << 63), 1_700_000_000_000_000_000),
)


def value(rng: random.Random, declared: str, page: int, mixed: bool) -> object:
    """A value of a column: what it is declared for, sometimes null, or a mixture."""
    kind = rng.choice(
        ("own", "own", "own", "own", "null", *(("integer", "real", "text", "blob") if mixed else ()))
    )
    if kind == "own":
        kind = {"TEXT": "text", "BLOB": "blob", "REAL": "real"}.get(declared, "integer")
    length = rng.choice((0, 1, 7, 40, 57, 58, page // 4, page, 3 * page if page < 4096 else 100))
    if kind == "integer":
        return rng.choice(EDGES) if rng.random() < 0.5 else rng.randrange(-300, 300)
    if kind == "real":
        return float("-inf") if rng.random() < 0.01 else rng.choice((0.0, 1.5, -2.0, 1e300, 3.0))
    if kind == "text":
        return rng.choice(("", "a\0b", "12", "1.5", "ä" * (length // 2), "x" * length, NO_UTF8))
    return rng.randbytes(length) if kind == "blob" else None


def build(path: Path, seed: int, rows: int = 60) -> None:
    """Make a database with a table ``t``, alone or among others, of a shape that the seed says."""
    rng = random.Random(seed)
    page = rng.choice(PAGE_SIZES)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA journal_mode = OFF")
        db.execute(f"PRAGMA page_size = {page}")
        db.execute(f"PRAGMA auto_vacuum = {rng.choice((0, 0, 0, 0, 0, 1, 2))}")
        if rng.random() < 0.03:
            db.execute("PRAGMA encoding = 'UTF-16le'")
        columns = [f"c{i}" for i in range(rng.randrange(1, 12))]
        declared = [rng.choice(DECLARED) for _ in columns]
        key = rng.choice(("", "", "", " PRIMARY KEY", " PRIMARY KEY DESC", " UNIQUE"))
        marked = rng.randrange(len(columns))
        if key.startswith(" PRIMARY") and rng.random() < 0.7:
            declared[marked] = "INTEGER"
        parts = [
            f'"{c}" {d}{key if i == marked else ""}'
            for i, (c, d) in enumerate(zip(columns, declared, strict=True))
        ]
        if rng.random() < 0.03:
            parts.append('"made" INTEGER AS (1)' + rng.choice((" STORED", " VIRTUAL")))
        without = key == " PRIMARY KEY" and rng.random() < 0.15
        db.execute(f"CREATE TABLE t ({', '.join(parts)}){' WITHOUT ROWID' if without else ''}")
        db.execute("CREATE TABLE other (x)")
        if rng.random() < 0.2:
            db.execute(f'CREATE INDEX i ON t ("{rng.choice(columns)}")')
        mixed = rng.random() < 0.4
        written = _insert(db, rng, columns, declared, page, rows, mixed)
        if rng.random() < 0.5:
            some = f'length({rng.randrange(1, 9)} || "{columns[0]}") % 3 = 0'
            db.execute(f'DELETE FROM t WHERE "{rng.choice(columns)}" IS NULL OR {some}')
        if rng.random() < 0.3:
            name, kind = f"c{len(columns)}", rng.choice(DECLARED)
            default = rng.choice(("", "", "", " DEFAULT NULL", " DEFAULT 7", " DEFAULT 'x'"))
            db.execute(f'ALTER TABLE t ADD COLUMN "{name}" {kind}{default}')
            columns, declared = [*columns, name], [*declared, kind]
            if rng.random() < 0.7:
                written += _insert(db, rng, columns, declared, page, rows // 2, mixed)
        # Others may be the rowid, which takes integers only.
        free = [(name, kind) for name, kind in zip(columns, declared, strict=True) if kind != "INTEGER"]
        if free and rng.random() < 0.3:
            name, kind = rng.choice(free)
            new = value(rng, kind, page, mixed)
            db.execute(f'UPDATE OR IGNORE t SET "{name}" = ? WHERE "{columns[0]}" IS NOT NULL', (new,))
        if not written:
            db.execute("INSERT OR IGNORE INTO t DEFAULT VALUES")
        for name, _ in free:
            text = "CAST(x'd6d0b9fa80ff' AS TEXT)"
            db.execute(f'UPDATE OR IGNORE t SET "{name}" = {text} WHERE "{name}" = ?', (NO_UTF8,))
        db.commit()
        if rng.random() < 0.3:
            db.execute("VACUUM")


def _insert(db, rng, columns, declared, page, rows, mixed):
    names = list(columns)
    own_rowid = rng.random() < 0.2
    for _ in range(rng.randrange(1, rows)):
        values = [value(rng, kind, page, mixed) for kind in declared]
        if own_rowid:
            values.append(rng.choice(EDGES) if rng.random() < 0.2 else rng.randrange(-1000, 100_000))
        target = ", ".join([f'"{name}"' for name in names] + ["rowid"] * own_rowid)
        try:
            db.execute(f"INSERT OR IGNORE INTO t ({target}) VALUES ({', '.join('?' * len(values))})", values)
        except (
            sqlite3.Error
        ) as error:  # a text for an INTEGER PRIMARY KEY; no rowid; the largest rowid is taken
            if error.sqlite_errorname not in (
                "SQLITE_MISMATCH",
                "SQLITE_ERROR",
                "SQLITE_FULL",
                "SQLITE_CONSTRAINT_NOTNULL",
            ):
                raise
        if rng.random() < 0.1:
            db.execute("INSERT INTO other VALUES (zeroblob(?))", (rng.randrange(3 * page),))
    return db.execute("SELECT count(*) FROM t").fetchone()[0]


def damage(path: Path, seed: int) -> None:
    """Overwrite some bytes: anywhere, in the headers of pages, or where cells begin."""
    rng = random.Random(seed)
    data = bytearray(path.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    page = 65536 if page == 1 else page
    pages = len(data) // page
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        start = rng.randrange(min(1, pages - 1), pages) * page
        what = rng.randrange(6)
        if what == 0:
            data[start + rng.randrange(page)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        elif what == 1:
            data[start + rng.randrange(12)] = rng.choice((0, 1, 2, 5, 10, 13, 255, rng.randrange(256)))
        elif what == 2:
            data[start + 8 + rng.randrange(24)] = rng.randrange(256)
        elif what == 3:
            # The beginning of a cell: sizes, rowid, header of the record.
            pointer = start + 8 + 2 * rng.randrange(4)
            cell = start + int.from_bytes(data[pointer : pointer + 2], "big")
            at = cell + rng.randrange(14)
            if at < len(data):
                data[at] = rng.choice((0, 1, 7, 10, 11, 12, 13, 127, 128, 255, rng.randrange(256)))
        elif what == 4:
            other = rng.randrange(pages) * page
            data[start : start + page] = data[other : other + page]
        else:
            length = rng.randrange(1, 16)
            at = start + rng.randrange(page - 16)
            data[at : at + length] = rng.randbytes(length)
    path.write_bytes(data)


def some_filters(rng: random.Random, declared: dict[str, str]) -> tuple[Filter, ...]:
    """Nothing, one or two conditions."""
    found = []
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        operator = rng.choice(("in", "not in", "not null", ">=", "<"))
        size = {"in": rng.randrange(6), "not in": rng.randrange(1, 6), "not null": 0}.get(operator, 1)
        values = tuple(
            rng.choice(EDGES) if rng.random() < 0.3 else rng.randrange(-300, 300) for _ in range(size)
        )
        whole = [name for name, kind in declared.items() if "INT" in kind]
        names = whole if whole and rng.random() < 0.8 else list(declared)
        found.append(Filter(rng.choice(names), operator, values))
    return tuple(found)


def check(path: Path, seed: int) -> str:
    """Read ``t`` both ways and compare.

    Returns
    -------
    str
        "equal", "refused", "both failed", or "unreadable" where SQLite cannot even open it.

    Raises
    ------
    AssertionError
        When the page reader gives another table than SQLite.
    """
    rng = random.Random(seed)
    try:
        reader = SqliteReader(str(path), "x")
    except ReportError:
        return "unreadable"
    with reader, open(path, "rb") as file:
        try:
            names = list(reader._columns("t"))
            # In a damaged schema the table may be gone.
            if "t" not in reader.tables() or not names:
                return "unreadable"
        except ReportError:
            return "unreadable"
        wanted = rng.sample(names, rng.randrange(1, len(names) + 1))
        columns = {name: rng.choice(KINDS) for name in wanted}
        declared = {name: kind for _, name, kind, *_ in reader.query("PRAGMA table_info(t)", (), "t")}
        for name in wanted:
            if rng.random() < 0.8:
                columns[name] = {"TEXT": TEXT, "BLOB": BLOB}.get(declared[name], INTEGER)
        if rng.random() < 0.2:
            columns["missing"] = rng.choice(KINDS)
        filters = some_filters(rng, declared)
        try:
            found = read_pages(reader._connection, file.fileno(), "t", columns, filters, least_leaves=1)
        except sqlite3.Error:
            return "unreadable"
        where = f" WHERE {condition(filters)}" if filters else ""
        try:
            reference = reader._rows("t", columns, f"{quote('t')} NOT INDEXED{where}", ())
        except ReportError:
            assert found is None, f"seed {seed}: SQLite cannot read this"
            return "both failed"
        if found is None:
            return "refused"
        found.rows.validate(full=True)
        assert found.rows.equals(reference), f"seed {seed}: another table"
        notes = [note.message for note in reader.notes]
        reader.notes.clear()
        for name, count in found.wrong.items():
            if count:
                reader.wrong_type(count, "t", name, columns[name])
        assert [note.message for note in reader.notes] == notes, f"seed {seed}: other notes"
        return "equal"


def outcomes(folder: Path, seeds: range, damaged: bool) -> dict[str, int]:
    """Check many databases; how often each outcome was seen."""
    seen: dict[str, int] = {}
    path = folder / "seeded.sqlite"
    for seed in seeds:
        path.unlink(missing_ok=True)
        build(path, seed // 10 if damaged else seed)  # damage in ten ways each
        if damaged:
            damage(path, seed)
        outcome = check(path, seed)
        seen[outcome] = seen.get(outcome, 0) + 1
    return seen


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.databases")
    parser.add_argument("databases", type=int)
    parser.add_argument("--damage", action="store_true")
    parser.add_argument("--first", type=int, default=0, help="seed to begin with")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seeds = range(chosen.first, chosen.first + chosen.databases)
        sys.stdout.write(f"{outcomes(Path(folder), seeds, chosen.damage)}\n")


if __name__ == "__main__":
    main()
