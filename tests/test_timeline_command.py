"""`rankdiff timeline`: which time and which ranks it shows, and that the picture holds what the reports hold."""

from __future__ import annotations

import io
import re

import pytest
from click.testing import CliRunner

from rankdiff import windows, witnesses
from rankdiff.digest import DigestOptions
from rankdiff.errors import RankdiffError
from rankdiff.pipeline import compare
from rankdiff.reports.discover import discover
from rankdiff.simulation import flat8, synthetic
from rankdiff.tracks import spans_of
from rankdiff_cli.main import group

MS = 1_000_000


def timeline(paths, *arguments: object) -> str:
    """Run the command and return what it printed."""
    done = CliRunner().invoke(group, ["timeline", *map(str, paths), *map(str, arguments)])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def compared(paths):
    return compare([str(p) for p in paths]).comparison


def drawn(paths, window, ranks):
    """Draw without the command, for the data."""
    from rankdiff.render import lanes

    paths = [str(p) for p in paths]
    c = compared(paths)
    window = window(c) if callable(window) else window
    return c, lanes.draw(c, window, spans_of(c, discover(paths).reports, DigestOptions(), window, ranks))


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Rank 2 loads data for 4 ms more than the others, for 9 ms in step 7; sessions began seconds apart."""
    late = [4 * MS] * 12
    late[7] = 9 * MS
    return synthetic(
        tmp_path_factory.mktemp("job"),
        steps=12,
        late={2: late},
        late_as="data_load",
        sync=True,
        session_start_ns={0: 0, 1: -3_000 * MS, 2: -70 * MS, 3: 0},
    )


def test_the_worst_step_is_the_default(job, tmp_path):
    out = tmp_path / "step.png"
    text = timeline(job.paths, "-o", out)
    assert text.startswith("Step 7: rank 2 on nodeB holds the others for ")
    assert text.endswith(f": {out}\n")
    assert "4 of 4 ranks, step 7 (" in text
    assert len(text.splitlines()) == 1
    assert out.read_bytes().startswith(b"\x89PNG")


def test_the_picture_holds_what_happened(job):
    _, plot = drawn(job.paths, lambda c: windows.step_window(c, 7, 7), (0, 1, 2, 3))
    assert plot.data["ranks"] == (0, 1, 2, 3)
    lanes = plot.data["lanes"]
    for rank in (0, 1, 3):
        assert 8 * MS < lanes[rank]["wait"] <= 9.5 * MS
        assert lanes[rank]["wait"] <= lanes[rank]["nccl"]
    assert lanes[2]["wait"] < MS / 2
    assert lanes[2]["data_load"] > 8 * MS
    # Every rank's compute of the step is there, whenever its session began.
    assert all(lanes[rank]["compute"] >= 6 * MS for rank in lanes)
    assert plot.data["late"]
    assert plot.data["window"].length_ns == pytest.approx(1.08 * (16.7 * MS), rel=0.1)


def test_a_time(job, tmp_path):
    c = compared(job.paths)
    at = int(c.islands[0].steps.last_end[4]) / 1e9
    text = timeline(job.paths, "--around", f"{at:.6f}s", "--span", "5ms", "-o", tmp_path / "a.svg")
    assert f"around {at:.6g} s (5.00 ms from " in text
    window = windows.moment_window(c, round(at * 1e9))
    assert window.length_ns == pytest.approx(2 * c.islands[0].step_ns, abs=2)
    with pytest.raises(RankdiffError, match="nothing was captured around 99 s"):
        windows.moment_window(c, 99_000 * MS)


def test_a_step_with_a_span(job, tmp_path):
    text = timeline(job.paths, "--step", "3", "--span", "80ms", "--ranks", "0,2", "-o", tmp_path / "a.png")
    assert "2 of 4 ranks, step 3 (80.0 ms from " in text
    with pytest.raises(RankdiffError, match="no step 12: the steps are 0 to 11"):
        timeline(job.paths, "--step", "12", "-o", tmp_path / "b.png")
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


def test_the_ranks_shown_are_the_culprit_and_those_that_wait(tmp_path):
    job = synthetic(tmp_path, ranks=12, nodes=3, steps=9, late={10: 3 * MS})
    c = compared(job.paths)
    window = windows.step_window(c, 5, 5)
    chosen = witnesses.ranks_to_show(c, window, 8)
    assert witnesses.culprit(c, window) == 10
    assert len(chosen) == 8
    assert 10 in chosen
    assert list(chosen) == sorted(chosen)
    text = timeline(job.paths, "-o", tmp_path / "a.png")
    assert "8 of 12 ranks" in text


def test_too_many_ranks(tmp_path):
    job = synthetic(tmp_path, ranks=18, nodes=2, steps=9)
    with pytest.raises(RankdiffError, match="18 ranks, and a picture holds 16"):
        timeline(job.paths, "--ranks", "0-17", "--step", "3", "-o", tmp_path / "a.png")


def test_equal_input_gives_equal_bytes(job):
    from rankdiff.render import lanes

    for ending in ("png", "svg"):
        once, twice = io.BytesIO(), io.BytesIO()
        for out in (once, twice):
            _, plot = drawn(job.paths, lambda c: windows.step_window(c, 7, 7), (0, 2))
            lanes.save(plot, out, ending)
        assert once.getvalue() == twice.getvalue()
        assert not re.search(rb"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+</dc:date>", once.getvalue())


def test_names_from_the_export_are_only_names(tmp_path):
    evil = "\x1b[31m $x^2$ [/b] \u6c49\U0001f600"

    def edit(rank, export):
        export.nvtx(30 * MS, 38 * MS, evil)
        export.nvtx(30 * MS, 38 * MS, "$\\frac{}$")

    nodes = ["$n_{$", "$n_{$", "[/b]\x1b", "[/b]\x1b"]
    job = synthetic(tmp_path, steps=9, nodes=nodes, late={2: 3 * MS}, pattern="p_{rank}.sqlite", edit=edit)
    for ending in ("png", "svg"):
        text = timeline(job.paths, "--step", "4", "-o", tmp_path / f"a.{ending}")
        assert "\x1b" not in text


def test_what_was_not_captured_is_blank(tmp_path):
    tables = ("OSRT_API", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME")
    for table in tables:
        job = synthetic(
            tmp_path / table,
            ranks=2,
            steps=9,
            late={1: 3 * MS},
            edit=lambda rank, export, t=table: export.drop(t),
        )
        assert timeline(job.paths, "--step", "4", "-o", tmp_path / f"{table}.png").startswith("Step 4")


def test_many_events_do_not_make_a_large_picture(tmp_path):
    def edit(rank, export):
        for n in range(20_000):
            export.kernel(20 * MS + 500 * n, 20 * MS + 500 * n + 250, "tiny", stream=50, launch=None)

    job = synthetic(tmp_path, ranks=2, steps=9, edit=edit)
    out = tmp_path / "a.svg"
    timeline(job.paths, "--around", "25ms", "--span", "20ms", "-o", out)
    assert out.stat().st_size < 1_000_000


def test_a_window_of_nothing_but_a_moment(job, tmp_path):
    timeline(job.paths, "--step", "3", "--span", "2ns", "-o", tmp_path / "a.png")


def test_nobody_to_blame(tmp_path):
    job = flat8(tmp_path, steps=40)
    text = timeline(job.paths, "-o", tmp_path / "a.png")
    assert "of waiting for no rank in particular" in text or "holds the others for" in text
    assert "8 of 8 ranks" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "-o is missing"),
        (["-o", "a.jpg"], "ends in .png or .svg"),
        (["-o", "a.png", "--step", "1", "--around", "1s"], "choose one"),
        (["-o", "a.png", "--span", "0"], "some length"),
        (["-o", "a.png", "--around", "soon"], "is not a duration"),
    ],
)
def test_usage(job, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(group, ["timeline", str(job.paths[0]), *arguments])
    assert done.exit_code == 2
    assert words in done.output
    assert list(tmp_path.iterdir()) == []


def test_it_refuses_to_overwrite(job, tmp_path):
    out = tmp_path / "a.png"
    out.write_text("mine")
    with pytest.raises(RankdiffError, match="exists"):
        timeline(job.paths, "-o", out)
    assert out.read_text() == "mine"
    timeline(job.paths, "-o", out, "--force")
    assert out.read_bytes().startswith(b"\x89PNG")


def test_one_rank_has_no_worst_step(job, tmp_path):
    with pytest.raises(RankdiffError, match=r"no step was judged.*--around"):
        timeline(job.paths[:1], "-o", tmp_path / "a.png")
    text = timeline(job.paths[:1], "--around", "50ms", "-o", tmp_path / "a.png")
    assert "waiting was not assessed" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("data4", r"rank 2 on gpu02 holds the others for 3\d\.\d ms"),
        ("node4", r"node gpu02 \(ranks 2, 3\) holds the others for 2\d\.\d ms"),
        ("fsdpdata4", r"rank 3 on gpu02 holds the others for 1\d\d ms"),
        ("tpdp4", r"rank 1 on gpu01 holds the others for 4\d\.\d ms"),
        ("healthy8", r"2\d\.\d ms of waiting for no rank in particular"),
    ],
)
def test_real_captures(captures, tmp_path, name, words):
    text = timeline(sorted((captures / name).glob("*.sqlite")), "-o", tmp_path / "a.png")
    assert re.match(rf"Step \d+: {words}\. ", text)


def test_real_lanes(captures):
    paths = sorted((captures / "data4").glob("*.sqlite"))
    _, plot = drawn(paths, lambda c: windows.step_window(c, 12, 12), (0, 1, 2, 3))
    lanes = plot.data["lanes"]
    assert lanes[2]["data_load"] > 25 * MS
    assert all(lanes[r]["wait"] > 25 * MS for r in (0, 1, 3))
    assert all(lanes[r]["compute"] > MS / 4 for r in lanes)
