# SPDX-License-Identifier: Apache-2.0
"""ResNet50: the model with many tensors (161) and with batch normalisation."""

from __future__ import annotations

from torch import Tensor, nn

from gangline.zoo.convnets import LARGE_IMAGE, initialised

EXPANSION = 4
"""A bottleneck's output has this many times the channels of its 3x3 convolution."""

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width and number of bottlenecks of each stage; all but the first halve the image."""


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolution, added to what came in."""

    def __init__(self, num_in: int, *, width: int, stride: int) -> None:
        super().__init__()
        num_out = width * EXPANSION
        self.body = nn.Sequential(
            *_convolution(num_in, width, kernel=1),
            nn.ReLU(),
            *_convolution(width, width, kernel=3, stride=stride),
            nn.ReLU(),
            *_convolution(width, num_out, kernel=1),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or num_in != num_out:
            self.shortcut = nn.Sequential(*_convolution(num_in, num_out, kernel=1, stride=stride))
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Maps (N, num_in, H, W) to (N, 4 * width, H / stride, W / stride)."""
        out: Tensor = self.activation(self.body(x) + self.shortcut(x))
        return out


def resnet50(*, image_size: int = 224, in_channels: int = 3, num_classes: int = 1000) -> nn.Module:
    """ResNet50 with the stride in the 3x3 convolutions: 25.56 million parameters for 1000 classes.

    Small images (under 64): the first convolution is 3x3 with stride 1, and nothing is pooled
    before the first stage.
    """
    stem: list[nn.Module]
    if image_size >= LARGE_IMAGE:
        stem = [*_convolution(in_channels, 64, kernel=7, stride=2), nn.ReLU()]
        stem.append(nn.MaxPool2d(3, 2, padding=1))
    else:
        stem = [*_convolution(in_channels, 64, kernel=3), nn.ReLU()]
    blocks: list[nn.Module] = []
    num_in = 64
    for stage, (width, num_blocks) in enumerate(STAGES):
        for block in range(num_blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            blocks.append(Bottleneck(num_in, width=width, stride=stride))
            num_in = width * EXPANSION
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(num_in, num_classes)]
    return nn.Sequential(*initialised(nn.Sequential(*stem, *blocks)), *head)


def _convolution(num_in: int, num_out: int, *, kernel: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(num_in, num_out, kernel, stride=stride, padding=kernel // 2, bias=False)
    return [convolution, nn.BatchNorm2d(num_out)]
