"""Slow, independent timeline of a report: one sweep in plain Python over sqlite3, nothing shared.

For each (process, device) with GPU work: its idle time by (class, range, call), and the same for the time in
each of some windows. What names mean (calls, data ranges, step ranges) is passed in.
"""

from __future__ import annotations

import os
import re
import sqlite3
import urllib.parse
from bisect import bisect_right
from collections import Counter
from contextlib import closing
from itertools import islice, pairwise

from tests.oracles.figures import GPU, NCCL, pid, union


class Names:
    """What names mean: three functions and two predicates over names."""

    def __init__(self, bare, cuda_class, os_class, is_data, is_step):
        self.bare, self.cuda_class, self.os_class = bare, cuda_class, os_class
        self.is_data, self.is_step = is_data, is_step


def timelines(path, names):
    """Pieces (start, end, class, range, call) of each (process, device), in order; times of the file."""
    location = urllib.parse.quote(os.path.abspath(path))
    with closing(sqlite3.connect(f"file:{location}?mode=ro", uri=True)) as base:
        base.text_factory = lambda raw: raw.decode("utf-8", "replace")
        events = _read(base, names)
    return {unit: list(_sweep(unit, *events, names)) for unit in sorted(events[0])}


def by_label(pieces, windows=None):
    """Sum pieces by label: idle ones, or in each window those that it cuts out."""
    if windows is None:
        out = Counter()
        for start, end, kind, *rest in pieces:
            if kind not in ("gpu_work", "copy", "nccl"):
                out[(kind, *rest)] += end - start
        return out
    out = []
    pieces = sorted(pieces, key=lambda piece: piece[0])
    ends = [piece[1] for piece in pieces]
    for first, last in windows:
        sums = Counter()
        for start, end, *label in islice(pieces, bisect_right(ends, first), None):
            if start >= last:
                break
            inside = min(end, last) - max(start, first)
            if inside > 0:
                sums[tuple(label)] += inside
        out.append(sums)
    return out


def _read(base, names):
    tables = [row[0] for row in base.execute("select name from sqlite_master where type = 'table'")]
    have = {table for table in tables if base.execute(f'select 1 from "{table}" limit 1').fetchone()}
    text = dict(base.execute("select id, value from StringIds"))
    work, launch, profiler, lanes = {}, {}, {}, {}
    last = 0
    for table in GPU:
        if table not in have:
            continue
        uvm = " and copyKind not in (11, 12, 13)" if table.endswith("MEMCPY") else ""
        name = "shortName" if table.endswith("KERNEL") else "null"
        columns = f'start, "end", globalPid, deviceId, correlationId, {name}'
        for start, end, process, device, correlation, short in base.execute(
            f'select {columns} from {table} where "end" is not null{uvm}'
        ):
            kind = "copy" if table.endswith(("MEMCPY", "MEMSET")) else "gpu_work"
            if NCCL.match(text.get(short, "")):
                kind = "nccl"
            work.setdefault((pid(process), device), []).append((start, end, kind, correlation))
            last = max(last, end)

    def lane(thread, kind):
        return lanes.setdefault((thread, kind), [])

    callers = set()
    if "CUPTI_ACTIVITY_KIND_RUNTIME" in have:
        sql = 'select start, "end", globalTid, correlationId, nameId from CUPTI_ACTIVITY_KIND_RUNTIME'
        for row, (start, end, thread, correlation, name) in enumerate(base.execute(sql)):
            call = names.bare(text.get(name, ""))
            launch[pid(thread), correlation] = thread, start, end, call
            lane(thread, "cuda").append((start, end, row, call))
            callers.add(thread)
            last = max(last, end)
    if "OSRT_API" in have:
        sql = (
            'select start, "end", globalTid, nameId from OSRT_API where eventClass = 27 and "end" is not null'
        )
        for start, end, thread, name in base.execute(sql):
            lane(thread, "os").append((start, end, name, text.get(name, "")))
    if "SCHED_EVENTS" in have:
        seen = {}
        sql = "select start, isSchedIn, globalTid from SCHED_EVENTS order by start, isSchedIn"
        for start, inward, thread in base.execute(sql):
            seen.setdefault(thread, []).append((start, inward))
        for thread, moves in seen.items():
            for (start, inward), (end, _) in pairwise([*moves, (1 << 62, 1)]):
                if not inward:
                    lane(thread, "off").append((start, end, 0, ""))
    if "PROFILER_OVERHEAD" in have:
        for start, end, thread in base.execute('select start, "end", globalTid from PROFILER_OVERHEAD'):
            profiler.setdefault(pid(thread), []).append((start, end))
    counts = Counter()
    if "NVTX_EVENTS" in have:
        named = {}
        columns = 'start, "end", globalTid, text, textId, domainId, eventType'
        rows = list(
            base.execute(
                f"select {columns} from NVTX_EVENTS where eventType in (59, 60, 70, 71, 75) "
                "and globalTid is not null"
            )
        )
        for _, _, thread, plain, number, domain, kind in rows:
            if kind == 75:
                named.setdefault(pid(thread), {})[domain] = text.get(number, plain)
        for row, (start, end, thread, plain, number, domain, kind) in enumerate(rows):
            if kind == 75:
                continue
            name = (text.get(number) if number is not None else plain) or ""
            domains = named.get(pid(thread), {})
            nccl = {key for key, value in domains.items() if value == "NCCL"}
            if domain in nccl if nccl else domain not in domains and re.match("(?i)nccl[a-z]", name):
                continue
            counts[thread] += 1
            end = 1 << 62 if end is None else end
            if names.is_step(name):
                continue
            lane(thread, "range").append((start, end, row, name))
            if kind in (59, 60) and names.is_data(name):
                lane(thread, "data").append((start, end, row, name))
    return work, launch, profiler, lanes, counts, callers


def _sweep(unit, work, launch, profiler, lanes, counts, callers, names):
    operations = work[unit]
    busy = union([(start, end) for start, end, *_ in operations])
    gaps = [(a[1], b[0]) for a, b in pairwise(busy)]
    ended = {}
    for start, _, _, correlation in operations:
        if correlation is not None:
            ended[start] = min(correlation, ended.get(start, correlation))
    mine = sorted((thread for thread in counts if pid(thread) == unit[0]), key=lambda t: (-counts[t], t))
    carrier = next((thread for thread in mine if thread in callers), mine[0] if mine else 0)
    for kind, start, end in _busy(operations):
        yield start, end, kind, None, None
    overhead = union(profiler.get(unit[0], []))
    ready = {key: _Lane(rows) for key, rows in lanes.items()}
    nothing = _Lane([])
    for start, end in gaps:
        thread, _, returned, launched = launch.get((unit[0], ended.get(end)), (None, 0, 0, None))
        speaker = thread if counts[thread] else carrier
        range_lane = ready.get((speaker, "range"), nothing)
        data_lane = ready.get((speaker, "data"), nothing)
        cuda, calls, off = (ready.get((thread, kind), nothing) for kind in ("cuda", "os", "off"))
        cuts = {start, end, returned}
        for lane in (range_lane, data_lane, cuda, calls, off):
            cuts |= lane.cuts(start, end)
        cuts |= {t for each in overhead for t in each}
        for a, b in pairwise(sorted(t for t in cuts if start <= t <= end)):
            in_cuda, in_os = cuda.at(a), calls.at(a)
            of_cuda = {names.cuda_class(row[3]) for row in in_cuda}
            of_os = {names.os_class(row[3]) for row in in_os}
            cuda_name = _innermost(in_cuda)
            os_name = _innermost(in_os)
            by_cuda, by_os = cuda_name or os_name, os_name or cuda_name
            if any(s <= a < e for s, e in overhead):
                label = "profiler", by_os
            elif thread is None:
                label = "unknown", None
            elif a >= returned:
                label = "launch", launched or None
            elif data_lane.at(a):
                label = "data_load", by_os
            elif "sync" in of_cuda:
                label = "sync", by_cuda
            elif "alloc" in of_cuda:
                label = "alloc", by_cuda
            elif "io" in of_os:
                label = "io", by_os
            elif "os_wait" in of_os:
                label = "os_wait", by_os
            elif "launch" in of_cuda or launch[unit[0], ended[end]][1] <= a:
                label = "launch", by_cuda
            elif off.at(a):
                label = "preempted", by_os
            else:
                label = "host", by_os
            yield a, b, label[0], _innermost(range_lane.at(a)), label[1]


def _busy(operations):
    """Runs of (class, start, end) in which something runs: own work before copies before NCCL."""
    rank = {"gpu_work": 0, "copy": 1, "nccl": 2}
    moves = sorted(
        move
        for start, end, kind, _ in operations
        if end > start
        for move in ((start, 1, rank[kind]), (end, -1, rank[kind]))
    )
    running = [0, 0, 0]
    for (a, step, kind), (b, _, _) in pairwise(moves):
        running[kind] += step
        found = next((name for name, at in rank.items() if running[at]), None)
        if found and b > a:
            yield found, a, b


def _innermost(rows):
    """Name of the row that started last; of those the one that ends first, then the last given."""
    return max(rows, key=lambda row: (row[0], -row[1], row[2]))[3] or None if rows else None


class _Lane:
    """Intervals of one thread, to be asked what is active."""

    def __init__(self, rows):
        self.rows = sorted(rows)
        self.starts = [row[0] for row in self.rows]
        self.latest = []  # largest end so far: where to stop looking back
        for row in self.rows:
            self.latest.append(max(row[1], self.latest[-1] if self.latest else row[1]))

    def at(self, t):
        found = []
        for i in range(bisect_right(self.starts, t) - 1, -1, -1):
            if self.latest[i] <= t:
                break
            if self.rows[i][1] > t:
                found.append(self.rows[i])
        return found

    def cuts(self, start, end):
        out = set()
        for i in range(bisect_right(self.starts, end) - 1, -1, -1):
            if self.latest[i] <= start:
                break
            out |= {self.rows[i][0], self.rows[i][1]}
        return out
