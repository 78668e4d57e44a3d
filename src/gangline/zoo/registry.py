# SPDX-License-Identifier: Apache-2.0
"""The image models by name.

model = build_model("lenet5", image_size=8)
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Protocol

from gangline.zoo.convnets import alexnet, baseline_cnn, lenet5, vgg16
from gangline.zoo.perceptron import mlp, wide_mlp
from gangline.zoo.resnet import resnet50

if TYPE_CHECKING:
    from torch import nn


class Builder(Protocol):
    """What makes a model for square images of one size."""

    def __call__(self, *, image_size: int, in_channels: int, num_classes: int) -> nn.Module: ...


MODELS: dict[str, Builder] = {
    "lenet5": lenet5,
    "baseline_cnn": baseline_cnn,
    "alexnet": alexnet,
    "vgg16": vgg16,
    "resnet50": resnet50,
    "mlp": mlp,
    "wide_mlp": wide_mlp,
}


def build_model(
    name: str, *, image_size: int = 28, in_channels: int = 1, num_classes: int = 10
) -> nn.Module:
    """The model of that name for images of (in_channels, image_size, image_size)."""
    builder = MODELS.get(name)
    if builder is None:
        nearest = difflib.get_close_matches(name.lower(), MODELS, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"there is no model {name!r} in the zoo: did you mean {nearest!r}? "
            f"It has {', '.join(MODELS)}"
        )
    sizes = {"image_size": image_size, "in_channels": in_channels, "num_classes": num_classes}
    for argument, size in sizes.items():
        if size < 1:
            raise ValueError(f"{argument} of model {name!r} must be at least 1, not {size}")
    return builder(**sizes)
