# SPDX-License-Identifier: Apache-2.0
"""Data that comes from no file: scikit-learn's handwritten digits, and synthetic samples."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import TensorDataset

TEST_FRACTION = 0.2


def digits(
    split: Literal["train", "test", "all"] = "train", *, size: int = 8, seed: int = 0
) -> TensorDataset:
    """The 1,797 digits of 8x8 that scikit-learn ships: (1, size, size) in [0, 1], and a label.

    `seed` alone decides which fifth is the test part; a `size` other than 8 is interpolated.
    """
    if split not in ("train", "test", "all"):
        raise ValueError(f"split must be 'train', 'test' or 'all', not {split!r}")
    if size < 1:
        raise ValueError(f"size is the side of the images in pixels, at least 1, not {size}")
    images, labels = _load_digits()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    num_test = round(len(labels) * TEST_FRACTION)
    chosen = {"test": order[:num_test], "train": order[num_test:], "all": order}[split]
    images, labels = images[chosen], labels[chosen]
    if size != images.shape[-1]:
        images = F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    return TensorDataset(images, labels)


def _load_digits() -> tuple[Tensor, Tensor]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            f"the digits come with scikit-learn, which cannot be imported here ({error}); "
            "install it with `pip install gangline[demo]`"
        ) from error
    table = load_digits()
    images = torch.as_tensor(table.images, dtype=torch.float32).unsqueeze(1) / 16
    return images, torch.as_tensor(table.target, dtype=torch.int64)


def synthetic(
    shape: tuple[int, ...], *, num_classes: int = 10, num_samples: int = 1024, seed: int = 0
) -> TensorDataset:
    """Learnable noise: each sample is its class's own random pattern plus unit noise.

    All samples are held in memory: num_samples * prod(shape) * 4 bytes.
    """
    sizes = {"num_classes": num_classes, "num_samples": num_samples, "shape": math.prod(shape)}
    for argument, size in sizes.items():
        if size < 1:
            raise ValueError(f"{argument} of a synthetic data set must be positive, not {size}")
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(num_classes, *shape, generator=generator)
    labels = torch.randint(num_classes, (num_samples,), generator=generator)
    samples = torch.randn(num_samples, *shape, generator=generator)
    for index, label in enumerate(labels.tolist()):
        samples[index] += patterns[label]
    return TensorDataset(samples, labels)
