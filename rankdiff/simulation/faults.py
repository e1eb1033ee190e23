"""Faults to plant, in a syntax for people: ``data_load:rank=5:ms=30``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rankdiff.errors import RankdiffError


class OptionError(RankdiffError):
    """Something asked for in a way that cannot be understood, or that this job cannot have."""

    exit_code = 2


class Kind(NamedTuple):
    """What a kind of fault needs and takes besides `rank`, `node`, `every`, `first` and `last`."""

    says: str
    amounts: tuple[str, ...]  # one of these must be given, unless there is a default
    takes: tuple[str, ...] = ()
    where: bool = True  # whether a rank or a node must be given
    steps: bool = True  # whether it comes in chosen steps


KINDS = {
    "data_load": Kind("the data loader reads longer", ("ms",)),
    "io": Kind("fsync before the first launch", ("ms",)),
    "os_wait": Kind("nanosleep before the first launch", ("ms",)),
    "host": Kind("code before the first launch, in an NVTX range", ("ms",), ("range",)),
    "alloc": Kind("cudaMalloc before the first launch", ("ms",)),
    "sync": Kind("numbers read back from the GPU one by one, as with .item()", ("ms",)),
    "copy": Kind("a copy to the GPU before the first kernel", ("ms",)),
    "gpu_slow": Kind("the same kernels take longer", ("factor", "ms")),
    "gpu_work": Kind("one more kernel", ("ms",)),
    "gpu_grid": Kind("kernels with larger grids, and longer", ("factor", "ms")),
    "profiler": Kind("the profiler flushes its buffers", ("ms",)),
    "network": Kind("transfers between the node and others take longer", ("factor",)),
    "rotate": Kind("in step k rank k mod n sleeps", ("ms",), where=False),
    "startup": Kind("ranks begin their first step within so much time", ("ms",), where=False, steps=False),
    "lost_events": Kind("the profiler loses a share of the kernels", ("share",), steps=False),
}
_DEFAULTS = {"startup": ("ms", "2000"), "lost_events": ("share", "0.01")}
_SYNTAX = "expected KIND:rank=RANKS:ms=MS and the like"
_LIST = re.compile(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*")
_NAMES = re.compile(r"[\w.-]+(,[\w.-]+)*")


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes
    ----------
    text : str
        As it was written.
    kind : str
        One of `KINDS`.
    ranks : tuple of int
        As given by `rank`; empty: none given.
    nodes : tuple of str
        As given by `node`.
    ns : int
        Extra time in each step that has it; 0: given as a factor or a share.
    factor : float
        Times as long; 1: given as time.
    share : float
        Of kernels lost.
    every, first, last : int or None
        Every so many steps, from the first to the last (numbers from 0). The first of every n is n - 1, as with
        what is done after n steps.
    range : str
        NVTX range of `host`.
    """

    text: str
    kind: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    ns: int = 0
    factor: float = 1.0
    share: float = 0.0
    every: int = 1
    first: int | None = None
    last: int | None = None
    range: str = field(default="checkpoint")

    def steps(self, count: int) -> list[int]:
        """Return the steps that have it, in a job of so many."""
        first = self.every - 1 if self.first is None else self.first
        return list(range(first, count if self.last is None else min(count, self.last + 1), self.every))

    def on(self, nodes: Sequence[str]) -> list[int]:
        """Return the ranks it concerns, of a job whose ranks are on these nodes; all when none were named.

        Raises
        ------
        OptionError
            The job has no such rank or node.
        """
        if not self.ranks and not self.nodes:
            return list(range(len(nodes)))
        if absent := [r for r in self.ranks if r >= len(nodes)]:
            raise OptionError(
                f"--fault {self.text}: no rank {absent[0]}, the job has ranks 0-{len(nodes) - 1}"
            )
        if unknown := [n for n in self.nodes if n not in nodes]:
            raise OptionError(
                f"--fault {self.text}: no node {unknown[0]}, the job has {', '.join(dict.fromkeys(nodes))}"
            )
        return [r for r, node in enumerate(nodes) if r in self.ranks or node in self.nodes]


def parse_fault(text: str) -> Fault:
    """Read a fault: ``KIND:KEY=VALUE:...``.

    Raises
    ------
    OptionError
        It cannot be understood; the message says what was expected.
    """
    name, *pairs = text.split(":")
    if name not in KINDS:
        raise _wrong(text, f"no kind {name!r}", f"{_SYNTAX}; kinds: {', '.join(KINDS)}")
    kind = KINDS[name]
    keys = (*kind.amounts, *kind.takes, "rank", "node")
    if name == "network":
        keys = (*kind.amounts, "node")
    if kind.steps:
        keys += ("every", "first", "last")
    expected = f"{name} takes {', '.join(keys)}; {_SYNTAX}"
    given: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in keys or not value or key in given:
            raise _wrong(text, f"{pair!r} is none of its settings, or there twice", expected)
        given[key] = value
    if name in _DEFAULTS:
        given = dict([_DEFAULTS[name]]) | given
    if sum(key in given for key in kind.amounts) != 1:
        raise _wrong(text, f"{' or '.join(kind.amounts)} is needed, once", expected)
    if kind.where and not ("node" in given or "rank" in given):
        where = "node" if name == "network" else "rank or node"
        raise _wrong(text, f"{where} is needed", expected)
    fault = Fault(text, name)
    for key, value in given.items():
        try:
            fault = replace(fault, **_READERS[key](value))
        except ValueError:
            raise _wrong(text, f"{key}={value}", f"{key} is {_EXPECTED[key]}") from None
    return fault


def _wrong(text: str, found: str, expected: str) -> OptionError:
    return OptionError(f"--fault {text}: {found}; {expected}")


def rank_list(text: str) -> tuple[int, ...]:
    """Read ``0-3,7``.

    Raises
    ------
    ValueError
        It is no list of numbers and ranges.
    """
    if not _LIST.fullmatch(text):
        raise ValueError(text)
    out: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        if high and int(high) < int(low):
            raise ValueError(text)
        out.update(range(int(low), int(high or low) + 1))
    return tuple(sorted(out))


def _names(text: str) -> tuple[str, ...]:
    if not _NAMES.fullmatch(text):
        raise ValueError(text)
    return tuple(text.split(","))


def _number(text: str, low: float, high: float) -> float:
    value = float(text)
    if not low < value <= high:
        raise ValueError(text)
    return value


def _count(text: str, low: int) -> int:
    value = int(text)
    if value < low:
        raise ValueError(text)
    return value


_READERS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "rank": lambda text: {"ranks": rank_list(text)},
    "node": lambda text: {"nodes": _names(text)},
    "ms": lambda text: {"ns": round(_number(text, 0, 3_600_000) * 1_000_000)},
    "factor": lambda text: {"factor": _number(text, 1, 1_000)},
    "share": lambda text: {"share": _number(text, 0, 0.5)},
    "every": lambda text: {"every": _count(text, 1)},
    "first": lambda text: {"first": _count(text, 0)},
    "last": lambda text: {"last": _count(text, 0)},
    "range": lambda text: {"range": text},
}
_EXPECTED = {
    "rank": "a list of ranks like 5 or 0-3,7",
    "node": "the name of a node like n02, or several with commas",
    "ms": "milliseconds above 0, like 30 or 0.5",
    "factor": "a number above 1, like 1.15",
    "share": "a number between 0 and 0.5, like 0.01",
    "every": "a number of steps, like 7",
    "first": "the number of a step, the first being 0",
    "last": "the number of a step, the first being 0",
    "range": "the name of an NVTX range",
}
