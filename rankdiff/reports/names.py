"""What names mean: kernels, NVTX ranges, file names. Every regular expression of the ingest is here."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rankdiff.schema import NXN_OPS, P2P_OPS, ROOTED_OPS

# Data-loading ranges: anchored at the start of the name, an optional `domain:` before it.
DEFAULT_DATA_RANGE = (
    r"(?i)(?:[\w.-]+:)?(?:data[ _-]?load(?:er|ing)?|enumerate\(dataloader|next[ _-]?batch|"
    r"(?:fetch|get|load)[ _-]?(?:next[ _-]?)?(?:batch|data)\b|\[dali\])"
)

# Step ranges: the whole name, with an optional `domain:` and an optional number. Whole, so that
# `step_function_x` and `batch_norm` are none.
DEFAULT_STEP_RANGE = (
    r"(?i)(?:[\w.-]+:)?(?P<name>train(?:ing)?[ _-]?step|train(?:ing)?[ _-]?iter(?:ation)?|step|"
    r"iteration|iter|batch|profilerstep)(?:[\s_#=:.\-\[(]*(?P<number>\d+)[\])]?)?\s*$"
)

# NCCL kernels of all generations. The name before the collective tells the generation:
# nccl<Coll>...Kernel_ up to 2.7, ncclKernel_ up to 2.18, ncclDevKernel_ since 2.19, ncclSymDevKernel_ in
# 2.27, ncclSymkDevKernel_ since 2.28; msccl is RCCL's. Look-alikes (nccl_test_kernel, ncclDevFuncTable) lack
# the `Kernel_` in that place, and `nop` moves nothing.
_NCCL_KERNEL = re.compile(
    r"(?:void )?(?:nccl(?:symk?)?(?:dev)?kernel_(?!nop)|"
    r"nccl(?:allreduce|allgather|reducescatter|reduce|broadcast|sendrecv)\w*kernel_|"
    r"msccl(?:pp)?kernel_)",
    re.IGNORECASE,
)

# First match wins: all_reduce before reduce, reduce_scatter before reduce.
_KERNEL_OPS = (
    (re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE), "all_reduce"),
    (re.compile(r"all_?gather", re.IGNORECASE), "all_gather"),
    (re.compile(r"reduce_?scatter", re.IGNORECASE), "reduce_scatter"),
    (re.compile(r"all_?to_?all", re.IGNORECASE), "all_to_all"),
    (re.compile(r"send_?recv", re.IGNORECASE), "send_recv"),
    (re.compile(r"broadcast|bcast", re.IGNORECASE), "broadcast"),
    (re.compile(r"reduce", re.IGNORECASE), "reduce"),
)

_NVTX_OPS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
}
_NVTX_OP = re.compile(rf"nccl({'|'.join(_NVTX_OPS)})\b", re.IGNORECASE)
_NVTX_GROUP = re.compile(r"nccl(groupstart|groupend)\b", re.IGNORECASE)

_LONGEST_NUMBER = 18  # digits; more do not fit 64 bits

_FILE_ENDING = re.compile(
    r"(?:\.nsys-rep)?(?:\.(?:sqlite3?|db|digest\.parquet|parquet|nsys-rep|qdrep)|_(?:pqt|arw)dir)$",
    re.IGNORECASE,
)
_FILE_RANK = re.compile(
    r"prof_(?:(?P<node>.+)_)?(?P<rank>\d{1,6})$", re.IGNORECASE
)  # a longer number is a date
_FILE_NODE = re.compile(r"prof_(?P<node>.+)$", re.IGNORECASE)
_DIGITS = re.compile(r"(\d+)")
_GRAPH_LAUNCH = re.compile(r"cu(?:da)?GraphLaunch", re.IGNORECASE)


def is_nccl_kernel(name: str) -> bool:
    """Say whether a kernel's short name is that of an NCCL (or RCCL) communication kernel."""
    return _NCCL_KERNEL.match(name) is not None


def kernel_op(name: str) -> str:
    """Operation that a communication kernel's name tells: a key of `op_class`, ``unknown`` for Generic.

    Since NCCL 2.19 a group's kernel is named after one of its operations; the name is a check, not a key.
    """
    short = name.split("(", 1)[0].split("<", 1)[0]
    for pattern, op in _KERNEL_OPS:
        if pattern.search(short):
            return op
    return "unknown"


def custom_op(name: str) -> str:
    """Operation of a kernel that the user says communicates (--comm-regex) and that is not NCCL's.

    Such kernels (vLLM, FlashInfer, TensorRT-LLM) replace collectives in which everybody waits for the last. A
    plain "reduce" in their names is an all-reduce's as a rule, and many names tell nothing: both are
    ``collective``, an operation of all members that cannot be told any closer.
    """
    op = kernel_op(name)
    return "collective" if op in ("unknown", "reduce") else op


def nvtx_op(name: str) -> str | None:
    """Operation of an NCCL call's NVTX range, ``group_start`` or ``group_end``; None for any other range."""
    if found := _NVTX_OP.match(name):
        return _NVTX_OPS[found[1].lower()]
    if found := _NVTX_GROUP.match(name):
        return {"groupstart": "group_start", "groupend": "group_end"}[found[1].lower()]
    return None


def is_graph_launch(name: str) -> bool:
    """Say whether a CUDA call replays a graph."""
    return _GRAPH_LAUNCH.match(name) is not None


def op_class(op: str) -> str:
    """Class of an operation: ``nxn``, ``rooted``, ``p2p`` or ``unknown``."""
    if op in NXN_OPS:
        return "nxn"
    if op in ROOTED_OPS:
        return "rooted"
    return "p2p" if op in P2P_OPS else "unknown"


def step_name(match: re.Match[str]) -> tuple[str, int | None]:
    """Name without its number, and the number, of a range that the step pattern matched.

    Works for a user's pattern too: without a group ``number`` it is the last run of digits of the match.
    """
    groups = match.groupdict()
    text = match.string
    number, begin = groups.get("number"), len(text)
    if "number" not in groups:
        runs = list(_DIGITS.finditer(text))
        number, begin = (runs[-1][0], runs[-1].start()) if runs else (None, len(text))
    label = groups.get("name") or text[:begin]
    label = _DIGITS.sub("#", label).rstrip(" _#=:.-[(\t") or "step"
    return label, int(number) if number and len(number) <= _LONGEST_NUMBER else None


def report_stem(file_name: str) -> str:
    """Name of a report without what tells its form: the same for ``x.nsys-rep``, ``x.sqlite``, ``x_pqtdir``."""
    return _FILE_ENDING.sub("", file_name)


def file_identity(file_name: str) -> tuple[str | None, int | None]:
    """Node and rank that a file name tells: ``prof_<node>_<rank>``, ``prof_<rank>`` or ``prof_<node>``.

    Digits inside a node's name are no rank: ``prof_gpu01`` is node gpu01.
    """
    stem = report_stem(file_name)
    if found := _FILE_RANK.match(stem):
        return found["node"], int(found["rank"])
    if found := _FILE_NODE.match(stem):
        return found["node"], None
    return None, None


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts ``prof_2`` before ``prof_10``; leading zeros do not count."""
    return tuple(
        (0, int(part), "") if part.isdigit() and part.isascii() else (1, 0, part)
        for part in _DIGITS.split(text)
        if part
    )


def top(names: Iterable[tuple[str, int]], limit: int = 10) -> tuple[str, ...]:
    """The most frequent names, ties in alphabetical order."""
    ranked = sorted(names, key=lambda item: (-item[1], item[0]))
    return tuple(name for name, _ in ranked[:limit])
