# SPDX-License-Identifier: Apache-2.0
"""A real task: softmax regression on MNIST, where it is there."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import gangline
from gangline.zoo.idx_files import read_idx

SHARED = Path(os.environ.get("GANGLINE_DATA", Path(__file__).parents[4] / "shared" / "data"))


def read(part: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    folder = SHARED / "mnist"
    if not folder.is_dir():
        pytest.skip(f"no MNIST in {folder}; set GANGLINE_DATA to the folder that holds mnist/")
    pixels = read_idx(folder / f"{part}-images-idx3-ubyte.gz", num_dimensions=3)[:rows]
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz", num_dimensions=1)[:rows]
    return pixels.reshape(rows, -1).numpy().astype(np.float32) / 255, labels.numpy()


def probabilities(model, features):
    scores = features @ model[0] + model[1]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def update(model, rate, features, labels):
    wrong = probabilities(model, features) - np.eye(10, dtype=np.float32)[labels]
    return [features.T @ wrong / len(wrong), wrong.mean(axis=0)]


def aggregate(model, rate, gradients):
    return [one - np.float32(rate) * by for one, by in zip(model, gradients, strict=True)]


def validate(model, rate, features, labels):
    found = probabilities(model, features)
    loss = -np.log(found[np.arange(len(labels)), labels]).mean()
    return loss, (found.argmax(axis=1) == labels).mean()


@pytest.mark.parametrize("mode", ["bsp", "asp", "ssp(2)", "backup(1)"])
def test_digits_are_learned(mode: str) -> None:
    features, labels = read("train", 6000)
    val_features, val_labels = read("t10k", 1000)
    trained = gangline.paramserv(
        [np.zeros((784, 10), np.float32), np.zeros(10, np.float32)],
        features,
        labels,
        update,
        aggregate,
        epochs=3,
        mode=mode,
        workers=2,
        batch_size=50,
        hyperparameters=0.1,
        validate=validate,
        val_features=val_features,
        val_labels=val_labels,
    )
    assert trained.history[-1].accuracy > 0.8
