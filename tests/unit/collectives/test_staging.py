# SPDX-License-Identifier: Apache-2.0
"""Between a made-up device and host memory: the next tensor comes while one is exchanged."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from gangline.collectives import bring, staging
from gangline.collectives.staging import Staging
from wire_members import WireGroup, run_members

LENGTH = 1000
UNITS = 5


class Queue:
    """Notes what it has waited for when something is queued."""

    def __init__(self) -> None:
        self.waited: list[Mark] = []

    def wait_event(self, mark: Mark) -> None:
        self.waited.append(mark)


class Mark:
    """A point in a queue."""

    num_waits = 0

    def record(self, queue: object = None) -> None: ...

    def synchronize(self) -> None:
        Mark.num_waits += 1


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's memory is that of a GPU."""
    Mark.num_waits = 0
    monkeypatch.setattr(staging, "_is_host", lambda _: False)
    monkeypatch.setattr(staging, "_pinned", lambda n: torch.empty(n, dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "Event", Mark)
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_: Queue())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: Queue())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())


def ready() -> Any:
    return Mark()


def place(host: torch.Tensor) -> int:
    return host.untyped_storage().data_ptr()


def test_what_was_brought_is_what_is_found() -> None:
    stage = Staging()
    tensors = [torch.full((3, 4), float(number)) for number in range(UNITS)]
    for number, tensor in enumerate(tensors):
        for one in tensors[number : number + 2]:
            stage.bring(one, ready())
        host = stage.host_of(tensor)
        assert host is not tensor
        assert torch.equal(host, tensor)
        host += 10
        stage.write_back(host, tensor)
    assert [float(tensor[0, 0]) for tensor in tensors] == [10.0 + n for n in range(UNITS)]
    assert Mark.num_waits == UNITS, "each is waited for once, on its way in"


def test_two_tensors_that_are_on_their_way_have_buffers_of_their_own() -> None:
    stage = Staging()
    first, second, third = (torch.full((4,), float(number)) for number in range(3))
    stage.bring(first, ready())
    stage.bring(second, ready())
    stage.bring(third, ready())  # must wait: there are two buffers
    one = stage.host_of(first)
    two = stage.host_of(second)
    assert place(one) != place(two)
    assert torch.equal(one, first)
    assert torch.equal(two, second)
    assert torch.equal(stage.host_of(third), third)


def test_what_nobody_has_brought_does_not_disturb_what_is_on_its_way() -> None:
    stage = Staging()
    first, second, other = (torch.full((4,), float(number)) for number in range(3))
    stage.bring(first, ready())
    stage.bring(second, ready())
    assert torch.equal(stage.host_of(other), other), "a third buffer"
    assert torch.equal(stage.host_of(first), first)
    assert torch.equal(stage.host_of(second), second)


def test_a_buffer_is_filled_again_after_what_was_in_it_is_back() -> None:
    stage = Staging()
    tensors = [torch.full((4,), float(number)) for number in range(4)]
    for tensor in tensors:
        stage.bring(tensor, ready())
        stage.write_back(stage.host_of(tensor), tensor)
    (queue,) = stage._queues.values()
    returned = [buffer.returned for buffer in stage._buffers]
    assert None not in returned
    assert len(queue.waited) == 4 + 2, "each for what made it; the last two also for the first two"  # type: ignore[attr-defined]


def test_what_is_forgotten_is_copied_anew() -> None:
    stage = Staging()
    tensor = torch.zeros(4)
    stage.bring(tensor, ready())
    tensor += 1
    stage.forget()
    assert torch.equal(stage.host_of(tensor), torch.ones(4))


def test_members_get_the_sum_of_what_was_brought() -> None:
    def body(group: WireGroup) -> list[torch.Tensor]:
        units = [torch.full((LENGTH,), float(10 * n + group.rank)) for n in range(UNITS)]
        for number, unit in enumerate(units):
            for one in units[number : number + 2]:
                bring(group, one, ready())
            group.all_reduce(unit)
        return units

    for units in run_members(3, body):
        for number, unit in enumerate(units):
            assert torch.equal(unit, torch.full((LENGTH,), 30.0 * number + 3))
