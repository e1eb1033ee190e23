"""Options that several commands share."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import click

F = TypeVar("F", bound=Callable[..., Any])

# Options that say what names mean.
NAMING = ("rank_regex", "data_range", "step_range", "comm_regex")


class RankList(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """``0-7,12``: rank numbers and ranges."""

    name = "ranks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[int]:
        """Parse, or fail with what was expected."""
        out: set[int] = set()
        for part in str(value).split(","):
            found = re.fullmatch(r"\s*(\d{1,7})(?:-(\d{1,7}))?\s*", part)
            if found is None:
                self.fail(f"{part.strip()!r} is not a rank or a range like 0-7", param, ctx)
            low, high = int(found[1]), int(found[2] or found[1])
            if high < low:
                self.fail(f"{part.strip()!r} runs backwards", param, ctx)
            out.update(range(low, high + 1))
        return frozenset(out)


class NodeList(click.ParamType):  # type: ignore[type-arg]
    """``gpu01,gpu07``: names of nodes."""

    name = "nodes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[str]:
        """Parse, or fail with what was expected."""
        found = frozenset(part.strip() for part in str(value).split(","))
        if "" in found:
            self.fail(f"{value!r} is not a list of nodes like gpu01,gpu02", param, ctx)
        return found


class StepRange(click.ParamType):  # type: ignore[type-arg]
    """``12`` or ``10-19``."""

    name = "steps"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Parse, or fail with what was expected."""
        found = re.fullmatch(r"\s*(\d{1,12})(?:-(\d{1,12}))?\s*", str(value))
        if found is None:
            self.fail(f"{value!r} is not a step or a range like 10-19", param, ctx)
        low, high = int(found[1]), int(found[2] or found[1])
        if high < low:
            self.fail(f"{value!r} runs backwards", param, ctx)
        return low, high


class OutputPath(click.Path):
    """Where to write; not nowhere, as ``-o "$UNSET"`` would have it, which is the working directory to a Path."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse, or fail with what was expected."""
        if value == "":
            self.fail("an empty name", param, ctx)
        return super().convert(value, param, ctx)


class Duration(click.ParamType):  # type: ignore[type-arg]
    """``50us``, ``1.5ms``, ``2s`` or plain nanoseconds, as ns."""

    name = "duration"
    _units: ClassVar[dict[str, float]] = {"": 1, "ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse, or fail with what was expected."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,9})?)\s*(ns|us|ms|s|)\s*", str(value))
        if found is None:
            self.fail(f"{value!r} is not a duration like 50us, 1.5ms or 2s", param, ctx)
        return round(float(found[1]) * self._units[found[2]])


class Pattern(click.ParamType):  # type: ignore[type-arg]
    """A regular expression; kept as text, checked here."""

    name = "regex"

    def __init__(self, needs_group: str | None = None) -> None:
        self.needs_group = needs_group

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check that it compiles and has the group it needs."""
        try:
            compiled = re.compile(str(value))
        except re.error as error:
            self.fail(f"not a regular expression: {error}", param, ctx)
        if self.needs_group and self.needs_group not in compiled.groupindex:
            self.fail(f"needs a named group (?P<{self.needs_group}>...)", param, ctx)
        return str(value)


class Regression(click.ParamType):  # type: ignore[type-arg]
    """``regression:5%``, as a share."""

    name = "threshold"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse, or fail with what was expected."""
        from rankdiff.differences.threshold import parse_regression

        if isinstance(value, float):
            return value
        try:
            return parse_regression(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@dataclass(frozen=True)
class Reading:
    """What the user says about how reports are read; see `rankdiff.gathering.ReadOptions`."""

    rank_regex: str | None
    data_range: str | None
    step_range: str | None
    comm_regex: str | None
    strict: bool
    quiet: bool
    jobs: int | None
    cache: Path | None = None


ranks_option = click.option("--ranks", type=RankList(), help="Compare these ranks only, like 0-7,12.")
format_option = click.option(
    "--format", "form", type=click.Choice(["text", "markdown", "json"]), default="text", show_default=True
)


def skip_steps_option(words: str) -> Callable[[F], F]:
    """Give a command ``--skip-steps``; `words` are its help."""
    return click.option("--skip-steps", type=click.IntRange(0), default=0, show_default=True, help=words)


def report_options(cache: bool = True) -> Callable[[F], F]:
    """Give a command its reports, and how to read them as a `Reading`."""

    def decorate(command: F) -> F:
        reports = click.argument("reports", nargs=-1, required=True, metavar="REPORT...")
        return reports(reading_options(cache)(command))

    return decorate


def reading_options(cache: bool = True) -> Callable[[F], F]:
    """Give a command the options of reading as one argument, a `Reading`; without `cache` there is no such option."""
    options = [
        click.option(
            "--rank-regex",
            type=Pattern("rank"),
            help="Regular expression on the file name with the named groups rank and (optional) node.",
        ),
        click.option(
            "--data-range", type=Pattern(), help="NVTX ranges that are data loading (regex, anchored)."
        ),
        click.option("--step-range", type=Pattern(), help="NVTX ranges that are steps (regex, anchored)."),
        click.option("--comm-regex", type=Pattern(), help="Kernels that communicate besides NCCL's (regex)."),
        click.option("--strict", is_flag=True, help="A report that cannot be used is an error."),
        click.option("-q", "--quiet", is_flag=True, help="No progress and no warnings about single reports."),
        click.option(
            "--jobs",
            type=click.IntRange(1),
            help="Reports read at the same time, each by a process; the default is by CPUs, memory and size.",
        ),
    ]
    if cache:
        kept = "Keep what was read of each report in this folder, for the next run."
        options.append(click.option("--cache", type=OutputPath(), help=kept))

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def run(**given: Any) -> Any:
            mine = {field.name: given.pop(field.name) for field in fields(Reading) if field.name in given}
            return command(reading=Reading(**mine), **given)

        for option in options:
            run = option(run)
        return cast(F, run)

    return decorate


def given(*names: str) -> list[str]:
    """Those of the current command's options that the user gave, as words of a shell."""
    context = click.get_current_context()
    types = {parameter.name: parameter.type for parameter in context.command.params}
    return [
        f"--{name.replace('_', '-')} {shlex.quote(_as_typed(types[name], context.params[name]))}"
        for name in names
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
    ]


def _as_typed(kind: click.ParamType, value: Any) -> str:  # type: ignore[type-arg]
    """A value as it is typed."""
    if isinstance(kind, RankList):
        from rankdiff.notes import rank_list

        return rank_list(value)
    if isinstance(kind, Regression):
        return f"regression:{100 * value:.6g}%"
    if isinstance(kind, NodeList):
        return ",".join(sorted(value))
    return "-".join(map(str, value)) if isinstance(kind, StepRange) else str(value)
