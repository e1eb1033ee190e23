"""Gates for nightly jobs: every exit status, and that nothing passes that could not be assessed."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.plays import Play, perform
from rankdiff.comparison import Comparison, compare_digests
from rankdiff.differences.difference import differ
from rankdiff.differences.gate import regression
from rankdiff.differences.measure import measure
from rankdiff.differences.side import Side
from rankdiff.differences.threshold import parse_regression
from rankdiff.gates import findings_gate
from rankdiff.simulation import synthetic
from rankdiff_cli.main import group

MS = 1_000_000
STEPS = 20


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> Path:
    """Jobs of 4 ranks: nobody late, rank 2 late by a minor and by a major delay, and too few steps."""
    folder = tmp_path_factory.mktemp("jobs")
    shared = {
        "steps": STEPS,
        "jitter_share": 0.002,
        "jitter": "normal",
        "step_ns": 0,
        "data_load": False,
        "gap_ns": 50_000,
    }
    synthetic(folder / "good", seed=1, **shared)
    synthetic(folder / "minor", seed=2, late={2: 400_000}, late_as="io", **shared)
    synthetic(folder / "major", seed=3, late={2: 4 * MS}, late_as="io", **shared)
    synthetic(folder / "short", seed=4, **{**shared, "steps": 2})
    return folder


def status(*arguments: object) -> tuple[int, str]:
    """Exit status of a command, and what it said."""
    done = CliRunner().invoke(group, [str(a) for a in arguments], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.return_value, done.output


@pytest.mark.parametrize(
    ("job", "severity", "expected"),
    [
        ("good", "major", 0),
        ("good", "minor", 0),
        ("minor", "major", 0),
        ("minor", "minor", 3),
        ("major", "major", 3),
        ("major", "minor", 3),
        ("short", "major", 4),
    ],
)
def test_compare(jobs, job, severity, expected):
    found, said = status("compare", jobs / job, "--fail-on", severity)
    assert found == expected
    assert f"rankdiff: --fail-on {severity}: " in said


def test_a_report_that_is_left_out_does_not_pass(jobs, tmp_path):
    (tmp_path / "prof_nodeB_3.sqlite").write_bytes(b"")
    three = sorted((jobs / "good").iterdir())[:3]
    assert status("compare", *three, tmp_path / "prof_nodeB_3.sqlite")[0] == 0
    found, said = status("compare", *three, tmp_path / "prof_nodeB_3.sqlite", "--fail-on", "major")
    assert found == 4
    assert "rank 3 not captured" in said
    # Those that were asked for are all there.
    assert status("compare", *three, "--fail-on", "major", "--ranks", "0-2")[0] == 0
    # But a file that is nobody's report may have been anybody's.
    (tmp_path / "x.sqlite").write_bytes(b"")
    four = sorted((jobs / "good").iterdir())
    found, said = status("compare", *four, tmp_path / "x.sqlite", "--fail-on", "major")
    assert found == 4
    assert "1 report left out" in said


@pytest.mark.parametrize("asked", [("--ranks", "0-4"), ("--nodes", "nodeA,nodeB,nodeX")])
def test_what_was_asked_for_and_has_no_report_does_not_pass(jobs, asked):
    four = sorted((jobs / "good").iterdir())
    found, said = status("compare", *four, *asked, "--fail-on", "major")
    assert found == 4
    assert "asked for, but in none of the reports" in said
    found, said = status("compare", *sorted((jobs / "major").iterdir()), *asked, "--fail-on", "major")
    assert found == 3, "who is late is late"


def played(**settings: object) -> Comparison:
    job = perform(Play(**{"ranks": 4, "per_node": 2, "steps": STEPS, **settings}))
    return compare_digests(job.digests, job.identities, ())


def test_a_part_that_could_not_be_assessed_does_not_pass():
    c = played(seed=1)
    assert findings_gate(c, "major").status == "passed"
    unknown = replace(c.judgements[0], status="not_assessed", reason="too_few_steps")
    two = replace(c, judgements=(*c.judgements, unknown))
    assert c.verdict.status == "balanced"
    gate = findings_gate(two, "major")
    assert (gate.status, gate.message) == (
        "not_assessable",
        "a part of the job could not be assessed (too_few_steps)",
    )
    late = played(seed=1, late={2: 30e6})
    late = replace(late, judgements=(*late.judgements, unknown))
    gate = findings_gate(late, "major")
    assert (gate.status, gate.message) == ("met", "1 finding of severity major: late rank")


def test_an_acquittal_that_would_have_seen_nobody_does_not_pass():
    c = played(seed=1)
    assert c.verdict.margin is not None
    step = max(i.step_ns for i in c.islands)
    for seen, expected in (
        (0.24 * step, "passed"),
        (0.26 * step, "not_assessable"),
        (None, "not_assessable"),
    ):
        blind = replace(c, verdict=replace(c.verdict, margin=replace(c.verdict.margin, rank=seen)))
        assert findings_gate(blind, "major").status == expected
        assert findings_gate(blind, "minor").status == expected


def test_a_note_is_no_finding():
    c = played(seed=1, late={2: 30e6})
    notes = tuple(replace(f, severity="note") for f in c.verdict.findings)
    assert findings_gate(replace(c, verdict=replace(c.verdict, findings=notes)), "minor").status == "passed"


# The step time ---------------------------------------------------------------------------------------------


def side(**settings: object) -> Side:
    return measure(played(**settings), "job")


@pytest.mark.parametrize(
    ("grown", "jitter", "threshold", "expected"),
    [
        (0.10, 0.005, 0.05, "met"),  # by more, and surely
        (0.03, 0.005, 0.05, "passed"),  # by less, surely
        (-0.10, 0.005, 0.05, "passed"),  # faster
        (0.0, 0.005, 0.05, "passed"),
        (0.03, 0.005, 0.02, "met"),
        (0.12, 0.5, 0.05, "not_assessable"),  # by more, but that may be chance
        (0.0, 0.5, 0.05, "not_assessable"),  # too coarse to see 5 %
        (0.0, 0.5, 2.0, "passed"),  # but fine enough to see 200 %
    ],
)
def test_regression(grown, jitter, threshold, expected):
    d = differ(
        side(seed=1, jitter_share=jitter), side(seed=2, jitter_share=jitter, step_ns=(1 + grown) * 100e6)
    )
    gate = regression(d, threshold)
    assert gate.status == expected, gate.message


def test_what_cannot_be_compared_is_no_pass_and_no_regression():
    before, after = side(seed=1), side(seed=2, step_ns=150e6)
    assert regression(differ(before, after), 0.05).status == "met"
    forced = differ(before, replace(after, step_source="period"), force=True)
    assert regression(forced, 0.05).status == "not_assessable"
    assert regression(differ(before, side(seed=3, steps=5)), 0.05).status == "not_assessable"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("good", "good", 0),
        ("major", "good", 0),
        ("good", "major", 3),
        ("good", "short", 4),
    ],
)
def test_diff(jobs, before, after, expected):
    arguments = ["diff", jobs / before, jobs / after, "--fail-on", "regression:5%", "--force"]
    found, said = status(*arguments)
    assert found == expected
    assert "rankdiff: --fail-on: " in said


def test_diff_without_a_gate(jobs):
    assert status("diff", jobs / "good", jobs / "major")[0] == 0
    assert status("diff", jobs / "good", jobs / "short", "--force")[0] == 4


def test_the_gate_is_in_every_form(jobs):
    for form in ("text", "markdown", "json"):
        _, said = status(
            "diff", jobs / "good", jobs / "major", "--fail-on", "regression:5%", "--format", form
        )
        assert "not more than" not in said
        assert re.search(r"more\s+than 5\.0%", said)


def test_thresholds():
    assert parse_regression("regression:5%") == 0.05
    assert parse_regression("regression:0.5%") == 0.005
    for wrong in ("5%", "regression:5", "regression:-5%", "regression:0%", "slow:5%", "regression:nan%"):
        with pytest.raises(ValueError, match="not a threshold like regression:5%"):
            parse_regression(wrong)


# The snippet in the documentation --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def snippet(repository) -> str:
    page = (repository / "docs" / "gates.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"```bash\n(#!/usr/bin/env bash\n.*?)```", page, re.DOTALL)
    return found


@pytest.mark.parametrize(
    ("compare", "diff", "expected"),
    [(0, 0, 0), (3, 0, 1), (0, 3, 1), (3, 4, 1), (4, 3, 1), (4, 0, 2), (0, 4, 2), (1, 0, 2), (0, 1, 2)],
)
def test_the_snippet(snippet, tmp_path, compare, diff, expected):
    script, program = tmp_path / "nightly-gate.sh", tmp_path / "bin" / "rankdiff"
    script.write_text(snippet)
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" >> "{tmp_path}/calls"\ncase $1 in compare) exit {compare};; diff) exit {diff};; esac\n'
    )
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(script), "base/report.json", "job"], env={**os.environ, "PATH": path}, cwd=tmp_path
    )
    assert done.returncode == expected
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [c.split()[0] for c in calls] == ["compare", "diff"]
    # What it calls is what the program takes.
    for call in calls:
        context = group.get_command(None, call.split()[0]).make_context("rankdiff", call.split()[1:])
        assert context.params["fail_on"]
