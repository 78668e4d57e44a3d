# SPDX-License-Identifier: Apache-2.0
"""Logs of long runs: most steps are summed up, and every sample can still be told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.eventlog import NullWriter, SampledWriter
from gangline.eventlog.sampling import MOST_S
from gangline.observe.ledger import read_ledger
from gangline.spec.event import (
    Decision,
    Event,
    Logged,
    Regrouped,
    StepDone,
    StepsDone,
    Utilisation,
    ViewAdopted,
)


class Memory(NullWriter):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def step(number: int, **fields: Any) -> StepDone:
    given = {
        "t": 0.01 * number, "worker": 0, "epoch": 0, "view": 0, "samples": 8,
        "start": 32 * number, "stop": 32 * number + 32, "compute_s": 0.002, **fields,
    }  # fmt: skip
    return StepDone(step=number, data_s=0.001, exchange_s=0.001, update_s=0.001, **given)


def logged(number: int, value: float | None, **fields: Any) -> Logged:
    given = {"t": 0.0, "worker": 0, "epoch": 0, "samples": 8, "view": 0, **fields}
    return Logged(step=number, values={"loss": value}, **given)


def sampled(*events: Event, full_steps: int = 0) -> Memory:
    memory = Memory()
    writer = SampledWriter(memory, full_steps=full_steps)
    for event in events:
        writer.write(event)
    writer.close()
    return memory


def test_steps_in_between_become_one_line() -> None:
    memory = sampled(*(step(number) for number in range(400)))
    assert [one.step for one in memory.of(StepDone)] == [*range(100), 100, 200, 300]
    found = memory.of(StepsDone)
    assert [(one.step, one.steps) for one in found] == [(101, 99), (201, 99), (301, 99)]
    assert found[0].samples == 99 * 8
    assert (found[0].start, found[0].stop) == (32 * 101, 32 * 200)
    assert found[0].compute_s == pytest.approx(99 * 0.002)
    assert found[0].since == pytest.approx(1.01 - 0.005)
    assert found[0].t == pytest.approx(1.99)


def test_the_first_steps_are_full_where_nobody_says_otherwise() -> None:
    memory = sampled(*(step(number) for number in range(500)), full_steps=450)
    assert [one.step for one in memory.of(StepDone)] == list(range(450))
    assert [(one.step, one.steps) for one in memory.of(StepsDone)] == [(450, 50)]


@pytest.mark.parametrize(
    "other",
    [
        {"view": 1},
        {"epoch": 1},
        {"samples": 9},
        {"team": 1},
        {"start": 32 * 120 + 1, "stop": 32 * 121 + 1},
        {"stop": 32 * 121 - 1},
    ],
)
def test_only_steps_that_are_alike_are_summed_up(other: dict[str, Any]) -> None:
    steps = [step(number) for number in range(120)]
    memory = sampled(*steps, step(120, **other), *(step(number) for number in range(121, 130)))
    assert {one.step for one in memory.of(StepsDone)} >= {101}
    assert all(one.step + one.steps <= 120 or one.step >= 120 for one in memory.of(StepsDone))


def test_what_else_happens_is_written_in_its_order() -> None:
    decision = Decision(t=1.5, what="hint", reason="r", numbers={})
    memory = sampled(*(step(n) for n in range(150)), decision, *(step(n) for n in range(150, 160)))
    ranges = [(one.step, one.steps) for one in memory.of(StepsDone)]
    assert ranges == [(101, 49), (150, 10)]
    assert memory.events.index(decision) == len(memory.events) - 2


def test_steps_of_some_seconds_are_written_whatever_follows() -> None:
    slow = [step(number, t=3.0 * number, compute_s=2.9) for number in range(100, 120)]
    memory = sampled(*(step(number, t=0.0) for number in range(100)), *slow)
    assert max(one.steps for one in memory.of(StepsDone)) <= MOST_S / 3 + 1
    begun = sampled(*(step(number, t=0.0) for number in range(102)), busy(0, t=MOST_S + 1))
    assert [(one.step, one.steps) for one in begun.of(StepsDone)] == [(101, 1)]


def busy(number: int, **fields: Any) -> Utilisation:
    values = {
        "t": float(number), "worker": 0, "cpu": float(number), "node_cpu": 0.5, "memory_bytes": 7,
        "node_memory": 0.1, "threads": 3, "sent_bytes": 10, "received_bytes": 1, **fields,
    }  # fmt: skip
    return Utilisation(**values)


def test_utilisation_is_thinned_and_bytes_are_not_lost() -> None:
    memory = sampled(*(busy(number) for number in range(25)))
    found = memory.of(Utilisation)
    assert [one.cpu for one in found] == [4.5, 14.5, 22.0]
    assert sum(one.sent_bytes for one in found) == 250


def test_what_is_logged_becomes_a_mean_by_samples() -> None:
    events: list[Event] = [step(number) for number in range(100)]
    for number in range(100, 104):
        events += [step(number), logged(number, float(number), samples=number)]
    found = sampled(*events).of(Logged)
    assert [(one.step, one.steps, one.values) for one in found] == [
        (100, 1, {"loss": 100.0}),
        (103, 3, {"loss": pytest.approx((101**2 + 102**2 + 103**2) / (101 + 102 + 103))}),
    ]
    lost = sampled(*events, step(104), logged(104, None)).of(Logged)
    assert lost[-1].values == {"loss": None}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_ledger_of_a_short_log_is_that_of_the_full_one(data: st.DataObject) -> None:
    """Workers are lost at any step, the last one may be done again, and any of the logs are short."""
    length = data.draw(st.integers(300, 700)) * 4
    batch = data.draw(st.sampled_from([4, 8, 12]))
    losses = sorted(data.draw(st.lists(st.integers(1, length // batch), max_size=3)))
    members = list(range(4))
    logs: dict[int, list[Event]] = {worker: [] for worker in members}
    number, start, view = 0, 0, 0
    while start < length:
        stop = min(length, start + batch)
        shares = _cut(stop - start, len(members))
        for worker, share in zip(members, shares, strict=True):
            logs[worker].append(
                step(number, worker=worker, view=view, samples=share, start=start, stop=stop)
            )
        if losses and number >= losses[0] and len(members) > 1:
            losses.pop(0)
            members, view = members[:-1], view + 1
            again = data.draw(st.booleans())
            for worker in members:
                if again:
                    logs[worker].pop()  # only who is lost has finished it
                logs[worker].append(
                    Regrouped(
                        t=0.01 * number, worker=worker, view=view, group=view, members=members,
                        step=number if again else number + 1, num_behind=0, took_s=0.1, reason="r",
                    )
                )  # fmt: skip
                logs[worker].append(
                    ViewAdopted(
                        t=0.01 * number, view=view, step=number, members=members,
                        shares=_cut(batch, len(members)), reason="r",
                    )
                )  # fmt: skip
            if again:
                continue
        number, start = number + 1, stop
    short = [
        event
        for events in logs.values()
        for event in (sampled(*events).events if data.draw(st.booleans()) else events)
    ]
    full = read_ledger(event for events in logs.values() for event in events)
    ledger = read_ledger(short)
    full.check(length=length, epochs=1)
    ledger.check(length=length, epochs=1)
    assert ledger.num_steps == full.num_steps == len(full.windows)
    assert ledger.num_samples == full.num_samples == length


def test_a_step_that_is_missing_from_a_short_log_is_found() -> None:
    events = [step(number) for number in range(400) if number != 250]
    ledger = read_ledger(sampled(*events).events)
    assert ledger.count_lost() == 32
    assert "the samples 8000 to 8031 were left out" in " ".join(ledger.problems(length=12800))


def _cut(total: int, parts: int) -> list[int]:
    return [total // parts + (one < total % parts) for one in range(parts)]
