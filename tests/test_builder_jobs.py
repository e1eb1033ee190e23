"""The jobs that scenario tests are made of keep the contract of collectives, read with sqlite3 alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest

from rankdiff.simulation import EPOCH, Phase, base4, decode_payload, flat8, synthetic, tp_dp
from rankdiff.simulation.payloads import COMM
from tests.reading import KERNELS, LAUNCHES, RANGES, nccl, ranges, rows, table_set

MS = 1_000_000


def union(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], end)
        else:
            out.append((start, end))
    return out


def test_base4_is_base4(tmp_path):
    job = base4(tmp_path)
    assert [path.name for path in job.paths] == [
        "prof_nodeA_0.sqlite",
        "prof_nodeA_1.sqlite",
        "prof_nodeB_2.sqlite",
        "prof_nodeB_3.sqlite",
    ]
    for rank, path in job.reports.items():
        kernels = rows(path, KERNELS)
        compute = [row[:2] for row in kernels if row[2] == "gemm"]
        length = 7_500_000 if rank == 2 else 6 * MS
        assert compute == [(k * 10 * MS, k * 10 * MS + length) for k in range(10)]
        expected = [(k * 10 * MS + length, k * 10 * MS + 8 * MS) for k in range(10)]
        assert [row[:2] for row in nccl(path)] == expected
        assert {row[3] for row in nccl(path)} == {20}
        assert [row[:2] for row in ranges(path, "data_load")] == [
            (k * 10 * MS - MS, k * 10 * MS - 200_000) for k in range(1, 10)
        ]
        busy = union([row[:2] for row in kernels])
        gaps = [(a[1], b[0]) for a, b in pairwise(busy)]
        assert sum(b - a for a, b in gaps) == 18 * MS
        [utc] = rows(path, "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
        assert utc == (EPOCH,)
    assert sum(e - s for s, e, *_ in nccl(job.reports[2])) == 5 * MS
    assert sum(e - s for s, e, *_ in nccl(job.reports[0])) == 20 * MS
    assert all(max(i.delays, key=i.delays.__getitem__) == 2 for i in job.instances)


def test_base4_with_a_fast_node_moves_every_time_of_it(tmp_path):
    plain = base4(tmp_path / "plain")
    fast = base4(tmp_path / "fast", offset_ns={"nodeB": 3_217_000})
    for rank in range(4):
        moved = 3_217_000 if rank > 1 else 0
        for query in (KERNELS, RANGES, 'SELECT start, "end" FROM OSRT_API'):
            before, after = rows(plain.reports[rank], query), rows(fast.reports[rank], query)
            assert [(a[0] - b[0], a[1] - b[1]) for a, b in zip(after, before, strict=True)] == [
                (moved, moved)
            ] * len(before)


def test_flat8_has_no_culprit(tmp_path):
    job = flat8(tmp_path, seed=3, steps=40)
    assert len(job.paths) == 8
    last = Counter(max(i.delays, key=i.delays.__getitem__) for i in job.instances)
    assert max(last.values()) <= 14
    spread = [max(i.delays.values()) for i in job.instances]
    assert max(spread) <= 40_000
    other = flat8(tmp_path / "other", seed=4, steps=40)
    assert [i.starts for i in job.instances] != [i.starts for i in other.instances]


def matched(job) -> dict[int, list[list[tuple[int, int]]]]:
    """Read the collectives back: by communicator, each instance's (start, end) of its members."""
    found: dict[int, list[list[tuple[int, int]]]] = defaultdict(list)
    for path in job.paths:
        order: Counter[tuple[int, int]] = Counter()
        calls = [row for row in rows(path, RANGES) if row[4] is not None]
        spans = sorted((r[1], r[2], r[3], r[0]) for r in rows(path, LAUNCHES))
        ends = {row[0]: row[1] for row in nccl(path)}
        for start, end, tid, kernel in spans:
            inside = [c for c in calls if c[0] <= start and end <= c[1] and c[3] == tid]
            if not inside:
                continue
            [call] = inside
            comm = decode_payload(call[2], call[4])[COMM]
            number = order[comm, tid >> 24]
            order[comm, tid >> 24] += 1
            while len(found[comm]) <= number:
                found[comm].append([])
            found[comm][number].append((kernel, ends[kernel]))
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"late": {1: 2 * MS}, "jitter_ns": 300_000},
        {"late": {1: [0, 5 * MS, 0]}, "late_as": "data_load", "jitter": "exponential", "jitter_ns": 200_000},
        {"phases": tp_dp(count=2), "jitter_ns": 100_000, "jitter": "normal", "seed": 5, "sync": True},
        {"phases": (Phase(count=3, kernels=4),), "end_jitter_ns": 40_000, "autograd": True},
        {"phases": (Phase(overlap=True), Phase(2 * MS, stream=30)), "late": {3: MS}, "late_as": "host"},
        {"torchrun": True, "late": {2: MS}, "late_as": "os_wait", "data_load": False},
    ],
    ids=["late", "one-off", "tp-dp", "fused", "overlap", "torchrun"],
)
def test_nobody_leaves_a_collective_before_the_last_arrives(tmp_path, settings):
    job = synthetic(tmp_path, steps=6, **settings)
    found = matched(job)
    assert sum(map(len, found.values())) == len(job.instances)
    sizes = {i.comm: len(i.members) for i in job.instances}
    for comm, instances in found.items():
        truth = [i for i in job.instances if i.comm == comm]
        for spans, instance in zip(instances, truth, strict=True):
            assert len(spans) == sizes[comm]
            last = max(start for start, _ in spans)
            assert min(end for _, end in spans) > last
            if "end_jitter_ns" not in settings:
                assert {end for _, end in spans} == {last + 500_000}
            assert sorted(spans) == sorted((instance.starts[r], instance.ends[r]) for r in instance.members)


@pytest.mark.parametrize("settings", [{}, {"phases": (Phase(count=3, kernels=7),), "sync": True}])
def test_a_stream_runs_one_thing_at_a_time_after_its_launch(tmp_path, settings):
    job = synthetic(tmp_path, steps=4, late={0: MS}, late_as="gpu_work", jitter_ns=50_000, **settings)
    for path in job.paths:
        streams = defaultdict(list)
        for start, end, _, stream, *_ in rows(path, KERNELS):
            assert end > start
            streams[stream].append((start, end))
        for spans in streams.values():
            assert all(a[1] <= b[0] for a, b in pairwise(sorted(spans)))
        assert all(end <= kernel for kernel, _, end, *_ in rows(path, LAUNCHES))


def test_step_ranges_hold_the_launches_of_their_step(tmp_path):
    job = synthetic(tmp_path, steps=5, first_step=3, late={1: 4 * MS}, late_as="data_load")
    for path in job.paths:
        steps = [row for row in rows(path, RANGES) if row[2].startswith("step ")]
        assert [row[2] for row in steps] == [f"step {k}" for k in range(3, 8)]
        assert all(a[1] <= b[0] for a, b in pairwise(steps))
        for number, step in enumerate(steps):
            inside = [r for r in rows(path, LAUNCHES) if step[0] <= r[1] and r[2] <= step[1]]
            assert len(inside) == 2, number
    plain = synthetic(tmp_path / "plain", step_ranges="iteration", payload=False)
    assert len(ranges(plain.paths[0], "iteration")) == 10
    none = synthetic(tmp_path / "none", step_ranges=None, data_load=False, nccl_ranges=False)
    assert "NVTX_EVENTS" not in table_set(none.paths[0])


@pytest.mark.parametrize(
    ("kind", "gemm", "other", "load", "grid"),
    [
        ("gpu_slow", 8 * MS, [], 800_000, 128),
        ("gpu_grid", 8 * MS, [], 800_000, 171),
        ("gpu_work", 6 * MS, ["extra_gemm"], 800_000, 128),
        ("data_load", 6 * MS, [], 2_800_000, 128),
        ("io", 6 * MS, ["fsync"], 800_000, 128),
        ("os_wait", 6 * MS, ["nanosleep"], 800_000, 128),
        ("host", 6 * MS, ["checkpoint"], 800_000, 128),
        ("begin", 6 * MS, [], 800_000, 128),
    ],
)
def test_lateness_shows_as_chosen(tmp_path, kind, gemm, other, load, grid):
    job = synthetic(tmp_path, late={2: 2 * MS}, late_as=kind)
    for rank, path in job.reports.items():
        late = rank == 2
        kernels = rows(path, KERNELS)
        gemms = [row for row in kernels if row[2] == "gemm"]
        assert {end - start for start, end, *_ in gemms} == {gemm if late else 6 * MS}
        assert {row[6] for row in gemms} == {grid if late else 128}
        loads = ranges(path, "data_load")[1:]
        assert {end - start for start, end, *_ in loads} == {load if late else 800_000}
        calls = {
            name
            for (name,) in rows(path, "SELECT s.value FROM OSRT_API o JOIN StringIds s ON s.id = o.nameId")
        }
        named = calls | {row[2] for row in kernels} | {row[2] for row in rows(path, RANGES)}
        unusual = named & {"extra_gemm", "fsync", "nanosleep", "checkpoint"}
        assert unusual == (set(other) if late else set())
    for instance in job.instances:
        assert instance.delays == {0: 0, 1: 0, 2: 2 * MS, 3: 0}


def test_lateness_of_several_kinds_adds_up(tmp_path):
    late = {2: {"data_load": 600_000, "host": 300_000, "gpu_slow": 500_000, "begin": 400_000}}
    job = synthetic(tmp_path, late=late)
    for instance in job.instances:
        assert instance.delays == {0: 0, 1: 0, 2: 1_800_000, 3: 0}
    path = job.reports[2]
    assert {end - start for start, end, *_ in ranges(path, "data_load")} == {400_000, 1_400_000}
    assert {end - start for start, end, *_ in ranges(path, "checkpoint")} == {300_000}
    assert {row[1] - row[0] for row in rows(path, KERNELS) if row[2] == "gemm"} == {6_500_000}


def test_cut_windows_and_lost_events(tmp_path):
    settings: dict[str, Any] = {"steps": 40, "late": {2: 1_500_000}}
    whole = synthetic(tmp_path / "whole", **settings)
    cut = synthetic(tmp_path / "cut", cut={1: (3, 0), 3: (0, 5)}, **settings)
    lost = synthetic(tmp_path / "lost", lost={0: [17, 18]}, **settings)
    full = {rank: nccl(path) for rank, path in whole.reports.items()}
    times = {rank: [row[:2] for row in nccl(path)] for rank, path in cut.reports.items()}
    assert times[1] == [row[:2] for row in full[1][3:]]
    assert times[3] == [row[:2] for row in full[3][:-5]]
    assert times[0] == [row[:2] for row in full[0]]
    assert len([row for row in rows(cut.reports[1], KERNELS) if row[2] == "gemm"]) == 37
    assert [row[:2] for row in nccl(lost.reports[0])] == [
        row[:2] for place, row in enumerate(full[0]) if place not in (17, 18)
    ]
    assert len(ranges(lost.reports[0], "ncclAllReduce")) == 38


def test_sessions_that_start_apart_agree_in_utc(tmp_path):
    settings: dict[str, Any] = {"steps": 30, "offset_ns": {"nodeB": 7 * MS}, "drift_ppm": {"nodeB": 50.0}}
    together = synthetic(tmp_path / "together", **settings)
    apart = synthetic(tmp_path / "apart", session_start_ns={0: 5 * MS, 3: -3 * MS}, **settings)
    for rank in range(4):
        utc = []
        for job in (together, apart):
            path = job.reports[rank]
            [(epoch,)] = rows(path, "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
            utc.append([epoch + row[0] for row in rows(path, KERNELS)])
        assert utc[0] == utc[1]
    first, last = nccl(together.reports[2])[0], nccl(together.reports[2])[-1]
    ideal = nccl(together.reports[0])
    assert first[1] - ideal[0][1] == 7 * MS + ideal[0][1] * 50 // 1_000_000
    assert last[1] - ideal[-1][1] == 7 * MS + ideal[-1][1] * 50 // 1_000_000


def test_identity_of_the_ranks(tmp_path):
    job = synthetic(tmp_path, ranks=6, nodes=("b", "a", "b", "a", "b", "a"), written=(0, 1, 5))
    assert job.nodes == {0: "b", 1: "a", 5: "a"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "prof_a_1.sqlite",
        "prof_a_5.sqlite",
        "prof_b_0.sqlite",
    ]
    query = "SELECT value FROM META_DATA_CAPTURE WHERE name = 'PROCESS_0:ENVIRONMENT_VARIABLE'"
    env = {row[0] for row in rows(job.reports[5], query)}
    assert {'SLURM_PROCID="5"', 'SLURM_LOCALID="2"', 'SLURM_NTASKS="6"', 'SLURMD_NODENAME="a"'} <= env
    uuids = {rows(path, "SELECT uuid FROM TARGET_INFO_CUDA_DEVICE")[0][0] for path in job.paths}
    assert len(uuids) == 3


def test_torchrun_puts_the_ranks_of_a_node_into_one_file(tmp_path):
    job = synthetic(tmp_path, torchrun=True)
    assert [path.name for path in job.paths] == ["prof_nodeA.sqlite", "prof_nodeB.sqlite"]
    for path in job.paths:
        kernels = rows(path, KERNELS)
        assert len({row[5] for row in kernels}) == 2
        assert rows(path, "SELECT cudaId FROM TARGET_INFO_CUDA_DEVICE ORDER BY 1") == [(0,), (1,)]
        assert "PROCESS_0:ENVIRONMENT_VARIABLE" not in {
            row[0] for row in rows(path, "SELECT name FROM META_DATA_CAPTURE")
        }


def test_broadcast_members_leave_one_by_one(tmp_path):
    phases = (Phase(op="broadcast"),)
    job = synthetic(tmp_path, phases=phases, late={3: 5 * MS}, late_as="gpu_slow", steps=2)
    for instance in job.instances:
        assert instance.ends[0] == instance.starts[0] + 500_000
        assert instance.ends[3] == instance.starts[3] + 500_000
        assert instance.ends[0] < instance.starts[3]


def test_edit_and_options_reach_one_rank(tmp_path):
    def edit(rank, export):
        if rank == 1:
            export.drop("OSRT_API")

    job = base4(tmp_path, edit=edit, options={3: {"version": "3.25.0"}})
    assert ["OSRT_API" in table_set(path) for path in job.paths] == [True, False, True, True]
    query = "SELECT value FROM META_DATA_EXPORT WHERE name = 'EXPORT_SCHEMA_VERSION'"
    assert [rows(path, query)[0][0] for path in job.paths] == ["3.24.14", "3.24.14", "3.24.14", "3.25.0"]
