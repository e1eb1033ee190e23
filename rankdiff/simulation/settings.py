"""The settings of a simulated job as people write them, read and checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .faults import Fault, OptionError, rank_list

JITTERS = ("normal", "exponential", "pareto")
# What people call a version, and the schema version that such an export declares.
SCHEMAS = {"2.9": "2.9.1", "3.20": "3.20.2", "3.24": "3.24.14"}
_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_DURATION = re.compile(r"([+-]?\d{1,12}(?:\.\d{1,9})?)(ns|us|ms|s)")


@dataclass(frozen=True)
class NodeClock:
    """A node's clock: fast by `offset_ns`, gaining `drift_ppm`, set forward at `steps` (true ns, by ns)."""

    node: str
    offset_ns: int = 0
    drift_ppm: float = 0.0
    steps: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Window:
    """The captures of some ranks begin `skip` steps late and end `end` steps early."""

    ranks: tuple[int, ...]
    skip: int = 0
    end: int = 0


@dataclass(frozen=True)
class Settings:
    """A job to simulate.

    Attributes
    ----------
    step_ms : float
        Compute of one rank in a step, of a pipeline stage of usual weight.
    dp, tp, pp : int
        Data-, tensor- and pipeline-parallel sizes; `dp` 0: what is left.
    micro_batches : int
        Micro-batches of a step, which only a pipeline needs.
    stage_work : sequence of float
        Work of each pipeline stage as a multiple of `step_ms`; empty: 1 for each.
    jitter, jitter_share : str, float
        Family, and its scale as a share of the step's compute (sigma, or the mean).
    payloads, osrt, nvtx : bool
        What was captured and exported.
    schema : str
        One of `SCHEMAS`.
    """

    ranks: int = 8
    nodes: int = 2
    steps: int = 20
    step_ms: float = 20.0
    dp: int = 0
    tp: int = 1
    pp: int = 1
    micro_batches: int = 1
    stage_work: Sequence[float] = ()
    jitter: str = "normal"
    jitter_share: float = 0.01
    faults: Sequence[Fault] = ()
    clocks: Sequence[NodeClock] = ()
    windows: Sequence[Window] = ()
    payloads: bool = True
    osrt: bool = True
    nvtx: bool = True
    schema: str = "3.20"
    seed: int = 0

    @property
    def data_parallel(self) -> int:
        """Data-parallel size, also when it was left to be found."""
        return self.dp or self.ranks // (self.tp * self.pp)

    def node_of(self, rank: int) -> str:
        """Name of the node of a rank; ranks fill nodes in blocks."""
        return f"n{rank * self.nodes // self.ranks + 1:02d}"

    @property
    def rank_nodes(self) -> list[str]:
        """Node of each rank."""
        return [self.node_of(rank) for rank in range(self.ranks)]

    def check(self) -> None:
        """Refuse what contradicts itself.

        Raises
        ------
        OptionError
        """
        product = self.data_parallel * self.tp * self.pp
        if product != self.ranks:
            raise OptionError(
                f"--dp {self.data_parallel} x --tp {self.tp} x --pp {self.pp} are {product} ranks, and --ranks is {self.ranks}"
            )
        if self.nodes > self.ranks:
            raise OptionError(f"--nodes {self.nodes}: more than the {self.ranks} ranks")
        if self.stage_work and len(self.stage_work) != self.pp:
            raise OptionError(
                f"--stage-work has {len(self.stage_work)} numbers, and --pp is {self.pp}: expected one for each stage"
            )
        nodes = self.rank_nodes
        for fault in self.faults:
            fault.on(nodes)
            if not fault.steps(self.steps):
                raise OptionError(f"--fault {fault.text}: none of the {self.steps} steps has it")
        for clock in self.clocks:
            if clock.node not in nodes:
                raise OptionError(
                    f"--clock node={clock.node}: no such node, the job has {', '.join(dict.fromkeys(nodes))}"
                )
        if len({clock.node for clock in self.clocks}) != len(self.clocks):
            raise OptionError("--clock: a node is there twice, expected one for each")
        ranks = [rank for window in self.windows for rank in window.ranks]
        if len(set(ranks)) != len(ranks):
            raise OptionError("--window: a rank is there twice, expected one for each")
        for window in self.windows:
            if absent := [r for r in window.ranks if r >= self.ranks]:
                raise OptionError(f"--window: no rank {absent[0]}, the job has ranks 0-{self.ranks - 1}")
            if window.skip + window.end >= self.steps:
                raise OptionError(f"--window: nothing is left of {self.steps} steps")


def parse_jitter(text: str) -> tuple[str, float]:
    """Read ``normal:2%``: a family and a share of the step's compute.

    Raises
    ------
    OptionError
    """
    found = re.fullmatch(rf"({'|'.join(JITTERS)}):(\d{{1,2}}(?:\.\d{{1,6}})?)%", text)
    if not found:
        raise OptionError(
            f"--jitter {text}: expected FAMILY:SHARE% like normal:2%; families: {', '.join(JITTERS)}"
        )
    return found[1], float(found[2]) / 100


def parse_clock(text: str) -> NodeClock:
    """Read ``node=n02:offset=3.5ms:drift=8ppm:step=10ms@5s``; there may be several steps.

    Raises
    ------
    OptionError
    """
    node, offset, drift, steps = "", 0, 0.0, []
    for pair in text.split(":"):
        key, _, value = pair.partition("=")
        try:
            if key == "node" and value and not node:
                node = value
            elif key == "offset":
                offset = _duration(value)
            elif key == "drift" and re.fullmatch(r"[+-]?\d{1,4}(\.\d{1,3})?ppm", value):
                drift = float(value.removesuffix("ppm"))
            elif key == "step":
                by, _, at = value.partition("@")
                # A clock that is set back would give events that end before they start.
                steps.append((_duration(at, 0), _duration(by, 0)))
            else:
                raise ValueError(pair)
        except ValueError:
            raise OptionError(
                f"--clock {text}: {pair!r}; expected node=NODE and offset=3.5ms, drift=8ppm or step=10ms@5s "
                "(set forward by so much, so long after the first step began)"
            ) from None
    if not node:
        raise OptionError(f"--clock {text}: which node? expected node=NODE:offset=3.5ms and the like")
    return NodeClock(node, offset, drift, tuple(sorted(steps)))


def parse_window(text: str) -> Window:
    """Read ``rank=3:skip=4:end=2``.

    Raises
    ------
    OptionError
    """
    given: dict[str, str] = {}
    for pair in text.split(":"):
        key, _, value = pair.partition("=")
        if key not in ("rank", "skip", "end") or key in given:
            raise OptionError(f"--window {text}: {pair!r}; expected rank=RANKS:skip=STEPS:end=STEPS")
        given[key] = value
    try:
        window = Window(rank_list(given.get("rank", "")), int(given.get("skip", 0)), int(given.get("end", 0)))
    except ValueError:
        window = Window(())
    if not window.ranks or window.skip < 0 or window.end < 0:
        raise OptionError(
            f"--window {text}: expected rank=RANKS:skip=STEPS:end=STEPS like rank=3:skip=4:end=2"
        )
    return window


def parse_stage_work(text: str) -> tuple[float, ...]:
    """Read ``1,1.5``: the work of each stage.

    Raises
    ------
    OptionError
    """
    parts = text.split(",")
    if not all(re.fullmatch(r"\d{1,3}(\.\d{1,6})?", part) and float(part) > 0 for part in parts):
        raise OptionError(f"--stage-work {text}: expected a number above 0 for each stage, like 1,1.5")
    return tuple(float(part) for part in parts)


def _duration(text: str, low: int | None = None) -> int:
    found = _DURATION.fullmatch(text)
    if not found:
        raise ValueError(text)
    ns = round(float(found[1]) * _UNITS[found[2]])
    if low is not None and ns < low:
        raise ValueError(text)
    return ns
