# SPDX-License-Identifier: Apache-2.0
"""Whoever uses a parameter whose value is on its way gets that value, and waits for no other."""

from __future__ import annotations

import copy
import io
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gangline.spec.errors import MismatchError
from gangline.worker.sync.served.coming import Arrivals, ComingParameter

if TYPE_CHECKING:
    from collections.abc import Callable

USES: dict[str, Callable[[nn.Linear], Any]] = {
    "forward": lambda m: m(torch.ones(1, 3)),
    "functional": lambda m: F.linear(torch.ones(1, 3), weight=m.weight),
    "state_dict": lambda m: m.state_dict()["weight"],
    "data": lambda m: m.weight.data.clone(),
    "detach": lambda m: m.weight.detach(),
    "item": lambda m: m.weight[0, 0].item(),
    "list": lambda m: torch._foreach_norm([m.weight]),
    "dict": lambda m: torch.func.functional_call(m, {"weight": m.weight}, (torch.ones(1, 3),)),
    "deepcopy": lambda m: copy.deepcopy(m).weight,
    "pickle": lambda m: torch.save(m, io.BytesIO()),
    "repr": lambda m: repr(m.weight),
    "numpy": lambda m: m.weight.detach().numpy(),
    "pointer": lambda m: m.weight.data_ptr(),
    "no_grad": lambda m: torch.no_grad()(lambda: m.weight.add_(0))(),
}


def model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def values(one: nn.Linear) -> list[torch.Tensor]:
    return [torch.full(p.shape, 5.0 + i) for i, p in enumerate(one.parameters())]


@pytest.mark.parametrize("use", USES)
def test_every_use_finds_the_value_that_comes_later(use: str) -> None:
    one = model()
    arrivals = Arrivals(list(one.parameters()))
    new = values(one)
    found: list[Any] = []
    user = threading.Thread(target=lambda: found.append(USES[use](one)), daemon=True)
    user.start()
    user.join(0.05)
    assert user.is_alive(), "it has not waited"
    for index, value in enumerate(new):
        arrivals.arrive(index, value)
    user.join(20)
    assert not user.is_alive()
    assert type(one.weight) is nn.Parameter
    assert torch.equal(one.weight, new[0])
    if use in ("state_dict", "data", "detach", "deepcopy"):
        assert torch.equal(found[0], new[0])
    arrivals.end()
    arrivals.close()


def test_a_use_waits_for_its_own_parameters_alone_and_the_order_is_known() -> None:
    first, second = model(), model()
    parameters = [*first.parameters(), *second.parameters()]
    arrivals = Arrivals(parameters)
    new = values(first) + values(second)
    for index in (3, 2):
        arrivals.arrive(index, new[index])
    assert torch.equal(second(torch.ones(1, 3)), F.linear(torch.ones(1, 3), new[2], new[3]))
    assert sorted(arrivals.used) == [2, 3]
    assert type(first.weight) is ComingParameter
    for index in (0, 1):
        arrivals.arrive(index, new[index])
    arrivals.end()
    arrivals.close()
    assert sorted(arrivals.used[:2]) == [2, 3]
    assert sorted(arrivals.used) == [0, 1, 2, 3]
    assert all(type(p) is nn.Parameter for p in parameters)
    assert all(torch.equal(p, value) for p, value in zip(parameters, new, strict=True))


def test_what_looks_at_no_values_waits_for_nothing() -> None:
    one = model()
    optimizer = torch.optim.Adam(one.parameters())
    one(torch.ones(1, 3)).sum().backward()
    arrivals = Arrivals(list(one.parameters()))
    torch.nn.utils.clip_grad_norm_(one.parameters(), 1.0)
    optimizer.zero_grad(set_to_none=False)
    optimizer.zero_grad()
    optimizer.state_dict()
    assert [p.shape for p in one.parameters()] == [(2, 3), (2,)]
    assert sum(p.numel() for p in one.parameters() if p.requires_grad) == 8
    assert {p.device.type for p in one.parameters()} == {"cpu"}
    one.train()
    assert all(isinstance(p, ComingParameter) for p in one.parameters())
    assert arrivals.used == []
    arrivals.end()
    arrivals.close()


def test_a_change_by_the_loop_comes_after_the_value() -> None:
    one = model()
    arrivals = Arrivals(list(one.parameters()))
    for index, value in enumerate(values(one)):
        arrivals.arrive(index, value)
    one.weight.data.mul_(2)
    assert torch.equal(one.weight.detach(), torch.full((2, 3), 10.0))
    arrivals.end()
    arrivals.close()
    assert torch.equal(one.weight.detach(), torch.full((2, 3), 10.0))


def test_where_no_value_comes_parameters_stay_as_they_were() -> None:
    one = model()
    before = one.weight.detach().clone()
    arrivals = Arrivals(list(one.parameters()))
    arrivals.arrive(0, values(one)[0])
    arrivals.begin()  # it is sent once more, and fails
    arrivals.end()
    assert torch.equal(one.weight, before)
    arrivals.close()
    assert type(one.bias) is nn.Parameter


def test_a_graph_that_needs_the_old_value_is_refused_as_after_a_step() -> None:
    one = model()
    x = torch.ones(1, 3, requires_grad=True)
    out = one(x).sum()
    arrivals = Arrivals(list(one.parameters()))
    for index, value in enumerate(values(one)):
        arrivals.arrive(index, value)
    arrivals.end()
    arrivals.close()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_the_version_counts_when_the_step_is_made_and_not_when_a_value_comes() -> None:
    one = model()
    arrivals = Arrivals(list(one.parameters()))
    versions = [p._version for p in one.parameters()]
    for index, value in enumerate(values(one)):
        arrivals.arrive(index, value)
    arrivals.end()
    arrivals.close()
    assert [p._version for p in one.parameters()] == versions


def test_a_value_of_another_shape_is_refused() -> None:
    one = model()
    arrivals = Arrivals(list(one.parameters()))
    with pytest.raises(MismatchError, match="parameter 1"):
        arrivals.arrive(1, torch.zeros(3))
    arrivals.end()
    arrivals.close()
