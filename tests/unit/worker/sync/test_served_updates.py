# SPDX-License-Identifier: Apache-2.0
"""A worker that has pushed waits for the answer to that push."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gangline.protocol.messages import Pushed, Turn
from gangline.spec.serving import Entry
from gangline.worker.line.teampost import TeamPost
from gangline.worker.sync.served.updates import ServedUpdates, Span

if TYPE_CHECKING:
    from collections.abc import Callable


class SlowLine:
    """A line whose coordinator answers when somebody waits for it."""

    def __init__(self, answer: Turn) -> None:
        self.post = TeamPost()
        self.said: list[Pushed] = []
        self._answer = answer

    def send(self, message: Pushed) -> None:
        self.said.append(message)

    def wait_post(self, find: Callable[[], Any], what: str) -> Any:
        if find() is None:
            self.post.put(self._answer)
        return find()


TEAM = 3


def turn(clock: int, *, team: int = TEAM) -> Turn:
    return Turn(clock=clock, upto=0, entries=(), serving=1, epoch=0, pushed=9, team=team)


def waiting(line: SlowLine) -> Any:
    """A worker that has computed samples 32 to 63 of its team's order."""
    updates: Any = object.__new__(ServedUpdates)
    updates._line, updates._team, updates._epoch, updates._known = line, TEAM, 0, 0
    updates._was_read, updates._turn_s, updates._told_upto = 0, 0.0, lambda: 0
    updates._pushed_stop, updates._pulled_from, updates._is_sum = 32, 0, False
    updates._hosting = SimpleNamespace(rebuilt=(-1, 0))
    return updates


def test_a_clock_that_is_given_again_after_servers_were_lost_is_answered_anew() -> None:
    line = SlowLine(answer=turn(10))
    line.post.put(turn(9))  # the first push of this clock was lost with its servers
    assert waiting(line)._say(9, Span(0, 64), serving=1).clock == 10
    assert [(one.clock, one.start, one.stop) for one in line.said] == [(9, 32, 64)]


def test_the_turn_of_a_team_that_it_is_to_enter_is_not_its_own() -> None:
    line = SlowLine(answer=turn(7, team=TEAM + 1))
    assert waiting(line)._say(9, Span(0, 64), serving=1) is None
    line = SlowLine(answer=turn(10))
    line.post.put(turn(7, team=TEAM + 1))
    assert waiting(line)._say(9, Span(0, 64), serving=1).clock == 10


def test_what_was_read_and_is_void_is_told_once_more() -> None:
    """All shards have gone back further than this worker had read: entries have its numbers again."""
    line = SlowLine(answer=turn(10))
    updates = waiting(line)
    del updates._told_upto
    updates._known = updates._was_read = 7
    updates._log, updates._pulled_from = [(Entry(6, ()), 3)], 3
    updates._hosting.rebuilt = (4, 2)
    updates._say(9, Span(0, 64), serving=4)
    updates._pulled_from = 4  # it has pulled since
    updates._say(9, Span(0, 64), serving=4)
    assert [(one.known, one.read) for one in line.said] == [(2, 2), (7, 7)]
