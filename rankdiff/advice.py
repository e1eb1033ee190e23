"""What to do next, per cause: one line with the node, the GPU and a command."""

from __future__ import annotations

from rankdiff.findings import Finding
from rankdiff.job import Job

_BY_CAUSE = {
    "data_load": "compare the data path of {where} with its neighbours: nfsstat -m or iostat -x 1 on {node} while the "
    "job reads; more loader workers, prefetching or node-local data hide it",
    "io": "find the file behind {call} on {node} (strace -f -e trace=file,desc -p PID); keep writes and checkpoints "
    "off the training thread",
    "os_wait": "find who holds rank {rank} in {call} on {node} (py-spy dump --pid PID, {range}); a sleep or lock in the "
    "training thread holds all ranks",
    "sync": "take the synchronising calls ({call}) out of the step on rank {rank}: .item(), print(loss), "
    "torch.cuda.synchronize()",
    "alloc": "look for allocations in the step of rank {rank} ({call}): fragmentation or a changing batch shape "
    "(PYTORCH_CUDA_ALLOC_CONF, torch.cuda.memory_stats())",
    "host": "profile the host code of rank {rank} ({range}) on {node}: py-spy record --native --pid PID, and check CPU "
    "clocks and pinning there (numactl --show, turbostat)",
    "preempted": "the launching thread was scheduled out on {node}: check pinning and other processes there (taskset -p, "
    "pidstat -w)",
    "launch": "launches are slow on {node}: check its CPU clocks, pinning and other processes (turbostat, taskset -p)",
    "copy": "copies hold rank {rank}: pinned memory and non_blocking=True, and its PCIe link (nvidia-smi -q -i {gpu}, "
    "Link Width)",
    "gpu_work": "rank {rank} runs more or larger kernels: balance its work (batch, sequence lengths, experts, stage); no "
    "hardware fault follows from this",
    "gpu_slow": "the GPU of {where} is slower at equal work: nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER -i {gpu} "
    "on {node}, dcgmi diag -r 2, and no neighbour on it",
    "profiler": "the profiler itself held rank {rank}: capture again with fewer traces or a larger "
    "--cuda-flush-interval",
    "inherited": "look at the rank that rank {rank} exchanges send/recv with, and capture all ranks",
    "slow_transfer": "run nccl-tests between {node} and another node (all_reduce_perf -b 8M -e 1G -f 2), and look at its "
    "links (ibstat, ethtool -S, rdma statistic)",
    "mixed": "start with the largest part above on {where}",
    "unknown": "look at {where} around that time: dmesg -T and nvidia-smi -q -d PERFORMANCE,CLOCK there, and the gap "
    "before the collectives of rank {rank} in its report",
}
_ALL_RANKS = {
    "data_load": "the data path is common to all ranks: shared file system, loader workers, prefetching",
    "io": "file operations hold all ranks at once: the shared file system",
}


def advice(job: Job, f: Finding) -> str:
    """One line: where to look, with what, and the usual fix.

    Parameters
    ----------
    job : Job
    f : Finding

    Returns
    -------
    str
    """
    if f.kind == "rotating":
        return (
            "no node to drain; look at what all ranks share (garbage collection, CPU contention, file system)"
        )
    if f.kind == "common_stall":
        return _ALL_RANKS.get(
            f.cause or "", "all ranks stall alike: look at what they share, not at one node"
        )
    if f.kind == "startup":
        return "none; start the capture later (--delay) or leave it out (--skip-steps)"
    gpus = [
        f"GPU-{r.digest.info.gpu_uuid.removeprefix('GPU-')}"
        for r in job.ranks
        if r.identity.rank in f.ranks and r.digest.info.gpu_uuid
    ]
    place = f"node {f.node}" + (f" ({', '.join(gpus[:4])}{', ...' if len(gpus) > 4 else ''})" if gpus else "")
    detail = f.cause_detail
    call = detail.get("osrt") or detail.get("cuda") or "the calls"
    text = _BY_CAUSE.get(f.cause or "unknown", _BY_CAUSE["unknown"]).format(
        where=place,
        node=f.node,
        rank=f.ranks[0] if f.ranks else "?",
        gpu=gpus[0] if gpus else "INDEX",
        call=call,
        range=f"range {detail['range']}" if detail.get("range") else "no NVTX range names it",
    )
    return text if place in text else f"{place}: {text}"
