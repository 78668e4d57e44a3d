# SPDX-License-Identifier: Apache-2.0
"""A run as a trace, in both formats; Perfetto's is read back with its own classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from synthetic_run import START, SyntheticRun

from gangline.observe import to_trace, tracing
from gangline.observe.tracing import write_trace
from gangline.spec.errors import UsageError
from gangline.spec.event import (
    AnyEvent,
    Decision,
    Logged,
    StepsDone,
    StepSummary,
    UnitsExchanged,
    Utilisation,
)

if TYPE_CHECKING:
    from pathlib import Path

SUMMED = StepsDone(
    t=START + 20.0, worker=1, step=50, steps=10, epoch=0, view=0, samples=80, start=0, stop=160,
    since=START + 10.0, compute_s=5.0, data_s=0.0, exchange_s=1.0, update_s=0.0,
)  # fmt: skip


def events() -> list[AnyEvent]:
    run = SyntheticRun([0.01, 0.02]).run_steps(3, shares=[8, 8]).end()
    return [
        *run.events,
        UnitsExchanged(t=START, worker=0, step=1, units=[(0, 0.05, 0.06, 0.07), (1, 0.1, 0.1, 0.1)]),
        Utilisation(
            t=START + 0.2, worker=1, cpu=0.9, node_cpu=0.5, memory_bytes=1 << 20, node_memory=0.1,
            threads=3, sent_bytes=0, received_bytes=0,
        ),
        Logged(t=START + 0.3, worker=0, step=1, epoch=0, samples=8, values={"loss": 0.5, "x": None}),
        Decision(t=START + 0.1, what="hint", reason="because", numbers={}),
        SUMMED,
    ]  # fmt: skip


# --- JSON -------------------------------------------------------------------------------------------


def of_phase(phase: str, given: list[AnyEvent] | None = None) -> list[dict[str, Any]]:
    found = to_trace(events() if given is None else given)["traceEvents"]
    return [event for event in found if event["ph"] == phase]


def test_json_has_a_track_per_worker_and_thread() -> None:
    names = {(e["pid"], e["tid"], e["args"]["name"]) for e in of_phase("M")}
    assert {(0, 0, "worker 0 (n0)"), (0, 0, "steps"), (0, 1, "exchange"), (1, 0, "steps")} <= names
    units = [e for e in of_phase("X") if e["tid"] == 1]
    assert [(e["pid"], e["name"], e["args"]["step"]) for e in units] == [
        (0, "unit 0", 1),
        (0, "unit 1", 1),
    ]


def test_json_joins_the_exchanges_of_a_step() -> None:
    begins, ends = of_phase("s"), of_phase("f")
    assert {e["id"] for e in begins} == {e["id"] for e in ends}
    assert len(begins) == len(ends) == 3
    three = SyntheticRun([0.01, 0.02, 0.03]).run_steps(1, shares=[8, 8, 8]).events
    assert [len(of_phase(phase, three)) for phase in "stf"] == [1, 1, 1]
    alone = SyntheticRun([0.01]).run_steps(2, shares=[8]).events
    assert of_phase("s", alone) == []


def test_json_counts_shares_cores_and_what_is_logged() -> None:
    counters = {(e["pid"], e["name"]): e["args"]["value"] for e in of_phase("C")}
    assert counters[0, "share"] == 8
    assert counters[1, "cores"] == 0.9
    assert counters[0, "loss"] == 0.5
    assert (0, "x") not in counters


def test_steps_that_are_summed_up_are_one_span() -> None:
    (span,) = [e for e in of_phase("X") if e["name"] == "10 steps"]
    assert (span["pid"], span["dur"]) == (1, 10e6)
    summary = StepSummary(
        t=5.0, step=0, epoch=0, view=0, workers=1000, samples=1000, start=0, stop=1000,
        least_compute_s=0.1, median_compute_s=0.2, greatest_compute_s=0.3, slowest=7,
        exchange_s=0.1, update_s=0.0,
    )  # fmt: skip
    spans = of_phase("X", [summary])
    assert [span["name"] for span in spans] == ["compute", "exchange"]
    assert {span["pid"] for span in spans} == {1 << 20}


# --- Perfetto ---------------------------------------------------------------------------------------


def read_back(path: Path) -> list[Any]:
    pytest.importorskip("perfetto", reason="perfetto is not installed: run `make test-exporters`")
    write_trace(events(), path)
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    return list(trace.packet)


def test_perfetto_reads_what_is_meant(tmp_path: Path) -> None:
    packets = read_back(tmp_path / "run.pftrace")
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in packets if _has_track(p)}
    names = {t.process.process_name for t in tracks.values() if t.HasField("process")}
    assert names == {"worker 0 (n0)", "worker 1 (n1)", "all workers"}
    pids = [t.process.pid for t in tracks.values() if t.HasField("process")]
    assert len(set(pids)) == 3
    assert 0 not in pids
    threads = {t.thread.tid: t.thread.thread_name for t in tracks.values() if t.HasField("thread")}
    assert sorted(threads.values()) == ["exchange", "steps", "steps"]
    counters = {t.name for t in tracks.values() if t.HasField("counter")}
    assert counters == {"share", "cores", "memory (MiB)", "loss"}
    told = [p.track_event for p in packets if p.HasField("track_event")]
    assert all(event.track_uuid in tracks for event in told)
    flows: dict[int, int] = {}
    for event in told:
        for flow in event.flow_ids:
            assert event.name == "exchange"
            flows[flow] = flows.get(flow, 0) + 1
    assert sorted(flows.values()) == [2, 2, 2]


def test_perfettos_spans_are_those_of_the_log(tmp_path: Path) -> None:
    packets = [p for p in read_back(tmp_path / "run.pftrace") if p.HasField("track_event")]
    times = [packet.timestamp for packet in packets]
    assert times == sorted(times)
    stacks: dict[int, list[tuple[str, int]]] = {}
    spans: list[tuple[str, float]] = []
    for packet in packets:
        event = packet.track_event
        if event.type == event.TYPE_SLICE_BEGIN:
            stacks.setdefault(event.track_uuid, []).append((event.name, packet.timestamp))
        elif event.type == event.TYPE_SLICE_END:
            name, began = stacks[event.track_uuid].pop()
            spans.append((name, (packet.timestamp - began) / 1e9))
    assert not any(stacks.values()), "every span has an end"
    expected = sorted((e["name"], e["dur"] / 1e6) for e in of_phase("X"))
    assert sorted(spans) == [(name, pytest.approx(took, abs=1e-6)) for name, took in expected]


def _has_track(packet: Any) -> bool:
    return bool(packet.HasField("track_descriptor"))


def test_without_its_package_perfettos_format_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'gangline\[trace\]'; or .* ends in \.json"):
        write_trace([], tmp_path / "run.pftrace")
    assert not (tmp_path / "run.pftrace").exists()
