# SPDX-License-Identifier: Apache-2.0
"""A recorded log, replayed through `decide`, gives the recorded commands."""

from __future__ import annotations

import random

import msgspec
import pytest

from gangline.control import ControlOptions, PublishView, Say
from gangline.eventlog import EventWriter, read_events
from gangline.simulation import Course, Scenario, replay, simulate
from gangline.simulation.scenario import SimulatedNode, Throttle
from gangline.spec.errors import LogError, UsageError
from gangline.spec.event import Decision, StepDone, ViewAdopted
from gangline.spec.faults import Fault, FaultPlan

THROTTLE = Throttle(from_step=60, to_step=100, factor=3.0)


def cluster(**node):
    nodes = tuple(
        SimulatedNode(name=f"n{i}", speed=speed, throttles=(THROTTLE,) if i == 1 else (), **node)
        for i, speed in enumerate((1.0, 0.5, 0.2, 0.1))
    )
    return Scenario(nodes=nodes, noise=0.1)


def record(path, *, options, scenario=None, steps=150):
    with EventWriter(path, run="recorded", source="simulator") as log:
        result = simulate(
            scenario or cluster(), options=options, steps=steps, seed=3, sink=log.write
        )
    return result, list(read_events(path))


def views_of(commands):
    return [command.view for command in commands if isinstance(command, PublishView)]


@pytest.mark.parametrize("allocation", ["balanced", "equal", "random"])
def test_a_recorded_log_gives_the_recorded_commands(tmp_path, allocation):
    options = ControlOptions(global_batch=256, allocation=allocation, recut_steps=40)
    result, events = record(tmp_path / "log.jsonl", options=options)
    commands = replay(events, options=options)
    assert views_of(commands) == list(result.views)
    said = [command.decision for command in commands if isinstance(command, Say)]
    assert said == [event for event in events if isinstance(event, Decision)]
    adopted = [event for event in events if isinstance(event, ViewAdopted)]
    for view, event in zip(views_of(commands), adopted, strict=False):
        assert (view.number, list(view.shares), view.reason) == (
            event.view,
            event.shares,
            event.reason,
        )
    assert len(adopted) == (1 if allocation == "equal" else len(result.views))


def test_the_order_of_workers_within_a_step_does_not_matter(tmp_path):
    options = ControlOptions(global_batch=256)
    result, events = record(tmp_path / "log.jsonl", options=options)
    steps = [event for event in events if isinstance(event, StepDone)]
    others = [event for event in events if not isinstance(event, StepDone)]
    random.Random(0).shuffle(steps)
    assert views_of(replay(others + steps, options=options)) == list(result.views)


def test_founders_can_be_given_when_they_had_ceilings(tmp_path):
    options = ControlOptions(global_batch=256)
    scenario = cluster(max_samples=100)
    result, events = record(tmp_path / "log.jsonl", options=options, scenario=scenario)
    founders = scenario.founders(global_batch=256)
    assert views_of(replay(events, options=options, founders=founders)) == list(result.views)
    assert views_of(replay(events, options=options)) != list(result.views)


def test_a_log_of_summaries_cannot_be_replayed(tmp_path):
    options = ControlOptions(global_batch=6400)
    many = Scenario(nodes=(SimulatedNode(name="rack", workers=100),))
    _, events = record(tmp_path / "log.jsonl", options=options, scenario=many, steps=2)
    with pytest.raises(LogError, match="step 0 is logged as a summary of 100 workers"):
        replay(events, options=options)


def test_a_log_of_changing_members_cannot_be_replayed():
    events = []
    simulate(
        cluster(),
        options=ControlOptions(global_batch=64),
        steps=10,
        sink=events.append,
        course=Course(faults=FaultPlan(faults=(Fault(worker=1, kind="kill", step=3),))),
    )
    with pytest.raises(LogError, match="worker 0 was regrouped with step 3; a run whose members"):
        replay(events, options=ControlOptions(global_batch=64))


def test_a_log_without_a_view_cannot_be_replayed():
    with pytest.raises(LogError, match="no view in the log"):
        replay([], options=ControlOptions(global_batch=8))


def test_a_kqv_run_cannot_be_replayed():
    with pytest.raises(UsageError, match=r"'kqv' cannot be replayed .* metrics"):
        replay([], options=ControlOptions(global_batch=8, allocation="kqv"))


def test_commands_can_be_written_and_read(tmp_path):
    options = ControlOptions(global_batch=256)
    result, _ = record(tmp_path / "log.jsonl", options=options)
    for view in result.views:
        command = PublishView(view=view)
        assert msgspec.json.decode(msgspec.json.encode(command), type=PublishView) == command
