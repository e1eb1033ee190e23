"""The ticket: Markdown, HTML and the folder they are written to."""

from __future__ import annotations

import html.parser
import json
import re
import stat

import pytest

from rankdiff.errors import RankdiffError
from rankdiff.pipeline import compare
from rankdiff.render.document import Bullets, Code, Facts, Heading, Paragraph, Picture, Table
from rankdiff.render.folder import write_folder
from rankdiff.render.html import to_html
from rankdiff.render.markdown import escape, to_markdown
from rankdiff.render.package import ticket_files
from rankdiff.render.rank_table import sparkline
from rankdiff.render.terminal import to_terminal
from rankdiff.render.text import to_text
from rankdiff.simulation import base4, flat8, synthetic
from tests.test_cli import rankdiff

MS = 1_000_000
NASTY = "</td><script>alert(1)</script>|`[x](javascript:y)\x1b[31m\u202e*_"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("data_load", "data_load"),
        ("_a_ *b* [DALI] <img> c|d", r"\_a\_ \*b\* \[DALI\] \<img\> c\|d"),
        ("# no heading", r"\# no heading"),
        ("1. no list", r"1\. no list"),
        ("- no list", r"\- no list"),
        ("&lt; a & b", r"\&lt; a & b"),
        ("a\x1bb\u202ec\nd", "a?b?c?d"),
    ],
)
def test_markdown_shows_names_as_they_are(text, shown):
    assert escape(text) == shown


def test_markdown_blocks():
    text = to_markdown(
        [
            Heading("T", 1),
            Paragraph("p", strong=True),
            Facts([("a", "b")]),
            Bullets(["x", "y"]),
            Table(("n", "v"), [("r", "1")], frozenset({1}), frozenset({0})),
            Picture("lateness", "Late", "See."),
            Code("echo `x`"),
        ]
    )
    assert text == (
        "# T\n\n**p**\n\n|  |  |\n| --- | --- |\n| a | b |\n\n- x\n- y\n\n| n | v |\n| --- | ---: |\n| **r** | **1** |\n\n"
        "![Late](plots/lateness.png)\n\n*See.*\n\n```sh\necho `x`\n```\n"
    )


class _Page(html.parser.HTMLParser):
    """Tags and text of a page; complains about tags that do not close."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_html_is_self_contained_and_inert():
    blocks = [
        Heading(NASTY, 1),
        Paragraph(NASTY),
        Facts([(NASTY, NASTY)]),
        Bullets([NASTY]),
        Table((NASTY,), [(NASTY,)]),
        Picture("p", NASTY, NASTY),
        Code(NASTY),
    ]
    page = _Page(to_html(blocks, {"p": b"<svg/>"}))
    assert not {t for t, _ in page.tags} & {"script", "iframe", "link", "object", "a"}
    assert all(a.get("src", "data:").startswith("data:") for _, a in page.tags)
    assert not [a for _, a in page.tags for name in a if name.startswith("on")]
    assert "\x1b" not in "".join(page.words)
    assert "\u202e" not in "".join(page.words)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    job = base4(tmp_path_factory.mktemp("job"), late_as="data_load")
    return compare([str(p) for p in job.paths])


@pytest.fixture(scope="module")
def files(outcome):
    return ticket_files(outcome.comparison, outcome.notes, "rankdiff compare prof_*.sqlite -o ticket")


def test_the_ticket_has_all_parts(files):
    text = files["report.md"].decode()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    for part in ("Ranks", "Pictures", "Where the time goes", "Clocks", "Quality", "Provenance"):
        assert part in headings
    assert "Rank 2 on nodeB made the others wait" in text
    assert json.loads(files["report.json"])["schema"] == "rankdiff.report/1"
    linked = set(re.findall(r"\]\((plots/[a-z_]+\.png)\)", text))
    assert linked == {name for name in files if name.endswith(".png")}
    assert {name.replace(".png", ".svg") for name in linked} == {n for n in files if n.endswith(".svg")}
    page = _Page(files["report.html"].decode())
    assert sum(t == "img" for t, _ in page.tags) == len(linked)


def test_the_same_comparison_gives_the_same_bytes(outcome, files):
    assert (
        ticket_files(outcome.comparison, outcome.notes, "rankdiff compare prof_*.sqlite -o ticket") == files
    )


def test_names_are_inert_in_every_format(tmp_path):
    job = synthetic(
        tmp_path,
        nodes=[NASTY, NASTY, "b", "b"],
        late={0: 3 * MS},
        pattern="prof_{rank}.sqlite",
        step_ranges="step {}",
    )
    done = compare([str(p) for p in job.paths])
    made = ticket_files(done.comparison, done.notes, "x")
    page = _Page(made["report.html"].decode())
    assert not {t for t, _ in page.tags} & {"script", "a"}
    assert "<script>" not in re.sub(r"```.*?```", "", made["report.md"].decode(), flags=re.DOTALL).replace(
        "\\<", ""
    )
    for name in ("report.md", "report.html", "report.json"):
        assert b"\x1b" not in made[name]


def test_a_folder_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "ticket"
    write_folder(target, {"a.md": b"1", "plots/b.png": b"2"}, force=False)
    assert (target / "plots" / "b.png").read_bytes() == b"2"
    assert stat.S_IMODE(target.stat().st_mode) & 0o500 == 0o500
    with pytest.raises(RankdiffError, match="not empty"):
        write_folder(target, {"a.md": b"3"}, force=False)
    (target / "mine.txt").write_text("kept")
    write_folder(target, {"a.md": b"3"}, force=True)
    assert (target / "a.md").read_bytes() == b"3"
    assert (target / "mine.txt").read_text() == "kept"
    assert [p.name for p in tmp_path.iterdir()] == ["ticket"]


def test_a_failed_write_leaves_nothing(tmp_path):
    # A file where a folder is needed: the second write fails half way.
    with pytest.raises((RankdiffError, OSError)):
        write_folder(tmp_path / "ticket", {"a": b"1", "a/b": b"2"}, force=False)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_ticket_and_refuses_to_overwrite(tmp_path):
    job = base4(tmp_path / "job")
    target = tmp_path / "ticket"
    done = rankdiff("compare", *job.paths, "-o", target, "--no-plots")
    assert done.returncode == 0
    assert sorted(p.name for p in target.iterdir()) == ["report.html", "report.json", "report.md"]
    text = (target / "report.md").read_text()
    assert "rankdiff compare prof_nodeA_0.sqlite" in text
    assert str(tmp_path) not in text
    again = rankdiff("compare", *job.paths, "-o", target, "--no-plots")
    assert again.returncode == 1
    assert "not empty" in again.stderr
    assert again.stdout == ""  # refused before the work
    assert rankdiff("compare", *job.paths, "-o", target, "--no-plots", "--force").returncode == 0
    assert (target / "report.md").read_text() == text


def test_markdown_on_stdout(tmp_path):
    done = rankdiff("compare", *base4(tmp_path).paths, "--format", "markdown")
    assert done.stdout.startswith("# Rank 2 on nodeB holds the job up\n")


def test_terminal_colours_say_the_same_words(outcome, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain = to_text(outcome.comparison, outcome.notes)
    coloured = to_terminal(outcome.comparison, outcome.notes)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert to_terminal(outcome.comparison, outcome.notes) == plain


def test_text_fits_80_columns(outcome, tmp_path):
    assert max(map(len, to_text(outcome.comparison, outcome.notes).splitlines())) <= 80
    wide = compare(
        [str(p) for p in flat8(tmp_path, steps=30, nodes=["very-long-node-name-" + "x" * 40] * 8).paths]
    )
    rows = [x for x in to_text(wide.comparison, wide.notes).splitlines() if " even " in x]
    assert len(rows) == 8
    assert max(map(len, rows)) <= 80


def test_sparkline():
    import numpy as np

    assert sparkline(np.array([0.0, 1.0, 8.0]), 8.0) == "▁▂█"
    assert len(sparkline(np.arange(1000.0), 999.0, 10)) == 10
    assert sparkline(None, 1.0) == ""
    assert sparkline(np.zeros(3), 0.0) == ""
