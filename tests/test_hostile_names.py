"""Names from exports and file names are text and nothing else, in every output of every command."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import shutil
import sqlite3
import sys
import xml.etree.ElementTree as ET
from contextlib import closing
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt

from rankdiff.errors import RankdiffError
from rankdiff.notes import Note
from rankdiff.pipeline import compare
from rankdiff.render.markdown import escape
from rankdiff.render.terminal import to_terminal
from rankdiff.simulation import synthetic
from rankdiff.untrusted import LONGEST_NAME, argument, clean, shown
from rankdiff_cli.main import group, main
from tests.jobs import run

MS = 1_000_000
EVIL = (
    "<script>alert(1)</script><img src=x onerror=alert(2)> ](javascript:alert(3)) [a](http://evil.example) | `x` ``` "
    "\x1b[35;7mansi \x1b]0;title\x07 \x9b35;7m \u202ebidi\u2066 [bold red]x[/x] [/] $x^{ \\frac & &lt; **b** __u__ "
    "\r\n# heading\n- item\x00 \x7f \u2028 ~~s~~"
)
LONG = "long " * 200_000  # 1 MB


def hostile(db: sqlite3.Connection, rank: int) -> None:
    """Put hostile names wherever the export has names."""
    names = {
        "checkpoint": EVIL,
        "gemm": f"gemm{EVIL}<int, 4>",
        "data_load": f"data_load {EVIL}{LONG if rank == 0 else ''}",
        "read": EVIL + LONG,
    }
    for old, new in names.items():
        # An entry of StringIds with a NUL in it is no name.
        entry = new.replace("\0", "")
        db.execute("UPDATE StringIds SET value = ? WHERE value = ? OR value LIKE ?", (entry, old, f"{old}%"))
        db.execute("UPDATE NVTX_EVENTS SET text = ? WHERE text = ?", (new, old))
    db.execute("UPDATE NVTX_EVENTS SET text = text || CAST(x'fffe41' AS TEXT) WHERE text LIKE 'step %'")
    node = f"node{'AB'[rank // 2]}{EVIL}{LONG}"
    db.execute("UPDATE TARGET_INFO_SYSTEM_ENV SET value = ? WHERE name = 'Hostname'", (node,))
    db.execute(
        "UPDATE META_DATA_CAPTURE SET value = ? WHERE value LIKE 'SLURMD_NODENAME=%'",
        (f'SLURMD_NODENAME="{node}"',),
    )
    db.execute("UPDATE META_DATA_EXPORT SET value = ? WHERE name = 'EXPORT_PRODUCT_VERSION'", (EVIL + LONG,))
    db.execute("UPDATE TARGET_INFO_GPU SET name = ?, uuid = ?", (EVIL + LONG, f"GPU-{rank}{EVIL}{LONG}"))


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> list[Path]:
    """Four ranks, rank 2 late in a range with a hostile name."""
    folder = tmp_path_factory.mktemp("job")
    made = synthetic(folder, steps=10, late={2: 4 * MS}, late_as="host:checkpoint", jitter_ns=50_000)
    for rank, path in made.reports.items():
        with closing(sqlite3.connect(path)) as db, db:
            hostile(db, rank)
    return made.paths


@pytest.fixture(scope="module")
def ticket(job, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "ticket"
    call("compare", *job, "-o", folder)
    return folder


def call(*arguments: object) -> str:
    """Run a command; what it printed on both streams."""
    done = CliRunner().invoke(group, [str(a) for a in arguments], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.output


def is_inert(text: str, most: int = 60_000) -> None:
    """Only line feeds control anything, and nothing is long."""
    assert [c for c in text if not c.isprintable() and c != "\n"] == []
    assert len(text) < most
    assert "\n# heading" not in text
    assert "\n- item" not in text


def test_the_range_is_named_all_the_same(job):
    report = run(job)
    found = report["findings"][0]
    assert (found["kind"], found["rank"], found["cause"]) == ("late_rank", 2, "host")
    assert found["cause_detail"]["range"].startswith("<script>alert(1)</script><img src=x")
    assert report["ranks"][0]["node"].startswith("nodeA<script>")


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_printed(job, form):
    is_inert(call("compare", *job, "--format", form))


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_difference(job, ticket, form):
    # As reports, and as names that come back from a report.json.
    is_inert(call("diff", job[0].parent, job[0].parent, "--format", form), 100_000)
    is_inert(call("diff", ticket, job[0].parent, "--format", form), 100_000)


def test_difference_in_files(job, tmp_path):
    call("diff", job[0].parent, job[0].parent, "-o", tmp_path / "out")
    is_inert((tmp_path / "out" / "diff.md").read_text(encoding="utf-8"), 100_000)
    html = (tmp_path / "out" / "diff.html").read_text(encoding="utf-8")
    assert "<script" not in html
    assert "<img src=x" not in html
    assert b"<script" not in (tmp_path / "out" / "plots" / "before_after.svg").read_bytes()


def test_json(job):
    text = call("compare", *job, "--format", "json")
    is_inert(text, 100_000)
    assert json.loads(text)["schema"] == "rankdiff.report/1"


def test_inspect(job):
    is_inert(call("inspect", *job))


def test_terminal(job, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    outcome = compare([str(p) for p in job])
    text = to_terminal(outcome.comparison, outcome.notes)
    assert "[bold red]x[/x]" in text
    assert "35;7" in text  # as text
    colours = re.findall(r"\x1b\[([0-9;]*)m", text)
    assert colours
    assert "35;7" not in colours
    is_inert(re.sub(r"\x1b\[[0-9;]*m", "", text))


def test_markdown_has_no_markup_of_theirs(ticket):
    text = (ticket / "report.md").read_text(encoding="utf-8")
    is_inert(text)
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough").parse(text)
    inline = [t for token in tokens for t in (token.children or [])]
    kinds = {t.type for t in (*tokens, *inline)}
    assert not kinds & {"html_block", "html_inline", "link_open", "s_open"}
    assert all(t.attrs["src"].startswith("plots/") for t in inline if t.type == "image")
    # Whatever bars a name has, each table keeps its columns.
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in text.split("\n")]
    assert sum(1 for n in bars if n) > 15
    assert all(a == b for a, b in pairwise(bars) if a and b)
    plain = "".join(t.content for t in inline if t.type in ("text", "text_special"))
    assert "<script>alert(1)</script>" in plain


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.links.update((value or "")[:10] for name, value in attrs if name in ("src", "href"))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html(ticket):
    page = Page()
    page.feed((ticket / "report.html").read_text(encoding="utf-8"))
    assert not page.tags & {"script", "a", "iframe", "b1", "bold", "x"}
    assert not {a for a in page.attributes if a.startswith("on")}
    assert page.links <= {"data:image"}
    assert "<script>alert(1)</script>" in page.text


def test_pictures(ticket):
    vector = sorted((ticket / "plots").glob("*.svg"))
    assert len(vector) >= 5
    for path in vector:
        tags = {element.tag.split("}")[-1] for element in ET.parse(path).iter()}
        assert not tags & {"script", "a", "foreignObject", "image1"}
        assert path.stat().st_size < 1_000_000
    for path in (ticket / "plots").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        assert path.stat().st_size < 1_000_000


def test_timeline(job, tmp_path):
    is_inert(call("timeline", *job, "-o", tmp_path / "step.svg"))
    tags = {element.tag.split("}")[-1] for element in ET.parse(tmp_path / "step.svg").iter()}
    assert not tags & {"script", "a", "foreignObject"}
    assert (tmp_path / "step.svg").stat().st_size < 2_000_000


def test_trace(job, tmp_path):
    call("trace", *job, "-o", tmp_path / "job.json.gz")
    data = gzip.decompress((tmp_path / "job.json.gz").read_bytes())
    assert len(data) < 3_000_000
    names = {event["name"] for event in json.loads(data)["traceEvents"]}
    assert max(map(len, names)) <= LONGEST_NAME + 20
    assert [name for name in names if not name.isprintable()] == []
    assert any(name.startswith("<script>alert(1)</script>") for name in names)


@pytest.mark.skipif(
    importlib.util.find_spec("perfetto") is None, reason="the extra perfetto is not installed"
)
def test_perfetto(job, tmp_path):
    call("trace", *job, "-o", tmp_path / "job.pftrace")
    data = (tmp_path / "job.pftrace").read_bytes()
    assert len(data) < 3_000_000
    assert b"<script>alert(1)</script>" in data
    assert b"\x1b[35;7m" not in data
    assert b"\x1b]0;" not in data


def test_database(job, tmp_path):
    is_inert(call("compare", *job, "--save-db", tmp_path / "job.duckdb"))
    with duckdb.connect(str(tmp_path / "job.duckdb"), read_only=True) as db:
        texts = db.execute(
            "SELECT schema_name || '.' || table_name, column_name FROM duckdb_columns() "
            "WHERE NOT internal AND data_type = 'VARCHAR'"
        ).fetchall()
        values = {
            x
            for table, name in texts
            for (x,) in db.execute(f'SELECT DISTINCT "{name}" FROM {table}').fetchall()
        }
    found = values - {None}
    assert [x for x in found if not x.isprintable()] == []
    assert max(map(len, found)) < 5_000
    assert any(x.startswith("gemm<script>alert(1)</script>") for x in found)


FILES = (
    b"-o_prof_a_0.sqlite",
    b"prof_a\n\x1b[35;7m<b>`$(id)`_1.sqlite",
    b"prof_b\xff\xe2\x80\xae_2.sqlite",
    b"--force",
)


@pytest.fixture
def strange(tmp_path, monkeypatch) -> list[str]:
    """A job whose files have hostile names, in the working directory; the names as Python has them."""
    made = synthetic(tmp_path / "made", steps=10, late={2: 4 * MS}, late_as="host:checkpoint")
    monkeypatch.chdir(tmp_path)
    names = [os.fsdecode(name) for name in FILES]
    for path, name in zip(made.paths, names, strict=True):
        shutil.move(path, name)
    return names


@pytest.mark.parametrize("before", [["--"], []])
def test_file_names(strange, before):
    paths = strange if before else [f"./{name}" for name in strange]
    for form in ("text", "markdown", "json"):
        text = call("compare", "--format", form, *before, *paths)
        is_inert(text)
        assert "ank 2 on" in text
        assert "?[35;7m" in text or form == "text"
    is_inert(call("inspect", *before, *paths))


def test_a_command_to_repeat_cannot_be_broken_out_of(strange):
    text = call("compare", "--format", "markdown", "--", *strange)
    line = next(line for line in text.splitlines() if line.startswith("rankdiff compare"))
    assert "./-o_prof_a_0.sqlite" in line
    assert "'prof_a??[35;7m<b>`$(id)`_1.sqlite'" in line
    assert argument("-x y") == "'./-x y'"
    assert argument("a\n;b") == "'a?;b'"


def test_messages_about_files_are_one_line(tmp_path):
    bad = tmp_path / "x\n\x1b[35;7m\u202e.sqlite"
    bad.write_bytes(b"\x1f\x8b" + bytes(50))
    done = CliRunner().invoke(group, ["compare", str(bad), str(tmp_path / "not\nthere\x07")])
    is_inert(str(done.exception) + done.output)
    assert "gunzip -k '" in done.output


def test_a_file_name_taken_for_an_option(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rankdiff", "compare", "-\x1b[35;7m\n# heading\u202e"])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "No such option" in said.err
    is_inert(said.err)


def test_notes_and_errors_are_one_line():
    for text in (str(RankdiffError(EVIL + LONG, EVIL)), Note("code", EVIL + LONG).message):
        assert text.isprintable()
        assert len(text) < 20_000


def test_clean_and_shown():
    assert clean("plain ünïcode €") == "plain ünïcode €"
    assert clean("a\x1b[0m\n\udcff\u202e") == "a?[0m???"
    assert shown("x" * LONGEST_NAME) == "x" * LONGEST_NAME
    cut = shown("step " + "y" * 5_000 + " 17")
    assert len(cut) == LONGEST_NAME
    assert cut.startswith("step y")
    assert cut.endswith("y 17")
    assert "…" in cut


def test_markdown_makes_no_links_of_addresses():
    assert escape("see http://evil.example or www.evil.example") == (
        "see http\\://evil.example or www\\.evil.example"
    )


def test_views_and_triggers_are_never_run(tmp_path):
    made = synthetic(tmp_path, steps=10, late={2: 4 * MS}, late_as="host:checkpoint")
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x"
    for path in made.paths:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("DROP TABLE IF EXISTS OSRT_API")
            db.execute(
                f'CREATE VIEW OSRT_API AS {endless} AS "start", x AS "end", x AS globalTid, 27 AS eventClass, '
                "x AS nameId FROM c"
            )
            db.execute(f"CREATE VIEW MPI_RANKS AS {endless} AS globalTid, x AS rank FROM c")
            db.execute("CREATE TABLE ran (x)")
            for table in ("NVTX_EVENTS", "StringIds", "CUPTI_ACTIVITY_KIND_KERNEL"):
                for event in ("INSERT", "UPDATE", "DELETE"):
                    db.execute(
                        f"CREATE TRIGGER {table}_{event} AFTER {event} ON {table} BEGIN INSERT INTO ran VALUES (1); END"
                    )
    before = [path.read_bytes() for path in made.paths]
    report = run(made.paths)
    assert report["findings"][0]["rank"] == 2
    assert {rank["idle_osrt_ns"] for rank in report["ranks"]} == {None}
    assert [path.read_bytes() for path in made.paths] == before
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in made.paths)
