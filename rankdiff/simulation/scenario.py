"""What a synthetic job is to be (`Scenario`), and what came of it (`Job`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .export import Export

MS = 1_000_000
US = 1_000
ONE_SIDED = ("broadcast", "send_recv")  # nobody waits for the last member in these


@dataclass(frozen=True)
class Phase:
    """A stretch of a step: compute kernels, then collectives that wait for them.

    Operations are those of `Process.nccl`, and ``send_recv``: from the first member of a group of two to the
    second, which alone waits. Members of a broadcast leave one by one, from the first on.
    """

    compute_ns: int = 6 * MS
    groups: Sequence[Sequence[int]] | None = None  # communicators; None: one of all ranks
    count: int = 1  # collectives on each communicator, back to back
    kernels: int = 1  # compute kernels that share compute_ns
    op: str = "all_reduce"
    size: int = 1 << 20  # bytes of a collective
    stream: int = 20
    transfer_ns: int = 500_000  # from the last arrival to the end
    overlap: bool = False  # the next phase's compute does not wait for these collectives
    ranks: Sequence[int] | None = None  # who computes; None: all
    after_all: bool = False  # the compute waits for every collective before it, overlapped ones too
    kernel: str = "gemm"  # name of the compute kernels


@dataclass(frozen=True)
class Instance:
    """One collective as it truly happened."""

    comm: int
    op: str
    step: int
    members: tuple[int, ...]
    starts: dict[int, int]  # true ns by rank
    ends: dict[int, int]

    @property
    def delays(self) -> dict[int, int]:
        """Each member's start after the first member's."""
        first = min(self.starts.values())
        return {rank: start - first for rank, start in self.starts.items()}


@dataclass(frozen=True)
class Job:
    """The files of a job, and what they should let one find out."""

    reports: dict[int, Path]  # by rank; ranks of one torchrun share a file
    nodes: dict[int, str]
    instances: list[Instance]  # in order of their ends within a step and phase
    recorded: dict[int, list[bool]] = field(default_factory=dict)  # whether a rank's file holds its n-th

    @property
    def paths(self) -> list[Path]:
        """The files, each once, in order of rank."""
        return list(dict.fromkeys(self.reports[rank] for rank in sorted(self.reports)))


@dataclass(frozen=True)
class Scenario:
    """Everything that can be chosen about a synthetic job.

    `late` gives ranks extra time in every step (a number), step by step (a list, zeros where it ends), or of
    several kinds at once (a mapping of kinds to numbers, for every step or as an element of a list). `late_as`
    says how the extra time shows: ``gpu_slow`` (same kernels, longer), ``gpu_grid`` (longer with a larger grid),
    ``gpu_work`` (one more kernel), ``copy`` (a copy before the first kernel), ``data_load`` (a longer data_load
    range, in `read`), ``io`` (`fsync`, no range), ``os_wait`` (`nanosleep`), ``alloc`` (`cudaMalloc`), ``sync``
    (4-byte copies that are waited for), ``profiler`` (its overhead), ``host`` (range ``checkpoint``, plain code;
    ``host:NAME`` in a range of that name), ``begin`` (nothing to see; may be negative).
    """

    ranks: int = 4
    nodes: int | Sequence[str] = 2  # how many, in blocks; or the node of each rank
    steps: int = 10
    step_ns: int = 0  # grid of step starts; 0: each starts gap_ns after the last
    gap_ns: int = 1_200_000  # least idle time between steps; data loading needs 1 ms of it
    origin_ns: int = 0  # start of step 0
    phases: Sequence[Phase] = (Phase(),)
    late: Mapping[int, int | Sequence[int | Mapping[str, int]] | Mapping[str, int]] = field(
        default_factory=dict
    )
    late_as: str | Mapping[int, str] = "gpu_slow"
    # The phase whose kernels lengthen, or the first after it in which the rank computes; what the host does comes
    # before the first.
    late_phase: int = 0
    stretch: Mapping[int, Sequence[float]] = field(
        default_factory=dict
    )  # kernels last so much longer, by step
    grow: Mapping[int, Sequence[float]] = field(default_factory=dict)  # and with grids so much larger
    slow_nodes: Mapping[str, Sequence[float]] = field(
        default_factory=dict
    )  # transfers between it and another
    jitter_ns: int = 0  # of each rank's compute time in each phase
    jitter_share: float = 0.0  # of each rank's compute time in the whole step, as a share of it
    jitter: str = "uniform"  # uniform (+/- that), normal (sigma), exponential or pareto (mean)
    seed: int = 0
    end_jitter_ns: int = 0  # sigma of a member's end
    end_stagger_ns: Mapping[int, int] = field(default_factory=dict)  # constant, by rank
    offset_ns: Mapping[str, int] = field(default_factory=dict)  # a node's clock is fast by so much
    drift_ppm: Mapping[str, float] = field(default_factory=dict)  # and gains so much
    clock_steps: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)  # see `linear_clock`
    session_start_ns: Mapping[int, int] = field(default_factory=dict)  # true time of session time 0
    cut: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # collectives before, after the window
    cut_steps: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # steps before, after the window
    lost: Mapping[int, Sequence[int]] = field(default_factory=dict)  # collectives whose events were lost
    lost_share: Mapping[int, float] = field(default_factory=dict)  # of kernels lost, with their launches
    step_ranges: str | None = "step {}"  # NVTX name; {} becomes the step's number
    first_step: int = 0  # that number in the first step
    data_load: bool = True  # NVTX data_load before every step but the first
    osrt: bool = True  # a read inside data_load
    sync: bool = False  # a cudaStreamSynchronize at the end of every step
    autograd: bool = False  # NCCL is launched from a thread that has no NVTX ranges of its own
    payload: bool = True  # NVTX payloads exported
    nccl_ranges: bool = True
    nccl_kernel: str | None = None  # kernel name in place of NCCL 2.28's
    environment: bool = True  # Slurm variables captured
    torchrun: bool = False  # one file a node, several processes in it
    pattern: str = "prof_{node}_{rank}.sqlite"
    written: Sequence[int] | None = None  # ranks whose files exist; None: all
    options: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # of `Export`, by rank
    edit: Callable[[int, Export], None] | None = None  # called before a rank's file is closed

    def node(self, rank: int) -> str:
        """Return the node of a rank."""
        if isinstance(self.nodes, int):
            return f"node{chr(ord('A') + rank * self.nodes // self.ranks)}"
        return self.nodes[rank]

    def extras(self, rank: int, step: int) -> dict[str, int]:
        """Return the extra time of a rank in a step, by how it shows."""
        late = self.late.get(rank, 0)
        if isinstance(late, Mapping):
            return dict(late)
        kind = self.late_as if isinstance(self.late_as, str) else self.late_as.get(rank, "gpu_slow")
        if not isinstance(late, int):
            late = late[step] if step < len(late) else 0
        return dict(late) if isinstance(late, Mapping) else {kind: late}

    def transfer_factor(self, members: Sequence[int], step: int) -> float:
        """Return how many times as long as usual a transfer among these ranks takes."""
        nodes = {self.node(rank) for rank in members}
        if len(nodes) < 2:
            return 1.0
        return max([1.0, *(self.slow_nodes[node][step] for node in nodes if node in self.slow_nodes)])
