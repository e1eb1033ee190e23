"""How to capture or export so that a defect does not come back, by its code, the gravest first."""

from __future__ import annotations

_TRACE = "nsys profile --trace=cuda,nvtx,osrt"
_WHOLE = "nsys export without --tables and --times"
_ONE_A_RANK = (
    "srun nsys profile -o prof_%h_%q{SLURM_PROCID}: one report per rank, each with a name of its own"
)
_SAME_WINDOW = (
    "nsys profile --capture-range=cudaProfilerApi --capture-range-end=stop around the same steps on all ranks, or a "
    "longer --duration with the same --delay"
)
_FLUSH = (
    "nsys profile --cuda-flush-interval=1000 --sample=none --cpuctxsw=none and a shorter --duration: fewer events wait "
    "in the profiler's buffers"
)
_AGAIN = "nsys export --force-overwrite=true from the .nsys-rep, with the newest nsys"
_LONGER = "nsys profile with a longer --duration: twenty to fifty steps"

# None of these options is newer than nsys 2022.4 unless the text says so.
CURES = {
    "missing_ranks": f"{_ONE_A_RANK}; give all of them to rankdiff",
    "no_kernels": f"{_TRACE}, and {_WHOLE}",
    "collectives_in_graphs": "nsys profile --cuda-graph-trace=node",
    "no_collectives": "nsys profile --delay and --duration over training steps; or --comm-regex, if other kernels "
    "communicate",
    "events_dropped": _FLUSH,
    "events_lost": _FLUSH,
    "counts_differ": f"{_FLUSH}; if the ranks really issue other collectives, see the code before that operation",
    "no_cuda_calls": f"{_TRACE}, and {_WHOLE}",
    "no_nvtx": f"{_TRACE}, and {_WHOLE}",
    "no_os_calls": f"{_TRACE}, and {_WHOLE}",
    "starts_late": _SAME_WINDOW,
    "ends_early": _SAME_WINDOW,
    "no_common_window": _SAME_WINDOW,
    "not_compared": _SAME_WINDOW,
    "unusable_times": f"{_AGAIN}; if it stays, {_FLUSH}",
    "open_ranges": "nsys profile --capture-range=cudaProfilerApi --capture-range-end=stop, stopped between two steps; pop "
    "every range that is pushed",
    "launches_missing": f"{_WHOLE}; nsys profile --capture-range=cudaProfilerApi, started between two steps",
    "clock_residual": _LONGER,
    "weak_clock": _LONGER,
    "clock_suspect": _LONGER,
    "clock_step": "no time adjustment on the nodes during the capture (chronyc tracking)",
    "ambiguous_shift": "NVTX step ranges with numbers, like nvtx.range_push(f'step {i}')",
    "no_session_start": f"{_WHOLE}, with nsys 2022.1 or later",
    "ts_shift": "nsys export without --ts-shift",
    "times_taken_as_utc": f"{_WHOLE}: the shift of --ts-normalize is in its metadata",
    "no_export_metadata": f"{_WHOLE}, with nsys 2022.1 or later",
    "mixed_versions": "nsys export of all reports with the newest nsys",
    "no_payloads": "nsys profile --trace=cuda,nvtx with NCCL 2.25 or later, and nsys export --include-blobs=true",
    "inferred_communicators": "nsys profile --trace=cuda,nvtx with NCCL 2.25 or later, and nsys export "
    "--include-blobs=true",
    "unresolved_collectives": "nsys export --include-blobs=true",
    "no_steps": "an NVTX range around each step, like nvtx.range_push(f'step {i}'), or --step-range for other names",
    "no_data_range": "an NVTX range named data_load around fetching a batch, or --data-range for other names",
    "rank_inferred": f"{_ONE_A_RANK}, with --discard-environment=false where nsys has it; or --rank-regex",
    "rank_disagreement": f"{_ONE_A_RANK}; or --rank-regex",
    "rank_regex_unmatched": "--rank-regex that matches the names of all reports",
    "node_unknown": "nsys profile -o prof_%h_%q{SLURM_PROCID}: %h is the host",
    "node_disagreement": "nsys profile -o prof_%h_%q{SLURM_PROCID}: %h is the host",
    "hostname_distrusted": "nsys profile -o prof_%h_%q{SLURM_PROCID}, run outside the container where its host has no name",
    "same_session": "one report per capture",
    "other_run": "reports of one run only",
    "table_unreadable": _AGAIN,
    "wrong_type": _AGAIN,
    "wal_missing": _AGAIN,
    "wal_copied": _AGAIN,
}
