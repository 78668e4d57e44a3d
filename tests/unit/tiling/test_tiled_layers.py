# SPDX-License-Identifier: Apache-2.0
"""Layer by layer: tiles compute what the uncut layer does, forward and backward."""

from __future__ import annotations

import pytest
from tile_members import assert_equal_to_uncut
from torch import nn

CASES = {
    "strided": (nn.Conv2d(3, 4, 3, stride=2, padding=1), (2, 3, 11, 9), {2: [3, 1]}, 2),
    "wide kernel": (nn.Conv2d(2, 3, 7, padding=3), (1, 2, 9, 8), {2: 2, 3: [1, 2]}, 4),
    "dilated": (nn.Conv1d(2, 3, 3, padding=4, dilation=4), (2, 2, 13), 2, 3),
    "same": (nn.Conv2d(2, 3, (4, 3), padding="same"), (1, 2, 8, 8), {2: [1, 2, 1]}, 3),
    "space of 3d": (nn.Conv3d(2, 3, 3, padding=1), (1, 2, 5, 6, 4), {2: 2, 4: 2}, 4),
    "channels": (nn.Conv2d(4, 6, 3), (2, 4, 7, 7), {1: [1, 3]}, 2),
    "groups over channels": (nn.Conv2d(6, 9, 3, groups=3), (1, 6, 6, 6), {1: [2, 5]}, 2),
    "depthwise over channels": (nn.Conv2d(6, 6, 3, groups=6), (1, 6, 6, 6), 1, 4),
    "batch": (nn.Conv2d(2, 3, 3), (5, 2, 6, 6), {0: [1, 2]}, 2),
    "all but padding": (nn.Conv2d(1, 2, 1, padding=2), (1, 1, 3, 3), {2: 3}, 3),
    "more workers than rows": (nn.Conv2d(2, 2, 3, stride=3), (1, 2, 9, 6), 2, 5),
    "maximum": (nn.MaxPool2d(3, 2, 1), (2, 3, 11, 8), {2: [2, 1]}, 2),
    "maximum, rounded up": (nn.MaxPool2d(2, ceil_mode=True), (1, 2, 9, 7), {2: 2, 3: 2}, 4),
    "average": (nn.AvgPool2d(3, 2, 1), (1, 3, 10, 8), {3: [1, 2]}, 2),
    "average of what is there": (
        nn.AvgPool2d(3, 2, 1, count_include_pad=False), (1, 3, 10, 8), {2: 2, 3: 2}, 4,
    ),
    "average of all": (nn.AdaptiveAvgPool2d(1), (2, 5, 7, 6), {2: [3, 1]}, 2),
    "adaptive": (nn.AdaptiveAvgPool2d((3, 2)), (2, 3, 9, 6), {2: 2}, 2),
    "adaptive maximum": (nn.AdaptiveMaxPool2d((3, 2)), (2, 3, 9, 6), {2: 2}, 2),
    "BatchNorm over space": (nn.BatchNorm2d(3), (2, 3, 6, 5), {2: [2, 1]}, 2),
    "BatchNorm over channels": (nn.BatchNorm2d(5, momentum=None), (2, 5, 4, 4), {1: 3}, 3),
    "BatchNorm in evaluation": (nn.BatchNorm2d(3).eval(), (2, 3, 6, 5), {2: 2}, 2),
    "InstanceNorm": (nn.InstanceNorm2d(4, affine=True), (2, 4, 6, 6), {2: 2, 3: 2}, 4),
    "GroupNorm": (nn.GroupNorm(2, 6), (3, 6, 5, 5), {0: 2, 1: [1, 2]}, 4),
    "nearest": (nn.Upsample(scale_factor=2), (1, 2, 5, 4), {2: [1, 2]}, 2),
    "bilinear": (nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 5, 4), {2: 2, 3: 2}, 4),
    "bilinear, any factor": (nn.Upsample(scale_factor=1.7, mode="bilinear"), (1, 2, 7, 6), 2, 3),
    "to the corners": (
        nn.Upsample(size=(9, 7), mode="bilinear", align_corners=True), (1, 2, 5, 4), {2: 2}, 2,
    ),
    "trilinear": (nn.Upsample(size=(5, 6, 7), mode="trilinear"), (1, 2, 3, 4, 5), {2: 2, 3: 2}, 4),
    "dense": (nn.Linear(6, 5), (4, 6), 1, 3),
    "dense over the batch": (nn.Linear(6, 5), (4, 6), {0: [1, 2]}, 2),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CASES)
def test_a_tiled_layer_is_the_uncut_layer(name: str) -> None:
    model, shape, dims, size = CASES[name]
    assert_equal_to_uncut(nn.Sequential(model), shape, dims, size, output="tile")
