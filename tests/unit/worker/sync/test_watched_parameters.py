# SPDX-License-Identifier: Apache-2.0
"""What a loop does to parameters that servers hold is noticed; what gangline does is not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gangline.spec.errors import UnsupportedError
from gangline.worker.sync.served.coming import Arrivals
from gangline.worker.sync.served.watch import Watch

NAMES = ["first.weight", "second.weight"]


def watched(*shape: int) -> tuple[Watch, list[Tensor]]:
    parameters: list[Tensor] = [nn.Parameter(torch.randn(shape or (3, 5))) for _ in NAMES]
    watch = Watch(parameters, NAMES, mode="bsp")
    watch.note()
    return watch, parameters


def test_the_parameter_that_the_loop_has_changed_is_named() -> None:
    watch, parameters = watched()
    watch.check()
    with torch.no_grad():
        parameters[1].clamp_(-0.1, 0.1)
    with pytest.raises(UnsupportedError, match=r"beside step\(\) has changed second.weight"):
        watch.check()
    watch.note()  # as gangline does when it has written them itself
    watch.check()


def test_max_norm_of_an_embedding_is_such_a_change() -> None:
    table = nn.Embedding(4, 3, max_norm=0.1)
    watch = Watch([table.weight], ["table.weight"], mode="asp")
    watch.note()
    table(torch.tensor([1]))
    with pytest.raises(UnsupportedError, match=r"table.weight.*max_norm"):
        watch.check()


def test_values_that_come_during_the_forward_pass_are_no_change() -> None:
    watch, parameters = watched()
    arrivals = Arrivals(parameters)
    watch.note()
    for index in range(len(parameters)):
        arrivals.arrive(index, torch.zeros(3, 5))
    arrivals.end()
    arrivals.close()
    watch.check()
    assert not parameters[0].detach().any()


@pytest.mark.parametrize("shape", [(3, 5), (), (0, 3), (8,)])
def test_weights_that_are_put_back_between_epochs_are_no_change(shape: tuple[int, ...]) -> None:
    watch, parameters = watched(*shape)
    if shape == (8,):
        parameters[0].data.fill_(float("nan"))
    watch.note_end()
    with torch.no_grad():
        own = [one.clone() for one in parameters]
        for one, before in zip(parameters, own, strict=True):
            one.fill_(7)
            one.copy_(before)
    watch.check_begin()


def test_weights_that_stay_changed_between_epochs_are_refused() -> None:
    whole = torch.randn(16)
    parameters: list[Tensor] = [nn.Parameter(whole[1:8]), nn.Parameter(whole[9:])]
    watch = Watch(parameters, NAMES, mode="bsp")
    watch.note_end()
    with torch.no_grad():
        parameters[1].neg_()
    with pytest.raises(UnsupportedError, match=r"has changed second.weight"):
        watch.check_begin()


def test_what_is_not_known_is_not_judged() -> None:
    watch, parameters = watched()
    watch.note_end()
    watch.forget()  # a recovery has written them
    with torch.no_grad():
        parameters[0].add_(1)
    watch.check()
    watch.check_begin()
