# SPDX-License-Identifier: Apache-2.0
"""A trace in Perfetto's own format, made of its own protobuf classes, packet by packet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

from gangline.observe.tracing.scene import ALL, TRACK_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.observe.tracing.scene import Scene, Span

_NS_PER_S = 1e9
_SEQUENCE = 1
_FIRST_PID = 1
"""Perfetto takes process 0 for the idle one: worker 0 is 1, and what is said of all comes behind."""


class _Tracks:
    """The numbers of tracks, and the packets that introduce them."""

    def __init__(self, scene: Scene) -> None:
        self._processes = scene.processes
        self._numbers: dict[tuple[Any, ...], int] = {}
        self.introductions: list[bytes] = []
        for process in sorted(scene.processes):
            self._introduce_process(process)

    def of_span(self, process: int, track: int) -> int:
        """The track of a thread."""
        return self._find(("thread", process, track), self._thread)

    def of_counter(self, process: int, name: str) -> int:
        """The track of a counter."""
        return self._find(("counter", process, name), self._counter)

    def of_process(self, process: int) -> int:
        """The track of a process itself."""
        return self._numbers["process", process]

    def _find(self, key: tuple[Any, ...], describe: Any) -> int:
        if key not in self._numbers:
            self._numbers[key] = 1 + len(self._numbers)
            self.introductions.append(describe(self._numbers[key], *key[1:]))
        return self._numbers[key]

    def _introduce_process(self, process: int) -> None:
        number = self._numbers["process", process] = 1 + len(self._numbers)
        packet = _packet()
        packet.track_descriptor.uuid = number
        packet.track_descriptor.process.pid = _pid(process, self._processes)
        packet.track_descriptor.process.process_name = self._processes[process]
        self.introductions.append(_framed(packet))

    def _thread(self, number: int, process: int, track: int) -> bytes:
        pid = _pid(process, self._processes)
        packet = _packet()
        descriptor = packet.track_descriptor
        descriptor.uuid, descriptor.parent_uuid = number, self.of_process(process)
        descriptor.thread.pid, descriptor.thread.tid = pid, pid * 10 + track
        descriptor.thread.thread_name = TRACK_NAMES[track]
        return _framed(packet)

    def _counter(self, number: int, process: int, name: str) -> bytes:
        packet = _packet()
        descriptor = packet.track_descriptor
        descriptor.uuid, descriptor.parent_uuid = number, self.of_process(process)
        descriptor.name = name
        descriptor.counter.SetInParent()
        return _framed(packet)


def packets_of(scene: Scene) -> Iterator[bytes]:
    """The file in pieces: a trace is its packets, one after the other."""
    tracks = _Tracks(scene)
    timed = [*_of_spans(scene, tracks), *_of_moments(scene, tracks)]
    first_ns = min((at_ns for at_ns, _, _ in timed), default=0)
    yield from tracks.introductions
    for at_ns, _, packet in sorted(timed, key=lambda one: one[:2]):
        packet.timestamp = at_ns - min(0, first_ns)
        yield _framed(packet)


def _of_spans(scene: Scene, tracks: _Tracks) -> Iterator[tuple[int, int, Any]]:
    """Beginnings and ends: time, order among those of the same time, and packet."""
    ends: dict[int, int] = {}
    for number, span in enumerate(scene.spans):
        track = tracks.of_span(span.process, span.track)
        begin_ns = max(_ns(span.begin_s), ends.get(track, _ns(span.begin_s)))
        ends[track] = max(begin_ns, _ns(span.begin_s + span.duration_s))
        yield begin_ns, 2 * number, _begin(span, track)
        end = _packet()
        end.track_event.type, end.track_event.track_uuid = TrackEvent.TYPE_SLICE_END, track
        yield ends[track], 2 * number + 1, end


def _of_moments(scene: Scene, tracks: _Tracks) -> Iterator[tuple[int, int, Any]]:
    for count in scene.counts:
        packet = _packet()
        event = packet.track_event
        event.type = TrackEvent.TYPE_COUNTER
        event.track_uuid = tracks.of_counter(count.process, count.name)
        event.double_counter_value = count.value
        yield _ns(count.at_s), 0, packet
    for mark in scene.marks:
        packet = _packet()
        event = packet.track_event
        event.type, event.name = TrackEvent.TYPE_INSTANT, mark.name
        event.track_uuid = tracks.of_process(ALL)
        _annotate(event, mark.args)
        yield _ns(mark.at_s), 0, packet


def _ns(seconds: float) -> int:
    return round(seconds * _NS_PER_S)


def _begin(span: Span, track: int) -> Any:
    packet = _packet()
    event = packet.track_event
    event.type, event.track_uuid, event.name = TrackEvent.TYPE_SLICE_BEGIN, track, span.name
    event.categories.append("step")
    if span.flow:
        event.flow_ids.append(span.flow)
    _annotate(event, span.args)
    return packet


def _annotate(event: Any, args: dict[str, Any]) -> None:
    for name, value in args.items():
        note = event.debug_annotations.add()
        note.name = name
        if isinstance(value, int):
            note.int_value = value
        elif isinstance(value, float):
            note.double_value = value
        else:
            note.string_value = str(value)


def _packet() -> Any:
    packet = TracePacket()
    packet.trusted_packet_sequence_id = _SEQUENCE
    return packet


def _framed(packet: Any) -> bytes:
    """A packet as a trace of its own: such can be put together end to end."""
    framed: bytes = Trace(packet=[packet]).SerializeToString()
    return framed


def _pid(process: int, processes: dict[int, str]) -> int:
    return _FIRST_PID + (1 + max(processes) if process == ALL else process)
