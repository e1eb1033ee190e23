"""Where the job's time goes, whether or not somebody is late: make-up of the step, and what people read off it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from rankdiff.digest import Digest
from rankdiff.idle import idle_by_cause
from rankdiff.units import duration, share

# Idle classes by the kind of bottleneck that they speak for.
KIND_OF = {
    "data_load": "data",
    "io": "data",
    "sync": "sync",
    "alloc": "sync",
    "launch": "launch",
    "host": "host",
    "os_wait": "host",
    "preempted": "host",
    "profiler": "unknown",
    "unknown": "unknown",
}
_LEAST = 0.10  # of the step: below that a class is no bottleneck
_READS = ("read", "pread", "fread")
_COMMUNICATION = ("exposed_wait", "exposed_transfer")
_ALIKE = 0.20  # two kinds within a fifth of each other are mixed

ADVICE = {
    "data": "more loader workers, prefetching, faster or node-local storage, or decoding on the GPU",
    "launch": "CUDA graphs, kernel fusion or larger batches: the GPU waits for launches",
    "sync": "take synchronising calls (.item(), cudaStreamSynchronize) and allocations out of the loop",
    "copy": "pinned memory and asynchronous copies, overlapped with compute",
    "host": "profile the host code in the gaps (py-spy, perf) and take it off the training thread",
    "late": "the time goes into waiting for the late rank: see above, not the network",
    "jitter": "every step waits for somebody, for another rank each time: diffuse jitter; look at what the ranks share "
    "(CPU contention, garbage collection, pinning)",
    "communication": "overlap communication with compute; if transfers are slow, run nccl-tests between the nodes",
    "absent": "an uncaptured rank that holds the others, or the network: capture every rank first",
    "compute": "the GPU is busy computing: look at the dominating kernel with Nsight Compute",
    "mixed": "no single kind dominates: start with the largest part of the make-up",
    "unknown": "capture with -t cuda,nvtx,osrt to see what the idle time is made of",
}


@dataclass(frozen=True)
class Bottleneck:
    """What takes most of a step.

    Attributes
    ----------
    kind : str
        data, host, sync, copy, launch, communication, compute, mixed or unknown.
    share : float or None
        Of the step; None for mixed and unknown.
    parts_ns : dict of str to float
        ns per step by kind (communication as exposed_wait and exposed_transfer), largest first.
    advice : str
    """

    kind: str
    share: float | None
    parts_ns: dict[str, float]
    advice: str


@dataclass(frozen=True)
class Pattern:
    """One of the patterns people read off a timeline, with its numbers and what to do."""

    code: str
    message: str
    ranks: tuple[int, ...]
    advice: str


def parts_of(digest: Digest, make_up_ns: dict[str, int], steps: int) -> dict[str, float]:
    """Time per step by kind of bottleneck, communication in its two parts.

    Parameters
    ----------
    digest : Digest
    make_up_ns : dict of str to int
        The rank's make-up summed over `steps` steps (`makeup.PARTS`).
    steps : int
        At least 1.

    Returns
    -------
    dict of str to float
        ns per step; sums to the step. The idle part is divided as the report's whole idle time is.
    """
    out = {p: make_up_ns[p] / steps for p in ("compute", *_COMMUNICATION, "copy")}
    idle = make_up_ns["idle"] / steps
    causes = {c: n for c, n in idle_by_cause(digest).items() if n}
    total = sum(causes.values())
    if not total:
        out["unknown"] = idle
        return out
    for c, n in causes.items():
        kind = KIND_OF.get(c, "unknown")
        out[kind] = out.get(kind, 0.0) + idle * n / total
    return out


def find_bottleneck(
    parts: Sequence[dict[str, float]], somebody_late: bool, absent: bool = False
) -> Bottleneck:
    """Name the bottleneck of one rank, or of the median rank of several.

    Parameters
    ----------
    parts : sequence of dict
        `parts_of` every rank.
    somebody_late : bool
        Whether a late rank or node explains exposed waiting.
    absent : bool
        Whether a rank that was not captured may explain exposed transfers.
    """
    kinds = sorted({k for p in parts for k in p})
    middle = {k: float(np.median([p.get(k, 0.0) for p in parts])) for k in kinds}
    ranked = dict(sorted(middle.items(), key=lambda i: (-i[1], i[0])))
    step = sum(ranked.values())
    if not ranked or step <= 0:
        return Bottleneck("unknown", None, ranked, ADVICE["unknown"])
    waiting, moving = (ranked.get(k, 0.0) for k in _COMMUNICATION)
    merged = {k: x for k, x in ranked.items() if k not in _COMMUNICATION} | {
        "communication": waiting + moving
    }
    values = sorted(merged.items(), key=lambda i: (-i[1], i[0]))
    kind, most = values[0]
    if most < _LEAST * step:
        return Bottleneck("unknown", None, ranked, ADVICE["unknown"])
    if len(values) > 1 and values[1][1] >= (1 - _ALIKE) * most:
        return Bottleneck("mixed", None, ranked, ADVICE["mixed"])
    told = kind
    if kind == "communication" and waiting > moving:
        told = "late" if somebody_late else "jitter"
    elif kind == "communication" and absent:
        told = "absent"
    return Bottleneck(kind, most / step, ranked, ADVICE[told])


def patterns(
    ranks: Sequence[int],
    digests: Sequence[Digest],
    made: Sequence[dict[str, int] | None],
    steps: int,
    step_ns: float,
    late: frozenset[int],
    absent: bool = False,
) -> list[Pattern]:
    """Find the patterns of a timeline, each with its numbers.

    Parameters
    ----------
    ranks : sequence of int
        Rank numbers.
    digests, made : sequences as long as `ranks`
        Digest and summed make-up of each; make-up None where it was not assessed.
    steps : int
        Steps that the make-up sums over.
    step_ns : float
        Median step.
    late : frozenset of int
        Ranks with a finding.

    Returns
    -------
    list of Pattern
        In a fixed order; a pattern below a tenth of the step is left out.
    """
    out = []
    known = [(r, d, m) for r, d, m in zip(ranks, digests, made, strict=True) if m is not None]
    if not known or steps < 1 or not step_ns > 0:
        return []
    bar = _LEAST * step_ns

    def collect(code: str, values: dict[int, float], words: str, advice: str) -> None:
        hit = {r: x for r, x in values.items() if x >= bar}
        if hit:
            worst = max(hit, key=lambda r: (hit[r], -r))
            text = words.format(cost=duration(hit[worst]), share=share(hit[worst] / step_ns), rank=worst)
            out.append(Pattern(code, text, tuple(sorted(hit)), advice))

    idle_share = {r: m["idle"] / max(d.info.idle_ns, 1) / steps for r, d, m in known}
    idle = {r: _idle(d) for r, d, _ in known}
    collect(
        "gaps_under_reads",
        {r: x.reading * idle_share[r] for r, x in idle.items()},
        "the GPU idles {cost} a step ({share}) while its thread reads files (rank {rank})",
        "prefetch with loader workers, or move the data to node-local storage",
    )
    launches = {r: x.launching * idle_share[r] for r, x in idle.items()}
    collect(
        "short_kernels",
        {r: launches[r] for r, d, _ in known if launches[r] >= bar and _median_kernel_ns(d) < 10_000},
        "short kernels leave launch gaps of {cost} a step ({share}, rank {rank})",
        "CUDA graphs or fusion (torch.compile); larger batches",
    )
    pageable = {r: _copies(d, pageable=True) / max(d.steps.height, 1) for r, d, _ in known}
    collect(
        "pageable_copies",
        pageable,
        "copies from and to pageable memory take {cost} a step ({share}, rank {rank})",
        "pin_memory=True and non_blocking=True",
    )
    syncs = {r: x.syncing * idle_share[r] for r, x in idle.items()}
    collect(
        "frequent_syncs",
        {r: syncs[r] for r, d, _ in known if syncs[r] >= bar and _syncs_per_step(d) >= 2},
        "the GPU idles {cost} a step ({share}) around blocking CUDA calls (rank {rank})",
        "take .item(), print(loss) and explicit synchronisation out of the loop",
    )
    # With a late rank, send/recv that waits for it would pass for transfer: no word on the network then.
    exposed = {r: m["exposed_transfer"] / steps for r, _, m in known if not late}
    collect(
        "exposed_communication",
        exposed,
        "NCCL transfers that no compute hides take {cost} a step ({share}, rank {rank})",
        ADVICE["absent"]
        if absent
        else "overlap (bucketing, prefetch), and check the bus bandwidth with nccl-tests",
    )
    waits = {r: m["exposed_wait"] / steps for r, _, m in known if r not in late}
    if late:
        collect(
            "long_on_all_but_one",
            waits,
            "NCCL kernels are long on all ranks but the late one: they wait {cost} a step ({share}, rank {rank})",
            "see the late rank, not the network",
        )
    for r, d, m in known[:1]:
        top = _dominant(d)
        if top is not None and m["compute"] / steps >= 0.5 * step_ns and top[1] >= 0.5:
            out.append(
                Pattern(
                    "one_kernel",
                    f"{top[0][:60]} takes {share(top[1])} of the compute time (rank {r})",
                    (r,),
                    "Nsight Compute on that kernel",
                )
            )
    return out


@dataclass(frozen=True)
class _Idle:
    """Idle time of a rank by what it was spent in, ns."""

    reading: int = 0  # calls that read files
    launching: int = 0
    syncing: int = 0


def _idle(d: Digest) -> _Idle:
    rows = list(d.idle.select("class", "call", "ns").iter_rows())  # some dozens
    return _Idle(
        sum(ns for cls, call, ns in rows if cls in ("io", "data_load") and (call or "").startswith(_READS)),
        sum(ns for cls, _, ns in rows if cls == "launch"),
        sum(ns for cls, _, ns in rows if cls == "sync"),
    )


def _median_kernel_ns(d: Digest) -> float:
    t = d.signatures.filter(pl.col("count") > 0)
    if not t.height:
        return float("inf")
    by = t.select(each=pl.col("ns") / pl.col("count"), count=pl.col("count")).sort("each")
    at = int(np.searchsorted(np.cumsum(by["count"].to_numpy()), float(by["count"].sum()) / 2))
    return float(by["each"][min(at, by.height - 1)])


def _copies(d: Digest, pageable: bool) -> float:
    return float(d.copies.filter(pl.col("pageable") == pageable)["ns"].sum()) if d.copies.height else 0.0


def _syncs_per_step(d: Digest) -> float:
    """Blocking CUDA calls per step."""
    return float(d.host_calls.filter(pl.col("class") == "sync")["count"].sum()) / max(d.steps.height, 1)


def _dominant(d: Digest) -> tuple[str, float] | None:
    """Kernel with the most time, and its share of all compute kernels' time."""
    t = (
        d.signatures.group_by("kernel")
        .agg(pl.col("ns").sum())
        .sort(["ns", "kernel"], descending=[True, False])
    )
    total = float(t["ns"].sum())
    return (str(t["kernel"][0]), float(t["ns"][0]) / total) if total > 0 else None
