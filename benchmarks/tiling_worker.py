# SPDX-License-Identifier: Apache-2.0
"""What a worker of `tiling.py` does: steps of a CNN by tiles, at a speed of its own."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

import gangline


def make_model(channels: int) -> nn.Module:
    """Five convolutions with BatchNorm, two of them strided, and one output channel."""
    layers: list[nn.Module] = []
    before = 3
    for stride in (1, 1, 2, 1, 2):
        layers += [
            nn.Conv2d(before, channels, 3, stride=stride, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
        ]
        before = channels
    return nn.Sequential(*layers, nn.Conv2d(channels, 1, 1))


def train(
    dims: Any, size: int, channels: int, steps: int, slowness: list[float]
) -> tuple[float, int]:
    """Seconds per step, and the bytes that were kept for the backward pass.

    A worker of slowness 2 sleeps as long as its thread has computed, before the gradients are added up.
    """
    torch.set_num_threads(1)
    gangline.init()
    shape = (1, 3, size, size)
    tiled = gangline.tile(make_model(channels), dims=dims, input_shape=shape, output="tile")
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    tile = torch.randn([stop - start for start, stop in tiled.input_box])
    optimizer = torch.optim.SGD(tiled.parameters(), lr=0.01)
    wait = slowness[gangline.rank()] - 1
    began_s = 0.0
    for step in range(steps + 1):
        if step == 1:  # the first one warms up
            gangline.barrier()
            began_s = time.perf_counter()
        computed_s = time.thread_time()
        kept.clear()
        optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = tiled(tile).square().sum()
        loss.backward()
        time.sleep(wait * (time.thread_time() - computed_s))
        tiled.sum_gradients()
        optimizer.step()
    return (time.perf_counter() - began_s) / steps, sum(kept.values())
