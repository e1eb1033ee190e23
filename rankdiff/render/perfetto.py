"""The same trace in Perfetto's own format; needs the `perfetto` package, which knows the messages."""

from __future__ import annotations

import heapq
import importlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from rankdiff.comparison import Comparison
from rankdiff.errors import RankdiffError
from rankdiff.render.document import clean
from rankdiff.render.trace import Counts, process_name, role
from rankdiff.tracks import RankTracks, Track

_SEQUENCE = 1
_CLEARED, _NEEDS_STATE = 1, 2  # TracePacket.SequenceFlags
_EXPLICIT = 1  # TrackDescriptor.ProcessOrdering and ThreadOrdering
_FIRST_PID = 1000


def messages() -> Any:
    """The module with Perfetto's messages.

    Raises
    ------
    RankdiffError
        The package is not installed.
    """
    try:
        return importlib.import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    except ImportError:
        raise RankdiffError(
            "Perfetto's own format needs the package perfetto",
            "pip install 'rankdiff[perfetto]', or write .json.gz, which the same viewer opens",
        ) from None


def write_perfetto(out: BinaryIO, c: Comparison, traces: Iterable[RankTracks]) -> Counts:
    """Write a trace as a stream of packets.

    Parameters
    ----------
    out : BinaryIO
    c : Comparison
    traces : iterable of RankTracks
        Taken one at a time, in the order in which the ranks are to stand.

    Returns
    -------
    Counts

    Raises
    ------
    RankdiffError
        The package is not installed.
    """
    writer, counts = _Writer(out), Counts()
    uuid = 1
    for order, traced in enumerate(traces):
        counts.add(traced)
        process, pid = uuid, _FIRST_PID + traced.identity.rank
        writer.process(process, pid, process_name(traced.identity), role(c, traced.identity.rank), order)
        for n, track in enumerate(traced.tracks, 1):
            writer.thread(process + n, pid, process + n, clean(track.name), n)
            for at, kind, what in _in_time(track):
                writer.event(process + n, at, kind, what)
        uuid += len(traced.tracks) + 1
    return counts


def _in_time(track: Track) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Begins, ends and moments of a track by time; of one time the ends first, for the next slice follows.

    An arrow leaves with the begin of a slice, and comes in with the begin of the slice in which it ends. That
    slice is moved by 1 ns, because Perfetto wants the arrow to have left before.
    """
    leaves: dict[int, list[int]] = {}
    for row, arrow in track.arrows_out.select("slice", "id").iter_rows():
        leaves.setdefault(row, []).append(arrow)
    comes = dict(track.arrows_in.select("slice", "id").iter_rows())
    open_ends: list[tuple[int, int]] = []  # (end, -number of the slice): the inner one ends first
    for n, row in enumerate(track.slices.iter_rows(named=True)):
        start, end = row.pop("start_ns"), row.pop("end_ns")
        yield from _ends(open_ends, start)
        row["leaves"], row["arrives"] = leaves.get(n, ()), comes.get(n)
        yield start + (n in comes), "begin", row
        heapq.heappush(open_ends, (end, -n))
    yield from _ends(open_ends, None)
    for row in track.marks.iter_rows(named=True):
        yield row.pop("at_ns"), "mark", row


def _ends(open_ends: list[tuple[int, int]], until: int | None) -> Iterator[tuple[int, str, dict[str, Any]]]:
    while open_ends and (until is None or open_ends[0][0] <= until):
        end, _ = heapq.heappop(open_ends)
        yield end, "end", {}


class _Writer:
    """Packets of one sequence, names sent once."""

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._pb = out, messages()
        self._names: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        event = self._pb.TrackEvent
        self._types = {
            "begin": event.TYPE_SLICE_BEGIN,
            "end": event.TYPE_SLICE_END,
            "mark": event.TYPE_INSTANT,
        }
        first = self._packet()
        first.sequence_flags = _CLEARED
        first.track_descriptor.uuid = 0
        # Older versions of the package do not know these, and older viewers do not heed them.
        for name in ("process_ordering", "thread_ordering"):
            if name in self._pb.TrackDescriptor.DESCRIPTOR.fields_by_name:
                setattr(first.track_descriptor, name, _EXPLICIT)
        self._write(first)

    def process(self, uuid: int, pid: int, name: str, label: str, order: int) -> None:
        packet = self._packet()
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.process.pid = pid
        packet.track_descriptor.process.process_name = name
        packet.track_descriptor.process.process_labels.append(label)
        self._ranked(packet, order)

    def thread(self, uuid: int, pid: int, tid: int, name: str, order: int) -> None:
        packet = self._packet()
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.thread.pid = pid
        # Above all process ids: a thread with the id of a process is taken for its main thread.
        packet.track_descriptor.thread.tid = (1 << 24) + tid
        packet.track_descriptor.thread.thread_name = name
        self._ranked(packet, order)

    def event(self, track: int, at_ns: int, kind: str, what: dict[str, Any]) -> None:
        packet = self._packet()
        packet.timestamp = at_ns
        packet.sequence_flags = _NEEDS_STATE
        event = packet.track_event
        event.type = self._types[kind]
        event.track_uuid = track
        if kind != "end":
            event.name_iid = self._interned(packet, what.pop("name") or "?", self._names, "event_names")
            event.flow_ids.extend(what.pop("leaves", ()))
            if (arrow := what.pop("arrives", None)) is not None:
                event.terminating_flow_ids.append(arrow)
            for key, value in what.items():
                if value is not None:
                    self._annotate(packet, event, key, value)
        self._write(packet)

    def _annotate(self, packet: Any, event: Any, key: str, value: Any) -> None:
        note = event.debug_annotations.add()
        note.name_iid = self._interned(packet, key, self._keys, "debug_annotation_names")
        if isinstance(value, bool):
            note.bool_value = value
        elif isinstance(value, int):
            note.int_value = value
        else:
            note.string_value = clean(str(value))

    def _interned(self, packet: Any, text: str, known: dict[str, int], where: str) -> int:
        if text not in known:
            known[text] = len(known) + 1
            entry = getattr(packet.interned_data, where).add()
            entry.iid, entry.name = known[text], clean(text)
        return known[text]

    def _packet(self) -> Any:
        packet = self._pb.TracePacket()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet

    def _ranked(self, packet: Any, order: int) -> None:
        if "sibling_order_rank" in self._pb.TrackDescriptor.DESCRIPTOR.fields_by_name:
            packet.track_descriptor.sibling_order_rank = order
        self._write(packet)

    def _write(self, packet: Any) -> None:
        # A file is one Trace message: its packets can be written one after the other.
        self._out.write(self._pb.Trace(packet=[packet]).SerializeToString())
