"""Situations of matching, clocks and verdicts that users met, with their right answers, by the ids of the list of cases.

Where a case and the method differ, the method holds, and the test says so.
"""

from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest

from rankdiff.digest import DigestOptions
from rankdiff.simulation import Call, Export, Phase, base4, synthetic, tp_dp
from tests.jobs import codes, figures, late, run, table, warning, words

MS = 1_000_000
US = 1_000
BARE = {"payload": False, "nccl_ranges": False}


def members(report):
    return sorted(c["ranks"] for c in report["communicators"])


def offsets(report):
    return {n["node"]: n["offset_ns"] for n in report["clock"]["nodes"]}


def test_who_waits_is_never_called_slow(tmp_path):
    """B01: the culprit has the shortest collectives; the others wait 15 ms and transfer 5 ms."""
    job = base4(tmp_path)
    report = run(job.paths)
    assert late(report) == [("late_rank", 2)]
    assert figures(report, "last_count") == {0: 0, 1: 0, 2: 10, 3: 0}
    waited = figures(report, "wait_ns")
    assert waited == {0: 15 * MS, 1: 15 * MS, 2: 0, 3: 15 * MS}
    assert figures(report, "imposed_wait_ns") == {0: 0, 1: 0, 2: 45 * MS, 3: 0}
    transfer = {r: ns - waited[r] for r, ns in figures(report, "nccl_ns").items()}
    assert transfer == dict.fromkeys(range(4), 5 * MS)
    lines = table(job.paths)
    roles = {row[0]: row[2] for line in lines if re.match(r" +\d  node", line) for row in [line.split()]}
    assert roles == {"0": "waiting", "1": "waiting", "2": "late", "3": "waiting"}
    for sentence in re.split(r"(?<=[.:;,])\s", " ".join(lines)):
        if re.search(r"\brank [013]\b", sentence):
            assert "slow" not in sentence


def test_two_devices_of_one_file_disagree_by_a_constant(tmp_path):
    """B03: device 1 reads 22 us more than device 0 of the same file."""
    job = synthetic(
        tmp_path,
        ranks=2,
        nodes=1,
        steps=100,
        torchrun=True,
        end_stagger_ns={1: 22 * US},
        end_jitter_ns=3 * US,
    )
    assert len(job.paths) == 1
    report = run(job.paths)
    skew = figures(report, "end_skew_ns")
    assert abs(skew[1] - skew[0] - 22 * US) <= 3 * US
    assert late(report, "major", "minor", "note") == []


@pytest.mark.parametrize(("lateness", "found"), [(150 * US, []), (2 * MS, [("late_rank", 1)])])
def test_lateness_below_the_residual_is_not_claimed(tmp_path, lateness, found):
    """B04: ends scatter by 400 us (MAD 270 us): 150 us are not told from that, 2 ms are."""
    job = base4(tmp_path, steps=40, late={1: lateness}, end_jitter_ns=400 * US)
    report = run(job.paths)
    assert late(report) == found
    # Residuals are given as 1.4826 MAD, the sigma of a normal scatter.
    assert all(300 * US < n["residual_ns"] < 550 * US for n in report["clock"]["nodes"])
    assert ("cannot be told from clock error" in words(job.paths)) == (not found)


@pytest.mark.parametrize(
    ("lateness", "rank", "pattern", "first"),
    [({3: 5 * MS}, 3, "persistent", "0"), ({5: [0] * 11 + [2000 * MS]}, 5, "one_off", "11")],
)
def test_lateness_that_stays_and_lateness_that_comes_once(tmp_path, lateness, rank, pattern, first):
    """B06: rank 3 late in every step; a single spike of 2 s on rank 5 (in step 41: tests/test_scenarios.py)."""
    report = run(synthetic(tmp_path, ranks=8, steps=20, late=lateness, jitter_ns=100 * US).paths)
    finding = report["findings"][0]
    assert late(report) == [("late_rank", rank)]
    assert (finding["pattern"], finding["first_step"]) == (pattern, first)


def test_the_profilers_start_up_is_left_out_and_said(tmp_path):
    """B07: the first all-reduce of rank 0 lasts 15 s. The method has a rule for it and no option against it."""
    start = 15_000 * MS
    first = {1: [{"begin": start}], 3: [{"begin": start}]}
    second = {2: [{"begin": start, "gpu_slow": 1_500 * US}, *[{"gpu_slow": 1_500 * US}] * 9]}
    nodes = ("nodeA", "nodeA", "nodeB", "nodeB")
    job = synthetic(tmp_path, nodes=nodes, gap_ns=2 * MS, step_ranges=None, late=first | second)
    report = run(job.paths)
    assert report["job"]["matched_collectives"] == 10
    assert (report["job"]["steps"], report["findings"][0]["steps"]) == (9, 9)
    assert late(report) == [("late_rank", 2)]
    # BASE4 over nine steps.
    assert figures(report, "wait_ns") == {0: 13_500 * US, 1: 13_500 * US, 2: 0, 3: 13_500 * US}
    assert figures(report, "imposed_wait_ns") == {0: 0, 1: 0, 2: 40_500 * US, 3: 0}
    assert figures(report, "last_count") == {0: 0, 1: 0, 2: 9, 3: 0}
    assert report["verdict"]["wait_ns_per_step"] == 1_500 * US
    assert report["clock"]["observations"] == 9
    assert offsets(report) == {"nodeA": 0, "nodeB": 0}
    assert "1 left out at the start" in words(job.paths)
    assert "the first captured step (0) lost 15.0 s" in words(job.paths)


def test_skipped_steps_are_not_judged(tmp_path):
    """B07: what the user leaves out by hand is out of every figure as well."""
    report = run(base4(tmp_path).paths, skip_steps=4)
    assert report["job"]["steps"] == 6
    assert figures(report, "wait_ns") == {0: 9 * MS, 1: 9 * MS, 2: 0, 3: 9 * MS}


def test_the_minority_that_does_one_more_is_named(tmp_path):
    """B09: ranks 12 and 13 of 32 issue another all-gather in the middle; nothing else is lost for it."""
    others = {r: [15] for r in range(32) if r not in (12, 13)}
    phases = (Phase(2 * MS, op="all_gather"),)
    settings = {"step_ranges": None, "data_load": False, "jitter_ns": 300 * US}
    job = synthetic(tmp_path, ranks=32, nodes=4, steps=41, phases=phases, lost=others, **settings)
    report = run(job.paths)
    (comm,) = report["communicators"]
    assert (len(comm["ranks"]), comm["first_divergence"], comm["diverging_ranks"]) == (32, 15, [12, 13])
    assert [t["op"] for t in comm["transfers"]] == ["all_gather"]
    assert report["job"]["matched_collectives"] == 40
    assert report["job"]["unmatched_collectives"] == 2
    told = warning(report, "counts_differ")
    assert "12" in told
    assert "13" in told
    assert "32 ranks" in told
    assert late(report) == []


def two_communicators(folder, payload):
    """Tensor-parallel pairs A and data-parallel pairs B; ranks 1 and 3 issue B first, rank 3 has other streams."""
    draw = random.Random(1)
    hashes = {"A": (11, 11, 12, 12), "B": (21, 22, 21, 22)}
    exports = [
        Export(
            folder / f"prof_node{'AABB'[r]}_{r}.sqlite", node=f"node{'AABB'[r]}", pid=4000 + r, blobs=payload
        )
        for r in range(4)
    ]
    at = 0
    for _ in range(10):
        starts = {
            (r, c): at + 5 * MS + draw.randrange(400 * US) + (20 * US if (c == "B") == (r in (0, 2)) else 0)
            for r in range(4)
            for c in "AB"
        }
        for r, export in enumerate(exports):
            export.kernel(at, at + 5 * MS, "gemm")
            for n, c in enumerate("AB" if r in (0, 2) else "BA"):
                fellows = [q for q in range(4) if hashes[c][q] == hashes[c][r]]
                end = max(starts[q, c] for q in fellows) + (500 if c == "A" else 600) * US
                stream = {"A": 20, "B": 30}[c] + (r == 3)
                launch = (at + n * 20 * US, at + n * 20 * US + 5 * US)
                export.nccl("all_reduce", starts[r, c], end, comm=hashes[c][r], stream=stream, launch=launch)
        at += 10 * MS + draw.randrange(100 * US)
    return [export.close() for export in exports]


@pytest.mark.parametrize("payload", [True, False])
def test_ranks_issue_their_communicators_in_another_order(tmp_path, payload):
    """B10: order across streams and stream ids differ by rank; ten matches in each of four groups."""
    report = run(two_communicators(tmp_path, payload))
    assert members(report) == [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert [c["matched"] for c in report["communicators"]] == [10] * 4
    assert report["job"]["unmatched_collectives"] == 0
    assert {c["source"] for c in report["communicators"]} == {"payload" if payload else "inferred"}
    assert ("inferred_communicators" in codes(report)) == (not payload)


def one_stream(tp, dp):
    """Tensor-parallel and data-parallel pairs that share a stream and an operation."""
    return (Phase(tp, [[0, 1], [2, 3]]), Phase(dp, [[0, 2], [1, 3]]))


@pytest.mark.parametrize(
    ("steps", "lateness", "scatter"),
    [
        ("step {}", {}, 10 * US),
        ("step {}", {1: 3 * MS}, 10 * US),
        (None, {}, 0),
        (None, {1: 3 * MS}, 10 * US),
    ],
)
def test_communicators_that_share_a_stream_are_told_apart(tmp_path, steps, lateness, scatter):
    """B10: nothing names the communicators, and most of one pair's ends fit another pair as well."""
    settings = {"jitter_ns": 150 * US, "end_jitter_ns": scatter, "step_ranges": steps}
    phases = one_stream(3 * MS, 3 * MS)
    report = run(synthetic(tmp_path, steps=30, phases=phases, late=lateness, **settings, **BARE).paths)
    assert members(report) == [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert report["job"]["matched_collectives"] == 120
    assert late(report) == [("late_rank", r) for r in lateness]


def test_communicators_that_cannot_be_told_apart_are_refused(tmp_path):
    """B10: the ends scatter more than the pairs differ, so the kernels are counted and left out, not guessed."""
    settings = {"jitter_ns": 1 * MS, "end_jitter_ns": 300 * US, "step_ranges": None}
    phases = (*one_stream(2 * MS, 2 * MS), Phase(2 * MS, [[0, 3], [1, 2]]))
    job = synthetic(tmp_path, steps=20, phases=phases, **settings, **BARE)
    report = run(job.paths)
    assert report["verdict"]["status"] == "not_assessed"
    assert late(report, "major", "minor") == []
    true = [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert all(group in true for group in members(report))
    left_out = int(warning(report, "unresolved_collectives").split()[0])
    assert left_out >= 120
    assert report["job"]["unmatched_collectives"] >= left_out


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float",
        "ncclDevKernel_Generic",
        "ncclDevKernel_Generic_1",
        "ncclSymkDevKernel_AllGather_STMC",
        "ncclsymkdevkernel_reducescatter_ldmc",
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        "mscclKernel_Sum_half_LL_false",
    ],
)
def test_every_generation_of_kernel_names(tmp_path, name):
    """B11: 40 communication kernels whatever their name, and the verdict of BASE4."""
    report = run(base4(tmp_path, nccl_kernel=name).paths)
    assert figures(report, "nccl_kernels") == dict.fromkeys(range(4), 10)
    assert late(report) == [("late_rank", 2)]
    assert figures(report, "wait_ns") == {0: 15 * MS, 1: 15 * MS, 2: 0, 3: 15 * MS}


@pytest.mark.parametrize(
    ("name", "regex", "op"),
    [
        ("void vllm::cross_device_reduce_2stage<float, 8>", "cross_device_reduce", "all_reduce"),
        ("multimem_all_reduce_kernel", "multimem", "all_reduce"),
        ("userbuffers_fp16_sum_inplace_gpu_rw", "^userbuffers_", "collective"),
        ("quick_reduce_kernel", "quick_reduce", "collective"),
    ],
)
def test_kernels_that_communicate_without_nccl(tmp_path, name, regex, op):
    """B11: not NCCL's, so nothing is assessed and the kernels are listed; judged N x N when the user names them."""
    job = base4(tmp_path, nccl_kernel=name, nccl_ranges=False)
    blind = run(job.paths)
    assert (blind["verdict"]["status"], blind["verdict"]["reason"]) == ("not_assessed", "no_collectives")
    assert figures(blind, "nccl_kernels") == dict.fromkeys(range(4), 0)
    short = name.removeprefix("void vllm::").partition("<")[0]
    for warned in (w["message"] for w in blind["warnings"] if w["code"] == "no_collectives"):
        seen = re.search(r"kernels seen: (\w+), (\w+) ", warned)
        assert seen
        assert set(seen.groups()) == {short, "gemm"}
        assert "--comm-regex" in warned
    report = run(job.paths, digest=DigestOptions(comm_regex=regex))
    assert figures(report, "nccl_kernels") == dict.fromkeys(range(4), 10)
    assert report["job"]["matched_collectives"] == 10
    assert [t["op"] for t in report["communicators"][0]["transfers"]] == [op]
    assert late(report) == [("late_rank", 2)]
    assert figures(report, "wait_ns") == {0: 15 * MS, 1: 15 * MS, 2: 0, 3: 15 * MS}


def test_kernels_whose_names_tell_no_operation(tmp_path):
    """B11: Generic kernels without NVTX: counted, and not called point-to-point, which nobody knows."""
    report = run(base4(tmp_path, nccl_kernel="ncclDevKernel_Generic", nccl_ranges=False).paths)
    assert figures(report, "nccl_kernels") == dict.fromkeys(range(4), 10)
    assert (report["verdict"]["status"], report["verdict"]["reason"]) == (
        "not_assessed",
        "unknown_operations",
    )


def test_broadcasts_carry_neither_clock_nor_lateness(tmp_path):
    """B29: beside the all-reduces a broadcast that its members leave one by one, 0.4 ms apart."""

    def edit(rank, export):
        for k in range(20):
            begin = k * 20 * MS + 10 * MS
            leave = (1_000, 1_400, 1_800, 2_200)[rank] * US
            export.nccl("broadcast", begin, begin + leave, comm=99, stream=40)

    report = run(synthetic(tmp_path, steps=20, step_ns=20 * MS, jitter_ns=20 * US, edit=edit).paths)
    assert report["job"]["matched_collectives"] == 20
    assert offsets(report) == {"nodeA": 0, "nodeB": 0}
    assert report["clock"]["uncertainty_ns"] == 0
    assert figures(report, "end_skew_ns") == dict.fromkeys(range(4), 0)
    assert late(report, "major", "minor", "note") == []


def test_a_stage_that_waits_to_receive_accuses_nobody(tmp_path):
    """B29: stage 1 begins to receive 5 ms before stage 0 sends."""

    def edit(rank, export):
        stage = rank % 2
        for k in range(20):
            end = k * 20 * MS + 12 * MS
            begin = end - 5 * MS if stage else end
            call = Call("recv" if stage else "send", 77 + rank // 2, 1 << 20, 1 - stage)
            export.group([call], [(begin, end + 300 * US, 33)])

    stages = (Phase(4 * MS, [[0, 2], [1, 3]]),)
    settings = {"steps": 20, "step_ns": 20 * MS, "jitter_ns": 20 * US, "edit": edit}
    report = run(synthetic(tmp_path, nodes=("a", "b", "a", "b"), phases=stages, **settings).paths)
    assert report["job"]["islands"] == [[0, 2], [1, 3]]
    assert report["job"]["matched_collectives"] == 40
    assert late(report, "major", "minor", "note") == []


@pytest.mark.parametrize("settings", [{}, {"payload": False}, BARE, {**BARE, "step_ranges": None}])
def test_stages_of_a_pipeline_differ_by_design(tmp_path, settings):
    """B30: stage 0 computes 4 ms, stage 1 7 ms. Without group information the groups are inferred, and that is said."""
    stages = (Phase(4 * MS, [[0, 2], [1, 3]]),)
    more = dict.fromkeys((1, 3), 3 * MS)
    report = run(
        synthetic(tmp_path, steps=20, phases=stages, late=more, jitter_ns=100 * US, **settings).paths
    )
    assert members(report) == [[0, 2], [1, 3]]
    assert report["job"]["islands"] == [[0, 2], [1, 3]]
    assert late(report, "major", "minor", "note") == []
    assert report["verdict"]["status"] == "balanced"
    assert ("inferred_communicators" in codes(report)) == (settings != {})


def outlier(rank, export):
    if rank == 1:
        ends = (
            "SELECT start FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE streamId = 20 ORDER BY start LIMIT 1 OFFSET 2"
        )
        export.sql(
            f'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "end" = "end" + 40000000 WHERE streamId = 20 AND start = ({ends})'
        )


def test_one_far_end_does_not_move_the_clock(tmp_path):
    """B80: five collectives, one of which rank 1 ends 40 ms late; and rank 0 is no special reference."""
    clocks = {"nodeB": 1_234_000, "nodeC": -777_000}
    job = synthetic(
        tmp_path, nodes=4, steps=5, step_ns=100 * MS, edit=outlier, offset_ns=clocks, jitter_ns=50 * US
    )
    found = offsets(run(job.paths))
    true = {"nodeA": 0, "nodeB": 1_234_000, "nodeC": -777_000, "nodeD": 0}
    assert all(abs(found[node] - true[node]) < 5 * US for node in true)
    without = offsets(run(job.paths[1:]))
    assert {n: ns - without["nodeC"] for n, ns in without.items()} == {
        n: found[n] - found["nodeC"] for n in without
    }


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_collectives_make_a_weak_clock(tmp_path, count):
    """B80: below three collectives the alignment is said to be weak."""
    report = run(synthetic(tmp_path, nodes=4, steps=count, step_ns=100 * MS, jitter_ns=50 * US).paths)
    assert ("weak_clock" in codes(report)) == (count < 3)
    if count < 3:
        assert "alignment is weak" in warning(report, "weak_clock")


def test_removing_the_first_rank_changes_labels_only(tmp_path):
    """B80: the culprit, its delay and the others' waits are the same without rank 0."""
    job = synthetic(tmp_path, ranks=8, nodes=4, steps=20, late={5: 3 * MS}, jitter_ns=50 * US)
    whole, rest = run(job.paths), run(job.paths[1:])
    assert late(whole) == late(rest) == [("late_rank", 5)]
    delays = [next(f for f in r["findings"] if f["rank"] == 5)["delay_ns_per_step"] for r in (whole, rest)]
    assert abs(delays[0] - delays[1]) < 20 * US


@pytest.mark.parametrize("nodes", [1, 2])
def test_constant_end_differences_count_as_clock(tmp_path, nodes):
    """B81: members end 0, 5, 10, 15 us apart in every collective: a tree or clocks, the data cannot say which."""
    stagger = {r: 5 * US * r for r in range(4)}
    job = synthetic(tmp_path, nodes=nodes, steps=40, end_stagger_ns=stagger, jitter_ns=50 * US)
    report = run(job.paths)
    skew, clock = figures(report, "end_skew_ns"), offsets(report)
    of_rank = {r["rank"]: skew[r["rank"]] + clock[r["node"]] for r in report["ranks"]}
    apart = [b - a for a, b in pairwise(of_rank[r] for r in range(4))]
    assert all(1_000 <= step <= 8_000 for step in apart)
    assert late(report, "major", "minor", "note") == []
    text = words(job.paths)
    assert "constant end differences" in text
    assert "lateness below that is not claimed" in text


def test_tensor_and_data_parallel_delay_goes_to_who_caused_it(tmp_path):
    """B10: rank 1 is late in its pair, so that rank 0 is late in another: rank 0 is innocent."""
    report = run(synthetic(tmp_path, steps=20, phases=tp_dp(), late={1: 5 * MS}).paths)
    assert figures(report, "delay_ns")[0] == 0
    assert late(report) == [("late_rank", 1)]
