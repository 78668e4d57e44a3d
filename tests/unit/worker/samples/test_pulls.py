# SPDX-License-Identifier: Apache-2.0
"""How a worker asks for parts of a global batch: each once, and one ahead."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.control.shares.pulling import Pulling
from gangline.protocol.messages import PartAsked, PartGiven
from gangline.spec.errors import ExchangeAborted
from gangline.spec.view import View
from gangline.worker.line.partpost import PartPost
from gangline.worker.samples.handout import OPEN, Handout
from gangline.worker.samples.pulling import Pool, Pulls

VIEW = View(number=3, members=(0, 1), shares=(10, 6), reason="", group=2)


class Line:
    """A client whose coordinator has these parts to hand out, and says so at once."""

    def __init__(self, *parts: tuple[int, int], void: str = "") -> None:
        self.parts = PartPost()
        self.asked: list[PartAsked] = []
        self._left = [*parts]
        self._void = void

    def send(self, asked: PartAsked) -> None:
        self.asked.append(asked)
        start, stop = self._left.pop(0) if self._left else (0, 0)
        place = {name: getattr(asked, name) for name in ("group", "epoch", "step", "number")}
        self.parts.put(PartGiven(**place, start=start, stop=stop, void=self._void))

    def wait_post(self, find: Any, what: str) -> Any:
        return find()

    def withdraw(self, kind: type[Any]) -> None:
        assert kind is PartAsked


def pool(pulls: Pulls, *, stop: int = 16) -> Pool:
    return pulls.pool_of(VIEW, 1, epoch=1, step=7, start=0, stop=stop)


def test_parts_are_asked_for_once_until_none_is_left() -> None:
    line = Line((0, 5), (9, 12))
    pulls = Pulls(line, Pulling(), minimum=1)  # type: ignore[arg-type]
    mine = pool(pulls)
    assert [pulls.take(mine, micro) for micro in (0, 1, 1, 2)] == [(0, 5), (9, 12), (9, 12), None]
    assert [one.number for one in line.asked] == [0, 1, 2]
    assert {(one.group, one.epoch, one.step, one.start, one.stop) for one in line.asked} == {
        (2, 1, 7, 0, 16)
    }


def test_a_worker_begins_with_its_own_part_and_pulls_the_rest() -> None:
    line = Line((12, 14))
    pulls = Pulls(line, Pulling(own=0.8), minimum=2)  # type: ignore[arg-type]
    mine = pool(pulls)
    assert mine.head == (8, 12), "behind that of the first member, 8 of 10"
    assert [pulls.take(mine, micro) for micro in (0, 1, 2)] == [(8, 12), (12, 14), None]
    assert [(one.number, one.start, one.stop) for one in line.asked] == [(0, 12, 16), (1, 12, 16)]
    assert not pool(pulls, stop=9).has_head, "of a ragged batch everything is pulled"


def test_the_next_part_is_asked_for_while_this_one_is_computed() -> None:
    line = Line((0, 5))
    pulls = Pulls(line, Pulling(), minimum=1)  # type: ignore[arg-type]
    mine = pool(pulls)
    part = pulls.take(mine, 0)
    assert part is not None
    handout = Handout(1, 7, 3, 0, OPEN, *part, 16, 5, 16, 6, mine, (part,))
    pulls.begin()
    pulls.ask_behind(handout)
    pulls.end(5)
    assert pulls.is_last(handout)
    assert [one.number for one in line.asked] == [0, 1]
    closed = handout.closed()
    assert (handout.is_open, handout.is_update) == (True, False)
    assert (closed.is_open, closed.is_update) == (False, True)
    pulls.ask_behind(closed)
    assert len(line.asked) == 2, "after the last part there is none"
    pulls.take(mine._replace(step=8), 0)
    assert line.asked[-1].samples == 5, "what it has computed is told with the next question"
    assert line.asked[-1].compute_s > 0


def test_a_coordinator_that_hands_out_no_more_breaks_the_group() -> None:
    pulls = Pulls(Line(void="it was started again"), Pulling(), minimum=1)  # type: ignore[arg-type]
    with pytest.raises(ExchangeAborted, match=r"no more parts of step 7 .*: it was started again"):
        pulls.take(pool(pulls), 0)
