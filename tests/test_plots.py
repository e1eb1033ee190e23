"""Figures of the ticket: what is drawn is what the comparison says, and it can be read and attached."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from rankdiff.comparison import Comparison
from rankdiff.idle import idle_by_cause
from rankdiff.pipeline import compare
from rankdiff.render.plots import FIGURES, draw_all, save
from rankdiff.simulation import Phase, synthetic
from tests.oracles.colours import EYES, difference, lab

MS = 1_000_000
LATE = 3 * MS


def compared(folder, **settings) -> Comparison:
    return compare([str(p) for p in synthetic(folder, **settings).paths]).comparison


def texts(plot) -> list[str]:
    from matplotlib.text import Text

    return [t.get_text() for t in plot.figure.findobj(Text) if t.get_text()]


def drawn(c: Comparison) -> dict:
    return {p.name: p for p in draw_all(c)}


def one(figure: str, c: Comparison):
    return import_module(f"rankdiff.render.plots.{figure}").draw(c)


def saved(plots, folder) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for p in plots.values() for f in save(p, folder)}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Four ranks without jitter, rank 2 late by 3 ms in every step of 10 ms."""
    folder = tmp_path_factory.mktemp("job")
    return synthetic(folder, steps=12, step_ns=15 * MS, late={2: LATE}, offset_ns={"nodeB": 3_217_000})


@pytest.fixture(scope="module")
def comparison(job):
    return compare([str(p) for p in job.paths]).comparison


@pytest.fixture(scope="module")
def plots(comparison):
    return drawn(comparison)


@pytest.fixture(scope="module")
def files(plots, tmp_path_factory):
    """The files of the job's figures."""
    return saved(plots, tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """Eight ranks over 300 steps, rank 3 late, windows and clocks that differ."""
    folder = tmp_path_factory.mktemp("noisy")
    return compared(
        folder,
        ranks=8,
        nodes=2,
        steps=300,
        late={3: 2 * MS},
        late_as="data_load",
        jitter_ns=200_000,
        end_jitter_ns=20_000,
    )


def widened(c: Comparison, times: int) -> Comparison:
    """The same job `times` times over, as one: what a job of so many ranks looks like to a renderer."""
    n = len(c.identities)
    per_node = n // len(c.job.nodes)

    def identity(i, block):
        rank = i.rank + block * n
        return replace(i, rank=rank, label=str(rank), node=f"gpu{rank // per_node:03d}")

    ranks = tuple(
        replace(r, index=r.index + b * n, identity=identity(r.identity, b))
        for b in range(times)
        for r in c.job.ranks
    )
    job = replace(c.job, ranks=ranks)
    (island,) = c.islands
    (timed,) = island.timed
    noise = np.random.default_rng(0).integers(0, 100_000, (timed.step.size, times * n))

    def tiled(x):
        return np.tile(x, (1, times))

    comm = replace(timed.comm, members=np.arange(times * n), positions=tiled(timed.comm.positions))
    wide = replace(
        timed,
        comm=comm,
        start=tiled(timed.start) + noise,
        end=tiled(timed.end),
        duration=tiled(timed.duration) - noise,
    )
    late = (3, 137, 138, 139, 300, times * n - 1)
    delta = np.tile(island.delta, (times, 1)) / 50
    delta[list(late)] += 2 * MS
    numbers = [r.identity.rank for r in ranks]
    finding = c.verdict.findings[0]
    findings = tuple(
        replace(finding, rank=r, ranks=(r,), node=ranks[r].node, delay_ns_per_step=float(delta[r].mean()))
        for r in late
    )
    return replace(
        c,
        job=job,
        identities=tuple(r.identity for r in ranks),
        digests=c.digests * times,
        clock=replace(
            c.clock,
            nodes=tuple(replace(c.clock.nodes[0], node=node) for node in job.nodes),
            end_skew_ns=c.clock.end_skew_ns * times,
        ),
        islands=(replace(island, ranks=tuple(range(times * n)), timed=(wide,), delta=delta),),
        figures={r: c.figures[r % n] for r in numbers},
        verdict=replace(c.verdict, findings=findings),
    )


@pytest.fixture(scope="module")
def huge(noisy):
    """512 ranks on 128 nodes, 300 steps, six ranks late."""
    return widened(noisy, 64)


@pytest.fixture(scope="module")
def huge_plots(huge):
    """Its figures."""
    return drawn(huge)


def test_every_figure_is_drawn_in_order(plots):
    assert tuple(plots) == FIGURES
    for plot in plots.values():
        assert plot.title
        assert plot.caption.endswith(".")


def test_lateness_shows_the_delay_of_every_rank_and_step(plots, comparison):
    data = plots["lateness"].data
    assert data["rows"] == [(0,), (1,), (2,), (3,)]
    assert data["steps"] == list(comparison.islands[0].steps.labels)
    expected = np.zeros((4, 12))
    expected[2] = LATE
    np.testing.assert_allclose(data["delay_ns"], expected)
    assert not data["left_out"].any()
    assert data["top_ns"] == LATE


def test_delay_and_wait_are_means_per_step(plots, comparison):
    data = plots["delay"].data
    np.testing.assert_allclose(data["delay_ns"], [0, 0, LATE, 0])
    np.testing.assert_allclose(data["wait_ns"], [LATE, LATE, 0, LATE])
    assert [comparison.figures[r].wait_ns for r in range(4)] == [12 * LATE, 12 * LATE, 0, 12 * LATE]
    assert "3.00 ms" in plots["delay"].caption


def test_arrivals_are_those_of_the_true_collectives(plots, job):
    fans = plots["arrivals"].data["fans"]
    assert len(fans) == 3
    for fan in fans:
        true = next(i for i in job.instances if str(i.step) == fan.step)
        assert dict(zip(fan.ranks, fan.start.tolist(), strict=True)) == true.delays
        first = min(true.starts.values())
        assert dict(zip(fan.ranks, fan.end.tolist(), strict=True)) == {
            r: e - first for r, e in true.ends.items()
        }
        assert fan.ranks[-1] == 2
        assert (fan.start + fan.wait).tolist() == [fan.last] * 4
    assert plots["arrivals"].title == "Rank 2 arrives last in the 3 worst steps"


def test_make_up_closes(plots, noisy):
    for data in (plots["makeup"].data, one("makeup", noisy).data):
        np.testing.assert_allclose(sum(data["parts_ns"].values()), data["step_ns"], atol=1e-3)
        # The members of a collective end their steps together.
        np.testing.assert_allclose(data["step_ns"], data["step_ns"][0], atol=1e-3)
    assert plots["makeup"].data["parts_ns"]["compute"].tolist() == [6 * MS, 6 * MS, 9 * MS, 6 * MS]
    assert plots["makeup"].data["step_ns"][0] == 15 * MS


def test_idle_time_in_bins_sums_to_the_reports_figures(plots, comparison):
    data = plots["idle"].data
    for n, digest in enumerate(comparison.digests):
        assert data["captured_ns"][n].sum() == digest.info.span_ns
        sums = {k: int(x[n].sum()) for k, x in data["idle_ns"].items() if x[n].any()}
        # A gap is shown in the colour of its largest part.
        by_class = digest.gaps.group_by("class").agg((pl.col("end_ns") - pl.col("start_ns")).sum())
        assert sums == dict(by_class.iter_rows())
        assert sum(sums.values()) == digest.info.idle_ns == sum(filter(None, idle_by_cause(digest).values()))
    assert (np.diff(data["edges_ns"]) > 0).all()


def test_gaps_too_many_to_keep_are_not_lost(comparison):
    kept = tuple(replace(d, gaps=d.gaps.head(3)) for d in comparison.digests)
    ranks = tuple(replace(r, digest=d) for r, d in zip(comparison.job.ranks, kept, strict=True))
    plot = one("idle", replace(comparison, digests=kept, job=replace(comparison.job, ranks=ranks)))
    total = sum(x.sum() for x in plot.data["idle_ns"].values())
    assert total == sum(d.info.idle_ns for d in comparison.digests)
    assert plot.data["idle_ns"]["short"].sum() > 0
    assert "short gaps, cause not kept" in texts(plot)


def test_clock_shows_the_offset_and_what_it_leaves(plots):
    data = plots["clock"].data
    assert dict(zip(data["nodes"], data["offset_ns"], strict=True)) == {"nodeA": 0, "nodeB": 3_217_000}
    assert all((x == 0).all() for x in data["residual_ns"].values())
    assert data["time_ns"]["nodeB"].size == 11  # the first step is not part of the fit
    assert "+3.217 ms" in plots["clock"].caption
    assert "3.22 ms" in plots["clock"].title


def test_flagged_ranks_are_marked(plots):
    for plot in plots.values():
        if plot.name != "clock":
            assert any(t.split()[0] == "2" for t in texts(plot)), plot.name
    assert "Rank 2 on nodeB" in plots["lateness"].title


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"written": [0]}, ["idle"]),  # nobody to compare with
        ({"steps": 2}, ["makeup", "idle", "clock"]),  # nobody can be told apart
        ({"nodes": 1}, ["lateness", "delay", "arrivals", "makeup", "idle"]),  # one clock
        ({"phases": (Phase(count=0),)}, ["idle"]),  # no collectives
    ],
)
def test_what_cannot_be_known_is_not_drawn(tmp_path, settings, names):
    assert list(drawn(compared(tmp_path, **({"steps": 12, "late": {2: LATE}} | settings)))) == names


def test_ranks_that_were_not_captured_are_hatched_and_not_zero(tmp_path):
    c = compared(tmp_path, ranks=8, steps=20, late={1: LATE}, written=[0, 1, 2, 3, 6])
    assert c.missing == (4, 5, 7)
    plots = drawn(c)
    for name, key in (
        ("lateness", "delay_ns"),
        ("delay", "delay_ns"),
        ("delay", "wait_ns"),
        ("makeup", "step_ns"),
    ):
        data = plots[name].data
        unknown = [ranks for ranks, x in zip(data["rows"], data[key], strict=True) if np.isnan(x).all()]
        assert unknown == [(4, 5), (7,)], (name, key)
        assert any("not captured" in t for t in texts(plots[name]))
    assert not np.isnan(plots["delay"].data["delay_ns"][:5]).any()


def test_a_culprit_that_was_not_captured_is_no_balanced_job(tmp_path):
    c = compared(tmp_path, ranks=8, steps=20, written=range(7), phases=(Phase(transfer_ns=8 * MS),))
    assert (c.verdict.status, c.verdict.reason) == ("not_assessed", "missing_ranks")
    for figure in ("lateness", "delay"):
        assert one(figure, c).title == "No captured rank stands out; not captured: rank 7"


def test_a_left_out_start_is_greyed_and_does_not_set_the_scale(tmp_path):
    late = {1: [500 * MS], 2: [LATE] * 20}
    plot = one("lateness", compared(tmp_path, steps=20, late=late))
    assert plot.data["left_out"].sum(axis=1).tolist() == [1] * 4
    assert plot.data["top_ns"] < 2 * LATE
    assert any("left out" in t for t in texts(plot))


def test_one_spike_is_beyond_the_scale_and_circled(tmp_path):
    from matplotlib.patches import Ellipse

    late = {5: [0] * 11 + [500 * MS]}
    plot = one("lateness", compared(tmp_path, ranks=8, steps=30, late=late, jitter_ns=50_000))
    assert plot.data["delay_ns"][5, 11] > 100 * plot.data["top_ns"]
    (circle,) = (p for p in plot.figure.findobj(Ellipse) if not p.get_fill())
    assert circle.get_center() == (11, 5)
    assert "beyond the scale" in texts(plot)
    assert "step 11: 500 ms" in plot.title


def test_islands_keep_their_own_ranks_and_peers(tmp_path):
    phases = (Phase(groups=[[0, 1, 2, 3], [4, 5, 6, 7]]),)
    c = compared(tmp_path, ranks=8, steps=20, late={1: LATE}, phases=phases)
    np.testing.assert_allclose(one("lateness", c).data["delay_ns"].mean(axis=1), [0, LATE, *[0] * 6])
    assert "not flagged waited 3.00 ms" in one("delay", c).caption  # the other island waited for nobody
    assert one("clock", c) is None


def test_names_are_shown_as_they_are_and_never_parsed(tmp_path):
    nodes = ("a$\\frac{1}{$b$", "a$\\frac{1}{$b$", "[/b]\x1b[31m\u202e\u4e2d\n" + "x" * 60, "$$")
    c = compared(
        tmp_path, nodes=nodes, pattern="prof_{rank}.sqlite", steps=12, late={2: LATE}, jitter_ns=50_000
    )
    plots = drawn(c)
    for plot in plots.values():
        FigureCanvasAgg(plot.figure).draw()  # mathematics would be parsed here
        for shown in (plot.title, plot.caption, *texts(plot)):
            assert shown.isprintable()
            assert "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" not in shown
    shown = texts(plots["delay"])
    assert {"a$\\frac{1}{$b$", "$$"} <= set(shown)
    assert any(t.startswith("[/b]?[31m") and len(t) == 24 for t in shown)
    assert "[/b]?[31m" in plots["lateness"].caption


def test_saving_again_gives_the_same_bytes(plots, files, tmp_path):
    assert sorted(files) == sorted(f"{name}.{ending}" for name in FIGURES for ending in ("png", "svg"))
    assert saved(plots, tmp_path) == files
    for name, content in files.items():
        if name.endswith(".svg"):
            svg = content.decode("utf-8")
            assert "<text" not in svg  # glyphs are paths: no font of the reader's matters
            assert "<dc:date>" not in svg
        else:
            assert b"Software" not in content


@pytest.mark.parametrize("backend", ["TkAgg", "module://matplotlib_inline.backend_inline"])
def test_a_hostile_environment_changes_nothing(backend, comparison, files, tmp_path):
    """No display, a backend of somebody else, no home to write to, another seed of hashes."""
    (tmp_path / "comparison").write_bytes(pickle.dumps(comparison))
    code = (
        "import pickle, sys, pathlib\n"
        "import rankdiff.render, rankdiff.render.plots as plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "c = pickle.loads((folder / 'comparison').read_bytes())\n"
        "for p in plots.draw_all(c): plots.save(p, folder)\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    kept = {
        k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "NUMBA_DISABLE_JIT", "NUMBA_CACHE_DIR")
    }
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=kept | {"MPLBACKEND": backend, "HOME": "/dev/null/home", "PYTHONHASHSEED": "7"},
        cwd=Path(__file__).resolve().parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert {name: (tmp_path / name).read_bytes() for name in files} == files


def test_settings_of_the_program_are_left_alone(comparison, files, tmp_path):
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 31, "svg.fonttype": "none", "axes.grid": True, "lines.linewidth": 9}):
        before = dict(mpl.rcParams)
        mine = saved({"delay": one("delay", comparison)}, tmp_path)
        assert dict(mpl.rcParams) == before
    assert mine == {name: content for name, content in files.items() if name in mine}


def test_512_ranks_stay_legible(huge, huge_plots, tmp_path):
    plots = huge_plots
    assert max(map(len, saved(plots, tmp_path).values())) < 3_000_000
    assert tuple(plots) == FIGURES
    for plot in plots.values():
        width, height = plot.figure.get_size_inches() * plot.figure.dpi
        assert round(width) == 1000
        assert height <= 1600, plot.name
        if plot.name != "lateness":
            assert any(t.startswith(("Showing", "Shown")) for t in texts(plot)), plot.name
    # Every flagged rank has its label, neighbours together.
    shown = texts(plots["lateness"])
    assert {"3", "137–139", "300", "511"} <= set(shown)
    for name in ("delay", "makeup", "idle"):
        assert {"3", "137", "138", "139", "300", "511"} <= set(texts(plots[name])), name
    np.testing.assert_array_equal(plots["lateness"].data["delay_ns"], huge.islands[0].delta)


def test_labels_of_rows_do_not_overlap(huge_plots, plots):
    for plot in (*huge_plots.values(), *plots.values()):
        canvas = FigureCanvasAgg(plot.figure)
        boxes = [
            (t.get_text(), t.get_window_extent(canvas.get_renderer()))
            for t in plot.figure.texts
            if t.get_text() and t.get_horizontalalignment() == "right"
        ]
        for (a, one), (b, other) in combinations(boxes, 2):
            across = min(one.x1, other.x1) - max(one.x0, other.x0)
            along = min(one.y1, other.y1) - max(one.y0, other.y0)
            assert across <= 0 or along <= 1.5, (plot.name, a, b)
        width, height = plot.figure.bbox.size
        for text, box in boxes:
            assert box.x0 >= 0, (plot.name, text)
            assert box.x1 <= width, (plot.name, text)
            assert box.y0 >= 0, (plot.name, text)
            assert box.y1 <= height, (plot.name, text)


def test_more_ranks_than_pixels_are_folded(huge):
    wide = widened_rows(huge, 4)
    plot = one("lateness", wide)
    rows = plot.data["rows"]
    assert len(rows) <= 1100
    assert sorted(r for ranks in rows for r in ranks) == list(range(2048))
    delta = wide.islands[0].delta
    for ranks, cells in zip(rows, plot.data["delay_ns"], strict=True):
        np.testing.assert_array_equal(cells, delta[list(ranks)].max(axis=0))
    _, height = plot.figure.get_size_inches() * plot.figure.dpi
    assert height <= 1600


def widened_rows(c: Comparison, times: int) -> Comparison:
    """As `widened`, of a job that already is; only what the heatmap needs."""
    n = len(c.identities)
    identities = tuple(
        replace(i, rank=i.rank + b * n, label=str(i.rank + b * n), node=f"{i.node}.{b}")
        for b in range(times)
        for i in c.identities
    )
    ranks = tuple(
        replace(c.job.ranks[k % n], index=k, identity=identity) for k, identity in enumerate(identities)
    )
    (island,) = c.islands
    return replace(
        c,
        job=replace(c.job, ranks=ranks),
        identities=identities,
        islands=(replace(island, ranks=tuple(range(times * n)), delta=np.tile(island.delta, (times, 1))),),
    )


def test_colours_are_told_apart_by_all_eyes():
    from rankdiff.render.plots import style

    causes = style.CAUSE_COLOURS
    parts = style.PART_COLOURS | {k: c for k, c in causes.items() if k not in style.CAUSE_HATCHES}
    del parts["exposed_wait"]  # is hatched as well
    for eye in EYES:
        for colours in (causes, parts):
            for one_, other in combinations(colours, 2):
                assert difference(colours[one_], colours[other], eye) > 12, (eye, one_, other)
    # In a print in grey, what stands for most idle time is told apart by lightness alone.
    light = sorted(lab(causes[k])[0] for k in ("host", "os_wait", "sync", "data_load", "io"))
    assert min(b - a for a, b in pairwise(light)) > 10
    nodes = style.NODE_COLOURS
    assert len(set(zip(nodes, style.NODE_MARKERS, strict=True))) == len(nodes)


def test_delay_is_darker_where_there_is_more_of_it():
    from matplotlib.colors import to_hex

    from rankdiff.render.plots import style

    light = [lab(to_hex(style.DELAY_MAP(x)))[0] for x in np.linspace(0, 1, 33)]
    assert all(a > b for a, b in pairwise(light))
    assert light[0] > 99
    assert lab(to_hex(style.DELAY_MAP(1.1)))[0] < light[-1] - 15  # beyond the scale


def test_crowded_labels_are_spread():
    from rankdiff.render.plots.gutter import spread

    assert spread(np.array([10.0, 50.0]), 15, 100).tolist() == [10, 50]
    assert spread(np.array([10.0, 12.0, 14.0]), 15, 100).tolist() == [10, 25, 40]
    assert spread(np.array([90.0, 95.0, 99.0]), 15, 100).tolist() == [70, 85, 100]
    assert spread(np.array([]), 15, 100).size == 0


def test_ranks_are_named_in_runs():
    from rankdiff.render.plots.rows import named

    assert named([3]) == "rank 3"
    assert named([4, 3]) == "ranks 3, 4"
    assert named([0, 1, 2, 3, 9]) == "ranks 0–3, 9"
    assert named(range(0, 40, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"
