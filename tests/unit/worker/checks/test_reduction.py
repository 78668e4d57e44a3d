# SPDX-License-Identifier: Apache-2.0
"""A loss that is not reduced as it was said is noticed, by how its gradients grow with the shares."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gangline.spec import View
from gangline.worker.checks.lossgraph import reductions_of
from gangline.worker.checks.reduction import MIN_PASSES, ReductionCheck, Slope
from gangline.worker.checks.scrutiny import NOT_FINITE, UNSAID, size_of
from gangline.worker.gradients import backward
from gangline.worker.gradients.agreement import WIDTH, Agreed, Statement
from gangline.worker.samples.handout import Handout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STATEMENT = Statement.of([0] * WIDTH)


class Members:
    """A job's members, of which each computes the gradient of its own samples; no group is needed."""

    def __init__(
        self,
        shares: tuple[int, ...],
        *,
        said: str,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        order: str = "shuffled",
        has_batch_norm: bool = False,
    ) -> None:
        torch.manual_seed(sum(shares))
        self.shares, self.said, self.loss = shares, said, loss
        middle = nn.BatchNorm1d(16) if has_batch_norm else nn.Identity()
        self.model = nn.Sequential(nn.Linear(6, 16), middle, nn.ReLU(), nn.Linear(16, 3))
        self.x = torch.randn(512, 6)
        self.y = (self.x @ torch.randn(6, 3)).argmax(1)
        self.view = View(number=0, members=tuple(range(len(shares))), shares=shares, reason="")
        self.check = ReductionCheck(said, models=[self.model], minimum=1, order=order)

    def size(self, samples: torch.Tensor) -> int:
        self.model.zero_grad()
        self.loss(self.model(self.x[samples]), self.y[samples]).backward()
        part = len(samples) / sum(self.shares)
        weight = 1.0 if self.said == "sum" else part
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return size_of(sum(float((weight * g).square().sum()) for g in gradients), part)

    def step(self, number: int) -> None:
        total = sum(self.shares)
        sizes = [self.size(one) for one in torch.randperm(512)[:total].split(list(self.shares))]
        self.note(sizes, stop=total * (number + 1))

    def note(self, sizes: Sequence[int], *, stop: int) -> None:
        total = sum(self.shares)
        agreed = Agreed(STATEMENT, STATEMENT, (), tuple(sizes))
        handout = Handout(0, 0, 0, 0, 1, 0, self.shares[0], stop, self.shares[0], total)
        self.check.note(agreed, handout, self.view)


def warned(members: Members, steps: int = 60) -> list[str]:
    state = torch.get_rng_state()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for number in range(steps):
                members.step(number)
    finally:
        torch.set_rng_state(state)
    return [str(one.message) for one in caught]


def mean(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores, labels)


def sum_(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores, labels, reduction="sum")


SHARES = [(28, 2, 2), (5, 2, 1), (24, 8), (20, 10, 2)]


@pytest.mark.parametrize("shares", SHARES)
def test_a_sum_that_passes_for_a_mean_is_noticed_once(shares: tuple[int, ...]) -> None:
    (message,) = warned(Members(shares, said="mean", loss=sum_))
    assert 'give prepare(reduction="sum"), or make it a mean' in message
    assert "a worker with twice the samples had a gradient 1." in message


@pytest.mark.parametrize("shares", SHARES)
def test_a_mean_that_passes_for_a_sum_is_noticed_once(shares: tuple[int, ...]) -> None:
    (message,) = warned(Members(shares, said="sum", loss=mean))
    assert "leave reduction= out" in message


@pytest.mark.parametrize(
    ("shares", "has_batch_norm"),
    [*((shares, False) for shares in [*SHARES, (9, 7), (1, 30)]), ((28, 2, 2), True)],
)
@pytest.mark.parametrize(("said", "loss"), [("mean", mean), ("sum", sum_)])
def test_nothing_is_said_of_a_loss_that_is_what_it_was_said_to_be(
    shares: tuple[int, ...], has_batch_norm: bool, said: str, loss: Any
) -> None:
    members = Members(shares, said=said, loss=loss, has_batch_norm=has_batch_norm)
    assert warned(members) == []


def test_equal_shares_show_nothing() -> None:
    assert warned(Members((8, 8), said="mean", loss=sum_)) == []


def grow(members: Members, steps: int, *, stop: Callable[[int], int]) -> list[str]:
    """Sizes that grow with the share as those of a sum do."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(steps):
            sizes = [size_of(float(share) ** 2, 1.0) for share in members.shares]
            members.note(sizes, stop=stop(number))
    return [str(one.message) for one in caught]


def test_the_same_samples_prove_nothing_twice() -> None:
    members = Members((6, 2), said="mean", loss=mean, order="sequential")
    assert grow(members, 100, stop=lambda number: 8 * (number % 4 + 1)) == []
    assert grow(members, 100, stop=lambda number: 8 * (number + 1))


def test_a_few_passes_are_not_enough() -> None:
    members = Members((6, 2), said="mean", loss=mean)
    assert grow(members, MIN_PASSES - 1, stop=lambda number: 8) == []
    assert len(grow(members, 100, stop=lambda number: 8)) == 1


def test_sizes_that_say_nothing_are_left_out() -> None:
    members = Members((6, 2), said="mean", loss=mean)
    for _ in range(100):
        members.note([size_of(36.0, 1.0), UNSAID], stop=8)
        members.note([NOT_FINITE, size_of(1.0, 1.0)], stop=8)
    assert members.check._slopes[0].passes == 0


def test_a_graph_that_says_mean_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    members = Members((6, 2), said="mean", loss=mean)
    loss = members.loss(members.model(members.x[:4]), members.y[:4])
    monkeypatch.setattr(backward, "losses", lambda: (loss,))
    assert grow(members, 100, stop=lambda number: 8) == []


def test_a_slope_knows_how_uncertain_it_is() -> None:
    sure, unsure = Slope(), Slope()
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        noise = float(torch.randn((), generator=generator))
        sure.add([(0.0, 5.0), (2.0, 7.0)])
        unsure.add([(0.0, 0.0), (2.0, 2.0 + noise)])
    assert (sure.value, sure.error) == (1.0, 0.0)
    assert unsure.value == pytest.approx(1.0, abs=3 * unsure.error)
    assert unsure.error == pytest.approx(0.5 / 200**0.5, rel=0.3)


# --- what the graph of a loss says -------------------------------------------------------------------

X = torch.ones(4, 3, requires_grad=True)
Y = torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (lambda: F.mse_loss(X, Y), {"mean"}),
        (lambda: F.mse_loss(X, Y, reduction="sum"), {"sum"}),
        (lambda: F.cross_entropy(X, Y[:, 0].long()) * 3 / 4, {"mean"}),
        (lambda: F.cross_entropy(X, Y[:, 0].long(), reduction="sum"), {"sum"}),
        (lambda: (X - Y).abs().mean() + 0.1 * X.square().sum(), {"mean", "sum"}),
        (lambda: -0.5 * (1 + X).sum(), {"sum"}),
        (lambda: torch.stack([X.mean(), F.l1_loss(X, Y)]).sum(), {"mean", "sum"}),
        (lambda: (X.mean(1) * 2).exp().sum(), {"sum"}),
        (lambda: X[0, 0] * 2, set()),
    ],
)
def test_reductions_are_found_near_the_loss(
    loss: Callable[[], torch.Tensor], found: set[str]
) -> None:
    value = loss()
    assert reductions_of([value]) == found
    value.backward()
    assert reductions_of([value]) == found, "also when the graph is used up"
