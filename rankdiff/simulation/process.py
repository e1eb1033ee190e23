"""One GPU process in an export: `ProcessEvents`, and NVTX and NCCL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .events import Launch, ProcessEvents, Value, launch_span
from .payloads import COMM, LAYOUTS, PEER, ROOT, SIZE, encode_payload, enum_rows, schema_rows

if TYPE_CHECKING:
    from .export import Export

_NCCL_CALLS = {
    "all_reduce": ("ncclAllReduce", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
    "all_gather": ("ncclAllGather", "ncclDevKernel_AllGather_RING_LL"),
    "reduce_scatter": ("ncclReduceScatter", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL"),
    "broadcast": ("ncclBroadcast", "ncclDevKernel_Broadcast_RING_LL"),
    "reduce": ("ncclReduce", "ncclDevKernel_Reduce_Sum_bf16_RING_LL"),
    "send": ("ncclSend", "ncclDevKernel_SendRecv"),
    "recv": ("ncclRecv", "ncclDevKernel_SendRecv"),
    "all_to_all": ("ncclAlltoAll", "ncclDevKernel_SendRecv"),
    "gather": ("ncclGather", "ncclDevKernel_SendRecv"),
    "scatter": ("ncclScatter", "ncclDevKernel_SendRecv"),
}


@dataclass(frozen=True)
class Call:
    """One NCCL call inside a group."""

    op: str
    comm: int | None = None  # communicator hash
    size: int = 1 << 20  # bytes
    peer: int = 0  # peer of send and recv, root of rooted operations


class Process(ProcessEvents):
    """One GPU process in an export with everything that can happen in it; attributes of `ProcessEvents`."""

    def __init__(self, export: Export, pid: int, device: int) -> None:
        super().__init__(export, pid, device)
        self._domains: dict[str, int] = {}
        self._described: set[str] = set()

    def nvtx(
        self,
        start: int,
        end: int | None,
        text: str | None,
        *,
        tid: int | None = None,
        domain: str | None = None,
        type: int = 59,
        as_text_id: bool = False,
        payload: bytes | None = None,
        json: str | None = None,
        end_tid: int | None = None,
    ) -> None:
        """Write an NVTX event: 59 push/pop range, 60 start/end range, 34 mark, 75 domain, 39 thread name.

        `end` None is an event without end (a mark, or a range open when the capture stopped); `text` None
        an event without name; `domain` the name of an NVTX domain, made known on its first use.
        """
        ids = as_text_id and text is not None
        self._event(
            "NVTX_EVENTS",
            start,
            end,
            eventType=type,
            globalTid=self.gtid(tid),
            text=None if ids else text,
            textId=self._export.string(text) if ids and text else None,
            domainId=self.domain(domain),
            binaryData=payload,
            jsonText=json,
            endGlobalTid=None if end_tid is None else self.gtid(end_tid),
            rangeId=1 if type == 60 else None,
        )

    def domain(self, name: str | None) -> int:
        """Return the domain id of a name, writing the event that creates it on first use."""
        if name is None:
            return 0
        if name not in self._domains:
            self._domains[name] = len(self._domains) + 1
            row: dict[str, Value] = {
                "eventType": 75,
                "text": name,
                "globalTid": self.gtid(),
                "domainId": self._domains[name],
            }
            start = self._export.begin_ns - 1_000_000_000  # long before the window, as in real files
            self._export.event("NVTX_EVENTS", start, None, row, anyway=True)
        return self._domains[name]

    def comm_init(self, start: int, end: int, comm: int, ranks: int, rank: int) -> None:
        """Write the NCCL range that creates a communicator."""
        values = {COMM: comm, "No. of ranks": ranks, "Rank": rank, "CUDA device": self.device}
        self._nccl_range(start, end, "ncclCommInitRankConfig", self.main, values)

    def nccl(
        self,
        op: str,
        start: int,
        end: int,
        *,
        comm: int | None = None,
        size: int = 1 << 20,
        stream: int = 20,
        launch: Launch = "auto",
        root: int = 0,
        name: str | None = None,
        nvtx: bool = True,
        tid: int | None = None,
        context: int = 1,
        lost: bool = False,
    ) -> int | None:
        """Write one collective: kernel, launch, NCCL range around the launch, and its payload.

        The payload needs a communicator hash and an export with `blobs`; a `name` overrides the kernel's;
        `nvtx` False is a capture without NVTX. `lost` leaves kernel and launch out, and returns None.
        """
        call, kernel = _NCCL_CALLS[op]
        span = launch_span(start, launch)
        if nvtx and span:
            values = None if comm is None else {COMM: comm, SIZE: size, ROOT: root, PEER: root}
            self._nccl_range(span[0] - 3_000, span[1] + 3_000, call, tid, values)
        if lost:
            return None
        return self.kernel(
            start,
            end,
            name or kernel,
            stream=stream,
            launch=launch,
            api="cuLaunchKernelEx",
            grid=(2, 1, 1),
            block=(288, 1, 1),
            tid=tid,
            context=context,
        )

    def group(
        self,
        calls: Sequence[Call],
        kernels: Sequence[tuple[int, int, int]],
        *,
        at: int | None = None,
        name: str | None = None,
        nested: bool = False,
        tid: int | None = None,
    ) -> None:
        """Write calls fused by ncclGroupStart and ncclGroupEnd, which launches the kernels.

        Parameters
        ----------
        calls : sequence of Call
            The calls, each an NCCL range with its payload.
        kernels : sequence of (start, end, stream)
            One for each communicator of the calls, in order of first use.
        at : int, optional
            Start of the group on the host; by default just early enough.
        name : str, optional
            Kernel name; by default that of the communicator's first call.
        nested : bool
            Wrap each call in a group of its own, as PyTorch does.
        """
        firsts: dict[int | None, str] = {}
        for call in calls:
            firsts.setdefault(call.comm, call.op)
        length = 4_000 * len(calls) + 8_000 * len(kernels) + 4_000
        now = min(k[0] for k in kernels) - length if at is None else at
        self._nccl_range(now, now + 500, "ncclGroupStart", tid, None)
        now += 1_000
        for call in calls:
            if nested:
                self._nccl_range(now, now + 300, "ncclGroupStart", tid, None)
            values = None
            if call.comm is not None:
                values = {COMM: call.comm, SIZE: call.size, PEER: call.peer, ROOT: call.peer}
            self._nccl_range(now + 500, now + 3_000, _NCCL_CALLS[call.op][0], tid, values)
            if nested:
                self._nccl_range(now + 3_200, now + 3_500, "ncclGroupEnd", tid, None)
            now += 4_000
        self._nccl_range(now, now + 8_000 * len(kernels) + 1_000, "ncclGroupEnd", tid, None)
        for op, (start, end, stream) in zip(firsts.values(), kernels, strict=True):
            self.kernel(
                start,
                end,
                name or _NCCL_CALLS[op][1],
                stream=stream,
                launch=(now + 1_000, now + 6_000),
                api="cuLaunchKernelEx",
                grid=(2, 1, 1),
                block=(640, 1, 1),
                tid=tid,
            )
            now += 8_000

    def _nccl_range(
        self, start: int, end: int, call: str, tid: int | None, values: Mapping[str, int] | None
    ) -> None:
        if not self._export.nccl_ranges:
            return
        domain = self.domain("NCCL")
        payload = None
        if values is not None and call in LAYOUTS:
            if call not in self._described:
                self._described.add(call)
                self._export.rows_of(schema_rows(call, domain))
                if "enum" not in self._described:
                    self._described.add("enum")
                    self._export.rows_of(enum_rows(domain))
            if self._export.blobs:
                payload = encode_payload(call, values, domain=domain)
        self.nvtx(start, end, call, tid=tid, domain="NCCL", as_text_id=True, payload=payload)
