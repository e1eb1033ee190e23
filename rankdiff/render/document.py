"""A document as blocks, so that Markdown and HTML say the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankdiff.untrusted import clean as clean


@dataclass(frozen=True)
class Heading:
    """A heading; level 1 is the document's title."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; `strong` for the sentence that a hurried reader must see."""

    text: str
    strong: bool = False


@dataclass(frozen=True)
class Facts:
    """Short facts: what, and its value."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True)
class Table:
    """A table; columns in `numeric` are set flush right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()
    strong_rows: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Picture:
    """A figure: file name without ending, title, and what to see in it."""

    name: str
    title: str
    caption: str


@dataclass(frozen=True)
class Code:
    """Text to copy as it is."""

    text: str


Block = Heading | Paragraph | Facts | Bullets | Table | Picture | Code


def clean_lines(text: str) -> str:
    """`clean` line by line."""
    return "\n".join(clean(line) for line in text.split("\n"))
