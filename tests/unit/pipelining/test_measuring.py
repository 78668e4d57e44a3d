# SPDX-License-Identifier: Apache-2.0
"""What is measured of layers: sizes by definition, times that are there, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gangline.pipelining.chain import chain_of
from gangline.pipelining.filling import empty, fill, is_empty
from gangline.pipelining.measuring import Measured, measure
from gangline.spec.errors import UnsupportedError

CPU = torch.device("cpu")


def measured(model: nn.Module, shape: tuple[int, ...]) -> Measured:
    def inputs(count: int) -> Tensor:
        return torch.ones(count, *shape)

    return measure(chain_of(model), inputs, device=CPU, ratio_of=lambda parameter: 2.0)


def test_sizes_are_what_they_are() -> None:
    model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.BatchNorm1d(20), nn.Linear(20, 5))
    model[3].bias.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = measured(model, (10,))
    linear, norm, head = found.layers
    assert linear.parameter_bytes == 4 * 220
    assert linear.state_bytes == 4 * 4 * 220  # itself, its gradient, two of Adam's
    assert linear.input_bytes == 40
    assert linear.output_bytes == norm.input_bytes == 80
    assert linear.saved_bytes == 40 + 80  # the input of Linear, the output of Tanh
    assert norm.state_bytes == 4 * 4 * 40 + 4 * 40 + 8  # running statistics, and their counter
    assert head.state_bytes == 4 * 4 * 100 + 4 * 5
    assert found.shapes == [(20,), (20,), (5,)]
    assert all(pace.sample_s > 0 for pace in (*found.forward, *found.backward))
    for name, value in model.state_dict().items():
        assert torch.equal(before[name], value), name


def test_what_is_overwritten_does_not_disturb_the_measuring() -> None:
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 3), nn.ReLU(inplace=True))
    assert len(measured(model, (3,)).layers) == 1


def test_indices_need_no_gradient() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3))

    def inputs(count: int) -> Tensor:
        return torch.zeros(count, 5, dtype=torch.int64)

    found = measure(chain_of(model), inputs, device=CPU, ratio_of=lambda parameter: 0.0)
    assert found.layers[0].input_bytes == 40
    assert found.shapes == [(5, 4), (5, 3)]


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).mean(0, keepdim=True)


class Twofold(nn.Linear):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return x, super().forward(x)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Linear(3, 3), Pooled()), r"layer '1' makes a tensor of shape \[1, 3\]"),
        (nn.Sequential(Twofold(3, 3), nn.Linear(3, 3)), "layer '0' returns tuple"),
    ],
)
def test_layers_that_mix_samples_are_refused(model: nn.Module, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        measured(model, (3,))


def test_a_layer_without_values_gets_them_from_the_seed_alone() -> None:
    layers = []
    for _ in range(2):
        with torch.device("meta"):
            layers.append(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)))
        torch.randn(5)  # what the script draws makes no difference
        fill(layers[-1], CPU, seed=4)
    first, second = layers
    assert not is_empty(first)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
    empty(first)
    assert is_empty(first)
    with torch.device("meta"):
        strange = nn.Sequential(Pooled())
    with pytest.raises(UnsupportedError, match="Pooled has no reset_parameters"):
        fill(strange, CPU, seed=0)
