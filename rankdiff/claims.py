"""What each report says about who it is; the word that reports and digests share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claims:
    """What a report says about who one of its GPU processes is; None means it does not say.

    The final rank and node are assigned over all reports of the job (`reports.identity`).
    """

    report: str  # file name, no folder
    path: str  # as given by the user; only for messages
    pid: int
    device: int  # CUDA ordinal inside the process
    gpu_processes: int  # GPU processes in this report
    file_node: str | None = None  # from the file name
    file_rank: int | None = None  # from the file name
    regex_node: str | None = None  # from --rank-regex
    regex_rank: int | None = None  # from --rank-regex
    env_rank: int | None = None  # SLURM_PROCID, RANK, OMPI_COMM_WORLD_RANK or PMIX_RANK
    env_rank_name: str | None = None  # which of them
    env_local_rank: int | None = None
    env_node: str | None = None  # SLURMD_NODENAME
    mpi_rank: int | None = None  # MPI_RANKS
    hostname: str | None = None  # TARGET_INFO_SYSTEM_ENV Hostname
    world_size: int | None = None  # SLURM_NTASKS or WORLD_SIZE
    job_id: str | None = None  # SLURM_JOB_ID
    session_uuid: str | None = None
    size_bytes: int = 0
    env_ranks: tuple[tuple[str, int], ...] = ()  # every rank variable of the capture, by precedence
    regex_given: bool = False  # --rank-regex was given; it may still have matched nothing
