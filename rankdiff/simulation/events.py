"""GPU work, CUDA calls and OS calls of one GPU process in an export: a method for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .export import Export

Span = tuple[int, int]
Launch = Span | Literal["auto"] | None
Value = int | float | str | bytes | None

_LAUNCH_LEAD = 10_000  # an automatic launch starts so long before its GPU operation
_LAUNCH_LENGTH = 5_000


class ProcessEvents:
    """One GPU process in an export; times are ns of true time, `Export` maps them to the file's clock.

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

    def _next(self) -> int:
        self._correlation += 1
        return self._correlation

    def _launch(self, start: int, launch: Launch, api: str, tid: int | None) -> int:
        correlation = self._next()
        span = launch_span(start, launch)
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


def launch_span(start: int, launch: Launch) -> Span | None:
    """Start and end of the call that launches a GPU operation, None when it is not recorded."""
    if launch == "auto":
        return start - _LAUNCH_LEAD, start - _LAUNCH_LEAD + _LAUNCH_LENGTH
    return launch
