"""The page reader against SQLite: equal or refused, whatever the file."""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest

from rankdiff.kernels.sqlite_pages import (
    AT_LEAST,
    BELOW,
    NONE_OF,
    ONE_OF,
    PRESENT,
    REFUSED,
    leaf_cells,
    varint,
)
from rankdiff.kernels.sqlite_records import (
    AS_INTEGER,
    DEFAULTED,
    LENGTH_BITS,
    ORDINARY,
    ROWID,
    gather,
    records,
)
from rankdiff.reports import pages as pages_module
from rankdiff.reports.filters import Filter, condition
from rankdiff.reports.pages import LEAST_BYTES, read_pages
from rankdiff.reports.reader import BLOB, INTEGER, TEXT, DamagedError, quote
from rankdiff.reports.sqlite import SqliteReader
from tests.databases import outcomes

OSRT = {"start": INTEGER, "end": INTEGER, "globalTid": INTEGER, "nameId": INTEGER}
CHOSEN = (Filter("eventClass", "in", (27,)), Filter("globalTid", "in", (3, 5)))


def large(path, rows=60_000, pragmas=()):
    """A database above the size from which the page reader is used, with a table of calls and one of texts."""
    with closing(sqlite3.connect(path)) as db:
        for pragma in pragmas:
            db.execute(f"PRAGMA {pragma}")
        db.execute(
            "CREATE TABLE OSRT_API (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, nameId)"
        )
        db.execute("CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT, raw BLOB)")
        db.executemany(
            "INSERT INTO OSRT_API VALUES (?, ?, ?, ?, ?)",
            ((1000 * i, 1000 * i + 7, 27 if i % 3 else 31, i % 11, i % 100) for i in range(rows)),
        )
        db.executemany(
            "INSERT INTO texts VALUES (?, ?, ?)",
            ((3 * i, f"name {i}" if i % 5 else "y" * 9000, bytes(i % 300)) for i in range(1000)),
        )
        db.commit()
    return path


def by_sqlite(reader, table, columns, filters=()):
    where = f" WHERE {condition(filters)}" if filters else ""
    return reader._rows(table, columns, f"{quote(table)} NOT INDEXED{where}", ())


@pytest.fixture
def refusals(caplog):
    """Reasons of what was left to SQLite."""
    caplog.set_level(logging.DEBUG, "rankdiff.reports.pages")
    return lambda: [str(record.args[1]) for record in caplog.records]


def test_seeded_databases(tmp_path):
    seen = outcomes(tmp_path, range(500), damaged=False)
    assert set(seen) == {"equal", "refused"}
    assert seen["equal"] > 200


def test_damaged_databases(tmp_path):
    seen = outcomes(tmp_path, range(800), damaged=True)
    assert min(seen[each] for each in ("equal", "refused", "both failed")) > 120


def test_large_tables_go_through_pages(tmp_path, monkeypatch, refusals):
    path = large(tmp_path / "a.sqlite")
    with SqliteReader(str(path), "x") as reader:
        expected = by_sqlite(reader, "OSRT_API", OSRT, CHOSEN)
        assert 0 < expected.num_rows < 60_000
        texts = {"text": TEXT, "missing": TEXT, "raw": BLOB, "id": INTEGER}
        expected_texts = by_sqlite(reader, "texts", texts)
        monkeypatch.setattr(SqliteReader, "_rows", None)  # from here on SQLite must not be needed
        assert reader.read("OSRT_API", OSRT, filters=CHOSEN).equals(expected)
        assert reader.read("OSRT_API", OSRT, filters=(Filter("start", "<", (-1,)),)).num_rows == 0
        assert reader.read("texts", texts).equals(expected_texts)
        nothing = reader.read("OSRT_API", {"missing": INTEGER})
        assert (nothing.num_rows, nothing["missing"].null_count) == (60_000, 60_000)
        assert refusals() == []
        assert reader.notes == []


def test_small_files_and_tables_do_not(tmp_path, monkeypatch):
    path = large(tmp_path / "a.sqlite", rows=1000)
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM texts")
        db.commit()
        db.execute("VACUUM")
    assert path.stat().st_size < LEAST_BYTES
    monkeypatch.setattr("rankdiff.reports.sqlite.read_pages", None)
    with SqliteReader(str(path), "x") as reader:
        assert reader.read("OSRT_API", OSRT).num_rows == 1000


@pytest.mark.parametrize("threads", [1, 3])
def test_one_thread_and_several(tmp_path, monkeypatch, threads):
    path = large(tmp_path / "a.sqlite")
    monkeypatch.setattr(pages_module, "_CHUNK_BYTES", 64 << 10)
    monkeypatch.setattr(pages_module, "usable_cpus", lambda: threads)
    with SqliteReader(str(path), "x") as reader, open(path, "rb") as file:
        for filters in ((), CHOSEN):
            found = read_pages(reader._connection, file.fileno(), "OSRT_API", OSRT, filters)
            assert found.rows["start"].num_chunks > 3
            assert found.rows.equals(by_sqlite(reader, "OSRT_API", OSRT, filters))


def test_an_index_does_not_change_the_order(tmp_path):
    path = large(tmp_path / "a.sqlite", rows=3000)
    columns = {"globalTid": INTEGER}
    with SqliteReader(str(path), "x") as reader:
        expected = reader.read("OSRT_API", columns)
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE INDEX i ON OSRT_API (globalTid)")
        db.commit()
    with SqliteReader(str(path), "x") as reader:
        assert reader.read("OSRT_API", columns).equals(expected)


def test_damage_is_sqlite_s_to_report(tmp_path, refusals):
    path = large(tmp_path / "a.sqlite")
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 8 // 4096 * 4096)
        file.write(bytes(4096))
    with SqliteReader(str(path), "x") as reader, pytest.raises(DamagedError, match="table OSRT_API"):
        reader.read("OSRT_API", OSRT)
    assert refusals() == ["leaf"]


def test_a_file_cut_short_while_it_is_read(tmp_path, monkeypatch, refusals):
    """A mapping would end the process here."""
    path = large(tmp_path / "a.sqlite")

    def decode(*arguments):
        os.truncate(path, path.stat().st_size // 8 + 1)
        return whole(*arguments)

    whole = pages_module._decode
    monkeypatch.setattr(pages_module, "_decode", decode)
    with SqliteReader(str(path), "x") as reader, pytest.raises(DamagedError, match="table OSRT_API"):
        reader.read("OSRT_API", OSRT)
    assert refusals() == ["cut short"]


def test_a_file_replaced_under_its_name(tmp_path, monkeypatch):
    path = large(tmp_path / "a.sqlite")
    with SqliteReader(str(path), "x") as reader:
        os.replace(large(tmp_path / "b.sqlite", rows=50_000), path)
        monkeypatch.setattr("rankdiff.reports.sqlite.read_pages", None)
        assert reader.read("OSRT_API", OSRT).num_rows == 60_000
    with SqliteReader(str(path), "x") as reader:
        os.unlink(path)
        assert reader.read("OSRT_API", OSRT).num_rows == 50_000


def test_nobody_writes_meanwhile(tmp_path, monkeypatch):
    path = large(tmp_path / "a.sqlite")
    tried = []

    def decode(*arguments):
        with closing(sqlite3.connect(path, timeout=0)) as db:
            db.execute("DELETE FROM OSRT_API")
            with pytest.raises(sqlite3.OperationalError) as refused:
                db.commit()
        tried.append(refused.value.sqlite_errorname)
        return whole(*arguments)

    whole = pages_module._decode
    monkeypatch.setattr(pages_module, "_decode", decode)
    with SqliteReader(str(path), "x") as reader:
        assert reader.read("OSRT_API", OSRT).num_rows == 60_000
        assert tried == ["SQLITE_BUSY"]
        with closing(sqlite3.connect(path, timeout=0)) as db:  # and the lock is gone
            db.execute("DELETE FROM OSRT_API WHERE start >= 1000000")
            db.commit()
        monkeypatch.undo()
        assert reader.read("OSRT_API", OSRT).num_rows == 1000


@pytest.mark.parametrize("log", [True, False])
def test_write_ahead_logs(tmp_path, log, refusals):
    path = large(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("UPDATE OSRT_API SET start = -5 WHERE start = 0")
        db.commit()
        if log:
            with SqliteReader(str(path), "x") as reader:
                assert reader._large_file() is None
                assert reader.read("OSRT_API", OSRT)["start"][0].as_py() == -5
            return
    with SqliteReader(str(path), "x") as reader:
        assert reader._large_file() is not None
        assert reader.read("OSRT_API", OSRT).equals(by_sqlite(reader, "OSRT_API", OSRT))
    assert refusals() == []


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (20, 8, "reserved bytes"),
        (47, 5, "schema format"),
        (59, 2, "encoding"),
        (17, 3, "page size"),
        (0, 0, "no header"),
    ],
)
def test_headers_that_it_does_not_know(tmp_path, offset, value, reason, refusals):
    path = large(tmp_path / "a.sqlite", rows=100)
    other = tmp_path / "b.sqlite"
    data = bytearray(path.read_bytes())
    data[offset] = value
    other.write_bytes(data)
    with SqliteReader(str(path), "x") as reader, open(other, "rb") as file:
        assert read_pages(reader._connection, file.fileno(), "texts", {"id": INTEGER}, (), 1) is None
    assert refusals() == [reason]


def test_chains_of_auto_vacuum_databases_are_left_to_sqlite(tmp_path, refusals):
    """SQLite finds the pages of a chain elsewhere there: in a damaged file not the same ones."""
    path = large(tmp_path / "a.sqlite", rows=1000, pragmas=("auto_vacuum = 1",))
    with SqliteReader(str(path), "x") as reader, open(path, "rb") as file:
        assert read_pages(reader._connection, file.fileno(), "OSRT_API", OSRT, (), 1) is not None
        assert read_pages(reader._connection, file.fileno(), "texts", {"id": INTEGER}, (), 1) is None
    assert refusals() == ["overflow pages of an auto-vacuum database"]


@pytest.mark.parametrize(
    ("declared", "filters", "reason"),
    [
        ("a INTEGER PRIMARY KEY, b INTEGER) WITHOUT/**/ROWID", (), "WITHOUT ROWID"),
        ("a INTEGER, b INTEGER AS (a + 1))", (), "generated columns"),
        ("a DOUBLE, b INTEGER)", (), "declared type"),
        ("a INTEGER, b VARCHAR(9))", (Filter("b", "in", (1,)),), "declared type"),
        ("a INTEGER, b)", (Filter("c", "in", (1,)),), "a condition on a column that is missing"),
    ],
)
def test_tables_that_it_does_not_know(tmp_path, declared, filters, reason, refusals):
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"CREATE TABLE t ({declared}")
        db.execute("INSERT INTO t (a) VALUES (1)")
        db.commit()
    with SqliteReader(str(path), "x") as reader, open(path, "rb") as file:
        assert read_pages(reader._connection, file.fileno(), "t", {"a": INTEGER}, filters, 1) is None
        assert reader.read("t", {"a": INTEGER}, filters=filters and (Filter("a", "in", (1,)),)).num_rows == 1
    assert refusals() == [reason]


def test_long_rows_are_left_to_sqlite(tmp_path, monkeypatch, refusals):
    path = large(tmp_path / "a.sqlite")
    monkeypatch.setattr(pages_module, "_MOST_OVERFLOW_BYTES", 1_000_000)
    with SqliteReader(str(path), "x") as reader:
        assert reader.read("texts", {"text": TEXT}).num_rows == 1000
    assert refusals() == ["long rows"]


def test_values_of_another_class_are_counted_once(tmp_path):
    path = large(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE OSRT_API SET nameId = 1.5 WHERE start % 2000 = 0")
        db.commit()
    columns = {"nameId": INTEGER}
    with SqliteReader(str(path), "x") as reader:
        fast = reader.read("OSRT_API", columns)
        (note,) = reader.notes
        reader.notes.clear()
        assert by_sqlite(reader, "OSRT_API", columns).equals(fast)
        assert reader.notes == [note]
    assert "30000 values of OSRT_API.nameId" in note.message
    assert fast["nameId"].null_count == 30_000


def test_text_among_blobs_is_no_blob(tmp_path):
    """Arrow takes text for bytes where some stands among them, and not where it stands alone."""
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (raw BLOB)")
        db.executemany("INSERT INTO t VALUES (?)", [(b"\xff",), ("text",)])
        db.commit()
    with SqliteReader(str(path), "x") as reader:
        assert reader.read("t", {"raw": BLOB})["raw"].to_pylist() == [b"\xff", None]
        assert "1 values of t.raw" in reader.notes[0].message


def test_damage_that_asks_for_more_memory_than_there_is(tmp_path, monkeypatch):
    """SQLite does so for some broken pages, and Python has an error of its own for it."""

    class Broken:
        def execute(self, *_):
            raise MemoryError

    path = large(tmp_path / "a.sqlite", rows=10)
    with SqliteReader(str(path), "x") as reader:
        monkeypatch.setattr(SqliteReader, "_connection", Broken())
        with pytest.raises(
            DamagedError, match="x: table texts: the database is damaged, or there is too little"
        ):
            reader.query("SELECT 1", (), "texts")


def test_filters():
    assert condition(()) == ""
    both = (
        Filter('a"b', "not in", (1, -2)),
        Filter("c", ">=", (3,)),
        Filter("d", "not null"),
        Filter("e", "in"),
    )
    assert condition(both) == '"a""b" NOT IN (1, -2) AND "c" >= 3 AND "d" IS NOT NULL AND 1 = 0'
    for operator, values in (("<", ()), (">=", (1, 2)), ("not in", ()), ("not null", (1,))):
        with pytest.raises(ValueError, match="values"):
            Filter("a", operator, values)


def written(number):
    """A varint as SQLite writes it."""
    number %= 1 << 64
    if number >> 56:
        groups = [number >> 8 >> (7 * i) & 127 | 128 for i in range(7, -1, -1)]
        return bytes([*groups, number & 255])
    groups = [number & 127]
    while number := number >> 7:
        groups.append(number & 127 | 128)
    return bytes(reversed(groups))


def test_varints():
    powers = [sign * (1 << bits) + add for bits in range(63) for sign in (-1, 1) for add in (-1, 0, 1)]
    for number in [*powers, (1 << 63) - 1, -(1 << 63)]:
        data = np.frombuffer(b"\xaa" + written(number) + b"\xff", np.uint8)
        assert varint(data, 1, data.size) == (number, data.size - 1)
        assert varint(data, 1, data.size - 2)[1] == REFUSED


def leaf(*cells, page_bytes=512):
    """A leaf page with cells given as bytes."""
    page = bytearray(page_bytes)
    end, pointers = page_bytes, []
    for cell in cells:
        end -= len(cell)
        page[end : end + len(cell)] = cell
        pointers.append(end)
    page[0] = 13
    page[3:5] = len(cells).to_bytes(2, "big")
    for i, at in enumerate(pointers):
        page[8 + 2 * i : 10 + 2 * i] = at.to_bytes(2, "big")
    return page


def found(*pages, room=8, tests=(), operands=(), ends=None):
    data = np.frombuffer(b"".join(bytes(page) for page in pages), np.uint8)
    cells = np.zeros((4, room), np.int64)
    of_tests = np.array(tests, np.int64).reshape(-1, 4)
    ends = np.zeros(2, np.int64) if ends is None else ends
    numbers = np.array(operands, np.int64)
    count = leaf_cells(data, np.arange(len(pages)) * 512, 512, of_tests, numbers, cells, ends)
    return count if count == REFUSED else cells[:, :count].T.tolist()


def test_cells_of_leaves():
    one, two, three = b"\x02\x05ab", b"\x01\x06c", b"\x03\x07def"
    assert found(leaf(one, two), leaf(three)) == [[510, 2, 5, 2], [507, 1, 6, 1], [1021, 3, 7, 3]]
    assert found() == []
    assert found(leaf(one, two), leaf(three), room=2) == REFUSED
    assert found(leaf()) == REFUSED
    assert found(leaf(two, one)) == REFUSED
    assert found(leaf(one, one)) == REFUSED
    spilled = bytes([0x83, 0x74, 5]) + bytes(39 + 4)  # 500 bytes, of which 39 or up to 477 are here
    (cell,) = found(leaf(spilled + bytes(400)))
    assert cell[1:] == [500, 5, 39 + (500 - 39) % 508 if 39 + (500 - 39) % 508 <= 477 else 39]


@pytest.mark.parametrize(
    ("record", "left_out"),
    [
        ([5, 1, 1, 1, 1, 3, 6, 8, 9], False),  # passes
        ([5, 1, 1, 1, 1, 3, 5, 8, 9], True),
        ([5, 1, 1, 1, 1, 3, 6, 7, 9], True),
        ([5, 1, 2, 1, 1, 3, 0, 6, 7, 9], True),
        ([5, 1, 1, 5, 1, 3, 6, 255, 255, 255, 255, 255, 248, 9], True),
        ([5, 1, 5, 1, 1, 3, 0, 0, 0, 0, 0, 6, 8, 9], False),
        ([4, 1, 1, 1, 3, 5, 8], False),  # the fields tested are the last ones: they must fill it
        ([5, 1, 0, 1, 1, 3, 8, 9], False),  # null, 0, text and floats are for `records`
        ([5, 1, 8, 1, 1, 3, 8, 9], False),
        ([5, 1, 17, 1, 1, 3, 65, 66, 8, 9], False),
        ([5, 7, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 5, 8, 9], False),
        ([5, 1, 1, 10, 1, 3, 5, 9], False),  # broken ones too
        ([5, 1, 1, 6, 1, 3, 5, 0, 0], False),
        ([200, 1, 1, 1, 1, 3, 5, 8, 9], False),
    ],
    ids=str,
)
def test_cells_that_certainly_fail_are_left_out(record, left_out):
    """Tests: the second field is 6, the third 8 or 9."""
    tests, operands = [(1, ONE_OF, 0, 1), (2, ONE_OF, 1, 3)], [6, 8, 9]
    plain = bytes([5, 1, 1, 1, 1, 3, 6, 9, 9])
    cells = [bytes([len(each), rowid]) + bytes(each) for rowid, each in ((1, plain), (2, record), (3, plain))]
    ends = np.zeros(2, np.int64)
    kept = found(leaf(*cells), tests=tests, operands=operands, ends=ends)
    assert [rowid for _, _, rowid, _ in kept] == ([1, 3] if left_out else [1, 2, 3])
    assert ends.tolist() == [1, 3]


def test_which_tests_are_looked_at_at_once():
    cell = bytes([14, 7, 4, 1, 1, 28, 5, 9, *b"8 bytes."])
    ends = np.zeros(2, np.int64)
    assert found(leaf(cell), tests=[(0, ONE_OF, 0, 8)], operands=range(10, 18), ends=ends) == []
    assert ends.tolist() == [7, 7]
    assert len(found(leaf(cell), tests=[(0, ONE_OF, 0, 9)], operands=range(10, 19))) == 1
    for operator in (NONE_OF, PRESENT, AT_LEAST, BELOW):
        assert len(found(leaf(cell), tests=[(0, operator, 0, 1)], operands=[5])) == 1


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, 5), (0, 0), (3, 2), (4, 85), (4, 0), (8, 2), (9, 9), (9, 255), (508, 60), (508, 0x81), (509, 0xFF)],
    ids=str,
)
def test_broken_leaves(at, value):
    page = leaf(b"\x02\x05ab")
    assert found(page) != REFUSED
    page[at] = value
    if at == 9:
        page[8] = value // 255  # inside the header, and the last byte of the page
    if at == 509:
        page[509:512] = b"\xff\xff\xff"
    assert found(page) == REFUSED


def decoded(record, natures=(ORDINARY, ORDINARY), tests=()):
    """The values of one record in a table of two integer columns, or REFUSED; None: it does not pass."""
    data = np.frombuffer(bytes(record), np.uint8)
    cells = np.array([[0], [len(record)], [77], [len(record)]])
    fields = np.array([[column, AS_INTEGER, nature] for column, nature in enumerate(natures)])
    values, valid, wrong = np.zeros((2, 1), np.int64), np.zeros((2, 1), np.bool_), np.zeros(2, np.int64)
    of_tests = np.array([(*test, 0, 1) for test in tests], np.int64).reshape(-1, 4)
    count = records(data, cells, fields, of_tests, np.array([5]), values, valid, wrong)
    if count != 1:
        return REFUSED if count == REFUSED else None
    return [int(values[column, 0]) if valid[column, 0] else None for column in range(2)]


def test_records():
    assert decoded([3, 1, 2, 5, 1, 0]) == [5, 256]
    assert decoded([3, 1, 2, 0x85, 0x80, 0]) == [-123, -32768]
    assert decoded([3, 8, 9]) == [0, 1]
    assert decoded([3, 0, 6, *[255] * 8]) == [None, -1]
    assert decoded([3, 5, 3, 1, 2, 3, 4, 5, 6, 255, 0, 0]) == [0x010203040506, -65536]
    assert decoded([2, 1, 5]) == [5, None]
    assert decoded([2, 1, 5], (ORDINARY, DEFAULTED)) == REFUSED
    assert decoded([3, 0, 1, 5], (ROWID, ORDINARY)) == [77, 5]


def test_tests_of_records():
    five, six = [3, 1, 1, 5, 9], [3, 1, 1, 6, 9]
    for operator, passing in ((ONE_OF, five), (NONE_OF, six), (AT_LEAST, five), (AT_LEAST, six)):
        assert decoded(passing, tests=[(0, operator)]) == [passing[3], 9]
    for operator, failing in ((ONE_OF, six), (NONE_OF, five), (BELOW, five), (BELOW, six)):
        assert decoded(failing, tests=[(0, operator)]) is None
    for operator in (ONE_OF, NONE_OF, AT_LEAST, BELOW, PRESENT):
        assert decoded([3, 0, 1, 9], tests=[(0, operator)]) is None
    assert decoded([3, 17, 1, 65, 66, 9], tests=[(0, PRESENT)]) == [None, 9]
    assert decoded([3, 17, 1, 65, 66, 9], tests=[(0, NONE_OF)]) == REFUSED
    # Behind the fields tested SQLite does not look either, but it does look at a record that it returns.
    assert decoded([3, 1, 10, 6, 9], tests=[(0, ONE_OF)]) is None
    assert decoded([3, 1, 10, 5, 9], tests=[(0, ONE_OF)]) == REFUSED


@pytest.mark.parametrize(
    "record",
    [
        [1],  # no field: SQLite takes a byte behind the header for one
        [0, 1],
        [9, 1, 1, 5, 5],
        [3, 1, 1, 5],
        [3, 1, 1, 5, 5, 5],
        [3, 10, 1, 5],
        [3, 1, 11, 5],
        [4, 1, 1, 1, 5, 5, 5],
        [3, 1, 0x81, 5, 5],
        [11, 1, *[0xFF] * 9, 5],
        [3, 7, 1, 0x7F, 0xF0, 0, 0, 0, 0, 0, 0, 5],
        [2, 1, 5, 5],
    ],
    ids=str,
)
def test_broken_records(record):
    assert decoded(record) == REFUSED


def test_pieces_outside_are_refused():
    data = np.arange(10, dtype=np.uint8)
    where = np.array([(2 << LENGTH_BITS) | 3, 0, (9 << LENGTH_BITS) | 1])
    out = np.zeros(4, np.uint8)
    assert gather(data, where, np.array([3, 3, 4]), out) == 4
    assert out.tolist() == [2, 3, 4, 9]
    assert gather(data, where, np.array([3, 3, 5]), out) == REFUSED
    assert gather(data, where, np.array([3, 3, 4]), out[:3]) == REFUSED
    assert gather(data, where[2:] + 1, np.array([2]), out) == REFUSED
    assert gather(data, where[:0], np.zeros(0, np.int64), out) == 0


def real_reads(reader):
    """Large tables of an export with the columns that fit, and filters for them."""
    for table in reader.tables():
        if not reader.has(table) or table in ("StringIds",) or "ENV" in table:
            continue
        declared = reader.query(f"PRAGMA table_info({quote(table)})", (), table)
        columns = {
            name: TEXT if "TEXT" in kind.upper() else BLOB if "BLOB" in kind.upper() else INTEGER
            for _, name, kind, *_ in declared
            if "REAL" not in kind.upper() and "DOUBLE" not in kind.upper()
        }
        yield table, columns, ()
        if "globalTid" in columns:
            values = by_sqlite(reader, table, {"globalTid": INTEGER})["globalTid"].drop_null()
            if len(values):
                some = Filter("globalTid", "in", (values[0].as_py(),))
                yield table, columns, (Filter("globalTid", "not null"), some)


@pytest.mark.skipif(bool(os.environ.get("NUMBA_DISABLE_JIT")), reason="minutes as plain Python")
def test_real_exports(captures, public):
    """Every table of every export but those with strings of unknown content: equal, and none refused."""
    paths = [*sorted(captures.glob("*/*_0.sqlite")), *sorted(public.glob("*.sqlite"))]
    assert len(paths) > 15
    for path in paths:
        with SqliteReader(str(path), "x") as reader, open(path, "rb") as file:
            for table, columns, filters in real_reads(reader):
                found = read_pages(reader._connection, file.fileno(), table, columns, filters, least_leaves=1)
                assert found is not None, (path.name, table)
                assert found.rows.equals(by_sqlite(reader, table, columns, filters)), (path.name, table)
                assert isinstance(found.rows, pa.Table)
