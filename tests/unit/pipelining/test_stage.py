# SPDX-License-Identifier: Apache-2.0
"""A stage at work: what it refuses, what it draws, and what it keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gangline.pipelining.chain import chain_of
from gangline.pipelining.stage import Piece, StageWork
from gangline.spec.errors import UnsupportedError, UsageError


def work(model: nn.Sequential, loss: Any = None, *, recompute: bool = False) -> StageWork:
    return StageWork(
        list(enumerate(chain_of(model))),
        [(3,)] * 4,
        device=torch.device("cpu"),
        loss=loss,
        recompute=recompute,
        stashes=False,
        seed=1,
        speed=1.0,
    )


def piece(start: int = 0, stop: int = 2, step: int = 0) -> Piece:
    return Piece(step=step, number=0, start=start, stop=stop, weight=0.5, counted=0.5)


class Growing(nn.Linear):
    """Makes longer samples of longer ones."""

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 1)) if x.sum() > 5 else x


def test_a_shape_that_changes_between_micro_batches_is_refused_with_its_layer() -> None:
    stage = work(nn.Sequential(nn.Identity(), Growing(3, 3)))
    assert stage.forward(piece(), torch.zeros(2, 3)) is not None
    with pytest.raises(UnsupportedError, match=r"'0…1' has made a tensor of shape \[2, 4\]"):
        stage.forward(piece(), torch.ones(2, 3))


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda out, y: F.mse_loss(out, y, reduction="none"), r"one number.* not \[2, 3\]"),
        (lambda out, y: 1.0, "not float"),
    ],
)
def test_a_loss_that_is_not_one_number_is_refused(loss: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        work(nn.Sequential(nn.Linear(3, 3)), loss).forward(
            piece(), torch.zeros(2, 3), torch.zeros(2, 3)
        )


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_are_those_of_the_weighted_loss(recompute: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 3))
    stage = work(model, F.mse_loss, recompute=recompute)
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    state = torch.get_rng_state()
    assert stage.forward(piece(), x, y) is None
    sent = stage.backward(piece(), None)
    assert torch.equal(torch.get_rng_state(), state)  # the script's numbers are its own
    leaf = x.clone().requires_grad_()
    torch.manual_seed(0)
    again = work(model, F.mse_loss)
    out = again._run(leaf, piece())
    loss = F.mse_loss(out, y)
    grads = torch.autograd.grad(0.5 * loss, [leaf, model[0].weight])
    torch.testing.assert_close(sent, grads[0])
    torch.testing.assert_close(model[0].weight.grad, grads[1])
    assert float(stage.total_loss) == pytest.approx(0.5 * loss.item())


def test_dropout_draws_by_step_and_sample_and_layer() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))

    def drawn(**place: int) -> Tensor:
        out = work(model).forward(piece(**place), torch.ones(2, 3))
        assert out is not None
        return out == 0

    assert torch.equal(drawn(start=2, stop=4), drawn(start=2, stop=4))
    drawn_at = [drawn(start=2, stop=4, step=step).tolist() for step in range(8)]
    assert len({str(one) for one in drawn_at}) > 1
