"""One planted job in every schema version and export setting: the same verdict and the same figures.

Rank 2 loads data for 3 ms longer than the others, in `read`. What a version cannot hold (names of ranks and
nodes, a session start, payloads) may be read elsewhere or be missing; nothing else may change.
"""

from __future__ import annotations

import random

import pytest

from rankdiff.errors import ReportError
from rankdiff.simulation import Export, base4, columns, synthetic, tp_dp
from rankdiff.simulation.tables import has_table, table_names
from tests.jobs import codes, copies, digests, figures, inspected, late, run, warning

MS = 1_000_000
US = 1_000
EPOCH = 1_779_630_000_000_000_000
# NSYS_SCHEMA section 1; None stands for 2020 and 2021, which wrote no version.
VERSIONS = (
    None,
    "2.9.1",
    "3.0.0",
    "3.1.7",
    "3.4.0",
    "3.7.2",
    "3.11.1",
    "3.13.2",
    "3.16.1",
    "3.17.1",
    "3.20.2",
    "3.24.14",
    "3.25.0",
    "3.28.1",
)
PAYLOADS_SINCE = (3, 20, 2)
EXACT = ("span_ns", "busy_ns", "idle_ns", "idle_data_load_ns", "idle_osrt_ns", "nccl_kernels", "nccl_ns")
WAITS = ("wait_ns", "imposed_wait_ns", "delay_ns", "last_count", "collectives")
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"


def planted(folder, **settings):
    """The job whose answers must not depend on how it was exported."""
    defaults = {"steps": 12, "late": {2: 3 * MS}, "late_as": "data_load", "jitter_ns": 50 * US, "sync": True}
    return synthetic(folder, **(defaults | settings))


def answers(report):
    """Verdict, cause and figures of a report."""
    finding = report["findings"][0]
    detail = finding["cause_detail"]
    told = (finding["cause"], detail["range"], detail["osrt"], detail["excess_ns_per_step"])
    numbers = {key: figures(report, key) for key in (*EXACT, *WAITS, "idle_by_cause_ns")}
    return report["verdict"]["status"], late(report), report["job"]["matched_collectives"], told, numbers


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Files and answers of the planted job as one exporter of 2026 writes it."""
    job = planted(tmp_path_factory.mktemp("plain"))
    report = run(job.paths)
    assert late(report) == [("late_rank", 2)]
    assert (report["findings"][0]["cause"], report["findings"][0]["cause_detail"]["osrt"]) == (
        "data_load",
        "read",
    )
    return job.paths, answers(report)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_schema_version(tmp_path, plain, version):
    job = planted(tmp_path, options={r: {"version": version} for r in range(4)})
    report = run(job.paths)
    assert answers(report) == plain[1]
    assert {r["schema_version"] for r in report["ranks"]} == {version}
    assert {r["rank_source"] for r in report["ranks"]} == {
        "SLURM_PROCID" if has_table("META_DATA_CAPTURE", version) else "file name"
    }
    payloads = version is not None and tuple(map(int, version.split("."))) >= PAYLOADS_SINCE
    assert {c["source"] for c in report["communicators"]} == {"payload" if payloads else "inferred"}


def test_versions_that_differ_from_rank_to_rank(tmp_path, plain):
    """B32: every rank was exported by another version; that is said, and changes nothing."""
    chosen = dict(enumerate(("3.24.14", "3.25.0", "3.4.0", "2.9.1")))
    report = run(planted(tmp_path, options={r: {"version": v} for r, v in chosen.items()}).paths)
    assert answers(report) == plain[1]
    assert "3.25.0" in warning(report, "mixed_versions")


def test_a_version_of_the_future_is_refused(tmp_path, plain):
    """B32: and the other ranks are compared without it."""
    future = "UPDATE META_DATA_EXPORT SET value = '4.0.0' WHERE name = 'EXPORT_SCHEMA_VERSION'"
    errors = []
    paths = copies(plain[0], tmp_path, lambda db: db.execute(future), lambda p: "_1." in p.name)
    report = run(paths, on_problem=errors.append)
    assert [r["rank"] for r in report["ranks"]] == [0, 2, 3]
    assert [("4.0.0" in str(error), "prof_nodeA_1" in str(error)) for error in errors] == [(True, True)]
    with pytest.raises(ReportError, match=r"4\.0\.0"):
        run(paths, strict=True)


def test_a_kernel_table_with_a_newer_name_is_no_empty_one(tmp_path, plain):
    """B32: it is read, and that is said."""
    renamed = f"ALTER TABLE {KERNEL} RENAME TO {KERNEL}_V2"
    report = run(copies(plain[0], tmp_path, lambda db: db.execute(renamed), lambda p: "_1." in p.name))
    assert answers(report) == plain[1]
    assert f"{KERNEL}_V2" in warning(report, "newer_table")


def edited(plain, folder, edit):
    """Answers after an edit of all files."""
    return answers(run(copies(plain[0], folder, edit)))


def no_metadata(db):
    for table in ("META_DATA_EXPORT", "META_DATA_CAPTURE", "ANALYSIS_DETAILS", "TARGET_INFO_SYSTEM_ENV"):
        db.execute(f"DROP TABLE {table}")


def text_only(db):
    db.execute(
        "UPDATE NVTX_EVENTS SET text = (SELECT value FROM StringIds WHERE id = textId) WHERE text IS NULL"
    )
    db.execute("ALTER TABLE NVTX_EVENTS DROP COLUMN textId")


def text_ids_only(db):
    names = db.execute("SELECT DISTINCT text FROM NVTX_EVENTS WHERE text IS NOT NULL").fetchall()
    for number, (name,) in enumerate(names, 900_000):
        db.execute("INSERT INTO StringIds VALUES (?, ?)", (number, name))
        db.execute("UPDATE NVTX_EVENTS SET textId = ? WHERE text = ?", (number, name))
    db.execute("ALTER TABLE NVTX_EVENTS DROP COLUMN text")


def garbage_sync_types(db):
    draw = random.Random(3)
    count = db.execute(f"SELECT count(*) FROM {SYNC}").fetchone()[0]
    assert count
    for row in range(1, count + 1):
        db.execute(f"UPDATE {SYNC} SET syncType = ? WHERE rowid = ?", (draw.randrange(-1, 9), row))


def no_analysis_details(db):
    db.execute("DROP TABLE ANALYSIS_DETAILS")


def empty_tables(db):
    """Leave tables without rows, as a non-lazy export has them."""
    there = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
    for table in table_names():
        if table not in there:
            db.execute(f'CREATE TABLE "{table}" ({", ".join(c.sql for c in columns(table, "3.28.1"))})')
    for table in ("CUDA_GRAPH_EVENTS", "GPU_METRICS", "ENUM_NSYS_EVENT_TYPE"):
        db.execute(f"CREATE TABLE {table} (id INTEGER, name TEXT)")


def other_columns(db):
    """B33: an unknown column comes, and three known ones go."""
    db.execute(f"ALTER TABLE {KERNEL} ADD COLUMN foo BLOB")
    db.execute(f"UPDATE {KERNEL} SET foo = x'0001FF'")
    for column in ("mangledName", "greenContextId", "graphId"):
        db.execute(f"ALTER TABLE {KERNEL} DROP COLUMN {column}")


def reordered_columns(db):
    for table in (KERNEL, "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "OSRT_API", "StringIds"):
        names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")][::-1]
        listed = ", ".join(f'"{name}"' for name in names)
        db.execute(f"CREATE TABLE turned AS SELECT {listed} FROM {table} ORDER BY rowid DESC")
        db.execute(f"DROP TABLE {table}")
        db.execute(f"ALTER TABLE turned RENAME TO {table}")


def not_utf8(db):
    gbk = "CAST(x'D6D0B9FAB1EAD7BCCAB1BCE4' AS TEXT)"
    db.execute(f"INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_TIME_ZONE', {gbk})")
    db.execute(f"INSERT INTO StringIds VALUES (800000, {gbk})")
    db.execute(f"INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', {gbk})")
    thread = db.execute("SELECT globalTid FROM NVTX_EVENTS LIMIT 1").fetchone()[0]
    db.execute(
        'INSERT INTO NVTX_EVENTS (start, "end", eventType, textId, globalTid, domainId) VALUES (1, 2, 59, 800000, ?, 0)',
        (thread,),
    )


def blobs_in_text(db):
    """B52: raw bytes where the table says TEXT."""
    db.execute(
        "INSERT INTO TARGET_INFO_SYSTEM_ENV (globalVid, devStateName, name, nameEnum, value) "
        "VALUES (1, 'x', 'GpuInfo', 897, x'0001FFFE')"
    )
    db.execute("UPDATE NVTX_EVENTS SET binaryData = x'0001FFFE' WHERE binaryData IS NULL AND eventType = 59")


EDITS = (
    no_metadata,
    text_only,
    text_ids_only,
    garbage_sync_types,
    no_analysis_details,
    empty_tables,
    other_columns,
    reordered_columns,
    not_utf8,
    blobs_in_text,
)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_every_way_to_export(tmp_path, plain, edit):
    """B33, B52 and the settings of exporters: tables, columns, texts and blobs that differ."""
    assert edited(plain, tmp_path, edit) == plain[1]


@pytest.mark.parametrize("metadata", [True, False])
def test_shifted_and_normalised_times(tmp_path, plain, metadata):
    """Every rank has another --ts-shift, or all were normalised; without metadata the size of the times tells it."""
    shifts = {r: {"shift_ns": (5 * r - 3) * MS if metadata else EPOCH} for r in range(4)}

    def forget(rank, export):
        export.drop("META_DATA_EXPORT")

    job = planted(tmp_path, options=shifts, edit=None if metadata else forget)
    report = run(job.paths)
    assert answers(report) == plain[1]
    assert ("times_taken_as_utc" in codes(report)) == (not metadata)


@pytest.mark.parametrize("column", ["start", "end", "deviceId", "streamId", "shortName"])
def test_a_column_that_is_needed_is_named(tmp_path, plain, column):
    """B33: one line with table, column and file."""
    paths = copies(
        plain[0][:1],
        tmp_path,
        lambda db: db.execute(f'ALTER TABLE {KERNEL} RENAME COLUMN "{column}" TO gone'),
    )
    errors = []
    with pytest.raises(Exception, match=r"no report can be used"):
        run(paths, on_problem=errors.append)
    (line,) = [str(error) for error in errors]
    assert "\n" not in line
    assert all(word in line for word in (KERNEL, column, paths[0].name))


def test_graphs_traced_whole(tmp_path):
    """B34: a graph of 90 ms is work; the collectives in it are not visible, so nobody is healthy."""
    paths = []
    for rank in range(2):
        with Export(tmp_path / f"prof_a_{rank}.sqlite", pid=4000 + rank, gpu=rank) as export:
            export.graph_trace(0, 90 * MS)
            for k in range(5):
                export.kernel((10 + k) * MS, (11 + k) * MS, "gemm")
            export.kernel(100 * MS, 101 * MS, "gemm")
        paths.append(export.path)
    for digest in digests(*paths):
        assert (digest.info.busy_ns, digest.info.idle_ns) == (91 * MS, 10 * MS)
        assert digest.info.hidden_by_graphs
    report = run(paths)
    assert (report["verdict"]["status"], report["verdict"]["reason"]) == (
        "not_assessed",
        "collectives_in_graphs",
    )
    assert "--cuda-graph-trace=node" in report["verdict"]["summary"]
    assert figures(report, "wait_ns") == {0: None, 1: None}
    assert "healthy" not in report["verdict"]["summary"]


def test_graph_replays_that_an_old_version_does_not_show(tmp_path):
    """B34: before 3.11.1 only the launches of graphs are there: the idle figures cannot be trusted."""
    with Export(tmp_path / "prof_a_0.sqlite", version="3.4.0") as export:
        export.kernel(0, MS, "gemm")
        export.api(2 * MS, 2 * MS + 5_000, "cudaGraphLaunch_v10000")
        export.kernel(50 * MS, 51 * MS, "gemm")
    assert digests(export.path)[0].info.hidden_by_graphs
    assert "collectives_in_graphs" in codes(run([export.path]))


def advanced(process, start, *, domain="NCCL", tid=None):
    """Ranges of the advanced NCCL trace around a launch: names without the prefix nccl, and their own payloads."""
    for name, before, after in (
        ("API Group", 30, 30),
        ("AllReduce", 28, 5),
        ("GroupLaunch", 20, 20),
        ("KernelLaunch", 15, 15),
    ):
        span = (start - before * US, start - 10 * US + after * US)
        process.nvtx(*span, name, domain=domain, as_text_id=True, payload=b"\x01" * 56, tid=tid)


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("domain", ["NCCL", "NCCL Trace"])
def test_the_advanced_nccl_trace_gives_no_wrong_communicator(tmp_path, legacy, domain):
    """B91: with the legacy domain beside it each collective counts once; alone, communicators are inferred."""

    def edit(rank, export):
        for values in export.written(KERNEL):
            if values["streamId"] in (20, 30):
                advanced(export, values["start"], domain=domain)

    settings = {"steps": 20, "phases": tp_dp(), "late": {1: 5 * MS}, "jitter_ns": 100 * US}
    job = synthetic(tmp_path, nccl_ranges=legacy, edit=edit, **settings)
    report = run(job.paths)
    assert sorted(c["ranks"] for c in report["communicators"]) == [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert {c["source"] for c in report["communicators"]} == {"payload" if legacy else "inferred"}
    assert figures(report, "nccl_kernels") == dict.fromkeys(range(4), 40)
    assert report["job"]["matched_collectives"] == 80
    assert late(report) == [("late_rank", 1)]


def test_device_times_count_and_not_those_of_the_call(tmp_path):
    """B91: the call lasts [1.000, 1.010) ms, the kernel [6, 8) ms."""
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 6 * MS, "gemm")
        export.nccl("all_reduce", 6 * MS, 8 * MS, launch=(MS + 3 * US, MS + 7 * US))
    (digest,) = digests(export.path)
    assert digest.collectives.select("start_ns", "end_ns", "launch_ns").row(0) == (
        6 * MS,
        8 * MS,
        MS + 3 * US,
    )
    assert digest.info.nccl_ns == 2 * MS


def test_ranges_of_nccl_without_any_kernel(tmp_path):
    """B91: a trace without CUDA holds when the host enqueued, which is said and not taken for device time."""
    paths = []
    for rank in range(2):
        with Export(tmp_path / f"prof_a_{rank}.sqlite", pid=4000 + rank) as export:
            for k in range(10):
                export.nvtx(
                    k * 10 * MS, k * 10 * MS + 10 * US, "ncclAllReduce", domain="NCCL", as_text_id=k % 2 == 0
                )
        paths.append(export.path)
    errors = []
    with pytest.raises(Exception, match="no report can be used"):
        run(paths, on_problem=errors.append)
    assert len(errors) == 2
    for error in errors:
        assert (
            "NCCL's NVTX ranges are there, but they tell when the host enqueued, not when the GPU worked"
            in str(error)
        )
        assert "cuda" in str(error)


def test_every_published_kernel_name(shared, tmp_path):
    """B11: all names of all generations count, and no look-alike does."""
    known, others = (
        [name for name in part.splitlines() if name]
        for part in (shared / "nccl_kernel_names.txt").read_text().split("\n\n")
    )
    assert len(known) > 180
    assert len(others) > 5
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        for k, name in enumerate((*known, *others)):
            export.kernel(k * MS, k * MS + 1_000, name)
    (digest,) = digests(export.path)
    assert digest.info.nccl_kernels == len(known)
    assert digest.collectives.height == len(known)


def test_public_exports_are_of_many_versions(public):
    """Exports of other people, from 2020 to 2026: each is read, and the version that is found is the known one."""
    expected = {
        "hoponga_result_n2024": "3.11.1",
        "mordred_report1_b": None,
        "nsightful_power_iteration_baseline": "3.20.2",
        "nsysai_mfu_2gpu_after": "3.25.0",
        "nsysai_mfu_2gpu_before": "3.25.0",
        "pipit_cloverleaf_perlmutter": "3.13.2",
        "pipit_saxpy_mpi_cuda_perlmutter0": "2.9.1",
        "zx_2_7B_compile_graphtrace": "3.16.1",
    }
    found = {path.stem: path for path in public.glob("*.sqlite")}
    assert set(found) == set(expected)
    for name, version in expected.items():
        seen = inspected([found[name]])
        assert f"schema {version or 'unknown'}, " in seen, name


def test_base4_in_the_oldest_version_has_all_its_values(tmp_path):
    """B01, without any metadata: ranks and nodes from file names, clocks from the collectives alone.

    Nothing tells which of the equal steps is which; that is admitted.
    """
    report = run(base4(tmp_path, options={r: {"version": None} for r in range(4)}).paths)
    assert late(report) == [("late_rank", 2)]
    assert figures(report, "wait_ns") == {0: 15 * MS, 1: 15 * MS, 2: 0, 3: 15 * MS}
    assert figures(report, "node") == {0: "nodeA", 1: "nodeA", 2: "nodeB", 3: "nodeB"}
    assert report["job"]["session_start_utc_ns"] is None
    assert "ambiguous_shift" in codes(report)
