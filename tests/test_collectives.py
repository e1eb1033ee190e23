"""NCCL kernels to communicator, operation, size, step and token: small files made by hand."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rankdiff.digest import DigestOptions, make_digests
from rankdiff.reports.discover import discover
from rankdiff.reports.identity import claims
from rankdiff.schema import COLLECTIVES, DIGEST_TABLES
from rankdiff.simulation import Call, Export

MS = 1_000_000
A, B = 0x0A4C27CF93D1EABC, 0xFC14A70559937513


def digests(path, options=None, **known):
    (report,) = discover([path]).reports
    return make_digests(report, claims(report, **known), options or DigestOptions())


def collectives(path, *columns):
    (digest,) = digests(path)
    for name, schema in DIGEST_TABLES.items():
        assert getattr(digest, name).schema == schema
    table = digest.collectives
    return table.select(columns).rows() if columns else table


def word(comm):
    return f"{comm:016x}"


def test_a_plain_call(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.nccl("all_reduce", 2 * MS, 3 * MS, comm=A, size=512, launch=(1 * MS, 1 * MS + 5))
        export.nccl("broadcast", 4 * MS, 5 * MS, comm=B, size=64, root=3)
    row, other = collectives(export.path).to_dicts()
    assert row["comm"] == word(A)
    assert (row["op"], row["op_class"], row["op_source"]) == ("all_reduce", "nxn", "payload")
    assert (row["bytes"], row["root"], row["ops_in_group"]) == (512, None, 1)
    assert (row["launch_ns"], row["launch_end_ns"]) == (1 * MS, 1 * MS + 5)
    assert row["launch_tid"] == export.gtid()
    assert (other["comm"], other["op_class"], other["root"]) == (word(B), "rooted", 3)


def test_a_communicator_whose_creation_never_ends(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.comm_init(-5 * MS, 900 * MS, B, 2, 0)
        export.nvtx(-4 * MS, None, "ncclCommInitRank", domain="NCCL")
        export.nccl("all_gather", 2 * MS, 3 * MS, comm=A)
        export.kernel(5 * MS, 6 * MS, "ncclDevKernel_AllGather_RING_LL")
    assert collectives(export.path, "comm", "op", "op_source") == [
        (word(A), "all_gather", "payload"),
        (None, "all_gather", "kernel"),
    ]


def test_without_payloads(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite", blobs=False) as export:
        export.nccl("reduce_scatter", 2 * MS, 3 * MS, comm=A, name="ncclDevKernel_Generic")
    (digest,) = digests(export.path)
    row = digest.collectives.to_dicts()[0]
    assert (row["comm"], row["bytes"], row["op"], row["op_source"]) == (None, None, "reduce_scatter", "nvtx")
    assert not digest.info.has_payloads


def test_without_ranges(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite", nccl_ranges=False) as export:
        export.nccl("all_reduce", 2 * MS, 3 * MS, comm=A)
        export.nccl("all_reduce", 4 * MS, 5 * MS, name="ncclDevKernel_Generic_1")
    assert collectives(export.path, "op", "op_class", "op_source", "launch_ns") == [
        ("all_reduce", "nxn", "kernel", 2 * MS - 10_000),
        ("unknown", "unknown", "kernel", 4 * MS - 10_000),
    ]


def test_ranges_without_the_row_of_their_domain(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.nccl("all_reduce", 2 * MS, 3 * MS, comm=A, name="ncclDevKernel_Generic")
        export.sql("DELETE FROM NVTX_EVENTS WHERE eventType = 75")
    assert collectives(export.path, "comm", "op") == [(word(A), "all_reduce")]


def test_another_domain_is_not_nccls(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.nvtx(0, 10 * MS, "ncclBroadcast", domain="mine")
        export.nccl("all_reduce", 2 * MS, 3 * MS, comm=A)
        export.kernel(5 * MS, 6 * MS, "ncclDevKernel_Generic")
    assert collectives(export.path, "op") == [("all_reduce",), ("unknown",)]


def test_a_launch_outside_of_the_window(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.nvtx(0, 20 * MS, "step 5")
        export.nccl("all_reduce", 2 * MS, 3 * MS, launch=None)
        export.nccl("all_reduce", 4 * MS, 5 * MS, comm=A)
    assert collectives(export.path, "launch_ns", "launch_tid", "comm", "op", "step") == [
        (None, None, None, "all_reduce", None),
        (4 * MS - 10_000, export.gtid(), word(A), "all_reduce", 0),
    ]


def test_without_any_launch_the_start_on_the_gpu_tells_the_step(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.nvtx(0, 3 * MS, "step 5")
        export.nvtx(3 * MS, 6 * MS, "step 6")
        export.nccl("all_reduce", 2 * MS, 3 * MS)
        export.nccl("all_reduce", 4 * MS, 5 * MS)
        export.drop("CUPTI_ACTIVITY_KIND_RUNTIME")
    assert collectives(export.path, "step") == [(0,), (1,)]


@pytest.mark.parametrize("nested", [False, True])
def test_a_group_on_one_communicator(tmp_path, nested):
    calls = [Call("send", A, 100, 1), Call("recv", A, 50, 3)]
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.group(calls, [(2 * MS, 3 * MS, 20)], nested=nested)
        export.nccl("all_reduce", 4 * MS, 5 * MS, comm=A)
        export.group([Call("all_gather", A, 7)], [(6 * MS, 7 * MS, 20)], nested=nested)
    assert collectives(export.path, "op", "op_class", "comm", "bytes", "ops_in_group") == [
        ("send_recv", "p2p", word(A), 150, 2),
        ("all_reduce", "nxn", word(A), 1 << 20, 1),
        ("all_gather", "nxn", word(A), 7, 1),
    ]


def test_a_single_send(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.group([Call("send", A, 100, 1)], [(2 * MS, 3 * MS, 20)])
    assert collectives(export.path, "op", "op_class", "bytes") == [("send", "p2p", 100)]


def test_a_group_on_several_communicators(tmp_path):
    # NCCL launches them in ascending order of their hash.
    calls = [Call("all_reduce", A, 8), Call("all_gather", B, 16), Call("all_reduce", A, 8)]
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.group(calls, [(2 * MS, 3 * MS, 20), (2 * MS, 4 * MS, 21)])
    assert collectives(export.path, "op", "comm", "bytes", "ops_in_group", "stream") == [
        ("all_reduce", word(A), 16, 2, 20),
        ("all_gather", word(B), 16, 1, 21),
    ]


def test_kernel_names_can_show_the_other_order(tmp_path):
    calls = [Call("all_gather", B, 16), Call("all_reduce", A, 8)]
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.group(calls, [(2 * MS, 3 * MS, 20), (2 * MS, 4 * MS, 21)])
    assert collectives(export.path, "op", "comm", "stream") == [
        ("all_gather", word(B), 20),
        ("all_reduce", word(A), 21),
    ]


def test_a_communicators_stream_can_show_the_order(tmp_path):
    calls = [Call("all_reduce", B, 16), Call("all_reduce", A, 8)]
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.nccl("all_reduce", 0, MS, comm=B, stream=20)
        export.group(calls, [(2 * MS, 3 * MS, 20), (2 * MS, 4 * MS, 21)])
        export.group([Call("all_reduce", A, 1)], [(5 * MS, 6 * MS, 21)])
    assert collectives(export.path, "comm", "bytes", "stream")[1:3] == [(word(B), 16, 20), (word(A), 8, 21)]


def test_a_group_that_does_not_add_up_is_not_guessed(tmp_path):
    calls = [Call("all_reduce", A, 8), Call("all_gather", B, 16)]
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.group(calls, [(2 * MS, 3 * MS, 20), (2 * MS, 4 * MS, 21)])
        # The second kernel was lost.
        export.sql("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE streamId = 21")
    assert collectives(export.path, "comm", "op", "op_source") == [(None, "all_reduce", "kernel")]


def test_one_communicator_in_several_kernels(tmp_path):
    # Many operations of one group may need more kernels than one: all are the communicator's.
    calls = [Call("all_reduce", A, 8), Call("all_reduce", A, 8)]
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.group(calls, [(2 * MS, 3 * MS, 20)])
        export.kernel(
            3 * MS,
            4 * MS,
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            stream=20,
            launch=(2 * MS - 5_000, 2 * MS - 4_000),
        )
    rows = collectives(export.path, "comm", "op", "bytes", "ops_in_group")
    assert rows == [(word(A), "all_reduce", None, 2)] * 2


def test_a_process_with_two_devices_in_one_group(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.group([Call("all_reduce", A, 8), Call("all_reduce", A, 8)], [(2 * MS, 3 * MS, 20)])
        second = export.process(export.pid, device=1)
        correlation = export.api(2 * MS - 5_000, 2 * MS - 4_000, "cuLaunchKernelEx", correlation=900)
        second.kernel(2 * MS, 3 * MS, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=30, launch=None)
        export.sql(f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = {correlation} WHERE deviceId = 1")
    for digest in digests(export.path):
        assert digest.collectives.select("comm", "bytes", "ops_in_group").rows() == [(word(A), 8, 1)]


def test_broadcasts_fused_into_a_gather(tmp_path):
    calls = [Call("broadcast", A, 8, root) for root in range(3)]
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.group(calls, [(2 * MS, 3 * MS, 20)], name="ncclDevKernel_AllGatherV_RING_LL")
        export.group(calls[:1], [(4 * MS, 5 * MS, 20)])
    assert collectives(export.path, "op", "op_class", "root", "ops_in_group") == [
        ("all_gather", "nxn", None, 3),
        ("broadcast", "rooted", 0, 1),
    ]


def test_a_group_begun_before_the_window(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.nvtx(0, 2 * MS, "ncclGroupEnd", domain="NCCL")
        export.kernel(3 * MS, 4 * MS, "ncclDevKernel_SendRecv", launch=(MS, MS + 5))
        export.group([Call("send", A, 1, 1), Call("recv", A, 1, 1)], [(6 * MS, 7 * MS, 20)])
    assert collectives(export.path, "op", "comm", "op_source") == [
        ("send_recv", None, "kernel"),
        ("send_recv", word(A), "payload"),
    ]


def test_payloads_as_json(tmp_path):
    text = f'{{"NCCL communicator ID": {B}, "Message size [bytes]": 4096, "Reduction operation": "Sum"}}'
    with Export(tmp_path / "prof_a_0.sqlite", nccl_ranges=False) as export:
        for start in (2 * MS, 4 * MS):
            export.nvtx(start - 20_000, start - 1_000, "ncclAllReduce", domain="NCCL", json=text)
            export.nccl("all_reduce", start, start + MS)
        export.nvtx(6 * MS - 20_000, 6 * MS - 1_000, "ncclAllReduce", domain="NCCL", json="{broken")
        export.nccl("all_reduce", 6 * MS, 7 * MS)
    assert collectives(export.path, "comm", "bytes", "op_source") == [
        (word(B), 4096, "payload"),
        (word(B), 4096, "payload"),
        (None, None, "nvtx"),
    ]


def test_the_stream_of_other_threads_does_not_matter(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.nvtx(0, 10 * MS, "step 0")
        export.nvtx(0, 10 * MS, "ncclBroadcast", domain="NCCL", tid=7001)
        export.nccl("all_reduce", 2 * MS, 3 * MS, comm=A, tid=7002)
    assert collectives(export.path, "op", "comm", "step", "launch_tid") == [
        ("all_reduce", word(A), 0, export.gtid(7002))
    ]


def test_two_processes_do_not_mix(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite", pid=144) as export:
        other = export.process(145, device=1)
        export.nccl("all_reduce", 2 * MS, 3 * MS, comm=A, launch=(MS, MS + 5))
        other.nccl("all_gather", 2 * MS, 3 * MS, comm=B, launch=(MS + 50, MS + 55))
    first, second = (digest.collectives for digest in digests(export.path))
    assert first.select("op", "comm", "launch_ns").rows() == [("all_reduce", word(A), MS)]
    assert second.select("op", "comm", "launch_ns").rows() == [("all_gather", word(B), MS + 50)]


def token_file(path, names, first="ignored", ids_from=0):
    with Export(path) as export:
        for number in range(ids_from):
            export.string(f"filler {number}")
        export.kernel(0, 10, first)
        export.nccl("all_reduce", 100, 200)
        for i, name in enumerate(names):
            export.kernel(300 + 10 * i, 305 + 10 * i, name, stream=7 + i % 2)
        export.nccl("all_reduce", 900, 950)
        export.nccl("all_reduce", 960, 970)
    return collectives(path, "lead_token")


def test_lead_tokens(tmp_path):
    one = token_file(tmp_path / "prof_a_0.sqlite", ["gemm", "add", "gemm"])
    other = token_file(tmp_path / "prof_a_1.sqlite", ["add", "gemm", "gemm"], first="else", ids_from=5)
    fewer = token_file(tmp_path / "prof_a_2.sqlite", ["add", "gemm"])
    assert one[1:] == other[1:]
    assert one[0] != other[0]
    assert one[1] != fewer[1]
    assert one[2] == (0,)


def test_lead_tokens_do_not_depend_on_the_process(tmp_path):
    expected = token_file(tmp_path / "prof_a_0.sqlite", ["gemm", "add"])
    code = (
        "import sys; from rankdiff.digest import make_digests; "
        "from rankdiff.reports.discover import discover; "
        "from rankdiff.reports.identity import claims; (r,) = discover([sys.argv[1]]).reports; "
        "sys.stdout.write(str(make_digests(r, claims(r))[0].collectives['lead_token'].to_list()))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "prof_a_0.sqlite")],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == str([token for (token,) in expected])


def test_comm_regex(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.kernel(0, 10, "gemm")
        export.kernel(20, 30, "void vllm::cross_device_reduce_2stage<float, 8>")
    (digest,) = digests(export.path)
    assert digest.collectives.is_empty()
    assert digest.info.top_kernels == ("cross_device_reduce_2stage", "gemm")
    (digest,) = digests(export.path, DigestOptions(comm_regex="cross_device"), comm_regex="cross_device")
    assert digest.collectives.select("op", "op_class").rows() == [("all_reduce", "nxn")]
    assert digest.info.nccl_kernels == 1


def test_no_collectives(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        export.memcpy(0, 10)
    assert collectives(export.path).equals(COLLECTIVES.to_frame())


def test_a_missing_stream_of_events_is_sorted(tmp_path):
    with Export(tmp_path / "prof_a_0.sqlite") as export:
        for start in (7, 3, 5, 1):
            export.nccl("all_reduce", start * MS, start * MS + 10)
    assert collectives(export.path)["start_ns"].is_sorted()
