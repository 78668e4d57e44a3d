# SPDX-License-Identifier: Apache-2.0
"""Plain convolutional networks: LeNet-5, a baseline CNN, AlexNet and VGG16.

Each builder takes square images of any size it can still pool. AlexNet and VGG16 are the published
networks from 64 pixels on; below that they keep their convolutions and shrink what was made for
large images: the stride of the first layer, poolings that no longer fit, the classifier's width.
"""

from __future__ import annotations

from torch import nn

LARGE_IMAGE = 64
"""From this size on, the published form of a network is used, and its small-input form below."""


def check_image_size(image_size: int, *, model: str, smallest: int) -> None:
    """Refuses images that the model's poolings would shrink to nothing."""
    if image_size < smallest:
        raise ValueError(
            f"{model} needs images of at least {smallest}x{smallest} pixels, not "
            f"{image_size}x{image_size}; enlarge the images, or take a model with fewer poolings"
        )


def initialised(model: nn.Sequential) -> nn.Sequential:
    """He initialisation of every layer: without it a deep plain network does not start to learn."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def lenet5(*, image_size: int = 28, in_channels: int = 1, num_classes: int = 10) -> nn.Module:
    """LeNet-5 with ReLU and max pooling: 61,706 parameters for the ten digits of 28x28 or 32x32.

    Images under 32 are padded by the first convolution, those under 12 by the second too.
    """
    check_image_size(image_size, model="lenet5", smallest=4)
    first_padding = 2 if image_size < 32 else 0
    second_padding = 2 if image_size < 12 else 0
    side = (image_size + 2 * first_padding - 4) // 2
    side = (side + 2 * second_padding - 4) // 2
    model = nn.Sequential(
        nn.Conv2d(in_channels, 6, 5, padding=first_padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, padding=second_padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * side**2, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, num_classes),
    )
    return initialised(model)


def baseline_cnn(*, image_size: int = 28, in_channels: int = 1, num_classes: int = 10) -> nn.Module:
    """The "baseline CNN" that balancing policies are compared on, before AlexNet and the others.

    The publication calls it simple and gives no sizes. These are the usual ones for MNIST: two 3x3
    convolutions of 32 and 64 channels with pooling, and a hidden layer of 128 (421,642 parameters).
    """
    check_image_size(image_size, model="baseline_cnn", smallest=4)
    side = image_size // 2 // 2
    model = nn.Sequential(
        nn.Conv2d(in_channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * side**2, 128),
        nn.ReLU(),
        nn.Linear(128, num_classes),
    )
    return initialised(model)


def alexnet(
    *, image_size: int = 224, in_channels: int = 3, num_classes: int = 1000, dropout: float = 0.5
) -> nn.Module:
    """AlexNet in its one-tower form: 61.1 million parameters for 1000 classes.

    Small images: 3x3 stride 1 in place of 11x11 stride 4, and a classifier of 2048 (11.2 million
    parameters at 1x28x28).
    """
    check_image_size(image_size, model="alexnet", smallest=8)
    if image_size >= LARGE_IMAGE:
        first, second = nn.Conv2d(in_channels, 64, 11, stride=4, padding=2), (5, 2)
        pool, side, hidden = nn.MaxPool2d(3, 2), 6, 4096
    else:
        first, second = nn.Conv2d(in_channels, 64, 3, padding=1), (3, 1)
        pool, side, hidden = nn.MaxPool2d(2), image_size // 8, 2048
    features: list[nn.Module] = [first, nn.ReLU(), pool]
    features += [nn.Conv2d(64, 192, second[0], padding=second[1]), nn.ReLU(), pool]
    for num_in, num_out in ((192, 384), (384, 256), (256, 256)):
        features += [nn.Conv2d(num_in, num_out, 3, padding=1), nn.ReLU()]
    features += [pool, nn.AdaptiveAvgPool2d(side), nn.Flatten()]
    classifier: list[nn.Module] = [
        nn.Dropout(dropout),
        nn.Linear(256 * side**2, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, num_classes),
    ]
    return initialised(nn.Sequential(*features, *classifier))


VGG16_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""The channels of VGG16's convolutions; a pooling follows each block."""


def vgg16(
    *, image_size: int = 224, in_channels: int = 3, num_classes: int = 1000, dropout: float = 0.5
) -> nn.Module:
    """VGG16 without batch normalisation: 138.36 million parameters for 1000 classes.

    Small images: poolings that would leave a single pixel are left out (a 28x28 image is pooled to
    3x3 and no further: on less, a 3x3 convolution sees mostly padding), and the classifier has 512
    units (17.3 million parameters at 1x28x28).
    """
    features: list[nn.Module] = []
    num_in, side = in_channels, image_size
    for block in VGG16_BLOCKS:
        for num_out in block:
            features += [nn.Conv2d(num_in, num_out, 3, padding=1), nn.ReLU()]
            num_in = num_out
        if side >= 4:
            features.append(nn.MaxPool2d(2))
            side //= 2
    hidden = 512
    if image_size >= LARGE_IMAGE:
        side, hidden = 7, 4096
    model = nn.Sequential(
        *features,
        nn.AdaptiveAvgPool2d(side),
        nn.Flatten(),
        nn.Linear(512 * side**2, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, num_classes),
    )
    return initialised(model)
