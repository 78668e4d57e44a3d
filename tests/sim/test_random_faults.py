# SPDX-License-Identifier: Apache-2.0
"""Random fault plans in the simulator: whatever happens, each sample is used exactly once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from cases import quick_of
from gangline.control import ControlOptions
from gangline.control.members.watch import MIN_PATIENCE_S, PATIENCE_STEPS
from gangline.observe.ledger import read_ledger
from gangline.simulation import Course, Scenario, SimulationResult, simulate
from gangline.simulation.engine.job import TICK_S
from gangline.simulation.scenario import SimulatedNode
from gangline.spec.event import Decision, FaultFired, Regrouped, RunEnded, StepDone
from gangline.spec.faults import KINDS, PLACES, Fault, FaultPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.spec.event import AnyEvent

LEAST_PATIENCE_S = PATIENCE_STEPS * MIN_PATIENCE_S
"""What a group is given of which no step has been seen."""


class Case:
    """A small job and what goes wrong with it, drawn by a seed."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.workers = chance.randrange(2, 6)
        self.options = ControlOptions(
            global_batch=chance.randrange(self.workers, 4 * self.workers),
            allocation=chance.choice(("balanced", "equal", "random")),
            minimum=chance.choice((1, 1, 2)),
            recut_steps=5,
        )
        self.samples = chance.randrange(1, 6 * self.options.global_batch)
        self.epochs = chance.randrange(1, 4)
        self.respawns = chance.choice((0, 0, 1, 3))
        self.scenario = Scenario(
            nodes=tuple(
                SimulatedNode(name=f"n{i}", speed=chance.choice((0.1, 0.5, 1.0)))
                for i in range(self.workers)
            ),
            fixed_s=chance.choice((0.002, 0.02, 0.2)),
            exchange_s=chance.choice((0.0, 0.001, 0.1)),
            update_s=chance.choice((0.0, 0.001)),
            view_lag_steps=chance.choice((1, 2, 2, 4)),
        )
        self.victims = chance.sample(range(self.workers), chance.randrange(1, self.workers))
        self.plan = FaultPlan(
            faults=tuple(
                self._fault(chance, victim)
                for victim in self.victims
                for _ in range(chance.choice((1, 1, 2, 3)))
            )
        )
        self.seed = seed

    @property
    def steps(self) -> int:
        """Steps of all epochs."""
        return self.epochs * -(-self.samples // self.options.global_batch)

    def _fault(self, chance: random.Random, victim: int) -> Fault:
        kind = chance.choice((*KINDS, "kill"))
        extent = {
            "hang": {"for_s": chance.choice((0.0, 0.1, 1.0, 4.0, 12.0))},
            "slow": {"to": 0.25, "for_steps": chance.randrange(1, 6)},
            "cut": {"for_s": chance.choice((0.0, 0.2, 1.0, 5.0))},
        }.get(kind, {})
        if chance.random() < 0.3:
            at_s = chance.random() * self.steps * 2 * self.scenario.fixed_s
            return Fault(worker=victim, kind=kind, at_s=at_s, **extent)
        step, where = chance.randrange(self.steps), chance.choice(PLACES)
        return Fault(worker=victim, kind=kind, step=step, where=where, **extent)

    def run(self) -> tuple[SimulationResult, list[AnyEvent]]:
        events: list[AnyEvent] = []
        result = simulate(
            self.scenario,
            options=self.options,
            steps=self.steps,
            seed=self.seed,
            sink=events.append,
            course=Course(samples=self.samples, faults=self.plan, respawns=self.respawns),
        )
        return result, events


def of(kind: type, events: Sequence[AnyEvent]) -> list:
    return [event for event in events if isinstance(event, kind)]


def judge(case: Case) -> None:
    result, events = case.run()
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    assert ended.status == "done", ended.reason
    assert len(result.history) == case.steps
    ledger = read_ledger(events)
    ledger.check(length=case.samples, epochs=case.epochs)
    assert ledger.count_lost(length=case.samples) == ledger.count_repeated() == 0
    assert [view.number for view in result.views] == list(range(len(result.views)))
    fired = of(FaultFired, events)
    assert sorted((f.worker, f.kind, f.place) for f in result.fired) == sorted(
        (event.worker, event.fault, event.where) for event in fired
    )
    judge_unreached(case, result, events)
    judge_members(result, events, fired)


def judge_unreached(case: Case, result: SimulationResult, events: Sequence[AnyEvent]) -> None:
    """What did not happen could not: its worker was dead, or never came to that place again."""
    assert sorted(map(repr, (*result.fired, *result.unreached))) == sorted(
        map(repr, case.plan.faults)
    )
    dead = {fault.worker for fault in result.fired if fault.kind == "kill"}
    for fault in result.unreached:
        if fault.worker in dead or fault.where == "regroup":
            continue
        if fault.at_s is not None:
            hung = any(one.kind == "hang" and one.worker == fault.worker for one in result.fired)
            assert fault.at_s >= result.wall_s or hung
            continue
        done = {event.step for event in of(StepDone, events) if event.worker == fault.worker}
        assert fault.place in ("end", "call") or not any(step > fault.step for step in done)


def judge_members(
    result: SimulationResult, events: Sequence[AnyEvent], fired: Sequence[FaultFired]
) -> None:
    """No view is published with a worker that has been dead for longer than the patience."""
    died = {event.worker: event.t for event in fired if event.fault == "kill"}
    published = {
        event.numbers["view"]: event.t
        for event in of(Decision, events)
        if event.what == "publish_view"
    }
    slowest_s = max((step.step_s for step in result.history), default=0.0)
    patience_s = max(LEAST_PATIENCE_S, PATIENCE_STEPS * slowest_s)
    for view in result.views:
        for member in view.members:
            late_s = published[view.number] - died.get(member, published[view.number])
            assert late_s <= patience_s + 2 * TICK_S + 0.5, (view, member, late_s)
    for event in of(Regrouped, events):
        assert not [one for one in event.members if died.get(one, event.t) < event.t]


@pytest.mark.parametrize("block", quick_of(range(10), quick=range(4)))
def test_nothing_is_lost_whatever_the_plan(block: int) -> None:
    for seed in range(100 * block, 100 * (block + 1)):
        try:
            judge(Case(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {Case(seed).plan}") from error


@pytest.mark.slow
@pytest.mark.parametrize("block", range(200))
def test_nothing_is_lost_in_tens_of_thousands_of_plans(block: int) -> None:
    test_nothing_is_lost_whatever_the_plan(1000 + block)


@pytest.mark.parametrize("seed", [102192, 112285, 113656, 117976])
def test_a_newcomer_waits_for_the_spares_when_the_only_member_was_killed(seed: int) -> None:
    """It once came in before anybody noticed: alone in its group, with no state, for good."""
    judge(Case(seed))
