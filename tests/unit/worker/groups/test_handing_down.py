# SPDX-License-Identifier: Apache-2.0
"""The state with which an epoch begins travels to a spare: whole, or not at all, and nobody hangs."""

from __future__ import annotations

import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from gangline.collectives.transports import open_door
from gangline.protocol.messages import FetchState, StateOffered
from gangline.spec.event import StateHandedDown
from gangline.spec.position import BETWEEN, ORDER, Position
from gangline.spec.wire import WireSettings
from gangline.worker.groups import handing_down
from gangline.worker.groups.handing_down import Giver, fetch
from gangline.worker.groups.snapshot import Snapshot
from gangline.worker.prepare.prepared import Prepared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gangline.collectives.transports import Door

MEMBER, SPARE = 2, 7
POSITION = Position(step=30, epoch=3, start=0, handed_out=29, calls=0, phase=0)
WAIT_S = 20.0


class Client:
    """What the two ask of the line to the coordinator."""

    def __init__(self, spares: dict[int, Any]) -> None:
        self.spares = spares
        self.sent: list[Any] = []
        self.is_asked_back = False

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def is_awaited(self, last: int, *, worker: int) -> bool:
        return self.is_asked_back


def session(worker: int, door: Door, spares: dict[int, Any]) -> Any:
    events: list[Any] = []
    return SimpleNamespace(
        client=Client(spares),
        door=door,
        place=SimpleNamespace(worker=worker, run="r"),
        record=events.append,
        events=events,
    )


def snapshot_of(value: float) -> tuple[nn.Module, Snapshot]:
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, value)
    optimizer = torch.optim.Adam(model.parameters(), lr=value)
    return model, Snapshot(Prepared(models=[model], optimizers=[optimizer], stateful=[]))


@contextmanager
def two_doors(timeout_s: float) -> Iterator[tuple[Door, Door]]:
    settings = WireSettings()
    both = [
        open_door("wire", host="127.0.0.1", token="t" * 32, timeout_s=timeout_s, settings=settings)
        for _ in range(2)
    ]
    try:
        yield both[0], both[1]
    finally:
        for door in both:
            door.close()


@pytest.fixture
def doors() -> Iterator[tuple[Door, Door]]:
    with two_doors(WAIT_S) as both:
        yield both


@pytest.fixture
def hasty_doors() -> Iterator[tuple[Door, Door]]:
    with two_doors(0.5) as both:
        yield both


def until(condition: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def offer_of(member: Any) -> FetchState:
    return FetchState(source=MEMBER, address=member.door.address, step=POSITION.step)


def test_a_spare_gets_the_state_as_it_was_when_the_epoch_began(doors: tuple[Door, Door]) -> None:
    member = session(MEMBER, doors[0], {SPARE: doors[1].address})
    spare = session(SPARE, doors[1], {})
    model, snapshot = snapshot_of(0.5)
    giver = Giver(member, snapshot)
    results = {(BETWEEN, 3, 0): 1.25, (ORDER, 3): [2, 0, 1], (ORDER, 2): [0]}
    giver.give(POSITION, results)
    nn.init.constant_(model.weight, 9.0)  # the member trains on
    until(lambda: member.client.sent)
    assert member.client.sent == [StateOffered(step=30, spares=(SPARE,))]

    found = fetch(spare, offer_of(member), group=4)
    assert found is not None
    assert found.position == POSITION
    assert found.results == {(BETWEEN, 3, 0): 1.25, (ORDER, 2): [0]}, "the new order is not its"
    own, target = snapshot_of(0.1)
    target.load(found.state)
    assert torch.equal(own.weight, torch.full((2, 3), 0.5))
    until(lambda: member.events)
    (event,) = member.events
    assert isinstance(event, StateHandedDown)
    assert (event.worker, event.spare, event.step, event.error) == (MEMBER, SPARE, 30, "")
    giver.close()


def test_nothing_is_copied_where_there_is_no_spare(doors: tuple[Door, Door]) -> None:
    member = session(MEMBER, doors[0], {})
    giver = Giver(member, snapshot_of(0.5)[1])
    giver.give(POSITION, {})
    assert not member.client.sent
    giver.close()


def test_epochs_wait_in_their_order_as_far_as_there_is_room(
    doors: tuple[Door, Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handing_down, "MAX_WAITING", 2)
    member = session(MEMBER, doors[0], {SPARE: doors[1].address})
    giver = Giver(member, snapshot_of(0.5)[1])
    for epoch in range(3, 8):
        giver.give(POSITION._replace(step=10 * epoch, epoch=epoch), {})
    spare = session(SPARE, doors[1], {})
    for epoch in (3, 4, 5):
        until(lambda epoch=epoch: len(member.client.sent) > epoch - 3)
        assert member.client.sent[-1].step == 10 * epoch
        offer = FetchState(source=MEMBER, address=doors[0].address, step=10 * epoch)
        found = fetch(spare, offer, group=4)
        assert found is not None
        assert found.position.epoch == epoch
    giver.drain()
    assert not giver.is_busy
    assert len(member.client.sent) == 3, "for the others there was no room"
    giver.close()


def test_no_epoch_is_lost_between_the_loop_and_the_thread_that_sends(
    doors: tuple[Door, Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(
        handing_down._Way,
        "_send",
        lambda way, parcel, position, address: sent.append(position.step),
    )
    member = session(MEMBER, doors[0], {SPARE: doors[1].address})
    giver = Giver(member, snapshot_of(0.5)[1])
    for step in range(2000):
        giver.give(POSITION._replace(step=step), {})
        if step % 10 == 0:
            until(lambda: not giver.is_busy)  # so that there is always room
    giver.drain()
    assert sent == list(range(2000))
    giver.close()


def test_a_member_does_not_wait_for_a_spare_that_never_comes(doors: tuple[Door, Door]) -> None:
    member = session(MEMBER, doors[0], {SPARE: doors[1].address})
    giver = Giver(member, snapshot_of(0.5)[1])
    giver.give(POSITION, {})
    until(lambda: member.client.sent)
    begun_s = time.monotonic()
    giver.close()
    assert time.monotonic() - begun_s < WAIT_S / 2


def test_a_spare_that_is_asked_back_gives_up_what_it_fetches(doors: tuple[Door, Door]) -> None:
    member = session(MEMBER, doors[0], {SPARE: doors[1].address})  # who sends nothing
    spare = session(SPARE, doors[1], {})
    spare.client.is_asked_back = True
    assert fetch(spare, offer_of(member), group=4) is None


def test_a_spare_goes_on_waiting_when_the_member_is_lost(hasty_doors: tuple[Door, Door]) -> None:
    doors = hasty_doors
    member = session(MEMBER, doors[0], {SPARE: doors[1].address})
    spare = session(SPARE, doors[1], {})
    offer = offer_of(member)
    doors[0].close()
    assert fetch(spare, offer, group=4) is None


def test_a_spare_that_dies_amid_the_transfer_costs_the_member_nothing(
    hasty_doors: tuple[Door, Door],
) -> None:
    doors = hasty_doors
    member = session(MEMBER, doors[0], {SPARE: doors[1].address})
    giver = Giver(member, snapshot_of(0.5)[1])
    giver.give(POSITION, {})
    doors[1].close()
    until(lambda: member.events)
    assert member.events[0].error, "it is said why"
    giver.give(POSITION._replace(step=40, epoch=4), {})
    until(lambda: len(member.client.sent) == 2)
    assert member.client.sent[1].step == 40, "the next epoch is offered"
    giver.close()
