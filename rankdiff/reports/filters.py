"""Conditions on rows that every reader understands: as SQL, or tested while decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Operator = Literal["in", "not in", "not null", ">=", "<"]


def quote(name: str) -> str:
    """Quote a table or column name."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Filter:
    """A condition on one column of integers; null never meets it.

    Attributes
    ----------
    column : str
    operator : str
        "in", "not in", "not null", ">=" or "<".
    values : tuple of int
        None for "not null", one for a comparison. "in" none of them is met by no row, "not in" none of them is
        not allowed: SQL lets null pass there.
    """

    column: str
    operator: Operator
    values: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        counts = {"in": True, "not in": self.values, "not null": not self.values}
        if not counts.get(self.operator, len(self.values) == 1):
            raise ValueError(f"{self.operator} with {len(self.values)} values")

    def sql(self) -> str:
        """The condition as SQL, for SQLite and DuckDB alike."""
        name = quote(self.column)
        if self.operator == "not null":
            return f"{name} IS NOT NULL"
        # As text, for engines limit the number of parameters, and numbers need no quotes.
        numbers = ", ".join(str(int(value)) for value in self.values)
        if self.operator in ("in", "not in"):
            return f"{name} {self.operator.upper()} ({numbers})" if numbers else "1 = 0"
        return f"{name} {self.operator} {numbers}"


def condition(filters: Sequence[Filter]) -> str:
    """All conditions at once as SQL; empty for none."""
    return " AND ".join(each.sql() for each in filters)
