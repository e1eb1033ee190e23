"""Slow, independent figures for a report: plain Python over sqlite3, nothing shared with the product.

For each (process, device) that ran GPU work, in ns:
  span_ns            first GPU start .. last GPU end (kernels, copies but UVM migrations, sets, graphs)
  busy_ns            union of that GPU work, over all streams
  idle_ns            span_ns - busy_ns
  idle_data_load_ns  idle time covered by the union of the data_load NVTX ranges of the process (null: no such
                     range); a range without end lasts for ever
  idle_osrt_ns       idle time covered by OS runtime calls (eventClass 27) of the thread that ends the
                     gap: the one that launched the GPU operation starting at the gap's end
                     (joined on process and correlationId; of several, the lowest correlationId)
  nccl_kernels, nccl_ns   count and summed duration of NCCL kernels (nop left out)
"""

from __future__ import annotations

import os
import re
import sqlite3
import urllib.parse
from contextlib import closing
from itertools import pairwise

DATA = (
    r"(?i)(?:[\w.-]+:)?(?:data[ _-]?load(?:er|ing)?|enumerate\(dataloader|next[ _-]?batch|"
    r"(?:fetch|get|load)[ _-]?(?:next[ _-]?)?(?:batch|data)\b|\[dali\])"
)
NCCL = re.compile(
    r"^(?:void )?(?:nccl(?:Symk?)?(?:Dev)?Kernel_(?!nop)|"
    r"nccl(?:AllReduce|AllGather|ReduceScatter|Reduce|Broadcast|SendRecv)\w*Kernel_|msccl(?:pp)?Kernel_)"
)
FOREVER = 1 << 62
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
GPU = (
    KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
)


def union(intervals):
    out = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if out and start <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([start, end])
    return out


def overlap(a, b):
    """Length of the intersection of two unions."""
    n = i = j = 0
    while i < len(a) and j < len(b):
        n += max(0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return n


def pid(global_id):
    return (global_id >> 24) & 0xFFFFFF


def figures(path, data_range=DATA):
    location = urllib.parse.quote(os.path.abspath(path))
    with closing(sqlite3.connect(f"file:{location}?mode=ro", uri=True)) as base:
        base.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return _figures(base, data_range)


def _figures(base, data_range):
    tables = [row[0] for row in base.execute("select name from sqlite_master where type = 'table'")]
    # An empty table is one not captured.
    have = {table for table in tables if base.execute(f'select 1 from "{table}" limit 1').fetchone()}
    name = dict(base.execute("select id, value from StringIds"))
    gpu, nccl, first, launch, data, osrt = {}, {}, {}, {}, {}, {}
    for table in GPU:
        if table not in have:
            continue
        uvm = " and copyKind not in (11, 12, 13)" if table.endswith("MEMCPY") else ""
        columns = 'start, "end", globalPid, deviceId, correlationId'
        sql = f'select {columns} from {table} where "end" is not null{uvm}'
        for start, end, process, device, correlation in base.execute(sql):
            unit = pid(process), device
            gpu.setdefault(unit, []).append((start, end))
            if correlation is not None:
                first[unit, start] = min(correlation, first.get((unit, start), correlation))
    if KERNEL in have:
        sql = f'select start, "end", globalPid, deviceId, shortName from {KERNEL} where "end" is not null'
        for start, end, process, device, short in base.execute(sql):
            if NCCL.match(name.get(short, "")):
                nccl.setdefault((pid(process), device), []).append((start, end))
    if "CUPTI_ACTIVITY_KIND_RUNTIME" in have:
        sql = (
            "select globalTid, correlationId from CUPTI_ACTIVITY_KIND_RUNTIME where correlationId is not null"
        )
        for thread, correlation in base.execute(sql):
            launch[pid(thread), correlation] = thread
    if "NVTX_EVENTS" in have:
        sql = 'select start, "end", globalTid, text, textId from NVTX_EVENTS where eventType in (59, 60)'
        for start, end, thread, text, text_id in base.execute(sql):
            if re.match(data_range, (name.get(text_id) if text_id is not None else text) or ""):
                data.setdefault(pid(thread), []).append((start, FOREVER if end is None else end))
    if "OSRT_API" in have:
        sql = 'select start, "end", globalTid from OSRT_API where eventClass = 27 and "end" is not null'
        for start, end, thread in base.execute(sql):
            osrt.setdefault(thread, []).append((start, end))
    out = []
    for unit in sorted(gpu):
        busy = union(gpu[unit])
        idle = [[a[1], b[0]] for a, b in pairwise(busy)]
        ended = {}
        for begin, end in idle:
            thread = launch.get((unit[0], first.get((unit, end))))
            if thread is not None:
                ended.setdefault(thread, []).append([begin, end])
        loads = data.get(unit[0])
        mine = nccl.get(unit, [])
        out.append(
            {
                "pid": unit[0],
                "device": unit[1],
                "span_ns": busy[-1][1] - busy[0][0],
                "busy_ns": sum(end - start for start, end in busy),
                "idle_ns": sum(end - start for start, end in idle),
                "idle_data_load_ns": overlap(idle, union(loads)) if loads else None,
                "idle_osrt_ns": sum(overlap(v, union(osrt.get(t, []))) for t, v in ended.items())
                if "OSRT_API" in have
                else None,
                "nccl_kernels": len(mine),
                "nccl_ns": sum(end - start for start, end in mine),
            }
        )
    return out
