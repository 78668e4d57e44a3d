# SPDX-License-Identifier: Apache-2.0
"""What `gangline.paramserv` returns, for which models."""

from __future__ import annotations

import numpy as np
import paramserv_functions as functions
import pytest
import torch

import gangline

LR = {"lr": 0.1}


def test_the_result_says_what_happened() -> None:
    trained = functions.train(mode="bsp", workers=2)
    assert trained.staleness == {0: trained.updates}
    assert set(trained.waited_s) == {0, 1}
    assert trained.lost == {}
    text = repr(trained)
    assert text.startswith("Trained(bsp, 2 workers, 3 epochs, ")
    assert "42 updates of 309 samples in 42 batches, 0 dropped" in text
    assert "loss" not in text


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_the_model_keeps_its_form(kind: type) -> None:
    start = functions.start()
    features, labels = functions.regression()
    model = {"w": start[0], "b": start[1]} if kind is dict else kind(start)

    def as_given(values):
        return dict(zip("wb", values, strict=True)) if kind is dict else kind(values)

    trained = gangline.paramserv(
        model,
        features,
        labels,
        lambda m, h, x, y: as_given(
            functions.update(list(m.values()) if kind is dict else list(m), h, x, y)
        ),
        lambda m, h, g: as_given(
            functions.aggregate(
                *((list(m.values()), h, list(g.values())) if kind is dict else (m, h, g))
            )
        ),
        epochs=1,
        workers=2,
        hyperparameters=LR,
    )
    assert type(trained.model) is kind


def test_torch_tensors_are_trained() -> None:
    features, labels = (torch.from_numpy(part) for part in functions.regression())
    model = [torch.zeros(4, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]

    def update(model, hyperparameters, features, labels):
        for one in model:
            one.requires_grad_()
        ((features @ model[0] + model[1] - labels) ** 2).mean().div(2).backward()
        return [one.grad for one in model]

    def aggregate(model, hyperparameters, gradients):
        for one, by in zip(model, gradients, strict=True):
            one -= hyperparameters["lr"] * by
        return model

    trained = gangline.paramserv(
        model,
        features,
        labels,
        update,
        aggregate,
        epochs=3,
        workers=4,
        batch_size=8,
        hyperparameters=LR,
    )
    for found, expected in zip(trained.model, functions.train().model, strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)


def test_what_the_optimizer_remembers_may_be_in_the_model() -> None:
    """The velocities lie behind the weights, and have no gradients."""

    def momentum(model, hyperparameters, gradients):
        speeds = [0.9 * v + g for v, g in zip(model[2:], gradients, strict=True)]
        return [w - 0.01 * v for w, v in zip(model[:2], speeds, strict=True)] + speeds

    features, labels = functions.regression()
    trained = gangline.paramserv(
        functions.start() + functions.start(),
        features,
        labels,
        functions.update,
        momentum,
        epochs=30,
        workers=2,
        batch_size=8,
        num_gradients=2,
        validate=functions.validate,
        val_features=features,
        val_labels=labels,
    )
    assert len(trained.model) == 4
    assert trained.history[-1].loss < 0.01
