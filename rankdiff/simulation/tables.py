"""The tables of an export by schema version: names, types, nullability and column order of real files.

A column is written ``name`` (INTEGER, may be null), ``name!`` (INTEGER NOT NULL), with ``:text`` or ``:real``
for other types. ``@`` bounds the schema versions that have it: ``@3.7.2`` from that version on, ``@<3.7.2``
before it. Order matters: `greenContextId` really came into the middle.
"""

from __future__ import annotations

from typing import NamedTuple

OLDEST = (2, 0, 0)  # stands for the exporters of 2020 and 2021, which wrote no version at all

_GPU = "start! end! deviceId! contextId! greenContextId@3.7.2 streamId! correlationId globalPid"
_SHAPE = "gridX! gridY! gridZ! blockX! blockY! blockZ!"
_MEMORY = "staticSharedMemory! dynamicSharedMemory! localMemoryPerThread! localMemoryTotal!"

# In the order in which exports hold them.
_TABLES = {
    "StringIds": "id!key value!:text",
    "NVTX_PAYLOAD_SCHEMAS": "domainId schemaId name:text type flags numEntries payloadSize alignTo",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": (
        "domainId! schemaId! idx! flags type name:text description:text arrayOrUnionDetail offset"
    ),
    "NVTX_PAYLOAD_ENUMS": "domainId schemaId name:text numEntries size",
    "NVTX_PAYLOAD_ENUM_ENTRIES": "domainId! schemaId! idx! name:text value isFlag",
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName!:text name!:text nameEnum! value!:text",
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs utcTime:text localTime:text systemClockNs@3.24.14"),
    "DIAGNOSTIC_EVENT": "timestamp! timestampType! source! severity! text!:text globalPid",
    "NVTX_EVENTS": (
        "start! end eventType! rangeId category color text:text globalTid endGlobalTid textId domainId"
        " uint64Value int64Value doubleValue:real uint32Value int32Value floatValue:real"
        " jsonTextId jsonText:text binaryData:text@3.16.1"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId"
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        f"{_GPU} deprecatedSyncType@3.17.1 syncType! eventId! eventSyncId@3.17.1"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        f"{_GPU} bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId"
        " dstContextId migrationCause graphNodeId virtualAddress@2.9.1 copyCount@3.20.2"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_GPU} value! bytes! graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        f"{_GPU} demangledName! shortName! mangledName@2.9.1 launchType cacheConfig registersPerThread!"
        f" {_SHAPE} {_MEMORY} gridId! sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig"
        " qmdBulkReleaseDone@3.24.14 qmdPreexitDone@3.24.14 qmdLastCtaDone@3.24.14 graphId@3.24.14"
        " clusterX@3.24.14 clusterY@3.24.14 clusterZ@3.24.14 clusterSchedulingPolicy@3.24.14"
        " maxPotentialClusterSize@3.24.14 maxActiveClusters@3.24.14"
        " sharedMemoryRequestedPercentage@3.24.14 tensorSizeMinusOneElements!:text@3.25.0"
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_GPU} graphId! graphExecId!",
    "PROFILER_OVERHEAD": (
        "start! end! globalTid correlationId@<2.9.1 nameId! returnValue!@<3.24.14 overheadType!@3.24.14"
    ),
    "SCHED_EVENTS": "start! cpu! isSchedIn! globalTid threadState@3.13.2 threadBlock@3.13.2",
    "PROCESSES": "globalPid pid name:text",
    "OSRT_API": (
        "start! end! eventClass! globalTid correlationId@<2.9.1 correlationId@3.24.14 nameId! returnValue!"
        " nestingLevel callchainId!"
    ),
    "ThreadNames": "nameId! priority globalTid",
    "MPI_RANKS": "globalTid rank",
    "TARGET_INFO_GPU": (
        "vmId! id! name:text busLocation:text isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate"
        " smCount pwGpuId uuid:text luid chipName:text"
    ),
    "TARGET_INFO_CUDA_DEVICE": ("gpuId cudaId! pid! uuid:text@3.24.14 numMultiprocessors@3.24.14"),
    "EXPORT_META_DATA": "name!:text value:text",
    "META_DATA_CAPTURE": "name!:text value:text",
    "META_DATA_EXPORT": "name!:text value:text",
}

# First schema version of the tables that not every version has; rows of a table too young are not written.
_SINCE = {
    "NVTX_PAYLOAD_SCHEMAS": "3.20.2",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "3.20.2",
    "NVTX_PAYLOAD_ENUMS": "3.20.2",
    "NVTX_PAYLOAD_ENUM_ENTRIES": "3.20.2",
    "ANALYSIS_DETAILS": "2.9.1",
    "TARGET_INFO_SESSION_START_TIME": "2.9.1",
    "DIAGNOSTIC_EVENT": "3.11.1",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "3.11.1",
    "PROCESSES": "2.9.1",
    "MPI_RANKS": "3.1.7",
    "TARGET_INFO_CUDA_DEVICE": "3.17.1",
    "EXPORT_META_DATA": "2.9.1",
    "META_DATA_CAPTURE": "3.4.0",
    "META_DATA_EXPORT": "3.4.0",
}


class Column(NamedTuple):
    """One column of a table."""

    name: str
    kind: str  # INTEGER, TEXT or REAL
    required: bool  # NOT NULL
    key: bool  # PRIMARY KEY

    @property
    def sql(self) -> str:
        """The column as it stands in CREATE TABLE."""
        null = " NOT NULL" if self.required else ""
        return f'"{self.name}" {self.kind}{null}{" PRIMARY KEY" if self.key else ""}'

    @property
    def default(self) -> int | str | None:
        """What stands in a row that does not give this column."""
        return ("" if self.kind == "TEXT" else 0) if self.required else None


def version_tuple(version: str | None) -> tuple[int, ...]:
    """Return a schema version as numbers; None, the oldest exporters, sorts before all."""
    return tuple(int(part) for part in version.split(".")) if version else OLDEST


def has_table(table: str, version: str | None) -> bool:
    """Say whether exporters of this schema version write the table."""
    at = version_tuple(version)
    if table == "EXPORT_META_DATA" and at >= (3, 4, 0):
        return False
    return table not in _SINCE or at >= version_tuple(_SINCE[table])


def columns(table: str, version: str | None) -> list[Column]:
    """Return the columns of a table as an exporter of this schema version writes them."""
    found = []
    for word in _TABLES[table].split():
        text, _, bound = word.partition("@")
        name, _, kind = text.partition(":")
        at = version_tuple(version)
        if bound and (at >= version_tuple(bound[1:]) if bound[0] == "<" else at < version_tuple(bound)):
            continue
        key = name.endswith("!key")
        name = name.removesuffix("key")
        found.append(Column(name.removesuffix("!"), (kind or "integer").upper(), name.endswith("!"), key))
    return found


def table_names() -> list[str]:
    """Return all tables, in the order of an export."""
    return list(_TABLES)
