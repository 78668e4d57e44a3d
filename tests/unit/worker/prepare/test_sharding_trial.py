# SPDX-License-Identifier: Apache-2.0
"""Optimizers that several servers would make something else of are found before they train."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gangline.spec.errors import UnsupportedError
from gangline.spec.sync import parse_sync
from gangline.worker.prepare.refusals import check_served


class Plain(torch.optim.Optimizer):
    """By default each parameter moves along its own gradient."""

    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})

    def size(self) -> Any:
        return 1.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        size = self.size()
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    one.sub_(group["lr"] * self.direction(one) / size)

    def direction(self, one: Any) -> Any:
        return one.grad


class Normed(Plain):
    def size(self) -> Any:
        return self.norm()

    def norm(self) -> Any:
        given = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        return torch.stack([one.norm() for one in given]).norm()


class Clipped(Normed):
    def size(self) -> Any:
        return torch.clamp(self.norm() / 50.0, min=1.0)


class Counting(Plain):
    def size(self) -> Any:
        self.state["steps"] = self.state.get("steps", 0) + 1  # type: ignore[index,call-overload]
        return 1.0


class Noisy(Plain):
    def direction(self, one: Any) -> Any:
        return one.grad + torch.randn_like(one)


class Stubborn(Normed):
    def size(self) -> Any:
        assert self.param_groups[0]["params"][0].shape[0] > 10
        return self.norm()


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 20))


def check(optimizer: torch.optim.Optimizer, mode: str) -> None:
    prepared: Any = SimpleNamespace(sync=parse_sync(mode), optimizers=[optimizer])
    check_served(prepared, ())


def grouped(params: Any) -> Normed:
    """Only one parameter in each group."""
    first, second, *_ = params
    return Normed([{"params": [first]}, {"params": [second]}])


@pytest.mark.parametrize("make", [Normed, Clipped, grouped])
def test_one_that_looks_at_all_gradients_is_refused_with_several_servers(make: Any) -> None:
    optimizer = make(model().parameters())
    with pytest.raises(UnsupportedError, match=r"looks at several .* Take servers=1, or update=w"):
        check(optimizer, "bsp(servers=2)")
    check(optimizer, "bsp(servers=1)")
    check(optimizer, "asp(servers=2, update=worker)")


def test_one_that_keeps_state_of_no_parameter_is_refused() -> None:
    optimizer = Counting(model().parameters())
    for mode in ("bsp(servers=1)", "asp(servers=2)"):
        with pytest.raises(UnsupportedError, match=r"Counting keeps state under 'steps'"):
            check(optimizer, mode)
    check(optimizer, "asp(update=worker)")


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), amsgrad=True),
        lambda p: torch.optim.AdamW(p, fused=True),
        lambda p: torch.optim.AdamW(p, foreach=True),
        lambda p: torch.optim.Adafactor(p),
        lambda p: torch.optim.Rprop(p),
        lambda p: torch.optim.ASGD(p),
        lambda p: torch.optim.NAdam(p),
        lambda p: torch.optim.RAdam(p),
        lambda p: torch.optim.RMSprop(p, centered=True),
        lambda p: torch.optim.Adagrad(p),
        lambda p: torch.optim.Adadelta(p),
        lambda p: torch.optim.Adamax(p),
        lambda p: torch.optim.SparseAdam(p),
        lambda p: torch.optim.Muon([one for one in p if one.dim() == 2]),
        Plain,
        Noisy,
        Stubborn,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_others_are_not_and_nothing_of_them_changes(make: Any, dtype: torch.dtype) -> None:
    trained = model().to(dtype)
    optimizer = make(list(trained.parameters()))
    own = str(optimizer.state)  # Adagrad has some from the beginning
    before, state = torch.get_rng_state(), copy.deepcopy(trained.state_dict())
    check(optimizer, "asp(servers=2)")
    assert str(optimizer.state) == own
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(state[name], one) for name, one in trained.state_dict().items())


def test_one_parameter_is_nothing_to_divide() -> None:
    check(Normed([nn.Parameter(torch.ones(3))]), "asp(servers=2)")
    check(torch.optim.SGD([nn.Parameter(torch.ones(2, dtype=torch.complex64))]), "asp(servers=2)")
