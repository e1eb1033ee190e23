"""One GPU process in an export: a method for everything that can happen in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .payloads import COMM, LAYOUTS, PEER, ROOT, SIZE, encode_payload, enum_rows, schema_rows

if TYPE_CHECKING:
    from .export import Export

Span = tuple[int, int]
Launch = Span | Literal["auto"] | None
Value = int | float | str | bytes | None

_LAUNCH_LEAD = 10_000  # an automatic launch starts so long before its GPU operation
_LAUNCH_LENGTH = 5_000
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


class Process:
    """One GPU process in an export; times are ns on the test's own clock, `Export` maps them.

    Attributes
    ----------
    pid, device : int
        Process id and CUDA ordinal.
    main : int
        Thread id of the main thread, equal to `pid`.
    """

    def __init__(self, export: Export, pid: int, device: int) -> None:
        self._export = export
        self.pid = pid
        self.device = device
        self.main = pid
        self._correlation = 0
        self._domains: dict[str, int] = {}
        self._described: set[str] = set()

    def gtid(self, tid: int | None = None) -> int:
        """Return the globalTid of a thread of this process (by default the main thread)."""
        return self.gpid | (self.main if tid is None else tid)

    @property
    def gpid(self) -> int:
        """The globalPid of this process."""
        return self._export.machine << 48 | self.pid << 24

    def api(
        self, start: int, end: int, name: str, *, tid: int | None = None, correlation: int | None = None
    ) -> int:
        """Write a CUDA call, by default one that starts no GPU work; return its correlation id."""
        if correlation is None:
            correlation = self._next()
        self._event(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start,
            end,
            eventClass=0 if name.startswith("cuda") else 1,
            globalTid=self.gtid(tid),
            correlationId=correlation,
            nameId=self._export.string(name),
        )
        return correlation

    def kernel(
        self,
        start: int,
        end: int,
        name: str,
        *,
        stream: int = 7,
        launch: Launch = "auto",
        api: str = "cudaLaunchKernel_v7000",
        grid: tuple[int, int, int] = (128, 1, 1),
        block: tuple[int, int, int] = (256, 1, 1),
        tid: int | None = None,
        context: int = 1,
        graph_node: int | None = None,
    ) -> int:
        """Write a kernel and the CUDA call that launched it; return their correlation id.

        `launch` is the (start, end) of that call; "auto" puts it 10 us before the kernel, None leaves it
        out, as a capture window that begins between the two does.
        """
        correlation = self._launch(start, launch, api, tid)
        short = name.removeprefix("void ").partition("<")[0].partition("(")[0].rpartition("::")[2]
        dims = dict(zip(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), grid + block, strict=True))
        self._gpu(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            start,
            end,
            stream,
            correlation,
            context,
            demangledName=self._export.string(name),
            shortName=self._export.string(short or name),
            launchType=1,
            cacheConfig=1,
            registersPerThread=32,
            gridId=correlation,
            graphNodeId=graph_node,
            sharedMemoryExecuted=32768,
            sharedMemoryLimitConfig=0,
            **dims,
        )
        return correlation

    def memcpy(
        self,
        start: int,
        end: int,
        *,
        kind: int = 1,
        size: int = 1 << 20,
        stream: int = 7,
        launch: Launch = "auto",
        api: str = "cudaMemcpyAsync_v3020",
        memory: tuple[int, int] = (1, 2),
        tid: int | None = None,
    ) -> int:
        """Write a copy (kind 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP, 11-13 UVM; memory 0 pageable, 1 pinned)."""
        correlation = self._launch(start, launch, api, tid)
        self._gpu(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            start,
            end,
            stream,
            correlation,
            1,
            bytes=size,
            copyKind=kind,
            srcKind=memory[0],
            dstKind=memory[1],
            copyCount=1,
        )
        return correlation

    def memset(
        self,
        start: int,
        end: int,
        *,
        size: int = 4,
        stream: int = 7,
        launch: Launch = "auto",
        tid: int | None = None,
    ) -> int:
        """Write a memory set."""
        correlation = self._launch(start, launch, "cudaMemsetAsync_v3020", tid)
        self._gpu(
            "CUPTI_ACTIVITY_KIND_MEMSET", start, end, stream, correlation, 1, bytes=size, value=0, memKind=2
        )
        return correlation

    def graph_trace(
        self,
        start: int,
        end: int,
        *,
        graph: int = 1,
        stream: int = 7,
        launch: Launch = "auto",
        tid: int | None = None,
    ) -> int:
        """Write the launch of a CUDA graph that was traced whole."""
        correlation = self._launch(start, launch, "cudaGraphLaunch_v10000", tid)
        self._gpu(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            start,
            end,
            stream,
            correlation,
            1,
            graphId=graph,
            graphExecId=graph + 1,
        )
        return correlation

    def sync(
        self, start: int, end: int, *, kind: str = "Stream", stream: int = 7, tid: int | None = None
    ) -> int:
        """Write a blocking call: cuda<kind>Synchronize, kind Stream, Device or Event."""
        correlation = self.api(start, end, f"cuda{kind}Synchronize_v3020", tid=tid)
        self._gpu(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            start,
            end,
            stream,
            correlation,
            1,
            syncType={"Device": 0, "Event": 1, "Stream": 2}[kind],
            eventId=0xFFFFFFFF,
        )
        return correlation

    def osrt(
        self,
        start: int,
        end: int,
        name: str,
        *,
        tid: int | None = None,
        event_class: int = 27,
        nesting: int = 0,
    ) -> None:
        """Write an OS runtime call."""
        self._event(
            "OSRT_API",
            start,
            end,
            eventClass=event_class,
            globalTid=self.gtid(tid),
            nameId=self._export.string(name),
            nestingLevel=nesting,
        )

    def overhead(
        self, start: int, end: int, name: str = "CUPTI Buffer flush", *, tid: int | None = None
    ) -> None:
        """Write profiler overhead."""
        self._event(
            "PROFILER_OVERHEAD", start, end, globalTid=self.gtid(tid), nameId=self._export.string(name)
        )

    def sched(self, start: int, *, inward: bool, cpu: int = 0, tid: int | None = None) -> None:
        """Write that a thread came onto a CPU or left it."""
        self._event("SCHED_EVENTS", start, None, cpu=cpu, isSchedIn=int(inward), globalTid=self.gtid(tid))

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
    ) -> int:
        """Write one collective: kernel, launch, NCCL range around the launch, and its payload.

        The payload needs a communicator hash and an export with `blobs`; a `name` overrides the kernel's;
        `nvtx` False is a capture without NVTX.
        """
        call, kernel = _NCCL_CALLS[op]
        span = _launch_span(start, launch)
        if nvtx and span:
            values = None if comm is None else {COMM: comm, SIZE: size, ROOT: root, PEER: root}
            self._nccl_range(span[0] - 3_000, span[1] + 3_000, call, tid, values)
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

    def _next(self) -> int:
        self._correlation += 1
        return self._correlation

    def _launch(self, start: int, launch: Launch, api: str, tid: int | None) -> int:
        correlation = self._next()
        span = _launch_span(start, launch)
        if span:
            self.api(*span, api, tid=tid, correlation=correlation)
        return correlation

    def _gpu(
        self, table: str, start: int, end: int, stream: int, correlation: int, context: int, **more: Value
    ) -> None:
        self._event(
            table,
            start,
            end,
            deviceId=self.device,
            contextId=context,
            greenContextId=0,
            streamId=stream,
            correlationId=correlation,
            globalPid=self.gpid,
            **more,
        )

    def _event(self, table: str, start: int, end: int | None, **row: Value) -> None:
        self._export.event(table, start, end, row)


def _launch_span(start: int, launch: Launch) -> Span | None:
    if launch == "auto":
        return start - _LAUNCH_LEAD, start - _LAUNCH_LEAD + _LAUNCH_LENGTH
    return launch
