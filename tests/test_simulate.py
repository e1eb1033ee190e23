"""`rankdiff simulate`: what is planted is what is written, and what `compare` then says."""

from __future__ import annotations

import ast
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rankdiff.errors import RankdiffError
from rankdiff.simulation import (
    KINDS,
    Fault,
    NodeClock,
    OptionError,
    Settings,
    Window,
    parse_clock,
    parse_fault,
    parse_jitter,
    parse_stage_work,
    parse_window,
    simulate,
)
from rankdiff.simulation.planting import plan
from rankdiff.simulation.play import play
from rankdiff_cli import main as command_line
from rankdiff_cli.simulate import command
from tests.jobs import codes, late, run
from tests.reading import KERNELS, nccl, ranges, rows, table_set

MS = 1_000_000


def job(folder, *faults, **settings):
    """Simulate, compare, and return (report, truth)."""
    chosen = Settings(**({"ranks": 4, "steps": 12} | settings), faults=[parse_fault(f) for f in faults])
    made = simulate(folder / "job", chosen)
    return run(made.reports), json.loads(made.truth_file.read_text(encoding="utf-8"))


def assert_as_the_truth_says(report, truth):
    expected = truth["expected"]
    assert report["verdict"]["status"] == expected["status"]
    assert report["verdict"]["reason"] == expected["reason"]
    accused = [("late_node", n) for n in expected["late_nodes"]] + [
        ("late_rank", r) for r in expected["late_ranks"]
    ]
    assert sorted(late(report), key=str) == sorted(accused, key=str)
    for wanted in expected["findings"]:
        (found,) = [
            f
            for f in report["findings"]
            if (f["kind"], f["rank"], f["node"]) == (wanted["kind"], wanted["rank"], wanted["node"])
        ]
        assert (found["severity"] == "note") == wanted["note"]
        assert found["cause"] == wanted["cause"]
        if wanted["pattern"] is not None:
            assert (found["pattern"], found["period_steps"]) == (wanted["pattern"], wanted["period_steps"])
        if wanted["ranks"] is not None:
            assert found["ranks"] == wanted["ranks"]
        if wanted["cause"] not in (None, "slow_transfer"):
            assert found["cause_detail"]["range"] == wanted["range"]


# ---- the syntax -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("data_load:rank=5:ms=30", {"ranks": (5,), "ns": 30 * MS}),
        ("gpu_slow:node=n03:factor=1.15", {"nodes": ("n03",), "factor": 1.15}),
        (
            "host:rank=2:every=7:ms=400:range=save_checkpoint",
            {"ranks": (2,), "every": 7, "ns": 400 * MS, "range": "save_checkpoint"},
        ),
        (
            "io:rank=0-3,7:ms=0.5:first=4:last=9",
            {"ranks": (0, 1, 2, 3, 7), "ns": 500_000, "first": 4, "last": 9},
        ),
        ("network:node=n01,n02:factor=3", {"nodes": ("n01", "n02"), "factor": 3.0}),
        ("rotate:ms=25", {"ns": 25 * MS}),
        ("startup", {"ns": 2_000 * MS}),
        ("startup:ms=50:rank=1", {"ns": 50 * MS, "ranks": (1,)}),
        ("lost_events:rank=3", {"ranks": (3,), "share": 0.01}),
    ],
)
def test_a_fault_is_what_it_says(text, fault):
    assert parse_fault(text) == Fault(text, text.partition(":")[0], **fault)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu_slw:rank=1", ", ".join(KINDS)),
        ("", "kinds: data_load"),
        ("data_load:rank=5", "ms is needed"),
        ("data_load:ms=5", "rank or node is needed"),
        ("network:rank=5:factor=2", "network takes factor, node"),
        ("gpu_slow:rank=1:ms=3:factor=2", "factor or ms is needed, once"),
        ("data_load:rank=5:ms=30:ms=40", "there twice"),
        ("data_load:rank=5:ms=30:range=x", "data_load takes ms, rank, node, every, first, last"),
        ("data_load:rank=3-1:ms=30", "a list of ranks like 5 or 0-3,7"),
        ("data_load:rank=x:ms=30", "a list of ranks like 5 or 0-3,7"),
        ("data_load:rank=1:ms=nan", "milliseconds above 0"),
        ("data_load:rank=1:ms=-1", "milliseconds above 0"),
        ("gpu_slow:rank=1:factor=0.5", "a number above 1"),
        ("io:rank=1:ms=5:every=0", "a number of steps"),
        ("lost_events:rank=1:share=0.9", "between 0 and 0.5"),
        ("lost_events:rank=1:every=2", "lost_events takes share, rank, node"),
    ],
)
def test_a_fault_written_wrong_is_one_line_and_exit_status_2(text, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["rankdiff", "simulate", str(tmp_path / "job"), "--fault", text])
    with pytest.raises(SystemExit) as left:
        command_line.main()
    assert left.value.code == 2
    shown = capsys.readouterr().err
    assert expected in shown
    assert shown.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_steps_of_a_fault():
    assert parse_fault("io:rank=1:ms=5").steps(3) == [0, 1, 2]
    assert parse_fault("io:rank=1:ms=5:every=7").steps(20) == [6, 13]
    assert parse_fault("io:rank=1:ms=5:first=2:every=3:last=8").steps(20) == [2, 5, 8]


def test_clocks_windows_and_jitter_are_read():
    assert parse_clock("node=n02:offset=-3.5ms:drift=8ppm:step=10ms@5s") == NodeClock(
        "n02", -3_500_000, 8.0, ((5_000 * MS, 10 * MS),)
    )
    assert parse_window("rank=0-1,3:skip=4:end=2") == Window((0, 1, 3), 4, 2)
    assert parse_jitter("pareto:2.5%") == ("pareto", 0.025)
    assert parse_stage_work("1,1.5") == (1.0, 1.5)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (parse_clock, "offset=3ms"),
        (parse_clock, "node=n02:offset=3"),
        (parse_clock, "node=n02:step=-3ms@1s"),
        (parse_clock, "node=n02:drift=8"),
        (parse_window, "skip=4"),
        (parse_window, "rank=1:skip=-4"),
        (parse_window, "rank=1:start=4"),
        (parse_jitter, "gauss:2%"),
        (parse_jitter, "normal:2"),
        (parse_stage_work, "1,0"),
    ],
)
def test_what_cannot_be_read_says_what_was_expected(read, text):
    with pytest.raises(OptionError, match="expected") as error:
        read(text)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tp": 3}, "are 6 ranks, and --ranks is 8"),
        ({"dp": 2, "tp": 2}, "are 4 ranks, and --ranks is 8"),
        ({"nodes": 9}, "more than the 8 ranks"),
        ({"pp": 2, "stage_work": (1.0,)}, "one for each stage"),
        ({"faults": [parse_fault("io:rank=8:ms=5")]}, "no rank 8, the job has ranks 0-7"),
        ({"faults": [parse_fault("io:node=n03:ms=5")]}, "no node n03, the job has n01, n02"),
        ({"faults": [parse_fault("io:rank=1:ms=5:first=20")]}, "none of the 20 steps"),
        ({"clocks": [NodeClock("n09")]}, "no such node"),
        ({"windows": [Window((1,), 15, 5)]}, "nothing is left of 20 steps"),
        ({"windows": [Window((1,), 1), Window((1, 2), 1)]}, "there twice"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(settings, message, tmp_path):
    with pytest.raises(OptionError, match=message):
        simulate(tmp_path / "job", Settings(**settings))
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_kind():
    shown = CliRunner().invoke(command, ["--help"]).output
    assert [kind for kind in KINDS if kind not in shown] == []


# ---- the folder -----------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    texts = ["data_load:rank=1:ms=3", "startup", "lost_events:rank=2:share=0.1"]
    written = []
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        chosen = Settings(ranks=4, steps=3, tp=2, seed=seed, faults=[parse_fault(t) for t in texts])
        simulate(tmp_path / name, chosen)
        written.append({p.name: p.read_bytes() for p in sorted((tmp_path / name).iterdir())})
    assert sorted(written[0]) == [
        "prof_n01_0.sqlite",
        "prof_n01_1.sqlite",
        "prof_n02_2.sqlite",
        "prof_n02_3.sqlite",
        "truth.json",
    ]
    assert written[0] == written[1]
    assert [name for name in written[0] if written[0][name] == written[2][name]] == []


def test_the_command_says_what_to_try_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = CliRunner().invoke(command, ["my job", "--ranks", "2", "--steps", "2", "--fault", "io:rank=1:ms=3"])
    assert out.output == (
        "2 reports of 2 steps on 2 nodes, io:rank=1:ms=3; truth in my job/truth.json. "
        "Try: rankdiff compare 'my job'/*.sqlite\n"
    )
    assert len(list((tmp_path / "my job").iterdir())) == 3


def test_nothing_that_exists_is_overwritten(tmp_path):
    folder = tmp_path / "job"
    simulate(folder, Settings(ranks=4, steps=2))
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(RankdiffError, match="not empty"):
        simulate(folder, Settings(ranks=2, steps=2))
    assert len(list(folder.iterdir())) == 6
    # Ranks of the larger job before it would be taken for ranks of this one.
    simulate(folder, Settings(ranks=2, steps=2), force=True)
    names = {p.name for p in folder.iterdir()}
    assert names == {"prof_n01_0.sqlite", "prof_n02_1.sqlite", "truth.json", "notes.txt"}
    assert [p.name for p in tmp_path.iterdir()] == ["job"]
    with pytest.raises(RankdiffError, match="no folder"):
        simulate(folder / "notes.txt", Settings())
    with pytest.raises(RankdiffError, match="no such folder"):
        simulate(tmp_path / "absent" / "job", Settings())


def test_a_failed_run_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rankdiff.simulation.folder.truth_of", full)
    with pytest.raises(RankdiffError, match="No space left"):
        simulate(tmp_path / "job", Settings(ranks=2, steps=2))
    assert list(tmp_path.iterdir()) == []


def test_the_simulator_and_the_analysis_share_no_code(repository):
    package = repository / "rankdiff"
    for path in sorted(package.rglob("*.py")):
        names = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level:
                names.add(node.module)
            elif isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
        ours = {n for n in names if n.split(".")[0] == "rankdiff"}
        if "simulation" in path.parts:
            assert ours <= {"rankdiff.errors", "rankdiff.units"}, path
        else:
            assert not any(n.startswith("rankdiff.simulation") for n in ours), path


# ---- what compare says ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        "data_load:rank=3:ms=30",
        "io:rank=3:ms=6",
        "os_wait:rank=1:ms=6",
        "host:rank=2:ms=6:range=tokenize",
        "host:rank=2:every=3:ms=60:range=save_checkpoint",
        "host:rank=0:first=9:last=9:ms=400",
        "alloc:rank=2:ms=6",
        "sync:rank=2:ms=6",
        "copy:rank=2:ms=6",
        "gpu_slow:node=n02:factor=1.15",
        "gpu_slow:rank=1:ms=5",
        "gpu_work:rank=3:ms=5",
        "gpu_grid:rank=3:factor=1.3",
        "rotate:ms=25",
        "startup",
        "lost_events:rank=3:share=0.05",
        "profiler:rank=3:ms=8",
        "io:rank=3:ms=0.1",
    ],
)
def test_every_fault_is_recognised(tmp_path, fault):
    report, truth = job(tmp_path, fault)
    assert_as_the_truth_says(report, truth)
    assert report["job"]["matched_collectives"] == truth["job"]["matched_collectives"]


def test_a_slow_network_is_a_node_and_no_late_rank(tmp_path):
    report, truth = job(tmp_path, "network:node=n03:factor=4", tp=2, pp=2, nodes=4)
    assert [f["kind"] for f in truth["expected"]["findings"]] == ["slow_transfer"]
    assert_as_the_truth_says(report, truth)


def test_nobody_is_late_in_a_healthy_job(tmp_path):
    report, truth = job(tmp_path)
    assert truth["expected"]["findings"] == []
    assert_as_the_truth_says(report, truth)


def test_heavy_jitter_may_be_called_rotating(tmp_path):
    report, truth = job(tmp_path, jitter="exponential", jitter_share=0.1)
    expected = truth["expected"]
    assert (expected["status"], expected["status_or"], expected["findings"]) == ("balanced", "rotating", [])
    assert truth["jitter_cost_ns_per_step"] > 0.05 * truth["job"]["step_ns_median"]
    assert report["verdict"]["status"] in ("balanced", "rotating")
    assert late(report) == []


def test_pipeline_stages_accuse_nobody(tmp_path):
    report, truth = job(tmp_path, ranks=8, tp=2, pp=2, micro_batches=4, stage_work=(1.0, 1.3))
    assert truth["expected"]["status"] == "balanced"
    assert_as_the_truth_says(report, truth)
    groups = sorted(c["ranks"] for c in report["communicators"])
    assert [g for g in groups if g in ([0, 1], [2, 3], [4, 5], [6, 7])] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [g for g in groups if g in ([0, 2], [1, 3], [4, 6], [5, 7])] == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_a_culprit_in_a_pipeline_is_found_behind_those_it_held_up(tmp_path):
    report, truth = job(tmp_path, "gpu_slow:rank=3:factor=1.2", ranks=8, pp=4, micro_batches=4)
    assert truth["expected"]["late_ranks"] == [3]
    assert_as_the_truth_says(report, truth)


def test_a_pipeline_alone_cannot_be_judged(tmp_path):
    report, truth = job(tmp_path, ranks=4, pp=4)
    assert truth["expected"]["reason"] == "no_nxn_collectives"
    assert_as_the_truth_says(report, truth)


def test_the_culprit_among_tensor_and_data_parallel_groups(tmp_path):
    report, truth = job(tmp_path, "data_load:rank=5:ms=30", ranks=8, tp=2)
    assert truth["expected"]["late_ranks"] == [5]
    assert late(report, "major") == [("late_rank", 5)]
    # Its partner of the tensor-parallel group is behind in everything as well: the cause tells them apart.
    finding = report["findings"][0]
    assert (finding["rank"], finding["cause"], finding["pattern"]) == (5, "data_load", "persistent")
    assert finding["cause_detail"]["osrt"] == "read"


def test_the_cause_of_a_node_that_holds_whole_tensor_parallel_groups(tmp_path):
    # Nobody else is in those groups: what its ranks did before those collectives is compared with others' steps.
    report, truth = job(tmp_path, "data_load:node=n02:ms=10", tp=2)
    assert truth["expected"]["late_nodes"] == ["n02"]
    assert_as_the_truth_says(report, truth)


@pytest.mark.parametrize("schema", ["2.9", "3.24"])
def test_other_schema_versions_get_the_same_verdict(tmp_path, schema):
    report, truth = job(tmp_path, "data_load:rank=3:ms=30", schema=schema)
    assert_as_the_truth_says(report, truth)
    reports = sorted((tmp_path / "job").glob("*.sqlite"))
    assert ("NVTX_PAYLOAD_SCHEMAS" in table_set(reports[0])) == (schema == "3.24")


@pytest.mark.parametrize(
    ("left_out", "table", "cause"),
    [
        ({"payloads": False}, None, "data_load"),
        ({"nvtx": False}, "NVTX_EVENTS", "io"),
        ({"osrt": False}, "OSRT_API", "data_load"),
        ({"nvtx": False, "osrt": False, "payloads": False}, "OSRT_API", "host"),
    ],
)
def test_without_some_of_the_capture_the_same_rank_is_late(tmp_path, left_out, table, cause):
    report, truth = job(tmp_path, "data_load:rank=3:ms=30", **left_out)
    assert truth["expected"]["findings"][0]["cause"] == cause
    assert_as_the_truth_says(report, truth)
    first = min((tmp_path / "job").glob("*.sqlite"))
    assert table not in table_set(first)
    if "nvtx" not in left_out and "payloads" in left_out:
        assert [r for r in ranges(first, "ncclAllReduce") if r[4] is not None] == []


def test_clocks_and_windows_are_as_planted(tmp_path):
    report, truth = job(
        tmp_path,
        "io:rank=3:ms=6",
        steps=40,
        clocks=[NodeClock("n02", 3_500_000, 8.0)],
        windows=[Window((1,), 4, 2), Window((2,), 0, 5)],
    )
    assert_as_the_truth_says(report, truth)
    assert truth["clocks"][1] == {"node": "n02", "offset_ns": 3_500_000, "drift_ppm": 8.0, "steps": []}
    assert report["clock"]["nodes"][1]["offset_ns"] == pytest.approx(3_500_000, abs=15_000)
    # Four buckets a step; steps 4 to 34 are in all windows.
    assert truth["job"]["matched_collectives"] == report["job"]["matched_collectives"] == 31 * 4
    first = nccl(tmp_path / "job" / "prof_n01_1.sqlite")
    assert len(first) == 34 * 4


def test_a_clock_is_set_forward(tmp_path):
    chosen = Settings(ranks=2, steps=4, jitter_share=0.0)
    plain = simulate(tmp_path / "a", chosen)
    jump = NodeClock("n02", 0, 0.0, ((40 * MS, 10 * MS),))
    moved = simulate(tmp_path / "b", Settings(ranks=2, steps=4, jitter_share=0.0, clocks=[jump]))
    pairs = zip(rows(plain.reports[1], KERNELS), rows(moved.reports[1], KERNELS), strict=True)
    assert {(a[0] >= 40 * MS, b[0] - a[0]) for a, b in pairs} == {(False, 0), (True, 10 * MS)}


def test_the_truth_knows_what_a_fault_costs(tmp_path):
    _, truth = job(tmp_path, "data_load:rank=3:ms=30", jitter_share=0.0)
    assert truth["schema"] == "rankdiff.truth/1"
    assert truth["faults"] == [
        {
            "fault": "data_load:rank=3:ms=30",
            "kind": "data_load",
            "ranks": [3],
            "steps": 12,
            "cost_ns_per_step": pytest.approx(30 * MS, abs=50_000),
        }
    ]
    means = {r["rank"]: r["delay_ns_mean"] for r in truth["ranks"]}
    assert {rank for rank, ns in means.items() if ns > MS} == {3}


# ---- the play -------------------------------------------------------------------------------------------------


def works(chosen):
    """Compute of each (step, rank) in a play, ns."""
    timelines, _ = play(plan(chosen, chosen.faults))
    out = np.zeros((chosen.steps, chosen.ranks))
    for rank, timeline in enumerate(timelines):
        times = [a[1] - a[0] for m, a, _ in timeline.events if m == "kernel"]
        out[:, rank] = np.array(times).reshape(chosen.steps, -1).sum(axis=1)
    return out


@pytest.mark.parametrize(
    ("family", "mean", "sigma"), [("normal", 0.0, 0.05), ("exponential", 0.05, 0.05), ("pareto", 0.05, None)]
)
def test_jitter_is_a_share_of_the_work_of_a_step(family, mean, sigma):
    extra = works(Settings(steps=400, jitter=family, jitter_share=0.05)) / (20 * MS) - 1
    assert extra.mean() == pytest.approx(mean, abs=0.004)
    if sigma is None:
        assert extra.max() > 0.5  # a tail that neither of the others has
    else:
        assert extra.std() == pytest.approx(sigma, rel=0.1)
        assert extra.max() < 0.5


def test_slow_gpus_do_the_same_kernels_for_longer_and_grids_grow():
    calm = {"steps": 2, "jitter_share": 0.0}
    slow = works(Settings(**calm, faults=[parse_fault("gpu_slow:node=n02:factor=1.15")]))
    assert slow[0].tolist() == pytest.approx([20 * MS] * 4 + [23 * MS] * 4, rel=1e-4)
    grown = Settings(**calm, faults=[parse_fault("gpu_grid:rank=1:factor=1.5")])
    assert works(grown)[1, 1] == pytest.approx(30 * MS, rel=1e-4)
    grids = [
        {k["grid"][0] for m, _, k in timeline.events if m == "kernel"}
        for timeline in play(plan(grown, grown.faults))[0]
    ]
    assert grids == [{128}, {192}, *[{128}] * 6]


def test_transfers_of_a_slow_node_take_longer_where_they_leave_it():
    chosen = Settings(steps=2, tp=4, nodes=4, jitter_share=0.0)
    fault = parse_fault("network:node=n02:factor=3:first=1")
    usual, slow = (play(plan(chosen, faults))[1] for faults in ([], [fault]))

    def transfer(instance):
        return min(instance.ends.values()) - max(instance.starts.values())

    for a, b in zip(usual, slow, strict=True):
        nodes = {chosen.node_of(rank) for rank in a.members}
        factor = 3 if "n02" in nodes and len(nodes) > 1 and a.step == 1 else 1
        assert transfer(b) == pytest.approx(factor * transfer(a), abs=60_000)


def test_a_receiver_waits_for_its_sender_and_computes_after_it():
    timelines, instances = play(plan(Settings(ranks=2, pp=2, steps=2, micro_batches=2), ()))
    passed = [i for i in instances if i.op == "send_recv"]
    assert len(passed) == 2 * 2 * 2
    assert all(min(i.ends.values()) > max(i.starts.values()) for i in passed)
    assert len({i.comm for i in passed}) == 1
    # The second stage's first kernel of each step comes after the first it received.
    kernels = [a[0] for m, a, _ in timelines[1].events if m == "kernel"]
    for step in range(2):
        first = min(i.ends[1] for i in passed if i.step == step)
        begin, end = timelines[1].steps[step]
        assert min(k for k in kernels if begin <= k < end) >= first
    ops = [(a[0], k["root"]) for m, a, k in timelines[0].events if m == "nccl"]
    assert set(ops) == {("send", 1), ("recv", 1)}


def test_lost_kernels_leave_their_ranges(tmp_path):
    whole = simulate(tmp_path / "a", Settings(steps=10)).reports[3]
    made = simulate(tmp_path / "b", Settings(steps=10, faults=[parse_fault("lost_events:rank=3:share=0.1")]))
    before, after = len(rows(whole, KERNELS)), len(rows(made.reports[3], KERNELS))
    assert after == before - round(0.1 * before)
    assert len(ranges(whole, "ncclAllReduce")) == len(ranges(made.reports[3], "ncclAllReduce")) == 40
    assert made.truth["job"]["matched_collectives"] == len(nccl(made.reports[3])) < 40
    with closing(sqlite3.connect(made.reports[3])) as base:
        assert base.execute("SELECT text FROM DIAGNOSTIC_EVENT").fetchall() == [
            ("Not all CUDA events might have been collected.",)
        ]
    assert rows(
        Path(made.reports[2]), "SELECT count(*) FROM sqlite_master WHERE name = 'DIAGNOSTIC_EVENT'"
    ) == [(0,)]


@pytest.mark.parametrize("by", ["10ms", "30ms"])
def test_a_clock_that_is_set_costs_no_collective_and_accuses_nobody(tmp_path, by):
    # Less than a step, and more: what lies behind it is not one operation apart.
    clock = parse_clock(f"node=n02:step={by}@0.2s")
    report = run(simulate(tmp_path / "job", Settings(steps=30, clocks=[clock])).reports)
    assert report["verdict"]["status"] == "balanced"
    assert report["job"]["matched_collectives"] == 120
    assert "clock_step" in codes(report)


def test_one_long_spike_in_jitter_does_not_rotate(tmp_path):
    # In some other steps jitter makes other ranks the last by a tenth of the step, and the spike holds the most.
    fault = parse_fault("os_wait:rank=4:ms=200:first=11:last=11")
    settings = Settings(steps=24, step_ms=30.0, jitter_share=0.02, faults=[fault], seed=80_004)
    report = run(simulate(tmp_path / "job", settings).reports)
    assert report["verdict"]["status"] == "straggler"
    assert late(report) == [("late_rank", 4)]
    assert report["findings"][0]["pattern"] == "one_off"
