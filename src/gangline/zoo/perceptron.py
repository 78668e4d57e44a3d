# SPDX-License-Identifier: Apache-2.0
"""Multi-layer perceptrons: the smallest model there is, and one whose gradient is large.

The wide one has few tensors, little arithmetic per parameter and 12.8 million parameters at 28x28,
so that moving its gradient, and not computing it, is what a step costs.
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def perceptron(widths: tuple[int, ...]) -> nn.Sequential:
    """Linear layers of these widths with ReLU in between; images are flattened first."""
    layers: list[nn.Module] = [nn.Flatten()]
    for num_in, num_out in pairwise(widths[:-1]):
        layers += [nn.Linear(num_in, num_out), nn.ReLU()]
    layers.append(nn.Linear(widths[-2], widths[-1]))
    return nn.Sequential(*layers)


def mlp(*, image_size: int = 28, in_channels: int = 1, num_classes: int = 10) -> nn.Module:
    """One hidden layer of 64."""
    return perceptron((in_channels * image_size**2, 64, num_classes))


def wide_mlp(*, image_size: int = 28, in_channels: int = 1, num_classes: int = 10) -> nn.Module:
    """Two hidden layers of 3200."""
    return perceptron((in_channels * image_size**2, 3200, 3200, num_classes))
