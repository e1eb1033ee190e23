"""The product on real captures whose truth is known, as they are and bent in ways that must not matter."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import pytest

from rankdiff.comparison import compare_digests
from rankdiff.pipeline import CompareOptions, compare, read
from rankdiff.render.json import to_dict, to_json
from tests.jobs import codes, copies, late, run, with_clock, without_payloads, without_table

NAMES = (
    "after4",
    "before4",
    "compute4",
    "data4",
    "fsdpdata4",
    "healthy8",
    "host4",
    "node4",
    "torchrun4",
    "tpdp4",
    "window4",
)


@pytest.fixture(scope="session")
def truth(shared: Path) -> dict[str, dict]:
    return json.loads((shared / "captures" / "truth.json").read_text())


@pytest.fixture(scope="session")
def reports(shared: Path):
    return lambda name: sorted((shared / "captures" / name).glob("*.sqlite"))


@pytest.fixture(scope="session")
def readings(reports):
    """Digests of a capture, read once."""
    return functools.cache(lambda name: read([str(p) for p in reports(name)]))


def check(report: dict, truth: dict) -> None:
    """Verdict, culprit and matched collectives are the true ones."""
    assert report["verdict"]["status"] == truth["status"]
    assert report["job"]["matched_collectives"] == truth["matched"]
    want = [("late_node", n) for n in truth["late_nodes"]] or [("late_rank", r) for r in truth["late_ranks"]]
    assert late(report) == want


@pytest.mark.parametrize("name", NAMES)
def test_as_captured(name, truth, readings):
    found = readings(name)
    report = to_dict(compare_digests(found.digests, found.identities, found.missing), found.notes)
    check(report, truth[name])
    assert {r["rank"]: r["idle_osrt_ns"] for r in report["ranks"]} == {
        int(r): x["idle_osrt_ns"] for r, x in truth[name]["exact"].items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_without_payloads(name, truth, reports, tmp_path):
    report = run(copies(reports(name), tmp_path, without_payloads))
    check(report, truth[name])
    assert {c["source"] for c in report["communicators"]} == {"inferred"}
    assert "inferred_communicators" in codes(report)


@pytest.mark.parametrize("name", NAMES)
def test_without_nvtx(name, truth, reports, tmp_path):
    # Neither payloads, nor operations, nor steps: kernel names, ends and launches are all there is.
    report = run(copies(reports(name), tmp_path, without_table("NVTX_EVENTS")))
    check(report, truth[name])
    assert report["job"]["step_source"] == "period"
    assert {r["idle_data_load_ns"] for r in report["ranks"]} == {None}


@pytest.mark.parametrize("name", NAMES)
def test_with_another_clock_on_one_node(name, truth, reports, readings, tmp_path):
    found = readings(name)
    straight = to_dict(compare_digests(found.digests, found.identities, found.missing))
    bent = run(copies(reports(name), tmp_path, with_clock(3_500_000, 8.0), lambda p: "gpu02" in p.name))
    check(bent, truth[name])
    offset = {n["node"]: n["offset_ns"] for n in straight["clock"]["nodes"]}
    moved = {n["node"]: n["offset_ns"] for n in bent["clock"]["nodes"]}
    # 8 ppm of the time since the session's start come on top; no capture here is longer than 2 s.
    assert abs(moved["gpu02"] - offset["gpu02"] - 3_500_000) < 30_000


@pytest.mark.parametrize("name", NAMES)
def test_taking_a_rank_away_accuses_nobody_else(name, truth, readings):
    found = readings(name)
    for gone in found.identities:
        kept = [(i, d) for i, d in zip(found.identities, found.digests, strict=True) if i != gone]
        identities, digests = [i for i, _ in kept], [d for _, d in kept]
        report = to_dict(compare_digests(digests, identities, (*found.missing, gone.rank)))
        for kind, who in late(report):
            assert who in (truth[name]["late_ranks"] if kind == "late_rank" else truth[name]["late_nodes"])


def test_order_of_the_files_does_not_matter(reports):
    files = [str(p) for p in reports("tpdp4")]
    outcomes = [compare(order) for order in (files, files[::-1], files[2:] + files[:2])]
    assert len({to_json(o.comparison, o.notes) for o in outcomes}) == 1


def test_graphs_traced_whole_are_not_judged(reports):
    report = run(reports("graph2"))
    assert report["verdict"]["status"] == "not_assessed"
    assert "--cuda-graph-trace=node" in report["verdict"]["summary"]
    assert late(report, "major", "minor", "note") == []
    assert [r["wait_ns"] for r in report["ranks"]] == [None, None]


def test_one_stream_for_all_communicators(truth, reports, tmp_path):
    # Synchronous operations of newer PyTorch run on the compute stream: several communicators share it.
    def edit(db):
        without_payloads(db)
        db.execute(
            "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET streamId = 7 "
            "WHERE shortName IN (SELECT id FROM StringIds WHERE value LIKE 'nccl%')"
        )

    report = run(copies(reports("tpdp4"), tmp_path, edit))
    assert (report["verdict"]["status"], late(report)) == ("straggler", [("late_rank", 1)])
    # Pairs of neighbours and pairs across nodes; what ends together on all ranks is refused, not guessed.
    assert all(c["ranks"] in ([0, 1], [2, 3], [0, 2], [1, 3]) for c in report["communicators"])
    assert (
        0.75 * truth["tpdp4"]["matched"] <= report["job"]["matched_collectives"] <= truth["tpdp4"]["matched"]
    )


def test_the_culprit_of_a_tensor_parallel_pair_is_not_its_partner(reports):
    report = run(reports("tpdp4"))
    shares = {r["rank"]: r["delay_share"] for r in report["ranks"]}
    assert shares[1] > 0.6
    assert max(shares[0], shares[2]) < 0.05


def test_another_run_in_the_folder_is_left_out(reports, tmp_path):
    strange = tmp_path / "prof_gpu09_9.sqlite"
    shutil.copyfile(reports("before4")[0], strange)
    report = run([*reports("data4"), strange], rank_regex=r"prof_(?P<node>\w+)_(?P<rank>\d+)")
    assert "other_run" in codes(report)
    assert late(report) == [("late_rank", 2)]


def test_only_some_ranks(reports):
    report = run(reports("data4"), ranks=frozenset({1, 2, 3}))
    assert [r["rank"] for r in report["ranks"]] == [1, 2, 3]
    assert late(report) == [("late_rank", 2)]


def test_skipped_steps_are_not_judged(reports):
    report = run(reports("data4"), skip_steps=5)
    assert [s["judged"] for s in report["steps"]] == [False] * 5 + [True] * 15
    assert report["findings"][0]["steps"] == 15


def test_public_reports_are_read_and_not_accused(shared):
    for path in sorted((shared / "public").glob("*.sqlite")):
        outcome = compare([str(path)], CompareOptions())
        assert outcome.comparison.verdict.status == "not_assessed", path.name


def test_two_captures_are_not_two_ranks(shared):
    report = run(sorted((shared / "public").glob("nsysai_mfu_2gpu_*.sqlite")))
    assert report["verdict"]["status"] == "not_assessed"
    assert report["findings"] == []
