"""Did the fix help: what changed between two captures, what cannot be told apart, and what must not be compared."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.plays import Play, perform
from rankdiff.comparison import compare_digests
from rankdiff.differences.bootstrap import FEWEST_STEPS, blocks_for, estimates
from rankdiff.differences.difference import Difference, differ
from rankdiff.differences.inputs import load_side
from rankdiff.differences.measure import measure
from rankdiff.differences.side import Side
from rankdiff.errors import RankdiffError
from rankdiff.findings import Finding
from rankdiff.pipeline import CompareOptions
from rankdiff.render.diff_json import to_dict
from rankdiff.render.diff_text import to_terminal, to_text
from rankdiff.simulation import Phase, synthetic
from rankdiff_cli.main import group

MS = 1_000_000
STEPS = 20


# The bootstrap ---------------------------------------------------------------------------------------------


def following(draws: np.random.Generator, k: int, r: float, rows: int = 1) -> np.ndarray:
    """Rows of series in which each step follows the one before with correlation `r`."""
    noise = draws.normal(size=(rows, k + 30))
    out = np.zeros_like(noise)
    for n in range(1, k + 30):
        out[:, n] = r * out[:, n - 1] + noise[:, n]
    return out[:, 30:]


def test_a_difference_lies_in_its_interval():
    draws = np.random.default_rng(1)
    before, after = 100.0 + draws.normal(size=60), 103.0 + draws.normal(size=50)
    (found,) = estimates([before], [after], 0.05)
    assert found.change == pytest.approx(after.mean() - before.mean())
    assert found.low < 3.0 < found.high
    # Two standard errors of a difference of two means of that many steps, and somewhat more for few blocks.
    wide = 2.0 * np.sqrt(1 / 60 + 1 / 50)
    assert 0.6 * wide < (found.high - found.low) / 2 < 1.6 * wide


def test_equal_sides_are_no_difference_and_order_only_turns_the_sign():
    draws = np.random.default_rng(2)
    before, after = draws.exponential(size=30), draws.exponential(size=30) + 5.0
    (there,), (back,) = estimates([before], [after], 0.05), estimates([after], [before], 0.05)
    assert there.low > 0
    assert back.high < 0
    assert there.change == -back.change
    (same,) = estimates([np.full(10, 7.0)], [np.full(12, 7.0)], 0.05)
    assert (same.low, same.high) == (0.0, 0.0)
    (apart,) = estimates([np.full(10, 7.0)], [np.full(12, 8.0)], 0.05)
    assert (apart.low, apart.high) == (1.0, 1.0)


def test_too_few_steps_have_no_interval():
    many, few = np.arange(40.0), np.arange(FEWEST_STEPS - 1.0)
    assert estimates([many, many], [few, many], 0.05)[0] is None
    assert estimates([many, many], [few, many], 0.05)[1] is not None
    assert estimates([], [], 0.05) == []


def test_likeness_of_neighbours_makes_longer_blocks():
    draws = np.random.default_rng(3)
    loose, tied = following(draws, 400, 0.0)[0], following(draws, 400, 0.9)[0]
    assert blocks_for(loose).length < 12 < blocks_for(tied).length <= 100
    assert blocks_for(np.ones(50)).factor < blocks_for(tied).factor
    assert blocks_for(np.array([1.0, 2.0])).length == 1


@pytest.mark.parametrize("rows", [1, 12])
def test_steps_that_follow_each_other_seldom_show_a_change_that_is_not_there(rows):
    draws = np.random.default_rng(4)
    jobs, wrong = 100, 0
    for _ in range(jobs):
        before, after = following(draws, 40, 0.6, rows), following(draws, 40, 0.6, rows)
        wrong += any(e.low > 0 or e.high < 0 for e in estimates(list(before), list(after), 0.05))
    # 5 expected; drawn one by one, such steps show a change in 34 (one row) and 88 (twelve) of the 100.
    assert wrong <= 10


def test_many_steps_are_averaged_without_losing_the_mean():
    draws = np.random.default_rng(5)
    before = draws.normal(size=20_011)
    (found,) = estimates([before], [before + 0.1], 0.05)
    assert found.change == pytest.approx(0.1)
    assert found.low > 0.05


# Sides and their difference --------------------------------------------------------------------------------


def played(name: str = "job", **settings: object) -> Side:
    """A side from a played job: no files, no causes, no kernels."""
    job = perform(Play(**{"ranks": 4, "per_node": 2, "steps": STEPS, **settings}))
    return measure(compare_digests(job.digests, job.identities, ()), name)


@pytest.fixture(scope="module")
def healthy() -> Side:
    return played("healthy", seed=1)


@pytest.fixture(scope="module")
def late() -> Side:
    return played("late", seed=2, late={2: 30e6})


def test_a_late_rank_that_was_cured(late, healthy):
    d = differ(late, healthy)
    assert d.status == "faster"
    # A little less than was planted: where one rank holds all, the others' jitter costs nothing.
    assert -30e6 < d.step.change_ns < -26e6
    assert d.step.low_ns < d.step.change_ns < d.step.high_ns < -20e6
    assert [r.rank for r in d.ranks if r.changed] == [2]
    assert d.row("wait").changed
    assert [(f.what, f.before.rank) for f in d.fates if f.before] == [("gone", 2)]
    assert [r.node for r in d.nodes if r.changed] == ["n001"]


def test_the_other_way_round(late, healthy):
    there, back = differ(late, healthy), differ(healthy, late)
    assert back.status == "slower"
    assert back.step.change_ns == -there.step.change_ns
    assert [r.verdict for r in back.ranks] == [r.verdict for r in there.ranks]
    assert [(f.what, f.after.rank) for f in back.fates if f.after] == [("new", 2)]


def test_the_parts_of_the_step_close(late, healthy):
    d = differ(late, healthy)
    for side in ("before_ns", "after_ns"):
        parts = [getattr(d.row(k), side) for k in ("compute", "exposed_communication", "copy", "idle")]
        # The first step has no length, and where it is not judged, the means are of the same steps.
        assert sum(parts) == pytest.approx(getattr(d.step, side), rel=1e-6)
    split = d.row("exposed_wait").before_ns + d.row("exposed_transfer").before_ns
    assert split == pytest.approx(d.row("exposed_communication").before_ns)


def every_row(d: Difference) -> list:
    kernels = [k.row for k in d.kernels or ()]
    return [d.step, *d.parts, *d.causes, *d.ranks, *d.nodes, *d.gpus, *d.rank_causes, *kernels]


def test_two_captures_of_one_job_show_no_change():
    changed = set()
    for seed in range(12):
        settings = {"family": ("normal", "exponential", "pareto")[seed % 3], "jitter_share": 0.05}
        d = differ(played(seed=100 + seed, **settings), played(seed=200 + seed, **settings))
        changed |= {seed for r in every_row(d) if r.changed}
    # Of 450 such pairs 9 show one; docs/diff.md has more figures.
    assert len(changed) <= 1


def test_a_change_that_does_not_matter_is_called_so():
    before = played(seed=1, jitter_share=0.0002, steps=60)
    after = played(seed=2, jitter_share=0.0002, steps=60, step_ns=100.5e6)
    d = differ(before, after)
    assert (d.status, d.step.verdict) == ("too_small", "too_small")
    assert 0 < d.step.low_ns < 0.5e6 < d.step.high_ns < d.step.least_ns
    assert "practically the same" in to_text(d)


def test_few_steps_are_not_assessed(healthy):
    d = differ(healthy, played(steps=7, seed=3))
    assert d.status == "not_assessed"
    assert re.search(r"steps after, 8 needed", d.reason)
    assert d.step.low_ns is None
    assert to_text(d).startswith("Not assessed: ")


def test_a_large_job_in_many_groups():
    plain = played(ranks=16, per_node=4, tensor=2, seed=1)
    slow = played(ranks=16, per_node=4, tensor=2, seed=2, late={5: 30e6})
    d = differ(plain, slow)
    assert [r.rank for r in d.ranks if r.changed] == [5]
    assert d.before.operations == {"all_reduce": 4.0}
    assert d.before.bytes_per_step == 4 * (1 << 20)


# What must not be compared ---------------------------------------------------------------------------------


def renamed(side: Side, **changes: object) -> Side:
    """A side whose ranks are changed alike."""
    return replace(side, members=tuple(replace(m, **changes) for m in side.members))


BENT = {
    "other_ranks": lambda s: replace(s, members=s.members[:3]),
    "other_steps": lambda s: replace(s, step_source="period"),
    "other_operations": lambda s: replace(s, operations={"all_reduce": 5.0}),
    "other_windows": lambda s: replace(s, step_count=6 * s.step_count),
    "other_gpus": lambda s: renamed(s, gpu_name="NVIDIA H100"),
}


@pytest.mark.parametrize("code", BENT)
@pytest.mark.parametrize("first", [True, False])
def test_incomparable_sides_are_refused(late, healthy, code, first):
    before, after = renamed(late, gpu_name="NVIDIA A100"), renamed(healthy, gpu_name="NVIDIA A100")
    before, after = (BENT[code](before), after) if first else (before, BENT[code](after))
    with pytest.raises(RankdiffError, match="late and healthy cannot be compared") as caught:
        differ(before, after)
    assert caught.value.exit_code == 1
    assert "--force" in caught.value.remedy
    forced = differ(before, after, force=True)
    assert [n.code for n in forced.refused] == [code]
    assert forced.refused[0].message in to_text(forced).replace("\n    ", " ")


def test_a_refusal_says_what_would_do(late, healthy):
    with pytest.raises(RankdiffError, match=r"ranks 0-3 before, ranks 0-1,3 after: .*--ranks 0-1,3"):
        differ(late, replace(healthy, members=tuple(m for m in healthy.members if m.rank != 2)))


def test_an_operation_cut_off_by_the_window_is_no_other_job(late, healthy):
    assert differ(late, replace(healthy, operations={"all_reduce": 3.8})).refused == ()


def cautions(before: Side, after: Side) -> set[str]:
    return {n.code for n in differ(before, after).cautions}


def test_what_to_bear_in_mind(late, healthy):
    assert cautions(late, healthy) == set()
    assert "other_bytes" in cautions(late, replace(healthy, bytes_per_step=2 * healthy.bytes_per_step))
    assert "missing_ranks" in cautions(late, replace(healthy, missing=(4,)))
    assert "left_out" in cautions(late, replace(healthy, notes=("prof_3.sqlite: empty",)))
    assert "same_capture" in cautions(renamed(late, session_uuid="a"), renamed(healthy, session_uuid="a"))


# Where ranks ran -------------------------------------------------------------------------------------------


def on(side: Side, nodes: str, gpus: str | None = None, who: int | None = None) -> Side:
    """The side with its ranks on these nodes and GPUs, a letter each, and this rank late."""
    members = tuple(
        replace(m, node=f"gpu{n}", gpu_uuid=gpus[m.rank] if gpus else None)
        for m, n in zip(side.members, nodes, strict=True)
    )
    findings = (
        (Finding("late_rank", "major", "persistent", who, members[who].node, (who,), cause="io"),)
        if who is not None
        else ()
    )
    return replace(side, members=members, findings=findings)


@pytest.mark.parametrize(
    ("after_nodes", "after_who", "says"),
    [
        ("BBAA", 0, "with_place"),  # rank 0 runs on A's place of rank 2 now
        ("BBAA", 2, "with_rank"),
        ("BBAA", None, "gone"),
        ("CCDD", None, "unknown"),
        ("CCDD", 2, "with_rank"),
    ],
)
def test_where_the_delay_of_a_rank_that_moved_went(late, healthy, after_nodes, after_who, says):
    before = on(late, "AABB", who=2)
    after = on(healthy, after_nodes, who=after_who)
    if after_nodes == "BBAA" and after_who == 0:
        assert after.members[0].node == before.members[2].node
    d = differ(before, after)
    (move,) = [m for m in d.places.moves if m.rank == 2]
    assert move.delay == says
    assert [m.delay for m in d.places.moves if m.rank != 2] == [None] * 3
    assert "rank 2 ran on gpuB before" in " ".join(to_text(d).split())


def test_the_gpu_and_not_the_node_is_the_place_of_a_rank(late, healthy):
    before = on(late, "AABB", "wxyz", who=2)
    d = differ(before, on(healthy, "AABB", "wxzy", who=3))
    assert [(m.rank, m.delay) for m in d.places.moves] == [(2, "with_place"), (3, None)]
    assert [r.gpu_uuid for r in d.gpus] == ["y", "z"]
    # What rank 2 caused on GPU y before is held against what rank 3 causes on it now.
    assert d.gpus[0].before_ns == d.ranks[2].before_ns
    assert d.gpus[0].after_ns == d.ranks[3].after_ns
    assert d.places.gpus_in_both == ("w", "x", "y", "z")


def test_another_cause_is_another_trouble(late, healthy):
    after = on(healthy, "BBAA", who=0)
    after = replace(after, findings=(replace(after.findings[0], cause="host"),))
    d = differ(on(late, "AABB", who=2), after)
    assert [m.delay for m in d.places.moves if m.rank == 2] == ["gone"]


def test_overlap_of_nodes_is_stated(late, healthy):
    d = differ(on(late, "AABB"), on(healthy, "BBCC"))
    assert d.places.nodes_in_both == ("gpuB",)
    assert "1 of 2 in both (gpuB); GPUs: not known on both sides" in to_text(d)
    assert [r.node for r in d.nodes] == ["gpuB"]
    assert d.nodes[0].before_ns == pytest.approx(d.ranks[2].before_ns + d.ranks[3].before_ns)
    assert d.nodes[0].after_ns == pytest.approx(d.ranks[0].after_ns + d.ranks[1].after_ns)


# Files -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> Path:
    """Folders of exports: `bad` has a slow loader on rank 2, `good` has none, `slow` slower and more kernels."""
    folder = tmp_path_factory.mktemp("jobs")
    shared = {"steps": STEPS, "jitter_share": 0.02, "jitter": "normal", "step_ns": 0}
    # Another session: its events lie before its start, as after --ts-shift.
    start = dict.fromkeys(range(4), 3_600_000 * MS)
    synthetic(folder / "bad", seed=1, late={2: 5 * MS}, late_as="data_load", **shared)
    synthetic(folder / "good", seed=2, session_start_ns=start, **shared)
    stretch = {r: [1.5] * STEPS for r in range(4)}
    phases = (Phase(4 * MS), Phase(2 * MS, kernel="softmax"))
    synthetic(folder / "two", seed=3, phases=phases, **shared)
    synthetic(folder / "slow", seed=4, phases=phases, stretch=stretch, session_start_ns=start, **shared)
    return folder


@pytest.fixture(scope="module")
def sides(jobs) -> dict[str, Side]:
    return {p.name: load_side([str(p)]) for p in sorted(jobs.iterdir())}


def diff(*arguments: object, status: int = 0) -> str:
    """Run the command; what it printed on stdout."""
    done = CliRunner().invoke(group, ["diff", *map(str, arguments)], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    assert done.return_value == status, done.output
    return done.stdout if hasattr(done, "stdout") else done.output


def test_the_cause_that_went_away(sides):
    d = differ(sides["bad"], sides["good"])
    assert d.status == "faster"
    assert [r.rank for r in d.ranks if r.changed] == [2]
    causes = {r.key: r for r in d.rank_causes if r.rank == 2}
    assert [k for k, r in causes.items() if r.changed] == ["data_load"]
    assert causes["data_load"].change_ns == pytest.approx(-5 * MS, rel=0.1)
    # A quarter of it in the mean over the four ranks.
    assert d.row("data_load").change_ns == pytest.approx(-1.25 * MS, rel=0.1)
    assert d.row("gpu_work").verdict == "not_distinguishable"
    assert d.row("preempted").verdict is None
    assert d.row("preempted").reason == "not captured"
    assert "data_load from" in to_text(d)


def test_kernels_that_became_slower(sides):
    d = differ(sides["two"], sides["slow"])
    found = {k.row.key: k for k in d.kernels if k.row.changed}
    assert {k: x.kind for k, x in found.items()} == {"gemm": "longer", "softmax": "longer"}
    gemm = found["gemm"]
    assert gemm.count_before == gemm.count_after == 1.0
    assert gemm.duration_after_ns / gemm.duration_before_ns == pytest.approx(1.5, rel=0.02)
    assert gemm.row.change_ns == pytest.approx(2 * MS, rel=0.05)
    back = differ(sides["slow"], sides["two"])
    assert {k.kind for k in back.kernels if k.row.changed} == {"shorter"}


def test_kernels_of_one_side_only(sides):
    before, after = sides["two"], sides["two"]
    gone = replace(after, kernels=after.kernels.filter(after.kernels["kernel"] != "softmax"))
    assert {k.row.key: k.kind for k in differ(before, gone).kernels if k.row.changed} == {"softmax": "gone"}
    assert {k.row.key: k.kind for k in differ(gone, before).kernels if k.row.changed} == {"softmax": "new"}
    assert differ(before, replace(after, kernels=None, why={"kernels": "no step ranges"})).kernels is None


def test_kernels_of_another_job_are_told(sides):
    other = sides["two"].kernels.with_columns(kernel=sides["two"].kernels["kernel"] + "_v2")
    d = differ(sides["two"], replace(sides["two"], kernels=other))
    assert "other_kernels" in {n.code for n in d.cautions}


def test_json(jobs):
    text = diff(jobs / "bad", jobs / "good", "--format", "json")
    assert text == diff(jobs / "bad", jobs / "good", "--format", "json")
    assert str(jobs) not in text
    d = json.loads(text)
    assert d["schema"] == "rankdiff.diff/1"
    assert d["verdict"]["status"] == "faster"
    assert d["gate"] is None
    assert d["before"]["operations_per_step"] == {"all_reduce": 1.0}
    assert d["ranks"][2]["delay"]["verdict"] == "changed"
    assert (
        d["step_time"]["change_ci95_ns"][0]
        < d["step_time"]["change_ns"]
        < d["step_time"]["change_ci95_ns"][1]
    )
    assert ("gone", "late_rank") in [(f["what"], (f["before"] or f["after"])["kind"]) for f in d["findings"]]
    assert d["before_collectives"]["preempted"]["before_ns"] is None


def test_keys_are_there_whatever_is_known(late, healthy, sides):
    def keys(x: object) -> object:
        return {k: keys(v) for k, v in x.items()} if isinstance(x, dict) else None

    full, poor = to_dict(differ(sides["bad"], sides["good"])), to_dict(differ(late, played(steps=5)))
    assert keys(full["step_time"]) == keys(poor["step_time"])
    for key in ("verdict", "places", "parts", "before_collectives", "method"):
        assert keys(full[key]) == keys(poor[key])
    assert full.keys() == poor.keys()
    assert full["before"].keys() == poor["before"].keys()


@pytest.fixture(scope="module")
def tickets(jobs, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tickets")
    for name in ("bad", "good"):
        arguments = ["compare", str(jobs / name), "-o", str(folder / name), "--no-plots"]
        done = CliRunner().invoke(group, arguments, standalone_mode=False)
        assert done.exception is None
    return folder


def test_report_json_does_as_far_as_it_goes(jobs, tickets, sides):
    whole = differ(sides["bad"], sides["good"])
    for before in (tickets / "bad", tickets / "bad" / "report.json"):
        d = differ(load_side([str(before)]), load_side([str(tickets / "good")]))
        assert d.before.name == "bad"
        assert d.status == "faster"
        for key in ("wait", "compute", "exposed_wait", "idle"):
            assert d.row(key).before_ns == pytest.approx(whole.row(key).before_ns, abs=1.0)
            assert d.row(key).verdict == whole.row(key).verdict
        assert [r.verdict for r in d.ranks] == [r.verdict for r in whole.ranks]
        assert d.row("data_load").reason == "not in report.json"
        assert d.row("data_load").before_ns is None
        assert d.kernels is None
        assert d.before.operations == whole.before.operations
        assert [m.gpu_uuid for m in d.before.members] == [m.gpu_uuid for m in whole.before.members]
        assert "stored" in {n.code for n in d.cautions}
    mixed = json.loads(diff(tickets / "bad", jobs / "good", "--format", "json"))
    assert mixed["before_collectives"]["data_load"]["reason"] == "not in report.json before"
    assert mixed["before"]["source"] == "report.json"
    assert mixed["after"]["source"] == "reports"


def test_a_report_json_of_an_earlier_version(tickets, tmp_path):
    old = json.loads((tickets / "bad" / "report.json").read_text())
    for step in old["steps"]:
        for key in ("island", "make_up_ns", "delay_by_rank_ns"):
            del step[key]
    for key in ("operations_per_step", "bytes_per_step"):
        del old["job"][key]
    (tmp_path / "old.json").write_text(json.dumps(old))
    d = differ(load_side([str(tmp_path / "old.json")]), load_side([str(tickets / "good")]), force=True)
    assert d.status == "faster"
    assert d.row("compute").reason == "not in report.json before"
    assert {r.reason for r in d.ranks} == {"not in report.json before"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no valid JSON"),
        ("{}", "expected the schema rankdiff.report/1, found None"),
        ('{"schema": "rankdiff.report/2"}', "found 'rankdiff.report/2'"),
        ('{"schema": "rankdiff.report/1"}', "not a report.json as rankdiff writes it"),
        (
            '{"schema": "rankdiff.report/1", "job": [], "verdict": 3}',
            "not a report.json as rankdiff writes it",
        ),
        ("{" + '"a":[' * 100_000, "no valid JSON"),
    ],
)
def test_what_is_no_report_json(tmp_path, jobs, text, says):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(RankdiffError, match=re.escape(says)) as caught:
        diff(path, jobs / "good")
    assert str(caught.value).count("\n") == 0
    assert "compare -o" in caught.value.remedy


@pytest.mark.parametrize("wrong", ["NaN", "1e999", "1e300", "[]", "[[1], 2]", '"x"', str(10**400)])
@pytest.mark.parametrize("where", ["step_ns_median", "step_ns", "uncertainty_ns", "delay_share"])
def test_numbers_in_a_report_json_are_numbers(tickets, tmp_path, where, wrong):
    text = (tickets / "bad" / "report.json").read_text()
    path = tmp_path / "wrong.json"
    path.write_text(re.sub(rf'("{where}": )[\d.]+', rf"\g<1>{wrong}", text))
    assert path.read_text() != text
    with pytest.raises(RankdiffError, match=r"not a report\.json as rankdiff writes it"):
        load_side([str(path)])


def test_a_report_json_of_an_editor(tickets, tmp_path):
    text = (tickets / "bad" / "report.json").read_bytes()
    (tmp_path / "marked.json").write_bytes(b"\xef\xbb\xbf" + text)
    assert load_side([str(tmp_path / "marked.json")]).step_count == STEPS


def test_options_hold_for_a_report_json_as_well(jobs, tickets, sides):
    options = CompareOptions(skip_steps=5)
    stored = load_side([str(tickets / "bad" / "report.json")], options)
    fresh = load_side([str(jobs / "bad")], options)
    assert stored.step_count == fresh.step_count == STEPS - 5
    assert stored.step.tolist() == pytest.approx(fresh.step.tolist(), abs=1)
    assert stored.delay[2].tolist() == pytest.approx(fresh.delay[2].tolist(), abs=1)
    some, all_ = (CompareOptions(ranks=frozenset(range(n))) for n in (2, 4))
    with pytest.raises(RankdiffError, match=r"a report\.json, which holds ranks 2, 3 as well"):
        load_side([str(tickets / "bad")], some)
    assert len(load_side([str(tickets / "bad")], all_).members) == 4


def test_reports_left_out_are_named_without_their_folders(jobs, tmp_path):
    side = tmp_path / "some folder"
    side.mkdir()
    for path in sorted((jobs / "good").iterdir()):
        (side / path.name).symlink_to(path)
    (side / "prof_9.sqlite").write_bytes(b"")
    found = load_side([str(side)])
    assert [note.partition(" (")[0] for note in found.notes] == ["prof_9.sqlite: empty"]
    assert str(tmp_path) not in json.dumps(to_dict(differ(found, found)))


def test_a_pipe_is_not_waited_for(jobs, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RankdiffError, match="no report can be used"):
        diff(tmp_path / "pipe", jobs / "good")


def test_names_in_a_report_json_are_text(tickets, tmp_path):
    report = json.loads((tickets / "bad" / "report.json").read_text())
    for rank in report["ranks"]:
        rank["node"] = "\x1b[31mred\x1b[0m\n# <script>"
    report["findings"][0]["node"] = "\x1b[31mred\n"
    (tmp_path / "evil.json").write_text(json.dumps(report))
    d = differ(load_side([str(tmp_path / "evil.json")]), load_side([str(tickets / "good")]))
    assert "\x1b" not in to_text(d)
    assert "\n# " not in to_text(d)


# The command -----------------------------------------------------------------------------------------------


def test_sides_may_be_given_as_folder_pattern_or_reports(jobs):
    expected = json.loads(diff(jobs / "bad", jobs / "good", "--format", "json"))
    pattern = json.loads(diff(jobs / "bad" / "prof_*.sqlite", jobs / "good", "--format", "json"))
    assert pattern == expected
    single = [x for p in sorted((jobs / "bad").iterdir()) for x in ("--before", p)]
    listed = json.loads(diff(*single, jobs / "good", "--format", "json"))
    assert listed["step_time"] == expected["step_time"]
    every = [x for p in sorted((jobs / "good").iterdir()) for x in ("--after", p)]
    assert json.loads(diff(*single, *every, "--format", "json"))["step_time"] == expected["step_time"]


def test_part_of_the_ranks(jobs):
    d = json.loads(
        diff(jobs / "bad", jobs / "good", "--ranks", "0,2", "--skip-steps", "5", "--format", "json")
    )
    assert [r["rank"] for r in d["ranks"]] == [0, 2]
    assert d["before"]["steps"] == STEPS - 5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a"], "expected BEFORE and AFTER, got 1"),
        (["a", "b", "c"], "a quoted pattern is one argument"),
        (["a", "b", "--before", "c"], "expected AFTER, got 2"),
        (["--before", "c", "--after", "d", "e"], "expected no argument, got 1"),
        (["a", "b", "--fail-on", "regression:5"], "not a threshold like regression:5%"),
        (["a", "b", "--fail-on", "regression:0%"], "not a threshold like regression:5%"),
    ],
)
def test_usage(arguments, says):
    done = CliRunner().invoke(group, ["diff", *arguments])
    assert done.exit_code == 2
    assert says in " ".join(done.output.replace("│", " ").split())


def test_what_is_not_there(jobs, tmp_path):
    with pytest.raises(RankdiffError, match="no file fits this pattern"):
        diff(tmp_path / "*.sqlite", jobs / "good")
    with pytest.raises(RankdiffError, match="no report can be used"):
        diff(tmp_path / "nothing", jobs / "good")
    with pytest.raises(RankdiffError, match="cannot be compared"):
        diff(jobs / "bad", jobs / "two")  # two all-reduces a step there, one here


def test_a_report_json_is_given_alone(jobs, tickets):
    reports = [x for p in sorted((jobs / "bad").iterdir()) for x in ("--before", p)]
    with pytest.raises(RankdiffError, match="expected it alone"):
        diff("--before", tickets / "bad", *reports, jobs / "good")


def test_files(jobs, tmp_path):
    out = tmp_path / "out"
    diff(jobs / "bad", jobs / "good", "-o", out)
    names = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    assert names == {"diff.md", "diff.html", "diff.json", "plots/before_after.png", "plots/before_after.svg"}
    text = (out / "diff.md").read_text(encoding="utf-8")
    assert text.startswith("# The step became faster\n")
    assert "plots/before_after.png" in text
    assert "rankdiff diff bad good -o out" in text
    assert str(tmp_path) not in text
    html = (out / "diff.html").read_text(encoding="utf-8")
    assert html.count("data:image/svg+xml") == 1
    first = {p: (out / p).read_bytes() for p in names}
    with pytest.raises(RankdiffError, match="not empty"):
        diff(jobs / "bad", jobs / "good", "-o", out)
    diff(jobs / "bad", jobs / "good", "-o", out, "--force")
    assert {p: (out / p).read_bytes() for p in names} == first


def test_markdown_says_the_same_as_text(jobs):
    text, page = (diff(jobs / "bad", jobs / "good", "--format", f) for f in ("text", "markdown"))
    for words in ("rank 2 (nodeB)", "not distinguishable", "gone"):
        assert words in text
        assert words.lower() in page.lower()
    assert max(map(len, text.splitlines())) <= 110


def test_terminal(sides, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    d = differ(sides["bad"], sides["good"])
    shown = to_terminal(d)
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == to_text(d)
    assert shown.startswith("\x1b[1;32m")
    monkeypatch.setenv("NO_COLOR", "1")
    assert to_terminal(d) == to_text(d)


def test_the_picture_shows_the_figures(sides, late):
    from rankdiff.render.plots.before_after import draw

    d = differ(sides["bad"], sides["good"])
    plot = draw(d)
    assert plot.data["ranks"] == [0, 1, 2, 3]
    assert plot.data["before_ns"].tolist() == [r.before_ns for r in d.ranks]
    assert plot.data["after_ns"].tolist() == [r.after_ns for r in d.ranks]
    assert "Rank 2 caused" in plot.caption
    unknown = differ(replace(late, delay={}, why={"delay": "not assessed"}), late)
    assert draw(unknown) is None


def test_a_large_picture_is_cut(healthy):
    from rankdiff.render.plots.before_after import draw

    plain = played(ranks=48, per_node=8, seed=1)
    plot = draw(differ(plain, played(ranks=48, per_node=8, seed=2, late={40: 30e6})))
    assert len(plot.data["ranks"]) == 30
    assert 40 in plot.data["ranks"]


# Real captures ---------------------------------------------------------------------------------------------


def test_the_repaired_job(captures):
    before, after = (load_side([str(captures / name)]) for name in ("before4", "after4"))
    for d, status in ((differ(before, after), "faster"), (differ(after, before), "slower")):
        assert d.status == status
        assert [r.rank for r in d.ranks if r.changed] == [1]
        assert [r.node for r in d.nodes if r.changed] == ["gpu01"]
        assert [(r.rank, r.key) for r in d.rank_causes if r.changed] == [(1, "data_load")]
        assert {r.key for r in d.causes if r.changed} == {"data_load"}
        told = {r.key for r in d.parts if r.changed}
        assert told == {"wait", "exposed_communication", "exposed_wait", "idle"}
        assert [k for k in d.kernels if k.row.changed] == []
        assert d.places.nodes_in_both == ("gpu01", "gpu02")
    assert before.step.mean() == pytest.approx(30.1e6, rel=0.01)


def test_another_trouble_on_the_same_job(captures):
    d = differ(*(load_side([str(captures / name)]) for name in ("node4", "data4")))
    told = [(f.what, (f.before or f.after).kind, (f.before or f.after).cause) for f in d.fates]
    assert told == [("gone", "late_node", "os_wait"), ("new", "late_rank", "data_load")]


def test_other_jobs_are_refused(captures):
    with pytest.raises(RankdiffError, match="1 reduce_scatter before, 4 all_reduce after"):
        differ(*(load_side([str(captures / name)]) for name in ("tpdp4", "data4")))
