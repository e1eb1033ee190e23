"""The phases of a training step of a parallel layout: who computes, and who speaks to whom when.

Ranks are numbered tensor-parallel first, then data-parallel, then by pipeline stage, as Megatron does:
rank = t + tp * (d + dp * s). A stage runs all forward micro-batches, then all backward ones (GPipe).
Tensor-parallel groups all-reduce after each block of layers. Gradient buckets are all-reduced in
data-parallel groups on a stream of their own, while the backward pass of the last micro-batch goes on, and
the optimizer waits for them all.
"""

from __future__ import annotations

from collections.abc import Iterator

from .scenario import US, Phase
from .settings import Settings

BLOCKS = 4  # blocks of layers of a stage, and gradient buckets
_KERNELS = 3  # compute kernels of a block
_FORWARD, _BACKWARD, _OPTIMIZER = 0.30, 0.60, 0.10  # shares of a stage's work
_TENSOR, _GRADIENT, _PIPE = 20, 30, 40  # streams; a pipe for each pair of stages
_MEGABYTE = 1 << 20


def phases(settings: Settings) -> tuple[Phase, ...]:
    """Return the phases of a step.

    Parameters
    ----------
    settings : Settings
        Checked ones.
    """
    return tuple(_phases(settings))


def work_ns(settings: Settings, rank: int) -> int:
    """Return the compute of a rank in a step."""
    stage = rank // (settings.tp * settings.data_parallel)
    return round(_stage_ns(settings, stage))


def meeting(settings: Settings) -> int:
    """Return how many ranks meet in N x N collectives, directly or through others: those of a stage."""
    return settings.tp * settings.data_parallel


def alike(settings: Settings) -> list[list[tuple[int, ...]]]:
    """Return the members of the communicators with N x N collectives, by what they do in a step."""
    kinds = (_tensor_groups, _data_groups)
    found = [[tuple(g) for stage in range(settings.pp) for g in make(settings, stage)] for make in kinds]
    return [groups for groups in found if groups]


def _phases(settings: Settings) -> Iterator[Phase]:
    stages = range(settings.pp)
    for _ in range(settings.micro_batches):
        for stage in stages:
            yield from _pass(settings, stage, "forward")
            if stage + 1 < settings.pp:
                yield _pipe(settings, stage, stage + 1)
    for batch in range(settings.micro_batches):
        last = batch == settings.micro_batches - 1
        for stage in reversed(stages):
            yield from _pass(settings, stage, "backward", reduce=last)
            if stage > 0:
                yield _pipe(settings, stage, stage - 1)
    for stage in stages:
        yield Phase(
            compute_ns=round(_stage_ns(settings, stage) * _OPTIMIZER),
            groups=(),
            ranks=_ranks(settings, stage),
            after_all=True,
            kernel="adamw",
        )


def _pass(settings: Settings, stage: int, which: str, *, reduce: bool = False) -> Iterator[Phase]:
    """One micro-batch through a stage; `reduce` sends its gradients off, block by block."""
    share = _FORWARD if which == "forward" else _BACKWARD
    length = round(_stage_ns(settings, stage) * share / BLOCKS / settings.micro_batches)
    for _ in range(BLOCKS):
        yield Phase(
            compute_ns=length,
            groups=_tensor_groups(settings, stage),
            kernels=_KERNELS,
            size=8 * _MEGABYTE,
            stream=_TENSOR,
            transfer_ns=100 * US,
            ranks=_ranks(settings, stage),
            kernel=f"gemm_{which}",
        )
        if reduce and settings.data_parallel > 1:
            yield Phase(
                groups=_data_groups(settings, stage),
                size=25 * _MEGABYTE,  # DDP's bucket
                stream=_GRADIENT,
                transfer_ns=400 * US,
                overlap=True,
                ranks=(),
            )


def _pipe(settings: Settings, source: int, target: int) -> Phase:
    pairs = list(zip(_ranks(settings, source), _ranks(settings, target), strict=True))
    return Phase(
        groups=pairs,
        op="send_recv",
        size=4 * _MEGABYTE,
        stream=_PIPE + min(source, target),
        transfer_ns=50 * US,
        ranks=(),
    )


def _stage_ns(settings: Settings, stage: int) -> float:
    return settings.step_ms * 1e6 * (settings.stage_work[stage] if settings.stage_work else 1.0)


def _ranks(settings: Settings, stage: int) -> list[int]:
    size = settings.tp * settings.data_parallel
    return list(range(stage * size, (stage + 1) * size))


def _tensor_groups(settings: Settings, stage: int) -> list[list[int]]:
    ranks, tp = _ranks(settings, stage), settings.tp
    return [ranks[d * tp : (d + 1) * tp] for d in range(settings.data_parallel)] if tp > 1 else []


def _data_groups(settings: Settings, stage: int) -> list[list[int]]:
    ranks, tp = _ranks(settings, stage), settings.tp
    return [ranks[t::tp] for t in range(tp)] if settings.data_parallel > 1 else []
