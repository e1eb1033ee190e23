"""Exports as folders of Parquet or Arrow tables give the same answers as SQLite, whole, odd or damaged."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import sqlite3
from contextlib import closing

import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from rankdiff.digest import make_digests
from rankdiff.errors import ReportError
from rankdiff.gathering import gather
from rankdiff.pipeline import read
from rankdiff.reports.capture import read_capture
from rankdiff.reports.discover import discover
from rankdiff.reports.identity import claims
from rankdiff.reports.nsys import load
from rankdiff.reports.opening import open_reader
from rankdiff.reports.parquet import FolderReader
from rankdiff.reports.reader import BLOB, INTEGER, TEXT
from rankdiff.simulation import Export
from tests.folders import to_folder, write_table
from tests.jobs import run
from tests.reading import stored

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"


def small(path, **settings):
    """A report with one row or more in every table that is read."""
    with Export(path, **settings) as export:
        for step in range(3):
            at = step * 10_000_000
            export.nvtx(at, at + 9_500_000, f"step {step}")
            export.nvtx(at + 6_000_000, at + 7_500_000, "data_load", as_text_id=True)
            export.kernel(at, at + 6_000_000, "gemm")
            export.memcpy(at + 6_100_000, at + 6_200_000)
            export.memset(at + 6_300_000, at + 6_400_000)
            export.nccl("all_reduce", at + 8_000_000, at + 9_000_000, comm=0xF00D_0000_0000_0ABC)
            export.osrt(at + 6_500_000, at + 7_000_000, "read")
            export.osrt(at, at + 10_000_000, "poll", tid=4001)
        export.graph_trace(30_000_000, 31_000_000)
        export.overhead(7_100_000, 7_200_000)
        export.sched(7_300_000, inward=False)
        export.sched(7_400_000, inward=True)
        export.mpi_rank(3)
        export.diagnostic("Number of CUPTI events DROPPED: 5")
        export.row("TARGET_INFO_GPU", id=0, name="H100", busLocation="0000:01:00.0", uuid="GPU-1")
    return export.path


def report_of(path):
    found = discover([path])
    assert not found.problems
    return found.reports[0]


def digests(path):
    report = report_of(path)
    return make_digests(report, claims(report))


def same(one, other):
    """Whether two lists of digests say the same, but for the names and sizes of their reports."""
    for a, b in zip(one, other, strict=True):
        for field in dataclasses.fields(a):
            left, right = getattr(a, field.name), getattr(b, field.name)
            if isinstance(left, pl.DataFrame):
                assert left.equals(right), field.name
        plain = {"report": "", "path": "", "size_bytes": 0}
        infos = [
            dataclasses.replace(d.info, claims=dataclasses.replace(d.info.claims, **plain)) for d in (a, b)
        ]
        assert infos[0] == infos[1]
    return True


def plain(report):
    """report.json without the names and sizes of the files."""
    for rank in report["ranks"]:
        rank["report"] = re.sub(r"\.sqlite|_pqtdir|_arwdir", "", rank["report"])
        rank["report_bytes"] = 0
    text = re.sub(r"(prof_\w+?)(\.sqlite|_pqtdir|_arwdir)", r"\1", repr(report))
    return re.sub(r"(nsysai_\w+?)(\.sqlite|_pqtdir|_arwdir)", r"\1", text)


@pytest.mark.parametrize("job", ["captures/data4", "captures/tpdp4", "public/nsysai_mfu_2gpu_before.sqlite"])
def test_real_captures_say_the_same(tmp_path, shared, job):
    where = shared / job
    files = sorted(where.glob("*.sqlite")) if where.is_dir() else [where]
    folders = [to_folder(file, tmp_path) for file in files]
    assert plain(run(folders)) == plain(run(files))


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_sample_reports_say_the_same(tmp_path, repository, form):
    files = sorted((repository / "sample_reports" / "late_rank").glob("*.sqlite"))
    folders = [to_folder(file, tmp_path, form) for file in files]
    assert plain(run(folders)) == plain(run(files))


@pytest.mark.parametrize("form", ["parquet", "arrow", "arrows"])
def test_every_table_says_the_same(tmp_path, form):
    path = small(tmp_path / "prof_nodeA_3.sqlite", env={"SLURM_PROCID": 3, "SLURM_JOB_ID": "77"})
    folder = to_folder(path, tmp_path / "folders", form)
    captures = []
    for each in (path, folder):
        with open_reader(report_of(each)) as reader:
            captures.append(read_capture(reader))
            assert reader.tables() == sorted(reader.tables())
    assert captures[0] == captures[1]
    assert captures[1].lost == (("cuda_dropped", 4000),)
    assert captures[1].mpi_ranks == {4000: 3}
    assert captures[1].variables == {"SLURM_PROCID": "3", "SLURM_JOB_ID": "77"}
    assert same(digests(path), digests(folder))


def narrow(array):
    """The same values in other types, as other writers choose them."""
    if pa.types.is_integer(array.type) and not array.null_count:
        low, high = min(array.to_pylist(), default=0), max(array.to_pylist(), default=0)
        for kind in (pa.uint8(), pa.int16(), pa.uint32(), pa.uint64()):
            bits = kind.bit_width
            if low >= (0 if str(kind).startswith("u") else -(1 << (bits - 1))) and high < 1 << (bits - 1):
                return array.cast(kind)
    if pa.types.is_string(array.type):
        return array.dictionary_encode() if len(array) % 2 else array.cast(pa.large_string())
    if pa.types.is_binary(array.type):
        return array.cast(pa.large_binary())
    return pa.nulls(len(array)) if array.null_count == len(array) else array


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_types_of_other_writers(tmp_path, form):
    path = small(tmp_path / "prof_nodeA_3.sqlite")
    assert same(digests(path), digests(to_folder(path, tmp_path / "folders", form, narrow)))


@pytest.fixture
def folder(tmp_path):
    """A folder with one table ``t``."""

    def make(form="parquet", **columns):
        target = tmp_path / f"x_{form}"
        target.mkdir(exist_ok=True)
        write_table(target, "t", pa.table(columns), form)
        return FolderReader(str(target), "x", (".parquet",) if form == "parquet" else (".arrow",))

    return make


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_values_come_out_as_in_sqlite(folder, form):
    columns = {
        "wide": pa.array([(1 << 64) - 1, 1 << 63, 5, None], pa.uint64()),
        "flag": pa.array([True, False, None, True]),
        "small": pa.array([-128, 127, 0, None], pa.int8()),
        "Word": pa.array(["a", "ä\0b", None, ""]).dictionary_encode(),
        "raw": pa.array([b"\x00\xff", b"", None, b"x"]),
        "fixed": pa.array([b"abcd", b"efgh", None, b"ijkl"], pa.binary(4)),
        "nothing": pa.nulls(4),
        "real": pa.array([1.0, 2.5, None, 3.0]),
    }
    wanted = {
        **dict.fromkeys(("wide", "flag", "small", "nothing"), INTEGER),
        "Word": TEXT,
        "raw": BLOB,
        "fixed": BLOB,
        "gone": TEXT,
    }
    with folder(form, **columns) as reader:
        assert reader.columns("t") == tuple(columns)
        table = reader.read("t", wanted)
        assert table.schema.types == list(wanted.values())
        assert table["wide"].to_pylist() == [-1, -(1 << 63), 5, None]
        assert table["flag"].to_pylist() == [1, 0, None, 1]
        assert table["small"].to_pylist() == [-128, 127, 0, None]
        assert table["Word"].to_pylist() == ["a", "ä\0b", None, ""]
        assert table["raw"].to_pylist() == [b"\x00\xff", b"", None, b"x"]
        assert table["fixed"].to_pylist() == [b"abcd", b"efgh", None, b"ijkl"]
        assert table["nothing"].null_count == table["gone"].null_count == 4
        assert not reader.notes
        assert reader.query('SELECT "wide" FROM "t" WHERE "wide" < 0', (), "t") == [(-1,), (-(1 << 63),)]
        # Another type is no value, and is counted.
        assert reader.read("t", {"real": INTEGER, "wide": TEXT})["real"].null_count == 4
        told = [(note.code, note.message.split(": ")[1]) for note in reader.notes]
        assert told == [
            ("wrong_type", "3 values of t.real are not int64, read as missing"),
            ("wrong_type", "3 values of t.wide are not string, read as missing"),
        ]


def not_utf8(*values):
    """Text that its writer did not check."""
    raw = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers(), raw.null_count)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_text_that_is_not_utf8(folder, form):
    text = not_utf8(b"good", b"\xd6\xd0\xb9\xfa", None, b"also good")
    with folder(form, id=pa.array([1, 2, 3, 4]), value=text) as reader:
        read = reader.read("t", {"value": TEXT, "id": INTEGER}, where='"id" < ?', parameters=(4,))
        assert read["value"].to_pylist() == ["good", "\ufffdй\ufffd", None]
        assert read["id"].to_pylist() == [1, 2, 3]
        sql = f'SELECT "value" FROM {reader.source("t")} WHERE "id" = ?'
        assert reader.query(sql, (2,), "t") == [("\ufffdй\ufffd",)]
        # A column of payloads that its writer calls text holds the same bytes.
        assert reader.read("t", {"value": BLOB})["value"].to_pylist() == [
            b"good",
            b"\xd6\xd0\xb9\xfa",
            None,
            b"also good",
        ]


def test_payloads_in_a_column_of_text(tmp_path):
    path = small(tmp_path / "prof_nodeA_3.sqlite")
    folder = to_folder(path, tmp_path / "folders")
    table = pa.parquet.read_table(folder / "NVTX_EVENTS.parquet")
    at = table.column_names.index("binaryData")
    text = not_utf8(*table["binaryData"].to_pylist())
    write_table(folder, "NVTX_EVENTS", table.set_column(at, "binaryData", text))
    assert same(digests(path), digests(folder))
    assert digests(folder)[0].collectives["comm"].to_list() == ["f00d000000000abc"] * 3


@pytest.mark.parametrize(
    "name",
    [
        "prof_o'brien node_0_pqtdir",
        "prof_näs_1_pqtdir",
        "prof_a%20b_2_pqtdir",
        "prof_a[1]*?_3_pqtdir",
        "rank=4/prof_x_4_pqtdir",
        "deviceId=7/prof_x_5_pqtdir",
        'prof_"q"_6_pqtdir',
        "prof_a\nb_7_pqtdir",
        "-o prof_8_pqtdir",
        "http:/host/prof_9_pqtdir",
    ],
)
def test_odd_names(tmp_path, monkeypatch, name):
    """B55."""
    folder = to_folder(small(tmp_path / "x.sqlite"), tmp_path)
    target = tmp_path / "there" / name
    target.parent.mkdir(parents=True)
    folder.rename(target)
    monkeypatch.chdir(tmp_path / "there")
    monkeypatch.setenv("RANKDIFF_TMP", str(tmp_path / "temporary"))
    before = sorted(os.listdir(target))
    assert digests(name)[0].info.nccl_kernels == 3
    assert sorted(os.listdir(target)) == before
    assert os.listdir(tmp_path / "there") == [name.split("/")[0]]
    assert not (tmp_path / "temporary").exists() or os.listdir(tmp_path / "temporary") == []


def test_a_name_that_is_not_text(tmp_path):
    folder = to_folder(small(tmp_path / "x.sqlite"), tmp_path)
    path = os.fsencode(tmp_path) + b"/prof_\xff_0_pqtdir"
    os.rename(folder, path)
    assert digests(os.fsdecode(path))[0].info.nccl_kernels == 3


def test_node_rank_and_size_of_a_folder(tmp_path):
    path = small(tmp_path / "prof_node_3.sqlite", utc_ns=None)
    folder = to_folder(path, tmp_path / "folders")
    expected = sum(file.stat().st_size for file in folder.iterdir())
    for given in (folder, f"{folder}/", f"{folder}/.", os.path.relpath(folder)):
        report = report_of(given)
        (claim,) = claims(report)
        assert (report.name, claim.report) == ("prof_node_3_pqtdir",) * 2
        assert (claim.file_node, claim.file_rank) == ("node", 3)
        assert report.size_bytes == claim.size_bytes == expected


def test_a_folder_of_another_name(tmp_path):
    folder = to_folder(small(tmp_path / "x.sqlite"), tmp_path)
    folder.rename(tmp_path / "prof_gpu01_5")
    assert claims(report_of(tmp_path / "prof_gpu01_5"))[0].file_rank == 5


def test_a_folder_that_is_no_export(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    write_table(other, "sales", pa.table({"x": [1]}))
    (tmp_path / "x_pqtdir").mkdir()
    (tmp_path / "y_arwdir").mkdir()
    (tmp_path / "y_arwdir" / "StringIds.arrow").mkdir()
    found = discover([other, tmp_path / "x_pqtdir", tmp_path / "y_arwdir"])
    assert not found.reports
    told = " ".join(map(str, found.problems))
    assert "other: a directory without a report in it" in told
    assert "x_pqtdir: no tables in it" in told
    assert "y_arwdir: no tables in it" in told
    assert "nsys export --type parquetdir --include-blobs=true" in told


def test_several_forms_of_one_report_count_once(tmp_path):
    path = small(tmp_path / "prof_a_0.sqlite")
    to_folder(path, tmp_path)
    to_folder(path, tmp_path, "arrow")
    found = discover(tmp_path.iterdir())
    assert [report.name for report in found.reports] == ["prof_a_0.sqlite"]
    assert [(note.code, note.message) for note in found.notes] == [
        ("already_exported", f"prof_a_0_{form} is the same report as prof_a_0.sqlite, which is read")
        for form in ("arwdir", "pqtdir")
    ]


def test_no_gpu_work(tmp_path):
    folder = to_folder(small(tmp_path / "x.sqlite"), tmp_path)
    for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"):
        (folder / f"CUPTI_ACTIVITY_KIND_{kind}.parquet").unlink()
    with pytest.raises(ReportError, match="x_pqtdir: no GPU work was captured"):
        claims(report_of(folder))


def damage_cut(path):
    os.truncate(path, path.stat().st_size // 2)


def damage_zeros(path):
    path.write_bytes(bytes(path.stat().st_size))


def damage_other(path):
    path.write_bytes(b"not Parquet at all")


def damage_middle(path):
    """Overwrite the pages of data but not the description at the end."""
    size = path.stat().st_size
    footer = int.from_bytes(path.read_bytes()[-8:-4], "little") + 8
    with open(path, "r+b") as file:
        file.seek(4)
        file.write(bytes(size - footer - 4))


DAMAGES = [damage_cut, damage_zeros, damage_other, damage_middle]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_in_a_table_that_is_needed(tmp_path, damage):
    folder = to_folder(small(tmp_path / "prof_a_0.sqlite"), tmp_path)
    damage(folder / f"{KERNEL}.parquet")
    with pytest.raises(ReportError, match=rf"^prof_a_0_pqtdir: table {KERNEL}: .*damaged"):
        digests(folder)


@pytest.mark.parametrize("damage", [damage_cut, damage_middle])
@pytest.mark.parametrize("table", ["NVTX_EVENTS", "OSRT_API", "META_DATA_CAPTURE", "DIAGNOSTIC_EVENT"])
def test_damage_where_one_can_do_without(tmp_path, table, damage):
    folder = to_folder(small(tmp_path / "prof_a_0.sqlite", env={"RANK": 3}), tmp_path)
    damage(folder / f"{table}.parquet")
    (digest,) = digests(folder)
    assert digest.info.nccl_kernels == 3
    assert table not in digest.info.tables
    told = [note.message for note in digest.info.notes if note.code == "table_unreadable"]
    assert told
    assert all(f"table {table}: " in message for message in told)


def test_damage_anywhere_in_an_arrow_file(tmp_path):
    folder = to_folder(small(tmp_path / "prof_a_0.sqlite"), tmp_path, "arrow")
    file = folder / "StringIds.arrow"
    whole = file.read_bytes()
    with open_reader(report_of(folder)) as reader:
        known = reader.strings(range(100)).to_pylist()
    outcomes = set()
    for at in range(0, len(whole), 32):
        file.write_bytes(whole[:at] + b"\xff" * len(whole[at : at + 8]) + whole[at + 8 :])
        try:
            with open_reader(report_of(folder)) as reader:
                outcomes.add(
                    "the same" if reader.strings(range(100)).to_pylist() == known else "other values"
                )
        except ReportError as error:
            assert re.search("table StringIds: |has no column", str(error))  # noqa: PT017
            outcomes.add("refused")
    assert {"refused", "the same"} <= outcomes


@pytest.mark.parametrize("columns", [{}, {"id": [1, 2]}])
def test_tables_that_make_no_sense(tmp_path, columns):
    folder = to_folder(small(tmp_path / "prof_a_0.sqlite"), tmp_path, "arrow")
    twice = pa.table([pa.array([1]), pa.array([2])], names=["id", "id"])
    write_table(folder, "StringIds", pa.table(columns) if columns == {} else twice, "arrow")
    with pytest.raises(ReportError, match="prof_a_0_arwdir: table StringIds: the file is damaged"):
        digests(folder)


@pytest.mark.parametrize("table", ["NVTX_EVENTS", "OSRT_API"])
def test_a_table_without_rows_was_not_captured(tmp_path, table):
    folder = to_folder(small(tmp_path / "prof_a_0.sqlite"), tmp_path)
    file = folder / f"{table}.parquet"
    pa.parquet.write_table(pa.parquet.read_table(file).slice(0, 0), file)
    (without_rows,) = digests(folder)
    file.write_bytes(b"")
    (without_bytes,) = digests(folder)
    file.unlink()
    (without_file,) = digests(folder)
    assert same([without_rows], [without_file])
    assert same([without_bytes], [without_file])
    assert table not in without_file.info.tables
    assert not without_file.info.notes


def test_a_column_of_another_type_is_missing(tmp_path):
    folder = to_folder(small(tmp_path / "prof_a_0.sqlite"), tmp_path)
    table = pa.parquet.read_table(folder / "OSRT_API.parquet")
    at = table.column_names.index("start")
    write_table(folder, "OSRT_API", table.set_column(at, "start", table["start"].cast(pa.float64())))
    (digest,) = digests(folder)
    assert [note.message.split(": ")[1] for note in digest.info.notes if note.code == "wrong_type"] == [
        "3 values of OSRT_API.start are not int64, read as missing"
    ]


def test_a_condition_on_a_column_of_another_type(tmp_path):
    folder = to_folder(small(tmp_path / "prof_a_0.sqlite"), tmp_path)
    table = pa.parquet.read_table(folder / "NVTX_EVENTS.parquet")
    at = table.column_names.index("eventType")
    words = pa.array(["push/pop"] * table.num_rows)
    write_table(folder, "NVTX_EVENTS", table.set_column(at, "eventType", words))
    (digest,) = digests(folder)
    assert "NVTX_EVENTS" not in digest.info.tables
    (note,) = (note for note in digest.info.notes if note.code == "table_unreadable")
    assert "table NVTX_EVENTS: holds values of a type that was not expected" in note.message


def test_secrets_never_leave_the_files(tmp_path):
    secret = "SENTINEL123"
    env = {"SLURM_PROCID": 3, "WANDB_API_KEY": secret, "SLURM_JOB_ID_SECRET": secret}
    path = small(tmp_path / "prof_a_3.sqlite", env=env)
    with closing(sqlite3.connect(path)) as base:
        base.execute("INSERT INTO StringIds VALUES (9999, ?)", (f"HF_TOKEN={secret}",))
        base.commit()
    folder = to_folder(path, tmp_path)
    # Text that is not UTF-8 makes DuckDB quote it in its own error.
    captured = pa.parquet.read_table(folder / "META_DATA_CAPTURE.parquet")
    rows = [*captured["value"].cast(pa.binary()).to_pylist(), b"KEY=\xff" + secret.encode()]
    names = [*captured["name"].to_pylist(), "PROCESS_0:ENVIRONMENT_VARIABLE"]
    write_table(folder, "META_DATA_CAPTURE", pa.table({"name": names, "value": not_utf8(*rows)}))
    report = report_of(folder)
    found = claims(report)
    assert found[0].env_ranks == (("SLURM_PROCID", 3),)
    everything = [found, make_digests(report, found)]
    with open_reader(report) as reader:
        everything.append(read_capture(reader))
    with load(report) as tables:
        everything += stored(tables)
    damage_middle(folder / "META_DATA_CAPTURE.parquet")
    everything.append(digests(folder))
    assert secret not in repr(everything)


@pytest.mark.parametrize("form", ["sqlite", "parquet", "arrow"])
def test_calls_of_helper_threads_are_not_read(tmp_path, form):
    """B63."""
    path = small(tmp_path / "prof_a_0.sqlite")
    with closing(sqlite3.connect(path)) as base:
        base.execute(
            "INSERT INTO OSRT_API SELECT o.start + n.value, o.end + n.value, o.eventClass, o.globalTid, "
            "o.correlationId, o.nameId, o.returnValue, o.nestingLevel, o.callchainId FROM OSRT_API o, "
            "(WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 30000) "
            "SELECT value FROM n) n WHERE o.globalTid & 16777215 = 4001 AND o.start = 0"
        )
        base.commit()
    report = path if form == "sqlite" else to_folder(path, tmp_path, form)
    (digest,) = digests(report)
    assert digest.info.tables["OSRT_API"] == 3


def test_a_table_with_a_newer_name(tmp_path):
    folder = to_folder(small(tmp_path / "prof_a_0.sqlite"), tmp_path)
    known = digests(folder)
    (folder / f"{KERNEL}.parquet").rename(folder / f"{KERNEL}_V2.parquet")
    (digest,) = digests(folder)
    assert digest.collectives.equals(known[0].collectives)
    assert [note.message for note in digest.info.notes] == [
        f"prof_a_0_pqtdir: table {KERNEL}_V2 is read as {KERNEL}"
    ]


def test_a_folder_and_a_file_make_one_job(tmp_path):
    paths = [small(tmp_path / f"prof_n{rank}_{rank}.sqlite", pid=100 + rank) for rank in range(2)]
    mixed = [paths[0], to_folder(paths[1], tmp_path / "folders")]
    for path in paths:
        with closing(sqlite3.connect(path)) as base:
            base.execute("DROP TABLE MPI_RANKS")
            base.commit()
    (mixed[1] / "MPI_RANKS.parquet").unlink()
    assert [i.rank for i in gather(list(map(str, mixed))).identities] == [0, 1]
    assert [d.info.nccl_kernels for d in read(list(map(str, mixed))).digests] == [3, 3]


SQL = re.compile(r"""\b(SELECT|FROM|WHERE|IS NOT NULL|ORDER BY|IN \()|(?<![\w-])end"?\s*[<>=]""")
BARE_END = re.compile(r"""(?<![\w."'-])end(?![\w"'])""")


def sql_texts(source):
    """Literals of a module that are SQL or part of it."""
    tree = ast.parse(source)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
        if text and SQL.search(node.value):
            yield node.value


def test_the_lint_of_end_finds_it():
    assert BARE_END.search("SELECT start, end FROM t")
    assert BARE_END.search("end IS NOT NULL")
    assert not BARE_END.search('SELECT "end" - "start", end_ns, x.end, \'end\' FROM t WHERE CASE x END')
    assert list(sql_texts('def f():\n    "SELECT end FROM docs"\n    return f"{x} end > 5"')) == [" end > 5"]


def test_no_sql_has_a_bare_end(repository):
    """B54; that every query runs on both engines is what the other tests here show."""
    found = {}
    # Of the readers: the simulator writes what it reads nowhere, and has messages that look like it.
    for path in sorted((repository / "rankdiff" / "reports").rglob("*.py")):
        for text in sql_texts(path.read_text(encoding="utf-8")):
            found.setdefault(path.name, []).append(text)
    assert {"capture.py", "nsys.py"} <= set(found)
    assert not [(name, text) for name, texts in found.items() for text in texts if BARE_END.search(text)]
