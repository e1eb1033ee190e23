"""`import rankdiff`: the function, the frames, and the pages that show them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import rankdiff
from benchmarks.plays import Play, Played, perform
from rankdiff import array_frames, frames, job_tables, pipeline
from rankdiff.comparison import Comparison, compare_digests
from rankdiff.diff_result import ROWS
from rankdiff.digest import DigestOptions
from rankdiff.digest_cache import DigestCache
from rankdiff.digest_file import Provenance, write_digests
from rankdiff.lanes import lanes_of
from rankdiff.pipeline import CompareOptions, Outcome
from rankdiff.reports.discover import discover
from rankdiff.reports.identity import Identity
from rankdiff.result import Comparison as Result
from rankdiff.schema import DIGEST_TABLES, IDLE_CLASSES
from rankdiff.tracks import Meetings, spans_of
from rankdiff.windows import step_window
from tests.doc_pages import DOCS, PAGES
from tests.golden import SAMPLES

MS = 1_000_000
FOLDER = SAMPLES / "late_rank"
NOT_LOADED = ("click", "duckdb", "matplotlib", "numba", "numpy", "polars", "pyarrow", "rich")
PLAY = Play(ranks=8, steps=20, per_step=4, tensor=2, late={5: 30 * MS}, offset_ns={1: 2e6}, end_jitter_ns=0)


@pytest.fixture(scope="module")
def c() -> rankdiff.Comparison:
    return rankdiff.compare(FOLDER)


@pytest.fixture(scope="module")
def played() -> Played:
    return perform(PLAY)


@pytest.fixture(scope="module")
def pairs(played) -> frames.Frames:
    """Eight ranks in pairs and in two groups across, whose clocks differ but do not drift."""
    return frames.Frames.of(compare_digests(played.digests, played.identities, ()))


def result(c: Comparison) -> Result:
    return Result(Outcome(c, (), ()), (), CompareOptions())


def test_the_import_loads_nothing():
    code = "import sys, rankdiff; sys.stdout.write(' '.join(sys.modules)); assert 'compare' in dir(rankdiff)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(NOT_LOADED) & set(done.stdout.split())


def test_public_names_are_what_they_say():
    found = {name: getattr(rankdiff, name) for name in rankdiff.__all__ if name != "__version__"}
    assert {name: x.__name__ for name, x in found.items()} == {name: name for name in found}
    assert found["compare"] is rankdiff.compare
    with pytest.raises(AttributeError, match="'comparee'"):
        rankdiff.comparee  # noqa: B018


@pytest.mark.parametrize("name", PAGES)
def test_the_page_shows_what_its_code_gives(name):
    text = (DOCS / name).read_text(encoding="utf-8")
    assert PAGES[name](text) == text, "python -m tests.doc_pages writes it anew"


def test_the_same_answer_as_the_command(c):
    assert c.to_text() == (FOLDER / "compare.txt").read_text(encoding="utf-8")
    assert c.to_json() == (FOLDER / "ticket" / "report.json").read_text(encoding="utf-8")
    assert c.to_markdown().startswith("# Rank 2 on gpu02 holds the job up\n")
    assert c.verdict.findings[0].rank == 2
    assert c.notes == ()


def test_paths_in_any_form(c):
    files = sorted(FOLDER.glob("*.sqlite"))
    expected = c.to_json()
    assert rankdiff.compare(str(FOLDER)).to_json() == expected
    assert rankdiff.compare(p if "gpu01" in p.name else str(p) for p in reversed(files)).to_json() == expected


def test_options_reach_the_comparison(c):
    some = rankdiff.compare(FOLDER, ranks=range(1, 3), skip_steps=5, data_range="no such range")
    assert some.ranks["rank"].to_list() == [1, 2]
    assert some.steps["judged"].sum() == c.steps["judged"].sum() - 5
    assert some.ranks["idle_data_load_ns"].to_list() == [None, None]


def test_every_option_is_passed_on(c, monkeypatch, tmp_path):
    seen = []

    def compare(paths, options, progress):
        seen.append((paths, options, progress))
        return Outcome(c._c, (), ())

    monkeypatch.setattr(pipeline, "compare", compare)
    digest = {"data_range": "load", "step_range": "step", "comm_regex": "rccl"}
    rest = {"steps": (3, 9), "skip_steps": 2, "rank_regex": r"(?P<rank>\d+)", "strict": True, "jobs": 3}
    rest["dask"] = "tcp://scheduler:8786"
    cache = tmp_path / "cache"
    rankdiff.compare([Path("a"), "b"], ranks=[1], nodes=["n"], cache=cache, progress=print, **digest, **rest)
    sets = {"ranks": frozenset([1]), "nodes": frozenset(["n"]), "cache": DigestCache(str(cache))}
    assert cache.is_dir()
    assert seen == [(["a", "b"], CompareOptions(digest=DigestOptions(**digest), **rest, **sets), print)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_range": "("}, "data_range: not a regular expression"),
        ({"step_range": "("}, "step_range: not a regular expression"),
        ({"comm_regex": "("}, "comm_regex: not a regular expression"),
        ({"rank_regex": "("}, "rank_regex: not a regular expression"),
        ({"rank_regex": "x"}, "rank"),
        ({"skip_steps": -1}, "skip_steps: -1"),
        ({"ranks": [7]}, "none of the ranks asked for"),
        ({"ranks": "0-3"}, "ranks: '0-3', expected numbers"),
        ({"ranks": 3}, "ranks: 3, expected numbers"),
        ({"steps": ("a", 1)}, r"steps: \('a', 1\), expected two numbers"),
        ({"steps": (5,)}, r"steps: \(5,\), expected two numbers"),
        ({"steps": 5}, "steps: 5, expected two numbers"),
        ({"steps": (9, 8)}, r"steps: \(9, 8\) runs backwards"),
        ({"jobs": 0}, "jobs: 0, expected 1 or more"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(rankdiff.RankdiffError, match=message):
        rankdiff.compare(FOLDER, **options)


def test_a_difference_of_some_ranks():
    d = rankdiff.diff(FOLDER, FOLDER, ranks=[0, 2])
    assert sorted(d.rows.filter(pl.col("table") == "ranks")["rank"]) == [0, 2]


def test_no_paths():
    with pytest.raises(rankdiff.RankdiffError, match="no reports given"):
        rankdiff.compare([])


def test_a_report_that_cannot_be_used(tmp_path):
    bad = tmp_path / "prof_gpu01_9.sqlite"
    bad.write_bytes(b"nothing of the kind")
    c = rankdiff.compare([FOLDER, bad])
    assert [str(p).partition(":")[0] for p in c.problems] == [str(bad)]
    assert "left out: " in c._repr_html_()
    with pytest.raises(rankdiff.ReportError, match="expected an SQLite export"):
        rankdiff.compare([FOLDER, bad], strict=True)


def test_frames_say_what_the_report_says(c):
    report = c.to_dict()
    for name, key in (("ranks", "ranks"), ("nodes", "nodes"), ("findings", "findings"), ("steps", "steps")):
        frame = c.table(name)
        shared = [x for x in frame.columns if x in report[key][0]]
        assert len(shared) > 3
        for column in set(shared) - {"cause_detail", "bottleneck", "step", "first_step"}:
            assert frame[column].to_list() == [row[column] for row in report[key]], column
    assert json.loads(c.findings["cause_detail"][0]) == report["findings"][0]["cause_detail"]
    assert c.findings["first_step"].to_list() == [int(report["findings"][0]["first_step"])]
    assert c.findings["what_if_gain_ns_per_step"][0] == report["findings"][0]["what_if"]["gain_ns_per_step"]
    assert c.nodes["offset_ns"].to_list() == [n["offset_ns"] for n in report["clock"]["nodes"]]
    assert c.table("job").row(0, named=True)["summary"] == c.summary == report["verdict"]["summary"]
    assert c.ranks["bottleneck"].to_list() == [r["bottleneck"]["kind"] for r in report["ranks"]]


def test_delays_sum_to_those_of_steps_and_ranks(c):
    by_step = c.delays.group_by("step").agg(pl.col("delay_ns").sum()).sort("step")
    np.testing.assert_allclose(by_step["delay_ns"], c.steps["delay_ns"], atol=1)
    judged = c.delays.filter("judged").group_by("rank").agg(pl.col("delay_ns").sum()).sort("rank")
    np.testing.assert_allclose(judged["delay_ns"], c.ranks["delay_ns"], atol=1)
    assert c.steps["start_ns"].to_list() == [None, *c.steps["end_ns"].to_list()[:-1]]


def test_waits_of_each_rank_and_instance(pairs):
    waits, instances = pairs.table("waits"), pairs.table("instances")
    assert waits.height == 8 * 80
    assert waits["instance"].is_sorted()
    joined = waits.join(instances, on="instance", suffix="_all")
    assert joined.filter(pl.col("communicator") != pl.col("communicator_all")).is_empty()
    # What a wait is, reckoned anew from the arrivals.
    last = joined.group_by("instance").agg(
        pl.col("start_ns").max().alias("last"), pl.col("rank").sort_by("start_ns").last().alias("who")
    )
    waited = joined.join(last, on="instance")
    expected = pl.min_horizontal(pl.col("last") - pl.col("start_ns"), pl.col("end_ns") - pl.col("start_ns"))
    assert waited.filter(pl.col("wait_ns") != expected).is_empty()
    assert waited.filter(pl.col("last_rank") != pl.col("who")).is_empty()
    assert waited.filter(pl.col("last_start_ns") != pl.col("last")).is_empty()
    total = waits.group_by("instance").agg(pl.col("wait_ns").sum(), pl.len().cast(pl.Int64).alias("ranks"))
    both = total.sort("instance").equals(instances.select("instance", "wait_ns", "ranks").sort("instance"))
    assert both
    of_rank = joined.filter("judged").group_by("rank").agg(pl.col("wait_ns").sum()).sort("rank")
    assert of_rank["wait_ns"].to_list() == pairs.table("ranks")["wait_ns"].to_list()


def test_a_wait_leads_to_its_kernel(pairs):
    kernels = frames.rank_table(pairs.comparison, "collectives")
    joined = pairs.table("waits").join(kernels, on=["rank", "collective"], suffix="_kernel")
    assert joined.height == 8 * 80 == joined.select("rank", "collective").unique().height
    # Next to nothing drifts, so durations are the kernels' own.
    own = pl.col("end_ns_kernel") - pl.col("start_ns_kernel")
    assert joined.select((pl.col("end_ns") - pl.col("start_ns") - own).abs().max()).item() <= 1
    assert joined.filter(pl.col("communicator") != pl.col("comm")).is_empty()
    assert joined.filter((pl.col("op") != pl.col("op_kernel")) | (pl.col("bytes") != 1 << 20)).is_empty()


def test_the_job_clock_of_session_times(pairs):
    waits, ranks = pairs.table("waits"), pairs.table("ranks")
    kernels = frames.rank_table(pairs.comparison, "collectives")
    joined = waits.join(kernels, on=["rank", "collective"], suffix="_session").join(ranks, on="rank")
    moved = pl.col("start_ns_session") + pl.col("job_clock_shift_ns")
    assert joined.select((pl.col("start_ns") - moved).abs().max()).item() <= 1
    assert joined.filter(pl.col("rank") < 4).select((pl.col("start_ns") - moved).abs().max()).item() == 0
    ahead = ranks.filter(pl.col("node") == "n001")["job_clock_shift_ns"]
    assert ahead.to_list() == pytest.approx([-2e6] * 4, abs=1)
    edges = kernels.group_by("rank").agg(pl.col("end_ns").max()).join(ranks, on="rank").sort("rank")
    assert (
        edges.select(
            (pl.col("end_ns") + pl.col("job_clock_shift_ns") - pl.col("window_end_ns")).abs().max()
        ).item()
        <= 1
    )


def test_bytes_of_the_lowest_rank_that_knows_them(played):
    cut = played.digests[0].collectives.with_columns(
        bytes=pl.when(pl.int_range(pl.len()) >= 8).then("bytes"), comm=pl.col("comm")
    )
    first = type(played.digests[0])(**{**vars(played.digests[0]), "collectives": cut})
    f = frames.Frames.of(compare_digests([first, *played.digests[1:]], played.identities, ()))
    assert f.table("instances")["bytes"].to_list() == [1 << 20] * f.table("instances").height
    assert f.table("waits")["bytes"].null_count() == 0


def test_parts_of_waits_are_the_whole(pairs):
    parts = list(array_frames.waits(pairs.comparison, rows=10))
    # Five instances of a pair, two of a group of four.
    assert [p.height for p in parts] == [10] * (4 * 60 // 5) + [8] * (2 * 20 // 2)
    assert pl.concat(parts).equals(pairs.table("waits"))


def test_an_empty_table_has_its_columns(played):
    # Of one rank nothing is matched, and of its digest most tables are empty.
    alone = result(compare_digests(played.digests[:1], played.identities[:1], ()))
    assert alone.verdict.status == "not_assessed"
    schemas = job_tables.JOB_TABLES | {f"digest.{n}": s for n, s in job_tables.RANK_TABLES.items()}
    assert tuple(schemas) == alone.table_names
    for name, schema in schemas.items():
        assert alone.table(name).schema == schema, name
    empty = [
        n
        for n in ("findings", "steps", "delays", "communicators", "instances", "waits")
        if alone.table(n).height
    ]
    assert empty == []
    assert alone.ranks.select("rank", "wait_ns", "delay_ns", "make_up_ns").row(0) == (0, None, None, None)
    assert alone.table("job")["origin_utc_ns"].null_count() == 0
    assert "Not assessed" in alone._repr_html_()


def test_tables_of_all_ranks(c):
    gaps = c.table("digest.gaps")
    assert gaps["rank"].unique().sort().to_list() == [0, 1, 2, 3]
    for rank, digest in c.digests.items():
        assert gaps.filter(pl.col("rank") == rank).drop("rank").equals(digest.gaps)
    assert c.table("digest.gaps") is gaps
    with pytest.raises(rankdiff.RankdiffError, match=r"no table 'gaps'. Choose among .*digest\.gaps"):
        c.table("gaps")


def test_the_timeline_is_what_is_drawn(c):
    lanes = c.timeline(12)
    assert lanes.schema == job_tables.TIMELINE
    inner = c._c
    window = step_window(inner, 12, 12)
    reports = [str(p) for p in sorted(FOLDER.glob("*.sqlite"))]
    meetings = Meetings(inner, window, frozenset(range(4)))
    seen = []
    for identity, spans in spans_of(inner, discover(reports).reports, DigestOptions(), window, range(4)):
        drawn = lanes_of(inner, window, identity, spans, meetings.of(identity.rank))
        mine = lanes.filter(pl.col("rank") == identity.rank).with_columns(
            ns=pl.col("end_ns") - pl.col("start_ns")
        )
        sums = dict(mine.group_by("lane").agg(pl.col("ns").sum()).iter_rows())
        classes = dict(
            mine.filter(pl.col("lane") == "idle").group_by("class").agg(pl.col("ns").sum()).iter_rows()
        )
        summed = drawn.summed()
        assert sums["compute"] == summed["compute"]
        assert sums["copy"] == summed["copies"]
        assert {n: ns for n, ns in classes.items() if ns} == {n: summed[n] for n in IDLE_CLASSES if summed[n]}
        assert mine.filter(pl.col("lane") == "nccl").height == drawn.nccl.height
        assert drawn.calls is not None
        assert mine.filter(pl.col("lane") == "call")["name"].to_list() == drawn.calls["name"].to_list()
        assert mine.filter(pl.col("lane") == "range").height == drawn.phases.height
        seen.append(identity.rank)
    assert seen == [0, 1, 2, 3]
    assert lanes["start_ns"].min() >= window.start_ns
    assert lanes["end_ns"].max() <= window.end_ns
    data = lanes.filter((pl.col("lane") == "range") & (pl.col("class") == "data_load"))
    assert set(data["name"]) == {"data_load"}
    held = lanes.filter((pl.col("rank") == 3) & (pl.col("wait_end_ns") - pl.col("start_ns") > 10 * MS))
    assert held["last_rank"].to_list() == [2]


def test_timelines_that_are_not_there(c):
    assert set(c.timeline(12, ranks=[1, 2])["rank"]) == {1, 2}
    some = c.timeline(around_ns=400 * MS, span_ns=10 * MS, ranks=[2])
    assert (some["start_ns"].min(), some["end_ns"].max()) == (395 * MS, 405 * MS)
    with pytest.raises(rankdiff.RankdiffError, match="one of them"):
        c.timeline(12, around_ns=400 * MS)
    with pytest.raises(rankdiff.RankdiffError, match="no step 99: the steps are 3 to 22"):
        c.timeline(99)
    with pytest.raises(rankdiff.RankdiffError, match="no report of rank 9"):
        c.timeline(12, ranks=[9])


def test_digests_are_opened(played, tmp_path):
    path = tmp_path / "prof_n000_0.digest.parquet"
    write_digests(played.digests[:1], Provenance("f", DigestOptions()), str(path))
    (digest,) = rankdiff.load_digest(path)
    for name in DIGEST_TABLES:
        assert getattr(digest, name).equals(getattr(played.digests[0], name)), name
    path.write_bytes(b"PAR1")
    with pytest.raises(rankdiff.ReportError):
        rankdiff.load_digest(path)


def test_digests_have_no_timeline(c, tmp_path):
    for rank, digest in c.digests.items():
        provenance = Provenance(str(rank), DigestOptions())
        write_digests([digest], provenance, str(tmp_path / f"prof_gpu0{1 + rank // 2}_{rank}.digest.parquet"))
    stored = rankdiff.compare(tmp_path)
    for name in c.table_names:
        assert stored.table(name).equals(c.table(name)), name
    with pytest.raises(rankdiff.RankdiffError, match="is no report; a digest holds sums, not events"):
        stored.timeline(12)


def test_a_ticket(c, tmp_path):
    c.write_ticket(tmp_path / "ticket", plots=False)
    made = {p.name: p.read_text(encoding="utf-8") for p in (tmp_path / "ticket").iterdir()}
    assert sorted(made) == ["report.html", "report.json", "report.md"]
    assert made["report.json"] == c.to_json()
    assert "rankdiff compare prof_gpu01_0.sqlite" in made["report.md"]
    with pytest.raises(rankdiff.RankdiffError, match="is not empty"):
        c.write_ticket(tmp_path / "ticket", plots=False)
    c.write_ticket(str(tmp_path / "ticket"), plots=False, force=True)


def test_a_cell_of_a_notebook_escapes_names(played):
    evil = "<script>alert(1)</script> $x^2$ & \x1b[31m"
    hostile = [
        Identity(i.claims, i.rank, i.label, f"{i.node}{evil}", i.rank_source, i.node_source)
        for i in played.identities
    ]
    html = result(compare_digests(played.digests, hostile, (8,)))._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt; $x^2$ &amp; ?[31m" in html
    assert html.startswith('<div class="rankdiff tex2jax_ignore mathjax_ignore">')
    assert "Rank 5 on n001" in html


def test_a_large_job_in_a_cell_is_cut():
    many = perform(Play(ranks=24, steps=12, per_step=2, late={7: 40 * MS}))
    c = result(compare_digests(many.digests, many.identities, ()))
    html = c._repr_html_()
    assert html.count("<tr") == 1 + len(c.findings) + 1 + 16
    assert "Showing 16 of 24 ranks" in html
    assert repr(c).startswith("<rankdiff.Comparison of 24 ranks: Rank 7 on n001 made the others wait")


def test_the_notebook_is_one():
    book = json.loads((DOCS / "notebook.ipynb").read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    assert "image/png" not in json.dumps(book)
    assert (Path(DOCS) / "notebook.ipynb").stat().st_size < 50_000


# --- the difference of two jobs ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def difference(c):
    return rankdiff.diff(c, SAMPLES / "healthy")


def test_a_difference_says_what_the_command_says(difference):
    assert difference.status == "faster"
    stored = json.loads((SAMPLES / "difference" / "diff" / "diff.json").read_text())
    ours = difference.to_dict()
    for side in ("before", "after"):
        assert ours[side] == stored[side]
    assert ours == stored
    assert difference.to_json() == rankdiff.diff(SAMPLES / "late_rank", SAMPLES / "healthy").to_json()
    assert difference.summary in " ".join(difference.to_text().split())


def test_the_other_way_round(c, difference):
    back = rankdiff.diff(SAMPLES / "healthy", c)
    assert back.status == "slower"
    assert back.regression(0.05).status == "met"
    assert difference.regression(0.05).status == "passed"


def test_rows_are_those_of_the_report(difference):
    rows, report = difference.rows, difference.to_dict()
    assert rows.schema == ROWS
    assert rows.filter(pl.col("table") == "ranks")["rank"].to_list() == [r["rank"] for r in report["ranks"]]
    for table, key in (("parts", "parts"), ("causes", "before_collectives")):
        found = rows.filter(pl.col("table") == table)
        assert found["key"].to_list() == list(report[key])
        assert found["verdict"].to_list() == [r["verdict"] for r in report[key].values()]
    assert rows.filter(pl.col("table") == "kernels").height == len(report["kernels"])
    change = rows.filter(pl.col("change_ns").is_not_null())
    assert np.allclose(change["after_ns"] - change["before_ns"], change["change_ns"])
    assert set(difference.changed["verdict"]) == {"changed"}


def test_a_difference_is_written_and_shown(difference, tmp_path):
    difference.write(tmp_path / "diff", plots=False)
    assert {p.name for p in (tmp_path / "diff").iterdir()} == {"diff.md", "diff.html", "diff.json"}
    with pytest.raises(rankdiff.RankdiffError, match="not empty"):
        difference.write(tmp_path / "diff")
    assert "70% less" in difference._repr_html_()
    assert repr(difference).startswith("<rankdiff.Difference late_rank to healthy: The step takes")
    assert difference.to_markdown().startswith("# ")


def test_sides_that_are_not_of_one_job(c, played):
    with pytest.raises(rankdiff.RankdiffError, match=r"cannot be compared.*--force"):
        rankdiff.diff(c, result(compare_digests(played.digests, played.identities, ())))
