# SPDX-License-Identifier: Apache-2.0
"""The simulator and the runtime are twins: told the same, they decide the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from twin_bodies import train_unlike

from gangline.cli.main import run_command
from gangline.control import ControlOptions
from gangline.coordinator import Hub
from gangline.coordinator.kept.recording import framed, read_recording
from gangline.coordinator.server.input_log import recorded_files
from gangline.coordinator.settings import Settings
from gangline.eventlog import NullWriter, read_run
from gangline.observe.ledger import read_ledger
from gangline.protocol.messages import PROTOCOL_VERSION, Hello, Measured, Ready, ViewPublished
from gangline.simulation import Course, Scenario, simulate
from gangline.simulation.scenario import SimulatedNode, Throttle
from gangline.spec.event import Decision, FaultFired, StepDone, ViewAdopted
from gangline.spec.exchange.address import WireAddress
from gangline.spec.faults import FaultPlan

sys.path.append(str(Path(__file__).parents[1] / "faults"))

from elastic_bodies import Setup
from elastic_jobs import kill, run_with

if TYPE_CHECKING:
    from gangline.coordinator.outgoing import Outgoing
    from gangline.spec.event import AnyEvent
    from gangline.spec.view import View
    from gangline.testing import WorkerPool

SPEEDS = (1.0, 0.5, 0.2, 0.1)


def simulated(options: ControlOptions) -> tuple[list[View], list[AnyEvent]]:
    throttle = Throttle(from_step=60, to_step=100, factor=3.0)
    nodes = tuple(
        SimulatedNode(name=f"n{i}", speed=speed, throttles=(throttle,) if i == 1 else ())
        for i, speed in enumerate(SPEEDS)
    )
    events: list[AnyEvent] = []
    scenario = Scenario(nodes=nodes, noise=0.1)
    result = simulate(scenario, options=options, steps=150, seed=3, sink=events.append)
    return list(result.views), events


def views_in(outgoing: list[Outgoing]) -> list[View]:
    return [
        message.view
        for worker, message in outgoing
        if isinstance(message, ViewPublished) and worker == 0
    ]


@pytest.mark.parametrize("allocation", ["balanced", "equal", "random"])
def test_the_coordinator_publishes_what_the_simulator_published(allocation: str) -> None:
    options = ControlOptions(global_batch=256, allocation=allocation, recut_steps=100)
    expected, events = simulated(options)
    hub = Hub(
        Settings(run="twin", expected_workers=len(SPEEDS)), events=NullWriter(), clock=lambda: 0.0
    )
    published: list[View] = []
    for worker in range(len(SPEEDS)):
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            run="twin",
            worker=worker,
            host="here",
            pid=worker + 1,
            address=WireAddress(host="127.0.0.1", port=1),
        )
        hub.connect(hello)
    for worker in range(len(SPEEDS)):
        ready = Ready(
            global_batch=256,
            minimum=1,
            allocation=allocation,
            shares=None,
            max_samples=None,
            seed=0,
        )
        published += views_in(hub.receive(worker, ready))
    for event in events:
        if isinstance(event, StepDone):
            report = Measured(
                step=event.step,
                view=event.view,
                samples=event.samples,
                compute_s=event.compute_s,
            )
            published += views_in(hub.receive(event.worker, report))
    assert [(view.number, view.shares, view.reason) for view in published] == [
        (view.number, view.shares, view.reason) for view in expected
    ]
    assert len(published) > 1 or allocation == "equal"


def test_a_real_run_replayed_gives_its_decisions(
    worker_pool: WorkerPool, capsys: pytest.CaptureFixture[str]
) -> None:
    worker_pool.run(train_unlike, 3, speeds=(0.3, 0.15, 0.05))
    decided = [e for e in read_run(worker_pool.run_dir) if isinstance(e, Decision)]
    assert len(decided) > 1, "unlike workers are cut anew at least once"
    assert run_command(["simulate", "--replay", str(worker_pool.run_dir), "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert replayed["decisions"] == [one.reason for one in decided]
    assert not replayed["differences"]
    assert run_command(["simulate", "--replay", str(worker_pool.run_dir)]) == 0
    assert "every output is the one that was recorded" in capsys.readouterr().out


def test_a_replay_that_differs_is_told_with_its_input(
    worker_pool: WorkerPool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worker_pool.run(train_unlike, 2, speeds=(0.3, 0.15))
    (path,) = recorded_files(worker_pool.run_dir)
    opening, entries = read_recording(path.read_bytes(), path="p")
    wrong = msgspec.structs.replace(entries[1], digest=entries[1].digest + 1)
    (tmp_path / "inputs").mkdir()
    copy = tmp_path / "inputs" / path.name
    copy.write_bytes(b"".join(map(framed, [opening, entries[0], wrong, *entries[2:]])))
    assert run_command(["simulate", "--replay", str(tmp_path)]) == 1
    assert "input 1 of" in capsys.readouterr().out
    copy.write_bytes(path.read_bytes()[:-3])
    assert run_command(["simulate", "--replay", str(tmp_path)]) == 0
    assert "ends in the middle of an input" in capsys.readouterr().out
    copy.write_bytes(b"no recording")
    assert run_command(["simulate", "--replay", str(tmp_path)]) != 0
    assert "is no recording of a coordinator" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [[], ["--cluster", "a.toml", "--replay", "b"]])
def test_either_a_cluster_or_a_recording_is_given(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["simulate", *flags]) != 0
    assert "give --cluster FILE to simulate, or --replay RUN_DIR" in capsys.readouterr().err


def test_a_folder_without_a_recording_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["simulate", "--replay", str(tmp_path)]) != 0
    assert "holds no recording of a coordinator" in capsys.readouterr().err


def memberships(events: list[AnyEvent]) -> list[tuple[int, ...]]:
    """Who took part, in the order of the views that held."""
    views = {one.view: tuple(one.members) for one in events if isinstance(one, ViewAdopted)}
    members = [views[number] for number in sorted(views)]
    return [one for one, before in zip(members, [(), *members], strict=False) if one != before]


def faults_of(events: list[AnyEvent]) -> list[tuple[int, int, str, str]]:
    return [
        (one.worker, one.step, one.fault, one.where)
        for one in sorted(events, key=lambda event: event.t)
        if isinstance(one, FaultFired)
    ]


def test_a_fault_plan_leads_to_the_same_memberships_in_both(tmp_path: Path) -> None:
    setup, plan = Setup(), [kill(1, 3, "exchange"), kill(0, 8, "forward")]
    real = run_with(tmp_path, setup, plan, workers=4)
    events: list[AnyEvent] = []
    simulate(
        Scenario(nodes=(SimulatedNode(name="here", workers=4),)),
        options=ControlOptions(global_batch=setup.batch, allocation="equal"),
        steps=setup.steps,
        sink=events.append,
        course=Course(samples=setup.samples, faults=FaultPlan(faults=tuple(plan))),
    )
    assert memberships(real.events) == memberships(events) == [(0, 1, 2, 3), (0, 2, 3), (2, 3)]
    assert faults_of(real.events) == faults_of(events)
    assert [
        (window.step, window.epoch, window.start, window.stop) for window in real.ledger.windows
    ] == [
        (window.step, window.epoch, window.start, window.stop)
        for window in read_ledger(events).windows
    ]
