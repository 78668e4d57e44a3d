# SPDX-License-Identifier: Apache-2.0
"""Standing still between two steps: as long as the members have agreed to, and no longer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gangline.protocol.messages import Dismissed, Held, SaveAsked
from gangline.spec.errors import LaunchError
from gangline.spec.position import Position
from gangline.worker.gradients.agreement import HoldSection
from gangline.worker.line.client import ControlClient
from gangline.worker.loop.holding import Holding
from gangline.worker.sync.strategy import KeptAt


class Loop:
    """What a loop is made of that stands still, and what becomes of it while it does."""

    def __init__(self, *, agreed: int, held: int = 0) -> None:
        self.client = SimpleNamespace(
            held=held, newest_recovery=0, has_moved=False, wait_held=self.wait_held
        )
        self.meanwhile: list[Any] = []
        """What changes, look by look."""
        self.num_offers = 0
        self.lost: list[str] = []
        membership = SimpleNamespace(group=0, fail=lambda error, _: self.lost.append(str(error)))
        gear: Any = SimpleNamespace(
            session=SimpleNamespace(client=self.client), membership=membership
        )
        most = SimpleNamespace(holds=HoldSection(held=agreed))
        exchange: Any = SimpleNamespace(agreed=SimpleNamespace(most=most))
        progress: Any = SimpleNamespace(position=Position.at_start())
        self.holding = Holding(gear, progress, exchange, self)  # type: ignore[arg-type]

    def offer(self, moment: KeptAt) -> None:
        assert moment is KeptAt.STEP
        self.num_offers += 1

    def wait_held(self, number: int, timeout_s: float) -> bool:
        if self.meanwhile:
            for name, value in self.meanwhile.pop(0).items():
                setattr(self.client, name, value)
        return bool(self.client.held <= number)


def test_nobody_waits_where_nobody_wants_it() -> None:
    for agreed in (0, 2):
        loop = Loop(agreed=agreed)
        assert not loop.holding.stand_still()
        assert loop.num_offers == 0


def test_who_was_not_told_yet_stands_still_too_and_keeps_what_is_asked_for() -> None:
    loop = Loop(agreed=1)
    loop.meanwhile = [{}, {"held": 1}, {}, {"held": 2}]
    assert not loop.holding.stand_still()
    assert loop.num_offers == 3
    assert not loop.holding.stand_still(), "it has gone on after that order"


def test_a_group_that_is_lost_meanwhile_is_found_anew_and_then_it_stands_still_again() -> None:
    loop = Loop(agreed=1, held=1)
    loop.meanwhile = [{}, {"newest_recovery": 1}]
    assert loop.holding.stand_still()
    assert len(loop.lost) == 1
    loop.client.newest_recovery = 0  # it has entered another one
    loop.meanwhile = [{}, {"held": 2}]
    assert not loop.holding.stand_still()


def line(max_away_s: float = 60.0) -> ControlClient:
    """A client whose coordinator is nowhere."""

    def find_nothing() -> str:
        raise LaunchError("no coordinator")

    hello: Any = SimpleNamespace(is_elastic=False)
    return ControlClient(
        find_nothing, token="t", hello=hello, break_off=lambda *group: None, max_away_s=max_away_s
    )


def test_a_line_waits_for_a_newer_order_unless_nobody_can_give_one() -> None:
    client = line()
    client._take(Held(number=1))
    assert client.wait_held(1, 0.01)
    client._take(Held(number=2))
    assert not client.wait_held(1, 0.01)
    assert client.wait_held(3, 0.01), "others were told before"
    client._take(Dismissed())
    assert not client.wait_held(3, 0.01)
    client.close()
    away = line(max_away_s=0.0)
    assert not away.wait_held(1, 0.01)
    away.close()


def test_a_line_keeps_the_wish_for_a_checkpoint() -> None:
    client = line()
    assert not client.is_save_asked
    client._take(SaveAsked())
    assert client.is_save_asked
    client.close()
