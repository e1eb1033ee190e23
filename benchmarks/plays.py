"""Jobs played as arrays: when every rank reached and left every collective, without files in between.

A calibration needs thousands of jobs of up to 64 ranks and 200 steps. Writing and reading exports for them would
take days, so a play goes straight into digests. What reading adds is held against planted faults in
files (`rankdiff simulate`); a test holds a play in digests against the same play in files.

Nothing here knows how rankdiff analyses: only the layout of its digest tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rankdiff.claims import Claims
from rankdiff.digest import Digest, DigestInfo
from rankdiff.reports.identity import Identity
from rankdiff.schema import COLLECTIVES, DIGEST_TABLES, STEPS, WORK

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

FAMILIES = ("normal", "exponential", "pareto")
_PARETO_SHAPE = 2.5  # of finite variance, and with the tail of a shared file system
_UTC = 1_779_630_000_000_000_000  # UTC ns of session time 0
_LEAD_NS = 20_000  # a launch lies so long before its kernel


def jitter(draws: np.random.Generator, family: str, sigma: float, shape: tuple[int, ...]) -> F64:
    """Draw noise of standard deviation `sigma`; normal is centred, the others only ever add time."""
    if family == "normal":
        return draws.normal(0.0, sigma, shape)
    if family == "exponential":
        return draws.exponential(sigma, shape)
    if family == "pareto":
        a = _PARETO_SHAPE
        unit = np.sqrt(a / ((a - 1) ** 2 * (a - 2)))  # standard deviation of numpy's (Lomax) draws
        return draws.pareto(a, shape) * sigma / unit
    raise ValueError(f"jitter family {family!r}, expected one of {', '.join(FAMILIES)}")


@dataclass(frozen=True)
class Group:
    """A communicator and where in the step its collectives come.

    Attributes
    ----------
    members : tuple of int
        Ranks.
    comm : str
        Communicator hash, 16 hex digits.
    stream : int
    """

    members: tuple[int, ...]
    comm: str
    stream: int


@dataclass(frozen=True)
class Play:
    """A training loop of `ranks` ranks: every step is `per_step` stretches of work, each ended by collectives.

    Times in ns. `work` is rank by step: what a rank computes in a step, before noise.
    """

    ranks: int = 8
    per_node: int = 4
    steps: int = 50
    step_ns: float = 100e6
    per_step: int = 4
    family: str = "normal"
    jitter_share: float = 0.01  # standard deviation of a rank's work in a step, as a share of the step
    late: Mapping[int, F64 | float] = field(default_factory=dict)  # extra work per step, ns
    transfer_ns: float = 1e6  # of each collective
    end_jitter_ns: float = 20e3  # standard deviation of a member's end
    tensor: int = 1  # ranks of a tensor-parallel group; above 1 a step has two kinds of communicators
    offset_ns: Mapping[int, float] = field(default_factory=dict)  # by node: its clock is ahead
    drift_ppm: Mapping[int, float] = field(default_factory=dict)  # by node: and gains
    shift: Mapping[int, int] = field(default_factory=dict)  # by rank: instances before its window
    short: Mapping[int, int] = field(default_factory=dict)  # by rank: instances after its window
    lost_share: float = 0.0  # of all kernel events
    payloads: bool = True
    step_ranges: bool = True
    seed: int = 0


@dataclass(frozen=True)
class Played:
    """Digests of a play, with what truly happened."""

    digests: list[Digest]
    identities: list[Identity]
    true_index: list[I64]  # per rank: for each collective of its digest the index of its instance in the play
    offset_ns: F64  # (nodes,) true clock offset in the middle of the play


def perform(play: Play) -> Played:
    """Play a job and digest it."""
    draws = np.random.default_rng([play.seed, 17])
    n, k, p = play.ranks, play.steps, play.per_step
    share = play.jitter_share * play.step_ns / np.sqrt(p)
    work = np.maximum(play.step_ns / p + jitter(draws, play.family, share, (k, p, n)), 0.0)
    for rank, extra in play.late.items():
        work[:, :, rank] += np.broadcast_to(np.asarray(extra, np.float64), (k,))[:, None] / p
    layers = _layers(play)
    spread = [_spread(layer, n) for layer in layers]
    noise = draws.normal(0.0, play.end_jitter_ns, (k, p, n))
    free = np.zeros(n)
    start, end = np.empty((k, p, n)), np.empty((k, p, n))
    for step in range(k):
        for stretch in range(p):
            arrive = free + work[step, stretch]
            start[step, stretch] = arrive
            members, first, group = spread[stretch]
            leave = np.maximum.reduceat(arrive[members], first)[group] + play.transfer_ns
            free = end[step, stretch] = np.maximum(leave + noise[step, stretch], arrive + 1_000)
    del work, noise
    return _digested(play, start.reshape(k * p, n), end.reshape(k * p, n), layers, draws)


def _spread(layer: Sequence[Group], ranks: int) -> tuple[I64, I64, I64]:
    """Members of all groups of a layer one after the other, where each begins, and the group of every rank."""
    members = np.concatenate([np.array(g.members, np.int64) for g in layer])
    sizes = np.array([len(g.members) for g in layer])
    group = np.empty(ranks, np.int64)
    group[members] = np.repeat(np.arange(sizes.size), sizes)
    return members, np.cumsum(sizes) - sizes, group


def _layers(play: Play) -> list[list[Group]]:
    """Communicators of each stretch of a step."""
    n, t = play.ranks, play.tensor
    world = np.arange(n)
    if t == 1:
        return [[_group(world, 20)]] * play.per_step
    pairs = [_group(g, 20) for g in world.reshape(-1, t)]
    across = [_group(g, 30) for g in world.reshape(-1, t).T]
    return [across if s == play.per_step - 1 else pairs for s in range(play.per_step)]


def _group(members: I64, stream: int) -> Group:
    code = hash((stream, *map(int, members))) & 0xFFFF_FFFF_FFFF_FFFF
    return Group(tuple(int(m) for m in members), f"{code:016x}", stream)


def _digested(
    play: Play, start: F64, end: F64, layers: Sequence[Sequence[Group]], draws: np.random.Generator
) -> Played:
    m, n = start.shape
    nodes = -(-n // play.per_node)
    middle = float(np.median(end))
    digests, identities, index = [], [], []
    group_of = [{r: g for g in layer for r in g.members} for layer in layers]
    for r in range(n):
        node = r // play.per_node
        offset, rate = play.offset_ns.get(node, 0.0), play.drift_ppm.get(node, 0.0) * 1e-6

        def on_clock(t: F64, offset: float = offset, rate: float = rate) -> I64:
            return np.rint(t + offset + rate * t).astype(np.int64)

        keep = np.arange(play.shift.get(r, 0), m - play.short.get(r, 0))
        keep = keep[draws.random(keep.size) >= play.lost_share]
        groups = [here[r] for here in group_of]
        digest = _digest(play, r, on_clock(start[:, r]), on_clock(end[:, r]), groups, keep)
        digests.append(digest)
        identities.append(
            Identity(digest.info.claims, r, str(r), f"n{node:03d}", "SLURM_PROCID", "SLURMD_NODENAME")
        )
        index.append(keep)
    true = np.array(
        [play.offset_ns.get(h, 0.0) + play.drift_ppm.get(h, 0.0) * 1e-6 * middle for h in range(nodes)]
    )
    return Played(digests, identities, index, true)


def _digest(play: Play, rank: int, start: I64, end: I64, groups: Sequence[Group], keep: I64) -> Digest:
    """Digest of one rank; `groups` are its communicators by stretch, `keep` the instances in its window."""
    m = keep.size
    launch = start[keep] - _LEAD_NS
    stretch = keep % play.per_step
    comm = pl.Series([g.comm if play.payloads else None for g in groups], dtype=pl.String)
    known = "payload" if play.payloads else "kernel"
    step = keep // play.per_step
    first = int(step.min())
    collectives = pl.DataFrame(
        {
            "start_ns": start[keep],
            "end_ns": end[keep],
            "launch_ns": launch,
            "launch_end_ns": launch + 5_000,
            "launch_tid": np.full(m, 1),
            "stream": np.array([g.stream for g in groups])[stretch],
            "context": np.ones(m, np.int64),
            "kernel": pl.repeat("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", m, eager=True),
            "op": pl.repeat("all_reduce", m, eager=True),
            "op_class": pl.repeat("nxn", m, eager=True),
            "comm": comm.gather(stretch),
            "bytes": pl.repeat(1 << 20 if play.payloads else None, m, dtype=pl.Int64, eager=True),
            "root": pl.repeat(None, m, dtype=pl.Int64, eager=True),
            "ops_in_group": np.ones(m, np.int64),
            "op_source": pl.repeat(known, m, eager=True),
            "lead_token": stretch.astype(np.uint64),
            "step": step - first if play.step_ranges else pl.repeat(None, m, dtype=pl.Int64, eager=True),
        },
        schema=COLLECTIVES,
    ).sort("start_ns", "end_ns", "stream")
    steps = pl.DataFrame(schema=STEPS)
    if play.step_ranges:
        number = np.arange(first, int(step.max()) + 1)
        begin = start[number * play.per_step] - 2 * _LEAD_NS
        steps = pl.DataFrame(
            {
                "step": number - first,
                "number": number,
                "name": [f"step {s}" for s in number],
                "start_ns": begin,
                "end_ns": np.append(begin[1:], end[-1]),
            },
            schema=STEPS,
        )
    busy_from = np.append(start[keep[0]] - 1_000_000, end[keep][:-1])
    work = pl.DataFrame(
        {"kind": pl.repeat("compute", m, eager=True), "start_ns": busy_from, "end_ns": start[keep]},
        schema=WORK,
    ).filter(pl.col("end_ns") > pl.col("start_ns"))
    empty = {name: pl.DataFrame(schema=schema) for name, schema in DIGEST_TABLES.items()}
    window = int(busy_from[0]), int(end[keep[-1]])
    return Digest(
        info=_info(play, rank, window, int((end[keep] - start[keep]).sum()), m),
        **{**empty, "collectives": collectives, "steps": steps, "work": work},
    )


def _info(play: Play, rank: int, window: tuple[int, int], nccl_ns: int, kernels: int) -> DigestInfo:
    span = window[1] - window[0]
    name = f"prof_n{rank // play.per_node:03d}_{rank}.sqlite"
    return DigestInfo(
        claims=Claims(name, name, 4000 + rank, 0, 1, env_rank=rank, env_rank_name="SLURM_PROCID"),
        product_version=None,
        schema_version="3.24.14",
        session_start_utc_ns=_UTC,
        time_shift_ns=0,
        gpu_uuid=None,
        gpu_name=None,
        gpu_bus=None,
        window_start_ns=window[0],
        window_end_ns=window[1],
        span_ns=span,
        busy_ns=span,
        idle_ns=0,
        idle_data_load_ns=None,
        idle_osrt_ns=None,
        nccl_kernels=kernels,
        nccl_ns=nccl_ns,
        step_source="nvtx:step #" if play.step_ranges else None,
        has_payloads=play.payloads,
        hidden_by_graphs=False,
    )


def healthy(play: Play) -> Play:
    """Return the play without its late ranks."""
    return replace(play, late={})
