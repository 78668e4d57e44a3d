# SPDX-License-Identifier: Apache-2.0
"""Where a collective call is made, who gets a result that is kept, and who is alone in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gangline.collectives import SoloGroup
from gangline.spec.errors import ExchangeAborted, MismatchError
from gangline.spec.position import BETWEEN, NOWHERE, VOID, Position
from gangline.worker.loop.calls import CollectiveCalls
from gangline.worker.loop.progress import Progress
from gangline.worker.loop.windows import PulledWindows
from gangline.worker.sync.strategy import GroupLost

MEAN = "gangline.mean()"


class Members:
    """A membership whose exchanges fail as often as the test says."""

    def __init__(self) -> None:
        self.results: dict[tuple[Any, ...], Any] = {}
        self.is_broken = False
        self.num_failing = 0
        self.doing = ""
        self.made: list[tuple[Any, ...]] = []

    def call(self, place: tuple[Any, ...], exchange: Any) -> Any:
        if place not in self.results:
            self.made.append(place)
            if self.num_failing:
                self.num_failing -= 1
                raise ExchangeAborted("somebody was lost")
            self.results[place] = exchange("the group")
        return self.results[place]

    def knows(self, place: tuple[Any, ...]) -> bool:
        return place in self.results

    def fail(self, error: Exception, position: Position) -> None:
        self.is_broken = True


class Parts:
    """The calls, and what they stand on."""

    def __init__(self) -> None:
        self.progress = Progress(is_in_epoch=True, loop_epoch=1)
        self.progress.move(handed_out=3, calls=1, step=3)
        self.members = Members()
        self.num_recovered = 0
        self.strategy = SimpleNamespace()
        self.gear: Any = SimpleNamespace(
            membership=self.members,
            faults=SimpleNamespace(reach=lambda where, step: None),
            departure=SimpleNamespace(has_left=False),
            batches=SimpleNamespace(present=None),
            mode=SimpleNamespace(strategy=self.strategy),
            handout=None,
            pulls=None,
            prepared=SimpleNamespace(models=[]),
        )
        windows = PulledWindows(self.gear, self.progress, self)  # type: ignore[arg-type]
        self.calls = CollectiveCalls(self.gear, self.progress, self, windows)  # type: ignore[arg-type]

    def recover(self) -> None:
        self.num_recovered += 1
        self.members.is_broken = False

    def make(self, what: str = MEAN) -> Any:
        return self.calls.make(lambda group: group, what=what)


@pytest.fixture
def parts() -> Parts:
    return Parts()


def test_a_call_has_its_place_in_the_step(parts: Parts) -> None:
    assert parts.make() == "the group"
    assert parts.make() == "the group"
    assert parts.members.made == [(3, 1), (3, 2)]
    assert parts.progress.num_between == 0


def test_between_two_epochs_calls_are_counted_from_the_next_one(parts: Parts) -> None:
    parts.progress.is_in_epoch = False
    parts.make()
    parts.make()
    assert parts.members.made == [(BETWEEN, 1, 0), (BETWEEN, 1, 1)]
    assert parts.progress.num_between == 2


def test_a_call_in_a_batch_that_the_others_left_an_epoch_ago_is_none_between(parts: Parts) -> None:
    parts.progress.is_in_epoch = False
    parts.gear.batches.present = SimpleNamespace(is_void=True)
    assert isinstance(parts.make(), SoloGroup)
    assert parts.progress.num_between == 0


@pytest.mark.parametrize("why", ["is_void", "has_rest"])
def test_what_counts_nothing_is_not_kept_for_what_does(parts: Parts, why: str) -> None:
    setattr(parts.progress, why, True)
    parts.make()
    assert parts.members.made == [(VOID, 3, 1)]


def test_a_call_is_made_again_when_the_group_was_lost_in_it(parts: Parts) -> None:
    parts.members.num_failing = 2
    assert parts.make() == "the group"
    assert parts.members.made == [(3, 1)] * 3
    assert parts.num_recovered == 2


def test_who_is_behind_gets_what_the_others_got(parts: Parts) -> None:
    parts.members.results[3, 1] = (MEAN, "theirs")
    parts.progress.overtaken = (5, 0)
    assert parts.make() == "theirs"
    assert parts.members.made == []


def test_who_is_behind_must_make_the_call_that_the_others_made(parts: Parts) -> None:
    parts.members.results[3, 1] = ("gangline.any()", True)
    with pytest.raises(MismatchError, match=r"gangline\.mean\(\) here, gangline\.any\(\) on the"):
        parts.make()


def test_who_is_where_nobody_else_will_be_is_alone(parts: Parts) -> None:
    parts.progress.overtaken = (5, 0)
    assert isinstance(parts.make(), SoloGroup), "its result is kept no longer"
    parts.progress.overtaken = NOWHERE
    parts.progress.is_past = True
    assert isinstance(parts.make(), SoloGroup)
    parts.progress.is_past = False
    parts.gear.batches.present = SimpleNamespace(is_void=True)
    assert isinstance(parts.make(), SoloGroup)
    parts.gear.batches.present = None
    parts.gear.departure.has_left = True
    assert isinstance(parts.make(), SoloGroup)
    assert parts.members.made == []


def test_only_a_call_of_the_scripts_may_end_a_batch(parts: Parts) -> None:
    said: list[str] = []
    parts.calls.before_call = lambda: said.append("settled")
    parts.calls.make(lambda group: group, ("order", 0))
    assert said == []
    parts.make()
    assert said == ["settled"]


def test_the_whole_job_is_asked_outside_of_epochs_until_it_answers(parts: Parts) -> None:
    asked: list[tuple[int, int]] = []

    def add_up(values: Any, position: Position, *, call: tuple[int, int], **rest: Any) -> Any:
        asked.append(call)
        if len(asked) == 1:
            raise GroupLost
        return values

    parts.strategy.add_up = add_up
    assert parts.calls.ask_whole(MEAN, [2.0]) is None, "in an epoch each group is for itself"
    parts.progress.is_in_epoch = False
    assert parts.calls.ask_whole(MEAN, [2.0]) == [2.0]
    assert asked == [(1, 0), (1, 0)]
    assert parts.num_recovered == 1
