"""Reading a trace as Perfetto does, and holding it against what a trace must be."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]


@dataclass
class Track:
    """One thread of a trace; slices as (start, end, event) in ns, in the order of the file."""

    name: str = ""
    slices: list[tuple[int, int, Event]] = field(default_factory=list)
    order: int = -1


@dataclass
class Trace:
    """A trace in JSON, taken apart."""

    about: Event
    processes: dict[int, Event]  # by pid: name, sort_index, labels
    tracks: dict[tuple[int, int], Track]  # by (pid, tid)
    starts: dict[int, Event]  # arrows by id
    ends: dict[int, Event]
    marks: list[Event]

    def slices(self, kind: str) -> list[tuple[int, int, Event]]:
        """All slices of a kind."""
        return [s for t in self.tracks.values() for s in t.slices if s[2]["cat"] == kind]

    def collectives(self) -> list[Event]:
        """NCCL's kernels, without the waits and transfers inside them."""
        return [e for _, _, e in self.slices("nccl") if e["args"]["kernel"] is not None]

    def names(self, pid: int) -> list[str]:
        """Names of the tracks of a process, in their order."""
        mine = [t for (p, _), t in self.tracks.items() if p == pid]
        return [t.name for t in sorted(mine, key=lambda t: t.order)]


def ns(us: float) -> int:
    """Perfetto's reading of a time: times 1000, decimals cut off."""
    return int(us * 1000.0)


def read(path: Path) -> Trace:
    """Read a trace and check its structure."""
    data = path.read_bytes()
    raw = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    assert raw["displayTimeUnit"] == "ns"
    trace = Trace(raw["otherData"], defaultdict(dict), defaultdict(Track), {}, {}, [])
    for e in raw["traceEvents"]:
        _sort_in(trace, e)
    _check(trace)
    return trace


def _sort_in(trace: Trace, e: Event) -> None:
    place = e["pid"], e.get("tid", -1)
    if e["ph"] == "M":
        ((key, value),) = e["args"].items()
        if e["name"] == "thread_name":
            trace.tracks[place].name = value
        elif e["name"] == "thread_sort_index":
            trace.tracks[place].order = value
        else:
            trace.processes[e["pid"]][key] = value
    elif e["ph"] == "X":
        start, length = ns(e["ts"]), ns(e["dur"])
        assert start >= 0
        assert length >= 0
        trace.tracks[place].slices.append((start, start + length, e))
    elif e["ph"] in "sf":
        known = trace.starts if e["ph"] == "s" else trace.ends
        assert e["id"] not in known
        known[e["id"]] = e
    else:
        assert e["ph"] == "i"
        assert e["ts"] >= 0
        trace.marks.append(e)


def _check(trace: Trace) -> None:
    tids = [tid for _, tid in trace.tracks]
    assert len(set(tids)) == len(tids)  # Perfetto tells threads apart by the tid alone
    assert not set(tids) & set(trace.processes)
    assert 0 not in trace.processes
    for (pid, _), track in trace.tracks.items():
        assert pid in trace.processes
        assert track.name
        nests(track.slices)
    assert trace.starts.keys() == trace.ends.keys()
    for number, start in trace.starts.items():
        end = trace.ends[number]
        assert ns(end["ts"]) == ns(start["ts"]) + 1
        assert end["bp"] == "e"
        assert start["pid"] != end["pid"]
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        # Perfetto draws from the slice that starts earlier, and from the first end of equal ones.
        source, target = _innermost(trace, start), _innermost(trace, end)
        assert source[0] == target[0] == ns(start["ts"])
        assert target[2]["name"] == "transfer"
    for mark in trace.marks:
        assert (mark["pid"], mark["tid"]) in trace.tracks


def _innermost(trace: Trace, e: Event) -> tuple[int, int, Event]:
    at = ns(e["ts"])
    inside = [s for s in trace.tracks[e["pid"], e["tid"]].slices if s[0] <= at < s[1]]
    assert inside
    return inside[-1]


def nests(slices: list[tuple[int, int, Any]]) -> None:
    """Check that slices come in order and any two nest or do not touch."""
    stack: list[tuple[int, int]] = []
    before = 0
    for start, end, _ in slices:
        assert start >= before
        before = start
        while stack and stack[-1][1] <= start:
            stack.pop()
        if stack:
            assert end <= stack[-1][1]
        stack.append((start, end))
