# SPDX-License-Identifier: Apache-2.0
"""How much a parameter server would hold, found before it holds anything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gangline.worker.prepare.serving_need import free_bytes, serving_bytes


class Stubborn(torch.optim.SGD):
    """Cannot be tried on a small tensor."""

    def step(self, closure: Any = None) -> None:
        assert self.param_groups[0]["params"][0].shape[0] > 10
        super().step(closure)


@pytest.mark.parametrize(
    ("make", "times"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 1),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 2),
        (lambda p: torch.optim.Adam(p), 3),
        (lambda p: torch.optim.Adam(p, amsgrad=True), 4),
        (lambda p: Stubborn(p, lr=0.1), 1),
    ],
    ids=["SGD", "momentum", "Adam", "amsgrad", "unknown"],
)
def test_it_is_the_parameters_and_the_state_that_they_will_have(make: Any, times: int) -> None:
    model = nn.Linear(300, 200)
    optimizer = make(model.parameters())
    before = torch.get_rng_state()
    assert serving_bytes(optimizer) == times * 4 * (300 * 200 + 200)
    assert not optimizer.state, "the optimizer itself has made no step"
    assert torch.equal(torch.get_rng_state(), before)


def test_this_machine_has_some_room() -> None:
    assert free_bytes() > 1 << 20
