# SPDX-License-Identifier: Apache-2.0
"""Sums over device memory, with a device that is made up: memory of this process, by numbers."""

from __future__ import annotations

import contextlib
import itertools
import logging
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from gangline.collectives.wire import connecting
from gangline.collectives.wire.device_memory import way
from gangline.collectives.wire.device_memory.memory import Offer, Refused, Window
from gangline.spec.errors import ExchangeAborted, ExchangeError, ExchangeMismatch
from wire_members import SUMMED, WireGroup, in_threads, members, run_members, total, values

if TYPE_CHECKING:
    from collections.abc import Callable

HALF_BYTES = 64 << 10
LARGE = way.LEAST_BYTES // 4
"""How many numbers go over the device's memory."""


class MadeUpDevice:
    """The windows of all members, by number; and what shall go wrong."""

    def __init__(self) -> None:
        self.windows: dict[int, torch.Tensor] = {}
        self.numbers = itertools.count()
        self.num_open = 0
        self.refuses_to_offer: set[int] = set()
        self.refuses_to_open: set[int] = set()
        self.without_device: set[int] = set()
        self.on_wait: Callable[[int], None] = lambda rank: None

    def memory(self, rank: int) -> MadeUpMemory:
        return MadeUpMemory(self, rank)


class MadeUpMemory:
    def __init__(self, device: MadeUpDevice, rank: int) -> None:
        self._device, self._rank = device, rank
        self._num_open = 0

    def holds(self, tensor: torch.Tensor) -> bool:
        return self._rank not in self._device.without_device

    def offer(self, num_bytes: int) -> tuple[Window, Offer]:
        if self._rank in self._device.refuses_to_offer:
            raise Refused("out of memory")
        number = next(self._device.numbers)
        # Whatever is read before it was written shows.
        window = torch.full((num_bytes,), 255, dtype=torch.uint8)
        self._device.windows[number] = window
        return Window(window, number), Offer(where="made up", handle=bytes([number]))

    def open(self, offer: Offer, num_bytes: int) -> Window:
        if self._rank in self._device.refuses_to_open:
            raise Refused("not permitted")
        self._num_open += 1
        self._device.num_open += 1
        return Window(self._device.windows[offer.handle[0]], offer.handle[0])

    def working(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def wait(self) -> None:
        self._device.on_wait(self._rank)

    def close(self) -> None:
        self._device.num_open -= self._num_open
        self._num_open = 0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> MadeUpDevice:
    made = MadeUpDevice()

    def make(shared: object, memory: object, *, rank: int, size: int) -> way.DeviceWay:
        return way.DeviceWay(
            shared,  # type: ignore[arg-type]
            made.memory(rank),
            rank=rank,
            size=size,
            half_bytes=HALF_BYTES,
        )

    monkeypatch.setattr(connecting, "DeviceWay", make)
    return made


def open_way(group: WireGroup) -> None:
    """The first exchange goes through the host, and all members learn that they have a device."""
    tensor = values(LARGE, group.rank)
    group.all_reduce(tensor)
    assert torch.equal(tensor, total(LARGE, group.size))


@pytest.mark.parametrize("dtype", SUMMED, ids=str)
@pytest.mark.parametrize("size", [2, 3])
def test_sums_are_right_whatever_the_length(
    dtype: torch.dtype, size: int, device: MadeUpDevice
) -> None:
    def member(group: WireGroup) -> None:
        open_way(group)
        half = HALF_BYTES // dtype.itemsize
        for length in (half - 1, half, half + 1, 3 * half + 5, 1, 0, half):
            tensor, header = values(length, group.rank, dtype), np.array([group.rank, -group.rank])
            group.all_reduce(tensor, header)
            assert torch.equal(tensor, total(length, size, dtype)), length
            assert header.tolist() == [size - 1, 0]
        assert group.transport == "wire (device memory)"

    run_members(size, member)
    assert len(device.windows) == size
    assert device.num_open == 0


def test_half_precision_is_rounded_once(device: MadeUpDevice) -> None:
    """The sum is one step of bfloat16 above 1; rounded after each term it would stay 1."""
    terms = (1.0, 2.0**-9, 2.0**-9, 2.0**-8)

    def member(group: WireGroup) -> torch.Tensor:
        open_way(group)
        tensor = torch.full((LARGE * 2,), terms[group.rank], dtype=torch.bfloat16)
        group.all_reduce(tensor)
        return tensor

    for tensor in run_members(4, member):
        assert tensor.unique().tolist() == [1.0 + 2.0**-7]


def test_tensors_with_gaps_are_summed_in_place(device: MadeUpDevice) -> None:
    def member(group: WireGroup) -> None:
        open_way(group)
        matrix = values(4 * LARGE, group.rank).view(LARGE, 4).t()
        group.all_reduce(matrix)
        assert torch.equal(matrix.t().flatten(), total(4 * LARGE, 2))

    run_members(2, member)


def test_the_host_s_way_is_taken_while_somebody_has_no_device(device: MadeUpDevice) -> None:
    device.without_device = {1}

    def member(group: WireGroup) -> None:
        for _ in range(3):
            open_way(group)
        assert group.transport == "wire (shared memory)"

    run_members(3, member)
    assert not device.windows


def test_the_way_opens_when_the_last_member_comes_to_its_device(device: MadeUpDevice) -> None:
    device.without_device = {1}

    def member(group: WireGroup) -> None:
        for step in range(6):
            if group.rank == 1 and step == 3:
                device.without_device = set()
            open_way(group)
            group.all_reduce(torch.zeros(3))

    run_members(3, member)
    assert len(device.windows) == 3


@pytest.mark.parametrize("where", ["refuses_to_offer", "refuses_to_open"])
def test_all_take_the_host_s_way_and_say_why_when_one_is_refused(
    where: str, device: MadeUpDevice, caplog: pytest.LogCaptureFixture
) -> None:
    setattr(device, where, {1})

    def member(group: WireGroup) -> None:
        for _ in range(3):
            open_way(group)

    with caplog.at_level(logging.WARNING, logger="gangline.worker"):
        run_members(3, member)
    said = {record.getMessage() for record in caplog.records}
    assert len(said) == 1
    (message,) = said
    assert "through the host" in message
    assert "member 1" in message
    assert ("out of memory" if where == "refuses_to_offer" else "not permitted") in message
    assert device.num_open == 0


def test_calls_that_differ_are_named(device: MadeUpDevice) -> None:
    def member(group: WireGroup) -> str:
        open_way(group)
        with pytest.raises(ExchangeMismatch) as caught:
            group.all_reduce(torch.zeros(LARGE + group.rank))
        return str(caught.value)

    for message in run_members(2, member):
        assert "do not make the same call: length" in message


def test_a_call_that_goes_another_way_is_named(device: MadeUpDevice) -> None:
    def member(group: WireGroup) -> None:
        open_way(group)
        with pytest.raises(ExchangeMismatch, match="length"):
            group.all_reduce(torch.zeros(LARGE if group.rank else 3))

    run_members(2, member)


def test_the_others_fail_at_once_when_a_member_leaves(device: MadeUpDevice) -> None:
    with members(3) as groups:

        def leave(rank: int) -> None:
            if rank == 2:
                groups[2].close()
                return
            with pytest.raises(ExchangeError, match="is gone"):
                groups[rank].all_reduce(torch.zeros(LARGE))

        _on_each(groups, open_way)
        in_threads(3, leave)
    assert device.num_open == 0


def test_a_member_that_leaves_between_segments_is_named(device: MadeUpDevice) -> None:
    waits = itertools.count()

    def on_wait(rank: int) -> None:
        if rank == 1 and next(waits) == 2:
            raise RuntimeError("the device is lost")

    with members(2) as groups:

        def member(rank: int) -> None:
            message = "the GPU failed" if rank else "member 1 is gone"
            with pytest.raises(ExchangeError, match=message):
                groups[rank].all_reduce(torch.zeros(5 * HALF_BYTES // 4))

        _on_each(groups, open_way)
        device.on_wait = on_wait
        in_threads(2, member)
    assert device.num_open == 0


def test_an_abort_breaks_off_a_member_that_waits(device: MadeUpDevice) -> None:
    with members(2) as groups:
        _on_each(groups, open_way)
        device.on_wait = lambda rank: groups[0].abort()
        with pytest.raises(ExchangeAborted):
            groups[0].all_reduce(torch.zeros(LARGE))


def _on_each(groups: list[WireGroup], body: Callable[[WireGroup], None]) -> None:
    in_threads(len(groups), lambda rank: body(groups[rank]))
