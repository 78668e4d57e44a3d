# SPDX-License-Identifier: Apache-2.0
"""What was pushed early counts only if it is still what it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from gangline.worker.gradients.layout import build_layout
from gangline.worker.sync.served.early import EarlyPushes

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "mul_": lambda g: g.mul_(0.5),
    "data": lambda g: g.data.clamp_(-0.1, 0.1),
    "one": lambda g: g.data.view(-1)[0].add_(1e-6),
    "neg": lambda g: g.data.neg_(),
    "scaler": lambda g: torch._amp_foreach_non_finite_check_and_unscale_(
        [g], torch.zeros(1), torch.full((1,), 1 / 65536)
    ),
    "numpy": lambda g: g.numpy().fill(3.0),
}


class Loop:
    """A model of several units, and what is pushed of it."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).to(dtype)
        self.parameters = list(self.model.parameters())
        self.units = build_layout([self.model], [], unit_bytes=16).units
        assert len(self.units) > 1
        self.told: list[str] = []
        self.sent: list[dict[int, Tensor]] = []
        self.early = EarlyPushes(self.parameters, self.told.append)

    def fill(self) -> None:
        for unit in self.units:
            flat = unit.allocate()
            flat.copy_(torch.randn(flat.shape))
            for slot in unit.slots:
                slot.parameter.grad = slot.view

    def push(self, *, which: int = 0, clock: int = 4) -> None:
        def send(gradients: Any, await_ready: Any) -> int:
            self.sent.append(dict(gradients))
            return len(self.sent)

        for unit in self.units:
            self.early.push(unit, which=which, clock=clock, send=send)

    def step(self, *, clock: int = 4, passes: int = 1) -> dict[int, int]:
        return self.early.counted(clock, passes=passes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_all_gradients_are_pushed_in_the_pass_that_was_the_last_one(dtype: torch.dtype) -> None:
    loop = Loop(dtype)
    loop.fill()
    loop.push()
    assert loop.step(passes=2) == {}  # nobody knows yet which pass is the last one
    assert not loop.sent
    loop.fill()
    loop.push(which=0)
    assert not loop.sent
    loop.push(which=1)
    counted = loop.step(passes=2)
    assert sorted(counted) == [0, 1, 2, 3]
    for index, number in counted.items():
        assert torch.equal(loop.sent[number - 1][index], loop.parameters[index].grad)
    assert not loop.told


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_after_the_pass_is_pushed_again_and_later_ones_late(change: str) -> None:
    loop = Loop()
    loop.step()
    loop.fill()
    loop.push()
    gradient = loop.parameters[2].grad
    assert gradient is not None
    CHANGES[change](gradient)
    counted = loop.step()
    assert 2 not in counted
    assert counted  # what shares no unit with it
    (told,) = loop.told
    assert "changes gradients" in told
    before = len(loop.sent)
    loop.fill()
    loop.push()
    assert loop.step() == {}
    assert len(loop.sent) == before
    assert loop.told == [told]


def test_a_gradient_that_was_taken_away_or_replaced_does_not_count() -> None:
    loop = Loop()
    loop.step()
    loop.fill()
    loop.push()
    loop.parameters[0].grad = None
    loop.parameters[1].grad = torch.ones_like(loop.parameters[1])
    assert sorted(loop.step()) == [2, 3]


def test_what_was_pushed_for_a_skipped_step_does_not_count_at_another_clock() -> None:
    loop = Loop()
    loop.step()
    loop.fill()
    loop.push(clock=4)
    assert loop.step(clock=5) == {}


def test_nothing_is_sent_of_a_table() -> None:
    """Whatever its gradient is in this pass: it is pushed at the step, by its rows."""
    loop = Loop()
    loop.step()
    loop.fill()
    loop.units[0].slots[0].is_table = True
    loop.push()
    sent = [loop.parameters[index] for found in loop.sent for index in found]
    assert len(sent) == 3
    assert all(one is not loop.units[0].slots[0].parameter for one in sent)
    assert len(loop.sent) == len(loop.units) - (len(loop.units[0].slots) == 1)
    assert len(loop.step()) == 3


def test_rows_are_not_pushed_early() -> None:
    loop = Loop()
    loop.step()
    loop.fill()
    loop.units[0].slots[0].rows = torch.tensor([0])
    loop.push()
    assert len(loop.step()) == 3
