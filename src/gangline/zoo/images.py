# SPDX-License-Identifier: Apache-2.0
"""A data set of images in memory, a byte per value until a sample is asked for."""

from __future__ import annotations

from torch import Tensor
from torch.utils.data import Dataset


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Samples of (image in [0, 1], label) over bytes: a quarter of what floats would take."""

    def __init__(self, pixels: Tensor, labels: Tensor, *, classes: tuple[str, ...]) -> None:
        self.pixels = pixels
        """(N, C, H, W), uint8."""
        self.labels = labels
        """(N,), int64."""
        self.classes = classes
        """The name of each label."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.pixels[index].float() / 255, self.labels[index]
