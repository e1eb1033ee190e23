"""The exports that scenario tests are made of keep their promises, read with sqlite3 alone."""

from __future__ import annotations

from collections import Counter

import pytest

from rankdiff.simulation import (
    EPOCH,
    Call,
    Export,
    base4,
    columns,
    decode_payload,
    encode_payload,
    linear_clock,
)
from rankdiff.simulation.payloads import COMM, LAYOUTS, PEER, REDOP, SIZE
from rankdiff.simulation.tables import has_table, table_names
from tests.reading import KERNELS, LAUNCHES, RANGES, ranges, rows, table_set

MS = 1_000_000


@pytest.mark.parametrize("version", ["3.24.14", "3.25.0", "3.20.3", "3.4.0", "3.1.7", "2.9.1", None])
def test_schema_versions_hold_their_tables_and_columns(tmp_path, version):
    with Export(tmp_path / "a.sqlite", version=version, env={"RANK": 3}) as export:
        export.nccl("all_reduce", 100 * MS, 101 * MS, comm=7)
        export.graph_trace(102 * MS, 103 * MS)
        export.overhead(0, 5)
        export.osrt(0, 5, "read")
    tables = table_set(export.path)
    for table in tables:
        names = [row[1] for row in rows(export.path, f"PRAGMA table_info('{table}')")]
        assert names == [column.name for column in columns(table, version)]
    assert ("META_DATA_EXPORT" in tables) == (version not in ("3.1.7", "2.9.1", None))
    assert ("EXPORT_META_DATA" in tables) == (version in ("3.1.7", "2.9.1"))
    assert ("TARGET_INFO_SESSION_START_TIME" in tables) == (version is not None)
    assert ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE" in tables) == (version in ("3.24.14", "3.25.0", "3.20.3"))
    assert ("NVTX_PAYLOAD_SCHEMAS" in tables) == (version in ("3.24.14", "3.25.0", "3.20.3"))


def test_columns_stand_where_real_exports_have_them(shared):
    # Other exporters than these wrote, or their publishers cut, some tables; what is there must agree.
    known = {
        "captures/data4/prof_gpu01_0.sqlite": "3.20.3",
        "captures/graph2/prof_gpu01_0.sqlite": "3.20.3",
        "public/nsysai_mfu_2gpu_before.sqlite": "3.25.0",
        "public/pipit_cloverleaf_perlmutter.sqlite": "3.13.2",
        "public/hoponga_result_n2024.sqlite": "3.11.1",
        "public/mordred_report1_b.sqlite": None,
    }
    compared = Counter()
    for name, version in known.items():
        path = shared / name
        if not path.exists():
            continue
        for table in table_set(path) & set(table_names()):
            real = rows(path, f"PRAGMA table_info('{table}')")
            found = {row[1]: (row[2], bool(row[3])) for row in real}
            ours = columns(table, version)
            assert has_table(table, version), (name, table)
            if table == "TARGET_INFO_GPU":  # ours stops after the columns that name the device
                found = {column.name: found[column.name] for column in ours if column.name in found}
                ours = [column for column in ours if column.name in found]
            assert [c.name for c in ours] == list(found), (name, table)
            assert {c.name: (c.kind, c.required) for c in ours} == found, (name, table)
            compared[table] += 1
    assert compared["CUPTI_ACTIVITY_KIND_KERNEL"] >= 2
    assert compared["NVTX_EVENTS"] >= 2


def test_the_same_calls_write_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        base4(tmp_path / name)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_identity_is_written_as_nsys_writes_it(tmp_path):
    env = {"SLURM_PROCID": 3, "WANDB_API_KEY": "SENTINEL123"}
    with Export(tmp_path / "a.sqlite", node="gpu07", env=env, pid=144, utc_ns=EPOCH + 5) as export:
        export.kernel(10, 20, "void ns::gemm<float>(int)")
    captured = rows(export.path, "SELECT name, value FROM META_DATA_CAPTURE")
    assert ("PROCESS_0:ENVIRONMENT_VARIABLE", 'SLURM_PROCID="3"') in captured
    assert ("PROCESS_0:ENVIRONMENT_VARIABLE", 'WANDB_API_KEY="SENTINEL123"') in captured
    hosts = rows(export.path, "SELECT value, nameEnum FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'")
    assert hosts == [("gpu07", 619)]
    assert rows(export.path, "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME") == [(EPOCH + 5,)]
    [kernel] = rows(export.path, KERNELS)
    assert kernel[2] == "gemm"
    assert kernel[5] == (1 << 48) | (144 << 24)
    [device] = rows(export.path, "SELECT cudaId, pid, uuid FROM TARGET_INFO_CUDA_DEVICE")
    assert device[:2] == (0, 144)
    assert rows(export.path, "SELECT uuid FROM TARGET_INFO_GPU") == [(device[2],)]


def test_global_ids_beyond_float_precision_survive(tmp_path):
    with Export(tmp_path / "a.sqlite", machine=0x0101, pid=0) as export:
        export.kernel(10, 20, "gemm", tid=1)
    assert rows(export.path, "SELECT globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME") == [(0x0101000000000001,)]


def test_correlation_ids_start_again_in_every_process(tmp_path):
    with Export(tmp_path / "a.sqlite", pid=144) as export:
        other = export.process(145, 1)
        for start in range(0, 50 * MS, 10 * MS):
            export.kernel(start, start + MS, "gemm")
            other.kernel(start + 5 * MS, start + 6 * MS, "gemm")
    correlations = Counter(row[4] for row in rows(export.path, KERNELS))
    assert correlations == dict.fromkeys(range(1, 6), 2)
    joined = rows(export.path, LAUNCHES)
    assert len(joined) == 10
    assert all(launch == start - 10_000 for start, launch, *_ in joined)
    assert len(rows(export.path, "SELECT DISTINCT uuid FROM TARGET_INFO_CUDA_DEVICE")) == 1


def test_every_event_goes_through_the_clock_and_the_shift(tmp_path):
    clock = linear_clock(3_000, 8.0)
    with Export(tmp_path / "a.sqlite", clock=clock, shift_ns=EPOCH, utc_ns=EPOCH) as export:
        export.kernel(MS, 2 * MS, "gemm", launch=(MS - 9, MS - 4))
        export.nvtx(0, 60_000_000_000, "step 0")
        export.osrt(5, 6, "read")
    [kernel] = rows(export.path, KERNELS)
    assert kernel[:2] == (EPOCH + MS + 3_008, EPOCH + 2 * MS + 3_016)
    [step] = ranges(export.path, "step 0")
    assert step[:2] == (EPOCH + 3_000, EPOCH + 60_000_000_000 + 3_000 + 480_000)
    shift = "SELECT value FROM META_DATA_EXPORT WHERE name = 'EXPORT_CONFIG_TIME_SHIFT'"
    assert rows(export.path, shift) == [(str(EPOCH),)]


def test_a_window_records_only_what_lies_inside(tmp_path):
    with Export(tmp_path / "a.sqlite", window=(10 * MS, 20 * MS)) as export:
        export.kernel(10 * MS, 11 * MS, "edge")  # its launch came before the window
        export.kernel(15 * MS, 16 * MS, "inside")
        export.kernel(19 * MS, 21 * MS, "late")
    assert [row[2] for row in rows(export.path, KERNELS)] == ["edge", "inside"]
    assert [row[4] for row in rows(export.path, LAUNCHES)] == ["inside"]


def test_drop_and_sql_change_the_finished_file(tmp_path):
    with Export(tmp_path / "a.sqlite") as export:
        export.kernel(10, 20, "gemm")
        export.osrt(1, 2, "read")
        export.drop("OSRT_API")
        export.drop("NVTX_EVENTS")  # was never there
        export.sql("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN foo BLOB")
    assert "OSRT_API" not in table_set(export.path)
    assert rows(export.path, "SELECT foo FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(None,)]


def test_a_failed_block_writes_nothing(tmp_path):
    with pytest.raises(KeyError), Export(tmp_path / "a.sqlite") as export:
        export.sync(10, 20, kind="Nothing")
    assert not (tmp_path / "a.sqlite").exists()


def test_nvtx_forms(tmp_path):
    with Export(tmp_path / "a.sqlite") as export:
        export.nvtx(3_000, None, "data_load")
        export.nvtx(2_000, None, "mark", type=34)
        export.nvtx(4_000, 9_000, "data_load", as_text_id=True)
        export.nvtx(5_000, 6_000, None)
        export.nvtx(5_000, 6_000, "data_load", type=60, end_tid=9)
        export.nvtx(7_000, 8_000, "inner", domain="torch", payload=b"\x00\x01\xff\xfe")
    query = 'SELECT start, "end", eventType, text, textId, domainId, endGlobalTid FROM NVTX_EVENTS'
    found = rows(export.path, query + " WHERE start >= 0 ORDER BY start, eventType")
    assert [row[:4] for row in found] == [
        (2_000, None, 34, "mark"),
        (3_000, None, 59, "data_load"),
        (4_000, 9_000, 59, None),
        (5_000, 6_000, 59, None),
        (5_000, 6_000, 60, "data_load"),
        (7_000, 8_000, 59, "inner"),
    ]
    assert found[2][4] is not None
    assert found[3][4] is None
    assert found[4][6] == export.gtid(9)
    domains = rows(export.path, "SELECT text, domainId, start FROM NVTX_EVENTS WHERE eventType = 75")
    assert domains == [("torch", found[5][5], -1_000_000_000)]
    blobs = rows(export.path, "SELECT binaryData FROM NVTX_EVENTS WHERE binaryData IS NOT NULL")
    assert blobs == [(b"\x00\x01\xff\xfe",)]


def test_the_rest_of_what_a_process_can_do(tmp_path):
    with Export(tmp_path / "a.sqlite") as export:
        export.memcpy(0, 5, kind=2, size=4, memory=(2, 0))
        export.memset(5, 6)
        export.graph_trace(6, 9, graph=3)
        export.sync(0, 10, kind="Device")
        export.api(3, 4, "cudaMalloc_v3020")
        export.overhead(1, 2)
        export.sched(1, inward=False, cpu=3)
        export.osrt(1, 2, "poll", tid=9, nesting=1)
        export.diagnostic("Not all CUDA events might have been collected.")
        export.mpi_rank(2)
        export.comm_init(0, 5, 0xABC, 8, 3)
    assert rows(export.path, "SELECT bytes, copyKind, dstKind FROM CUPTI_ACTIVITY_KIND_MEMCPY") == [(4, 2, 0)]
    assert rows(export.path, "SELECT graphId FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE") == [(3,)]
    names = "SELECT s.value FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = r.nameId"
    assert {name for (name,) in rows(export.path, names)} >= {
        "cudaMalloc_v3020",
        "cudaDeviceSynchronize_v3020",
        "cudaGraphLaunch_v10000",
    }
    calls = rows(export.path, "SELECT eventClass, globalTid, nestingLevel FROM OSRT_API")
    assert calls == [(27, export.gtid(9), 1)]
    assert rows(export.path, "SELECT isSchedIn, cpu FROM SCHED_EVENTS") == [(0, 3)]
    assert rows(export.path, "SELECT rank FROM MPI_RANKS") == [(2,)]
    [init] = ranges(export.path, "ncclCommInitRankConfig")
    values = decode_payload("ncclCommInitRankConfig", init[4])
    assert values == {COMM: 0xABC, "No. of ranks": 8, "Rank": 3, "CUDA device": 0}


def test_payloads_are_those_of_real_captures(captures):
    seen = Counter()
    for job in ("tpdp4", "data4", "fsdpdata4"):
        for path in sorted((captures / job).glob("*.sqlite")):
            for _, _, name, _, blob, domain in rows(path, RANGES):
                if blob is None or name not in LAYOUTS:
                    continue
                values = decode_payload(name, blob)
                again = encode_payload(name, values, domain=domain)
                used = max(f.offset + (4 if f.name in (PEER, REDOP) else 8) for f in LAYOUTS[name].fields)
                assert again[: 32 + used] == blob[: 32 + used]
                assert len(again) == len(blob)
                assert values[SIZE] > 0
                seen[name] += 1
    assert set(seen) >= {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclSend", "ncclRecv"}


def test_payload_schemas_are_those_of_real_captures(captures, tmp_path):
    real = captures / "tpdp4" / "prof_gpu01_0.sqlite"
    with Export(tmp_path / "a.sqlite") as export:
        export.comm_init(0, 1, 7, 2, 0)
        for number, op in enumerate(("all_reduce", "all_gather", "reduce_scatter", "send", "recv"), 1):
            export.nccl(op, number * MS, number * MS + 5, comm=7)
    for table in (
        "NVTX_PAYLOAD_SCHEMAS",
        "NVTX_PAYLOAD_SCHEMA_ENTRIES",
        "NVTX_PAYLOAD_ENUMS",
        "NVTX_PAYLOAD_ENUM_ENTRIES",
    ):
        query = f"SELECT * FROM {table}"
        assert sorted(map(repr, rows(export.path, query))) == sorted(map(repr, rows(real, query)))


def test_a_collective_is_kernel_launch_range_and_payload(tmp_path):
    with Export(tmp_path / "a.sqlite") as export:
        export.nccl("all_gather", 6 * MS, 8 * MS, comm=0xA4C27CF93D1EABC, size=4096, stream=21, tid=4007)
        export.nccl("all_reduce", 9 * MS, 10 * MS, launch=None, name="ncclKernel_AllReduce_RING_LL_Sum_float")
    first, second = rows(export.path, KERNELS)
    assert first[:4] == (6 * MS, 8 * MS, "ncclDevKernel_AllGather_RING_LL", 21)
    assert second[2] == "ncclKernel_AllReduce_RING_LL_Sum_float"
    [launch] = rows(export.path, LAUNCHES)
    [call] = ranges(export.path, "ncclAllGather")
    assert call[0] < launch[1] < launch[2] < call[1] < 6 * MS
    assert call[3] == launch[3] == export.gtid(4007)
    assert decode_payload("ncclAllGather", call[4]) == {COMM: 0xA4C27CF93D1EABC, SIZE: 4096}
    assert not ranges(export.path, "ncclAllReduce")
    assert rows(export.path, "SELECT text FROM NVTX_EVENTS WHERE eventType = 75") == [("NCCL",)]


def test_without_blobs_the_schemas_stay_and_the_values_go(tmp_path):
    with Export(tmp_path / "a.sqlite", blobs=False) as export:
        export.nccl("all_reduce", 6 * MS, 8 * MS, comm=5)
    assert ranges(export.path, "ncclAllReduce")[0][4] is None
    assert rows(export.path, "SELECT payloadSize FROM NVTX_PAYLOAD_SCHEMAS") == [(24,)]
    with Export(tmp_path / "b.sqlite", nccl_ranges=False) as export:
        export.nccl("all_reduce", 6 * MS, 8 * MS, comm=5)
    assert "NVTX_EVENTS" not in table_set(export.path)


@pytest.mark.parametrize("nested", [False, True])
def test_a_group_launches_from_its_end(tmp_path, nested):
    calls = [Call("send", 7, peer=1), Call("recv", 7, peer=3), Call("all_reduce", 8)]
    with Export(tmp_path / "a.sqlite") as export:
        export.group(calls, [(6 * MS, 8 * MS, 20), (7 * MS, 9 * MS, 24)], nested=nested)
    assert [row[2:4] for row in rows(export.path, KERNELS)] == [
        ("ncclDevKernel_SendRecv", 20),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 24),
    ]
    starts, ends = ranges(export.path, "ncclGroupStart"), ranges(export.path, "ncclGroupEnd")
    assert len(starts) == len(ends) == (4 if nested else 1)
    last = ends[-1]
    for kernel, start, end, *_ in rows(export.path, LAUNCHES):
        assert last[0] < start < end < last[1]
        assert end < kernel
    [send] = ranges(export.path, "ncclSend")
    assert decode_payload("ncclSend", send[4]) == {COMM: 7, SIZE: 1 << 20, PEER: 1}
    depth = 0
    for _, _, name, *_ in rows(export.path, RANGES):
        depth += {"ncclGroupStart": 1, "ncclGroupEnd": -1}.get(name, 0)
        assert depth > 0 or name == "ncclGroupEnd"
    assert depth == 0
