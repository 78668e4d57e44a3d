# SPDX-License-Identifier: Apache-2.0
"""The models of the zoo: shapes, sizes, gradients, and what happens to a wrong name."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gangline import zoo


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "image_size", "in_channels", "num_classes", "expected"),
    [
        ("lenet5", 28, 1, 10, 61_706),
        ("lenet5", 32, 1, 10, 61_706),
        ("baseline_cnn", 28, 1, 10, 421_642),
        ("wide_mlp", 28, 1, 10, 12_787_210),
        ("alexnet", 224, 3, 1000, 61_100_840),
        ("vgg16", 224, 3, 1000, 138_357_544),
        ("resnet50", 224, 3, 1000, 25_557_032),
    ],
)
def test_model_has_the_published_number_of_parameters(
    name: str, image_size: int, in_channels: int, num_classes: int, expected: int
) -> None:
    with torch.device("meta"):
        model = zoo.build_model(
            name, image_size=image_size, in_channels=in_channels, num_classes=num_classes
        )
    assert num_parameters(model) == expected


def test_resnet50_has_161_parameter_tensors() -> None:
    with torch.device("meta"):
        assert len(list(zoo.build_model("resnet50").parameters())) == 161


@pytest.mark.parametrize("image_size", [8, 28, 32])
@pytest.mark.parametrize("name", ["lenet5", "baseline_cnn", "mlp", "wide_mlp"])
def test_small_model_trains_at_all_sizes(name: str, image_size: int) -> None:
    model = zoo.build_model(name, image_size=image_size, in_channels=2, num_classes=3)
    logits = model(torch.randn(2, 2, image_size, image_size))
    F.cross_entropy(logits, torch.tensor([0, 2])).backward()
    assert logits.shape == (2, 3)
    assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())


@pytest.mark.parametrize("name", ["alexnet", "vgg16", "resnet50"])
def test_large_model_trains_when_the_images_are_digits_of_8x8(name: str) -> None:
    model = zoo.build_model(name, image_size=8)
    F.cross_entropy(model(torch.randn(2, 1, 8, 8)), torch.tensor([3, 9])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("image_size", [9, 28, 63, 64])
@pytest.mark.parametrize("name", list(zoo.MODELS))
def test_model_maps_any_image_size_to_logits(name: str, image_size: int) -> None:
    with torch.device("meta"):
        model = zoo.build_model(name, image_size=image_size, in_channels=3, num_classes=7)
        assert model(torch.empty(2, 3, image_size, image_size)).shape == (2, 7)


def test_every_parameter_of_a_deep_plain_network_gets_a_gradient_that_is_not_tiny() -> None:
    torch.manual_seed(0)
    model = zoo.build_model("vgg16", image_size=8).eval()
    F.cross_entropy(model(torch.randn(4, 1, 8, 8)), torch.tensor([0, 1, 2, 3])).backward()
    first = next(model.parameters())
    assert first.grad is not None
    assert float(first.grad.norm()) > 1e-3


@pytest.mark.parametrize(("given", "nearest"), [("lenet", "lenet5"), ("ResNet", "resnet50")])
def test_unknown_name_names_the_nearest_and_all_models(given: str, nearest: str) -> None:
    with pytest.raises(
        ValueError, match=rf"no model '{given}'.*did you mean '{nearest}'"
    ) as caught:
        zoo.build_model(given)
    assert all(name in str(caught.value) for name in zoo.MODELS)


@pytest.mark.parametrize("argument", ["image_size", "in_channels", "num_classes"])
def test_size_of_zero_is_refused_by_its_name(argument: str) -> None:
    with pytest.raises(ValueError, match=f"{argument} of model 'mlp' must be at least 1, not 0"):
        zoo.build_model("mlp", **{argument: 0})


def test_image_that_is_too_small_is_refused_with_the_smallest_size() -> None:
    with pytest.raises(ValueError, match="alexnet needs images of at least 8x8 pixels, not 4x4"):
        zoo.build_model("alexnet", image_size=4)


@pytest.mark.parametrize("kind", [zoo.CharGRU, zoo.CharTransformer])
def test_language_model_sees_only_the_past(kind: type[nn.Module]) -> None:
    model = kind(11)
    tokens = torch.randint(11, (2, 6))
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 11
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 6, 11)
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_too_long_sequence_is_refused_with_the_context() -> None:
    model = zoo.CharTransformer(5, context=4)
    with pytest.raises(ValueError, match=r"5 tokens does not fit .* context of 4.*context=5"):
        model(torch.zeros(1, 5, dtype=torch.int64))


def test_width_that_the_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="width 10 must be a multiple of num_heads 4"):
        zoo.CharTransformer(5, width=10)
