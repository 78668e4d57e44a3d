# SPDX-License-Identifier: Apache-2.0
"""Whole models: tiles compute what the uncut model does, whichever way the halos are made."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tile_members import ThreadPeers, assert_equal_to_uncut, on_all
from torch import Tensor, nn

from gangline.collectives import SoloGroup
from gangline.spec.errors import UnsupportedError, UsageError
from gangline.tiling.api import tile
from gangline.tiling.peers import JobPeers
from gangline.tiling.plan import Costs
from gangline.worker.gradients.communicator import Communicator
from gangline.worker.job import Job

if TYPE_CHECKING:
    from collections.abc import Callable


class Residual(nn.Module):
    """A block as in ResNets, with a way around it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.two = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.two(F.relu(self.norm(self.one(x)), inplace=True))
        y += x
        return torch.relu(y)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.MaxPool2d(3, 2, 1))
        self.block = Residual(4)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(self.pool(self.block(self.stem(x))), 1))


class UNet(nn.Module):
    """Down, up again, and what was there before beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(2, 4, 3, padding=1)
        self.inner = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(inplace=True)
        )
        self.last = nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        high = torch.relu(self.down(x))
        low = self.inner(F.max_pool2d(F.avg_pool2d(high, 3, 1, 1), 2))
        back = F.interpolate(low, scale_factor=2, mode="bilinear")
        return self.last(torch.cat([high, back], 1))


def dense() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 7), nn.ReLU(), nn.Linear(7, 3)
    )


def deep() -> nn.Module:
    layers: list[nn.Module] = []
    for channels in (2, 3, 3):
        layers += [nn.Conv2d(channels, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "classifier": (Classifier, (2, 3, 19, 17)),
    "U-Net": (UNet, (2, 2, 8, 8)),
    "dense": (dense, (3, 1, 6, 6)),
    "deep": (deep, (2, 2, 9, 8)),
}
CUTS: list[tuple[Any, int]] = [({2: [3, 1]}, 2), ({2: 2, 3: [1, 2]}, 4), (1, 2), ({0: 2, 2: 2}, 4)]


@pytest.mark.parametrize("halo", ["auto", "exchange", "recompute"])
@pytest.mark.parametrize("cut", range(len(CUTS)))
@pytest.mark.parametrize("name", MODELS)
def test_a_tiled_model_is_the_uncut_model(name: str, cut: int, halo: str) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(3)
    dims, size = CUTS[cut]
    assert_equal_to_uncut(make(), shape, dims, size, halo=halo)


def fits(layers: list[Any], length: int) -> bool:
    """Whether no kernel is longer than what the layers before it leave of so many places."""
    for layer in layers:
        extent = layer.dilation[0] * (layer.kernel_size[0] - 1) + 1
        length += 2 * layer.padding[0]
        if extent > length:
            return False
        length = (length - extent) // layer.stride[0] + 1
    return True


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_convolutions_any_cut(data: st.DataObject) -> None:
    space = data.draw(st.integers(1, 3), label="dimensions of space")
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[space]
    groups = data.draw(st.sampled_from([1, 2]), label="groups")
    layers: list[nn.Module] = []
    for _ in range(data.draw(st.integers(1, 2), label="layers")):
        kernel = data.draw(st.integers(1, 3), label="kernel")
        layers.append(
            conv(
                4,
                4,
                kernel,
                stride=data.draw(st.integers(1, 2)),
                padding=data.draw(st.integers(0, 3)),
                dilation=data.draw(st.integers(1, 2)),
                groups=groups,
            )
        )
    lengths = [data.draw(st.integers(8, 12)) if dim < 1 else 8 for dim in range(space)]
    assume(fits(layers, lengths[0]) and fits(layers, 8))
    weights = st.lists(st.floats(0.3, 3), min_size=1, max_size=3)
    dims = data.draw(st.dictionaries(st.integers(0, space + 1), weights, min_size=1, max_size=2))
    size = 1
    for each in dims.values():
        size *= len(each)
    halo = data.draw(st.sampled_from(["auto", "exchange", "recompute"]))
    assert_equal_to_uncut(
        nn.Sequential(*layers), (2, 4, *lengths), dims, size, halo=halo, output="tile"
    )


def plans(costs: Costs, halo: str = "auto") -> list[str]:
    def look(peers: ThreadPeers) -> list[str]:
        torch.manual_seed(0)
        tiled = tile(deep(), dims=2, input_shape=(2, 2, 16, 8), halo=halo, costs=costs, group=peers)
        return [line.split()[-1] for line in tiled.explain().splitlines()[1:]]

    one, other = on_all(2, look)
    assert one == other
    return one


def test_what_costs_less_is_chosen() -> None:
    slow_net = plans(Costs(latency_s=1.0))
    assert slow_net.count("exchange") == 1  # of the input alone: nobody else has it
    assert slow_net == plans(Costs(), halo="recompute")
    slow_machine = plans(Costs(operations_per_s=1.0))
    assert "recompute" not in slow_machine
    assert slow_machine == plans(Costs(), halo="exchange")


def test_only_halos_are_sent() -> None:
    def send(peers: ThreadPeers) -> int:
        tiled = tile(
            deep(), dims=2, input_shape=(2, 2, 16, 8), halo="exchange", output="tile", group=peers
        )
        peers.meet()
        tiled(torch.zeros(2, 2, 8, 8))
        return peers.sent

    halo = 2 * 1 * 8  # one row of two images
    assert on_all(2, send) == [halo * (2 + 3 + 3)] * 2


def test_all_begin_with_the_parameters_of_the_first() -> None:
    def begin(peers: ThreadPeers) -> Tensor:
        model = nn.Conv2d(1, 1, 3)
        nn.init.constant_(model.weight, float(peers.rank))
        tile(nn.Sequential(model), dims=2, input_shape=(1, 1, 8, 8), group=peers)
        return model.weight.detach()

    assert all((weight == 0).all() for weight in on_all(3, begin))


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (
            nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")),
            "module '0'.*reflect",
        ),
        (nn.Sequential(nn.ReLU(), nn.LocalResponseNorm(2)), "module '1' .LocalResponseNorm"),
        (nn.Sequential(nn.AdaptiveAvgPool2d(3)), "windows of unequal size"),
        (nn.Sequential(nn.Upsample(scale_factor=1.5)), "only by whole factors"),
        (nn.Sequential(nn.AvgPool2d(3, ceil_mode=True)), "ceil_mode"),
    ],
)
def test_the_layer_in_the_way_is_named(model: nn.Module, told: str) -> None:
    with pytest.raises(UnsupportedError, match=told):
        tile(model, dims=2, input_shape=(1, 2, 8, 8), group=SoloGroup())


def test_other_refusals() -> None:
    solo = SoloGroup()
    tiled = tile(nn.Sequential(nn.Dropout(0.5)), dims=2, input_shape=(1, 2, 8, 8), group=solo)
    with pytest.raises(UnsupportedError, match="unlike masks"):
        tiled(torch.zeros(1, 2, 8, 8))
    assert tiled.eval()(torch.zeros(1, 2, 8, 8)).shape == (1, 2, 8, 8)
    with pytest.raises(UsageError, match=r"has the shape \(1, 2, 8, 8\), not \(1, 2, 4, 8\)"):
        tiled(torch.zeros(1, 2, 4, 8))
    with pytest.raises(UsageError, match="the uncut tensor has the shape"):
        tiled.cut(torch.zeros(1, 2, 4, 8))
    for wrong in ({"halo": "no"}, {"output": "no"}):
        with pytest.raises(UsageError, match="'no' is none of"):
            tile(nn.ReLU(), dims=2, input_shape=(1, 2, 8, 8), group=solo, **wrong)


def test_a_model_that_cannot_be_traced_is_refused() -> None:
    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(UnsupportedError, match="cannot trace Asks"):
        tile(Asks(), dims=2, input_shape=(1, 2, 8, 8), group=SoloGroup())


def test_the_uncut_model_is_trained() -> None:
    model = dense()
    before = copy.deepcopy(model.state_dict())
    tiled = tile(model, dims=2, input_shape=(3, 1, 6, 6), group=SoloGroup())
    optimizer = torch.optim.SGD(tiled.parameters(), lr=0.1)
    tiled(tiled.cut(torch.ones(3, 1, 6, 6))).sum().backward()
    tiled.sum_gradients()
    optimizer.step()
    assert any(not torch.equal(before[name], value) for name, value in model.state_dict().items())


def job_of_one(*, is_late: bool = False) -> Any:
    solo = SoloGroup()
    return Job(
        session=SimpleNamespace(group=solo, communicator=Communicator(solo), is_late=is_late)
    )


def test_a_job_divides_its_batches_or_its_activations() -> None:
    job = job_of_one()
    tiled = tile(nn.ReLU(), dims=2, input_shape=(1, 2, 8, 8), group=JobPeers(job))
    assert tiled(torch.ones(1, 2, 8, 8)).sum() == 128
    job.training = object()
    with pytest.raises(UsageError, match=r"tile was called after prepare\(\)"):
        JobPeers(job)
    with pytest.raises(UsageError, match=r"prepare\(\) was called after gangline.tile"):
        JobPeers.all_reduce(tiled._peers, torch.zeros(1))
    with pytest.raises(UsageError, match="this one came later"):
        JobPeers(job_of_one(is_late=True))
