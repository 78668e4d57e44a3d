# SPDX-License-Identifier: Apache-2.0
"""Models as chains of layers: what can be cut where, and what is refused with what is in the way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gangline.pipelining.chain import chain_of
from gangline.spec.errors import UnsupportedError
from gangline.zoo.resnet import Bottleneck


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.two(F.relu(self.one(x)))) * self.scale


class Fussy(nn.Module):
    """Goes by the values of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.sum() > 0 else x - self.linear.bias


class Net(nn.Module):
    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.middle = middle
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
        return self.head(self.middle(self.first(x.flatten(1))) * scale)


def run(model: nn.Module, x: Tensor) -> Tensor:
    for layer in chain_of(model):
        x = layer(x)
    return x


def test_a_nested_sequential_is_flattened_and_what_has_no_parameters_joins() -> None:
    model = nn.Sequential(
        nn.Flatten(),
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1)),
        nn.Linear(8, 2),
    )
    layers = chain_of(model)
    assert [[name for name, _ in layer.parts] for layer in layers] == [
        ["0", "1.0", "1.1", "1.2"],
        ["2"],
    ]
    names = [name for layer in layers for name in layer.parameters()]
    assert names == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("middle", [Block(), Fussy(), nn.Sequential(Block(), Fussy(), Block())])
def test_a_traced_model_computes_the_same_and_keeps_its_names(middle: nn.Module) -> None:
    model = Net(middle)
    x = torch.randn(3, 2, 2)
    assert torch.equal(run(model, x), model(x))
    layers = chain_of(model)
    assert len(layers) >= 3
    named = {name: p for layer in layers for name, p in layer.parameters().items()}
    assert named.keys() == dict(model.named_parameters()).keys()
    assert all(named[name] is parameter for name, parameter in model.named_parameters())


def test_a_block_with_a_shortcut_is_not_cut_inside() -> None:
    layers = chain_of(Net(Block()))
    (block,) = [one for one in layers if "middle.one.weight" in one.parameters()]
    assert "middle.two.weight" in block.parameters()


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.blocks = nn.ModuleList([Bottleneck(8, width=2, stride=1) for _ in range(3)])
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def test_a_residual_network_is_cut_between_its_blocks() -> None:
    torch.manual_seed(0)
    model = Residual().eval()
    layers = chain_of(model)
    assert len(layers) == 5
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(run(model, x), model(x))
    buffers = {name for layer in layers for name in layer.buffers()}
    assert buffers == {name for name, _ in model.named_buffers()}


class Two(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * mask


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.embed(x)))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Fussy(), r"Fussy\.forward cannot be traced"),
        (Two(), r"takes 2 inputs \(x, mask\)"),
        (Tied(), r"'embed…relu' and 'head' share the parameter 'embed\.weight'"),
        (nn.Sequential(), "no layers"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_what_is_in_the_way(
    model: nn.Module, words: str
) -> None:
    with pytest.raises(UnsupportedError, match=words):
        chain_of(model)
