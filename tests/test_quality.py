"""What the captures carry: the quality of each, what is wrong in words, what cures it, and what it costs a finding."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rankdiff.cures import CURES
from rankdiff.defects import defects
from rankdiff.errors import RankdiffError
from rankdiff.notes import Note, rank_words
from rankdiff.pipeline import compare, read
from rankdiff.quality import read_quality
from rankdiff.render.html import to_html
from rankdiff.render.json import to_json
from rankdiff.render.markdown import to_markdown
from rankdiff.render.text import to_text
from rankdiff.render.ticket import ticket
from rankdiff.simulation import EPOCH, Phase, base4, synthetic
from tests.jobs import codes, figures, inspected, late, run, words

MS = 1_000_000
KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
HARMLESS = (
    "Not all CUDA events might have been collected.",
    "Not all NVTX events might have been collected.",
    "Not all OS runtime libraries events might have been collected.",
)


def wrong(report):
    """Ranks of each defect, by code."""
    return {d["code"]: d["ranks"] for d in report["quality"]["defects"]}


def of(report, key):
    """One key of every rank's quality."""
    return {q["rank"]: q[key] for q in report["quality"]["ranks"]}


def on(rank, change):
    """An edit of one rank's export."""

    def edit(number, export):
        if number == rank:
            change(export)

    return edit


def says(*texts):
    """A change that lets the profiler say something."""

    def change(export):
        for text in texts:
            export.diagnostic(text)

    return change


# What a complete capture says.


def test_nothing_is_missing_from_complete_captures(tmp_path):
    job = synthetic(
        tmp_path, steps=20, late={2: 3 * MS}, jitter_ns=50_000, edit=lambda _, e: says(*HARMLESS)(e)
    )
    report = run(job.paths)
    assert report["quality"]["defects"] == []
    assert late(report) == [("late_rank", 2)]
    assert (report["findings"][0]["severity"], report["findings"][0]["lowered_for"]) == ("major", [])
    assert of(report, "lost_event_diagnostics")[2] == [
        "cuda_incomplete",
        "nvtx_incomplete",
        "osrt_incomplete",
    ]
    assert words(job.paths).endswith("quality: nothing is missing from these captures")
    assert inspected(job.paths).endswith("Nothing is missing from these captures.")


def test_quality_of_a_rank_has_every_key(tmp_path):
    job = base4(tmp_path)
    quality = run(job.paths)["quality"]
    first = quality["ranks"][0]
    # Launches, ranges and calls of BASE4: 20 kernels in 10 steps, data_load before every step but the first.
    assert first == {
        "rank": 0,
        "tables": {KERNEL: 20, RUNTIME: 20, "NVTX_EVENTS": 20, "OSRT_API": 9},
        "unusable_events": {},
        "lost_event_diagnostics": None,
        "window_start_utc_ns": EPOCH,
        "window_end_utc_ns": EPOCH + 98 * MS,
        "starts_late_ns": 0,
        "ends_early_ns": 0,
        "open_ranges": 0,
        "kernels": 20,
        "kernels_without_launch": 0,
        "payloads": True,
        "collectives": {"matched": 10, "trimmed": 0, "missing": 0, "extra": 0, "unmatched": 0},
        "residual_ns": 0,
        "clock_residual_ns": 0,
        "steps_compared": 10,
        "steps_captured": 10,
    }
    assert (quality["ranks_captured"], quality["ranks_expected"], quality["missing_ranks"]) == (4, 4, [])
    assert quality["common_window_ns"] == 98 * MS
    assert quality["common_window_end_utc_ns"] == EPOCH + 98 * MS


# Missing tables are normal (B31).


def test_os_calls_missing_on_one_rank(tmp_path):
    job = base4(tmp_path, edit=on(1, lambda e: e.drop("OSRT_API")))
    report = run(job.paths)
    assert late(report) == [("late_rank", 2)]
    assert wrong(report)["no_os_calls"] == [1]
    assert [q["OSRT_API"] for q in of(report, "tables").values()] == [9, None, 9, 9]
    idle = figures(report, "idle_osrt_ns")
    assert idle[1] is None
    assert idle[0] == idle[3] > 0
    assert "OS calls not captured (rank 1)" in words(job.paths)


def test_ranges_missing_on_one_rank(tmp_path):
    job = base4(tmp_path, edit=on(3, lambda e: e.drop("NVTX_EVENTS")))
    report = run(job.paths)
    assert late(report) == [("late_rank", 2)]
    assert wrong(report)["no_nvtx"] == [3]
    assert 3 not in wrong(report)["no_steps"]  # said once
    assert figures(report, "idle_data_load_ns") == {0: 7_200_000, 1: 7_200_000, 2: 7_200_000, 3: None}
    assert of(report, "open_ranges") == {0: 0, 1: 0, 2: 0, 3: None}
    row = next(
        x for x in to_text(compare(list(map(str, job.paths))).comparison).splitlines() if x.startswith("   3")
    )
    assert row.split()[-1] == "n/a"


def test_a_rank_without_gpu_trace_is_left_out(tmp_path):
    job = base4(tmp_path, edit=on(0, lambda e: e.drop(KERNEL)))
    outcome = compare(list(map(str, job.paths)))
    assert len(outcome.problems) == 1
    assert "no GPU work was captured" in str(outcome.problems[0])
    report = run(job.paths)
    assert late(report) == [("late_rank", 2)]
    assert (report["quality"]["ranks_captured"], wrong(report)["missing_ranks"]) == (3, [0])
    assert "among the captured ranks" in report["verdict"]["summary"]


# Nothing could be judged (B78).


def copies_only(export):
    export.memcpy(MS, 2 * MS)
    export.drop(KERNEL)


def test_without_kernels_nothing_is_judged(tmp_path):
    job = base4(tmp_path, edit=lambda _, e: copies_only(e))
    report = run(job.paths)
    assert (report["verdict"]["status"], report["verdict"]["reason"]) == ("not_assessed", "no_collectives")
    assert wrong(report)["no_kernels"] == [0, 1, 2, 3]
    assert figures(report, "delay_ns") == {r: None for r in range(4)}
    assert of(report, "payloads") == {r: None for r in range(4)}
    assert of(report, "collectives")[0] == dict.fromkeys(
        ("matched", "trimmed", "missing", "extra", "unmatched")
    )
    with pytest.raises(RankdiffError):
        run(base4(tmp_path / "none", edit=lambda _, e: e.drop(KERNEL)).paths)


# Lost events (B39).

LOSING = {"steps": 20, "lost": {1: [5, 11]}, "late": {1: MS}, "jitter_ns": 50_000}


def test_loss_and_the_profilers_word_lower_a_finding(tmp_path):
    report = run(synthetic(tmp_path, edit=on(1, says(HARMLESS[0])), **LOSING).paths)
    assert wrong(report) == {"events_lost": [1]}
    assert of(report, "collectives") == {
        r: {
            "matched": 18,
            "trimmed": 0,
            "missing": 2 if r == 1 else 0,
            "extra": 0,
            "unmatched": 0 if r == 1 else 2,
        }
        for r in range(4)
    }
    finding = report["findings"][0]
    assert (finding["rank"], finding["severity"], finding["lowered_for"]) == (1, "minor", ["events_lost"])
    assert "possible event loss" in finding["evidence"][-1]
    assert codes(report) == {"events_lost"}


@pytest.mark.parametrize(
    ("settings", "defect"),
    [
        ({"lost": {1: [5, 11]}}, {"counts_differ": [1]}),  # nobody says that events were lost
        ({"lost": {}, "edit": on(1, says(*HARMLESS))}, {}),  # nothing is missing
        ({"lost": {3: [5, 11]}, "edit": on(1, says(*HARMLESS))}, {"counts_differ": [3]}),  # of another rank
    ],
)
def test_either_alone_lowers_nothing(tmp_path, settings, defect):
    report = run(synthetic(tmp_path, **(LOSING | settings)).paths)
    assert wrong(report) == defect
    assert (report["findings"][0]["rank"], report["findings"][0]["severity"]) == (1, "major")


def test_helper_processes_do_not_taint_a_rank(tmp_path):
    def helper(export):
        export.diagnostic(HARMLESS[0], process=export.process(777))
        export.diagnostic("CUPTI buffers were dropped.", process=export.process(778))

    report = run(synthetic(tmp_path, edit=on(1, helper), **LOSING).paths)
    assert of(report, "lost_event_diagnostics")[1] == []
    assert wrong(report) == {"counts_differ": [1]}
    assert report["findings"][0]["severity"] == "major"


def test_a_minor_finding_that_is_not_carried_leaves_no_verdict(tmp_path):
    job = synthetic(tmp_path, edit=on(1, says(HARMLESS[0])), **(LOSING | {"late": {1: MS // 2}}))
    report = run(job.paths)
    assert late(report) == []
    assert (report["verdict"]["status"], report["verdict"]["reason"]) == ("not_assessed", "not_carried")
    assert report["verdict"]["summary"].startswith("Not assessed: rank 1 looks late by ")
    assert "Nobody was late" not in words(job.paths)
    assert report["findings"][0]["severity"] == "note"
    assert figures(report, "delay_ns")[1] == pytest.approx(18 * 500_000, rel=0.1)


def test_a_node_is_carried_by_its_sound_ranks(tmp_path):
    slow = {r: 3 * MS for r in range(4, 8)}

    def found(name, taint):
        def edit(rank, export):
            if rank in taint:
                says(*HARMLESS)(export)

        lost = {r: [7] for r in taint}
        job = synthetic(tmp_path / name, ranks=8, steps=20, late=slow, lost=lost, jitter_ns=50_000, edit=edit)
        return run(job.paths)["findings"][0]

    one, two = found("one", {5}), found("two", {5, 6})
    assert (one["kind"], one["severity"], one["lowered_for"]) == ("late_node", "major", [])
    assert (two["kind"], two["severity"], two["lowered_for"]) == ("late_node", "minor", ["events_lost"])


def test_what_most_ranks_lack_is_extra(tmp_path):
    lost = {r: [50] for r in range(8) if r not in (2, 3)}
    report = run(synthetic(tmp_path, ranks=8, steps=100, lost=lost, jitter_ns=100_000).paths)
    counts = of(report, "collectives")
    assert {r: c["extra"] for r, c in counts.items() if c["extra"]} == {2: 1, 3: 1}
    assert not any(c["missing"] for c in counts.values())


# A clock that scatters by as much as its rank is late.


def shaky(time_ns):
    """A clock that is off by up to 2 ms, by another amount in every step."""
    step = time_ns // (20 * MS)
    return time_ns + (step * 7919 % 41 - 20) * 100_000


@pytest.mark.parametrize(
    ("extra", "severity", "lowered"), [(0, "note", ["clock_residual"]), (8 * MS, "major", [])]
)
def test_lateness_made_of_a_clocks_scatter(tmp_path, extra, severity, lowered):
    job = synthetic(
        tmp_path,
        nodes=("a", "b", "c", "d"),
        steps=41,
        step_ns=20 * MS,
        late={2: extra},
        jitter_ns=20_000,
        options={2: {"clock": shaky}},
    )
    report = run(job.paths)
    assert wrong(report)["clock_residual"] == [2]
    residual = of(report, "residual_ns")
    assert 1_000_000 < residual[2] < 2_000_000 > 10 * residual[0]
    finding = next(f for f in report["findings"] if f["rank"] == 2)
    assert (finding["severity"], finding["lowered_for"]) == (severity, lowered)
    assert report["verdict"]["reason"] == ("not_carried" if lowered else None)


# Windows and missing ranks (B40, B41).


def test_a_finding_on_less_than_half_of_the_steps_is_lowered(tmp_path):
    job = synthetic(tmp_path, steps=40, late={2: 3 * MS}, cut={3: (25, 0)}, jitter_ns=50_000)
    report = run(job.paths)
    assert (of(report, "steps_compared")[2], of(report, "steps_captured")) == (
        15,
        {0: 40, 1: 40, 2: 40, 3: 15},
    )
    assert wrong(report) == {"starts_late": [3]}
    finding = report["findings"][0]
    assert (finding["rank"], finding["severity"], finding["lowered_for"]) == (2, "minor", ["few_steps"])
    assert "15 of the 40 captured steps" in finding["evidence"][-1]
    half = synthetic(tmp_path / "half", steps=40, late={2: 3 * MS}, cut={3: (20, 0)}, jitter_ns=50_000)
    assert run(half.paths)["findings"][0]["severity"] == "major"


def test_missing_ranks_and_a_capture_that_ended_early(tmp_path):
    job = synthetic(
        tmp_path,
        ranks=8,
        steps=20,
        written=[0, 1, 2, 4, 5, 6],
        cut={4: (0, 6)},
        late={2: 3 * MS},
        jitter_ns=100_000,
    )
    report, shown = run(job.paths), words(job.paths)
    assert "6 of 8 ranks (missing 3, 7) on 2 nodes" in shown
    assert report["verdict"]["summary"].startswith(
        "Rank 2 on nodeA made the others wait (among the captured ranks)"
    )
    assert wrong(report) == {"missing_ranks": [3, 7], "ends_early": [4]}
    assert report["job"]["steps"] == 14
    early = of(report, "ends_early_ns")
    others = [q["window_end_utc_ns"] for q in report["quality"]["ranks"] if q["rank"] != 4]
    assert early[4] == sorted(others)[2] - of(report, "window_end_utc_ns")[4] > 6 * 10 * MS
    assert max(ns for r, ns in early.items() if r != 4) < MS
    assert shown.count("missing_ranks") == 1
    assert report["quality"]["common_window_end_utc_ns"] == of(report, "window_end_utc_ns")[4]


def test_all_captured_ranks_wait_for_somebody_else(tmp_path):
    job = base4(tmp_path)
    paths = [p for r, p in job.reports.items() if r != 2]
    report, shown = run(paths), words(paths)
    assert (report["verdict"]["status"], report["verdict"]["reason"]) == ("not_assessed", "missing_ranks")
    assert "2.00 ms a step (20%)" in report["verdict"]["summary"]
    assert "an uncaptured rank or the network" in report["verdict"]["summary"]
    assert late(report, "major", "minor", "note") == []
    assert figures(report, "lateness_ns_median") == {0: 0, 1: 0, 3: 0}
    # No word that the fabric is at fault, and no test of it proposed.
    assert "slow_transfer" not in {f["kind"] for f in report["findings"]}
    assert "nccl-tests" not in shown
    assert "fabric" not in shown
    assert "nccl-tests" not in json.dumps(report)


def test_a_transfer_that_a_missing_rank_may_hold_up_is_not_the_networks(tmp_path):
    slow = {"steps": 20, "phases": (Phase(MS, transfer_ns=9 * MS),), "jitter_ns": 20_000}
    report = run(synthetic(tmp_path / "a", written=[0, 1, 3], **slow).paths)
    assert report["bottleneck"]["kind"] == "communication"
    assert report["bottleneck"]["advice"].startswith(
        "an uncaptured rank that holds the others, or the network"
    )
    assert "nccl-tests" not in json.dumps(report)
    whole = run(synthetic(tmp_path / "b", **slow).paths)
    assert "nccl-tests" in whole["bottleneck"]["advice"]


def test_a_rank_whose_report_cannot_be_read_is_missing(tmp_path):
    # Nothing states the size of the job: only the report that fails late tells of rank 3.
    edit = on(3, lambda e: e.sql(f"ALTER TABLE {RUNTIME} DROP COLUMN correlationId"))
    job = base4(tmp_path, environment=False, edit=edit)
    report = run(job.paths)
    assert report["quality"]["ranks_captured"] == 3
    assert wrong(report)["missing_ranks"] == report["job"]["missing_ranks"] == [3]
    assert late(report) == [("late_rank", 2)]
    assert "(among the captured ranks)" in report["verdict"]["summary"]


# Times that cannot be right.


def test_events_with_impossible_times_are_counted_and_left_out(tmp_path):
    def change(export):
        export.sql(f"UPDATE {KERNEL} SET end = start - 5 WHERE rowid IN (3, 5) AND streamId = 7")
        export.sql(
            "UPDATE NVTX_EVENTS SET end = start - 1 WHERE rowid IN (SELECT max(rowid) FROM NVTX_EVENTS)"
        )
        export.sql("UPDATE OSRT_API SET end = start - 1 WHERE rowid = 4")

    job = base4(tmp_path, edit=on(3, change))
    report = run(job.paths)
    assert wrong(report)["unusable_times"] == [3]
    unusable = of(report, "unusable_events")
    assert (unusable[0], unusable[3]) == ({}, {KERNEL: 2, "NVTX_EVENTS": 1, "OSRT_API": 1})
    assert late(report) == [("late_rank", 2)]
    busy = figures(report, "busy_ns")
    assert busy[0] - busy[3] == 2 * 6 * MS
    assert "2 kernels (rank 3)" in words(job.paths)


def test_open_ranges_are_counted(tmp_path):
    report = run(base4(tmp_path, edit=on(1, lambda e: e.nvtx(95 * MS, None, "evaluate"))).paths)
    assert of(report, "open_ranges") == {0: 0, 1: 1, 2: 0, 3: 0}
    assert wrong(report)["open_ranges"] == [1]


def test_kernels_whose_launch_was_cut_off(tmp_path):
    edit = on(1, lambda e: e.sql(f"DELETE FROM {RUNTIME} WHERE rowid <= 4"))
    report = run(base4(tmp_path, edit=edit).paths)
    assert of(report, "kernels_without_launch") == {0: 0, 1: 4, 2: 0, 3: 0}
    assert wrong(report)["launches_missing"] == [1]
    few = on(1, lambda e: e.sql(f"DELETE FROM {RUNTIME} WHERE rowid = 1"))
    report = run(base4(tmp_path / "few", edit=few).paths)
    assert of(report, "kernels_without_launch")[1] == 1
    assert "launches_missing" not in wrong(report)  # one at the edge of a window is normal


# Every defect comes with its cure.


@pytest.mark.parametrize(
    ("settings", "code", "option"),
    [
        ({"written": [0, 2]}, "missing_ranks", "nsys profile -o prof_%h_%q{SLURM_PROCID}"),
        ({"edit": lambda _, e: copies_only(e)}, "no_kernels", "--trace=cuda,nvtx,osrt"),
        ({"edit": lambda _, e: e.graph_trace(0, MS)}, "collectives_in_graphs", "--cuda-graph-trace=node"),
        ({"nccl_kernel": "allreduce_of_ours", "nccl_ranges": False}, "no_collectives", "--comm-regex"),
        (
            {"edit": on(1, says("Some CUPTI buffers were dropped."))},
            "events_dropped",
            "--cuda-flush-interval",
        ),
        ({"edit": on(1, lambda e: e.drop(RUNTIME))}, "no_cuda_calls", "--trace=cuda,nvtx,osrt"),
        ({"edit": on(1, lambda e: e.drop("NVTX_EVENTS"))}, "no_nvtx", "--trace=cuda,nvtx,osrt"),
        ({"edit": on(1, lambda e: e.drop("OSRT_API"))}, "no_os_calls", "--trace=cuda,nvtx,osrt"),
        ({"steps": 20, "cut": {1: (10, 0)}}, "starts_late", "--capture-range-end=stop"),
        ({"steps": 20, "cut": {1: (0, 10)}}, "ends_early", "--duration"),
        (
            {"edit": on(1, lambda e: e.sql(f"UPDATE {KERNEL} SET end = start - 1 WHERE rowid = 2"))},
            "unusable_times",
            "nsys export --force-overwrite=true",
        ),
        ({"edit": on(1, lambda e: e.nvtx(MS, None, "open"))}, "open_ranges", "--capture-range-end=stop"),
        (
            {"edit": on(1, lambda e: e.sql(f"DELETE FROM {RUNTIME} WHERE rowid % 2"))},
            "launches_missing",
            "nsys export without --tables and --times",
        ),
        ({"options": {1: {"utc_ns": None}}}, "no_session_start", "nsys export without --tables"),
        ({"payload": False}, "no_payloads", "nsys export --include-blobs=true"),
        ({"step_ranges": None}, "no_steps", "--step-range"),
        ({"data_load": False}, "no_data_range", "--data-range"),
        (
            {"environment": False, "pattern": "{node}-x{rank}y.sqlite"},
            "rank_inferred",
            "--discard-environment=false",
        ),
        ({"options": {1: {"version": "3.25.0"}}}, "mixed_versions", "newest nsys"),
    ],
)
def test_inspect_names_the_option_that_cures(tmp_path, settings, code, option):
    job = synthetic(tmp_path, **({"ranks": 3, "nodes": 1, "steps": 4} | settings))
    shown = inspected(job.paths)
    assert shown.count(f"[{code}]") == 1
    after = shown.partition(f"[{code}]")[2]
    assert option in after.partition("cure: ")[2].partition(" - ")[0]


def test_a_shift_asked_for_by_hand_is_said(tmp_path):
    def change(export):
        export.sql("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PARAM_TIME_SHIFT', '5000000')")

    options = {1: {"shift_ns": 5 * MS}}
    shown = inspected(synthetic(tmp_path, ranks=2, steps=4, options=options, edit=on(1, change)).paths)
    assert (
        "exported with --ts-shift (rank 1): taken out again [ts_shift] cure: nsys export without --ts-shift"
        in shown
    )


def test_one_cure_for_several_defects_is_said_once(tmp_path):
    def change(export):
        export.drop("OSRT_API")
        export.drop("NVTX_EVENTS")

    shown = inspected(synthetic(tmp_path, ranks=2, steps=4, edit=on(1, change)).paths)
    assert "[no_nvtx] - OS calls not captured (rank 1): no system call to blame [no_os_calls] cure: " in shown


def test_cures_are_worded_for_every_warning_of_the_captures():
    # Warnings that no option of nsys cures: they say themselves what to do, or nothing is to be done.
    for code in ("end_skew", "nodes_not_linked", "unclassified_calls", "same_file", "no_locks"):
        assert code not in CURES


# Words.


@pytest.mark.parametrize(
    ("ranks", "of", "text"),
    [
        ([3], 8, "rank 3"),
        ([0, 1], 8, "ranks 0, 1"),
        ([0, 1, 2, 7], 8, "ranks 0-2, 7"),
        ([0, 1], 2, "all ranks"),
        ([0], 1, "rank 0"),
        (range(0, 20, 2), 64, "ranks 0, 2, 4, 6, 8, 10, 12, 14, ... (10 in all)"),
    ],
)
def test_ranks_in_words(ranks, of, text):
    assert rank_words(list(ranks), of) == text


def test_warnings_are_said_once_and_the_gravest_first(tmp_path):
    job = base4(tmp_path, written=[0, 1, 3])
    found = read(list(map(str, job.paths)))
    pairs = list(zip(found.identities, found.digests, strict=True))
    quality = read_quality(pairs, found.missing)
    notes = [
        Note("wal_missing", "no log", (0,)),
        Note("wal_missing", "no log", (1,)),
        Note("no_steps", "the same in other words", (1,)),
        Note("of_tomorrow", "unknown to the cures"),
        *found.notes,
    ]
    listed = defects(quality, pairs, notes)
    assert [(d.code, d.ranks) for d in listed] == [
        ("missing_ranks", (2,)),
        ("no_steps", (0, 1, 3)),
        ("wal_missing", (0, 1)),
        ("of_tomorrow", ()),
    ]
    assert listed == defects(quality, pairs, notes[::-1])
    late_start = replace(quality.ranks[0], starts_late_ns=50 * MS)
    moved = replace(quality, ranks=(late_start, *quality.ranks[1:]))
    assert "starts_late" in {d.code for d in defects(moved, pairs, [])}


# What survives in a ticket (B94, B48, B49).


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide")
    return synthetic(
        folder, ranks=25, nodes=3, steps=6, late={7: [0, *[3 * MS] * 5], 0: [90 * MS]}, jitter_ns=50_000
    )


@pytest.fixture(scope="module")
def outcome(wide):
    return compare(list(map(str, wide.paths)))


def test_a_report_says_what_it_rests_on(wide, outcome):
    c, notes = outcome.comparison, outcome.notes
    assert "showing 20 of 25 ranks" in to_text(c, notes)
    blocks = ticket(c, notes, (), "rankdiff compare ...")
    report = json.loads(to_json(c, notes))
    for shown in (to_markdown(blocks), to_html(blocks, {})):
        assert "Showing 24 of 25 ranks" in shown
        assert "Showing 24 of 25 reports; the others are in report.json." in shown
        assert f"rankdiff {report['rankdiff_version']}" in shown
        assert "3.24.14" in shown
        assert report["ranks"][0]["session_uuid"] in shown
        assert str(wide.reports[0].stat().st_size) in shown
        assert "a delay below " in shown
        assert "1 step left out at the start" in shown
        assert "uncertainty" in shown
    assert [r["report_bytes"] for r in report["ranks"]] == [p.stat().st_size for p in wide.paths]
    assert len({r["session_uuid"] for r in report["ranks"]}) == 25
    assert {r["schema_version"] for r in report["ranks"]} == {"3.24.14"}
    quality = report["quality"]
    assert quality["steps_left_out"] == ["0"]
    assert quality["thresholds"] == {
        "smallest_findable_delay_ns_per_step": report["verdict"]["smallest_findable_delay_ns_per_step"],
        "minor_share_of_step": 0.02,
        "major_share_of_step": 0.1,
        "false_alarm_rate": 0.01,
    }
    assert all(q["residual_ns"] is not None for q in quality["ranks"])


def test_the_same_reports_give_the_same_bytes(wide, outcome):
    again = compare(list(map(str, wide.paths[::-1])))
    assert to_json(again.comparison, again.notes) == to_json(outcome.comparison, outcome.notes)


def test_a_long_list_of_defects_is_cut_and_counted(tmp_path):
    job = base4(tmp_path, payload=False, data_load=False)
    outcome = compare(list(map(str, job.paths)))
    notes = [*outcome.notes, *(Note("of_tomorrow", f"number {n:02}") for n in range(30))]
    everything = len(json.loads(to_json(outcome.comparison, notes))["quality"]["defects"])
    assert everything > 30
    assert f"(showing 12 of {everything}, the gravest first;" in to_text(outcome.comparison, notes)
    assert f"showing 20 of {everything}, the gravest first" in to_markdown(
        ticket(outcome.comparison, notes, (), "rankdiff")
    )


def test_times_and_ids_are_exact(tmp_path):
    # Sessions that start an odd number of ns apart, and global ids beyond 2^53.
    plain = base4(tmp_path / "plain")
    odd = base4(
        tmp_path / "odd",
        session_start_ns={0: 1, 1: 1, 2: 3, 3: 3},
        options={r: {"machine": 0x0101} for r in range(4)},
    )
    a, b = run(plain.paths), run(odd.paths)
    assert of(a, "window_start_utc_ns") == of(b, "window_start_utc_ns")
    assert b["findings"][0]["first_utc_ns"] == a["findings"][0]["first_utc_ns"]
    assert isinstance(b["findings"][0]["first_utc_ns"], int)
    for key in ("delay_ns", "wait_ns", "nccl_ns", "idle_ns", "idle_data_load_ns", "lateness_ns_median"):
        assert figures(a, key) == figures(b, key)


@pytest.mark.parametrize("tick", [32, 1024])
def test_coarse_gpu_clocks(tmp_path, tick):
    def change(export):
        export.kernel(9 * MS, 9 * MS, "zero_length")

    job = base4(
        tmp_path,
        options={r: {"clock": lambda t: t // tick * tick} for r in range(4)},
        edit=lambda _, e: change(e),
    )
    report = run(job.paths)
    assert late(report) == [("late_rank", 2)]
    assert report["verdict"]["smallest_findable_delay_ns_per_step"] >= tick
    assert "unusable_times" not in wrong(report)  # an event may be shorter than a tick
    assert of(report, "kernels")[0] == 21
    assert run(job.paths) == report
