# SPDX-License-Identifier: Apache-2.0
"""BatchNorm over several workers, its formulas: workers are threads, the reference is torch's layer."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gangline.worker.normalisation.batchnorm import normalise


class Meeting:
    """Where the workers of a test add up."""

    def __init__(self, count: int) -> None:
        self.rows: list[Tensor] = [torch.empty(0)] * count
        self.barrier = threading.Barrier(count, timeout=30)


@dataclass
class Worker:
    meeting: Meeting
    rank: int
    weight: float
    is_void: bool = False

    def part(self) -> float:
        return self.weight

    def add(self, own: Tensor, *, is_backward: bool) -> Tensor:
        self.meeting.rows[self.rank] = own.clone()
        self.meeting.barrier.wait()
        total = torch.stack(self.meeting.rows).sum(0)
        self.meeting.barrier.wait()
        return total


@dataclass
class Answer:
    layer: nn.BatchNorm2d
    y: Tensor
    dx: Tensor


def run(layer: nn.BatchNorm2d, x: Tensor, targets: Tensor, parts: list[int]) -> list[Answer]:
    """Each worker's part of a loss that is a mean over all samples; a part of 0 is a ghost."""
    meeting, starts = Meeting(len(parts)), [sum(parts[:rank]) for rank in range(len(parts))]

    def work(rank: int) -> Answer:
        own = copy.deepcopy(layer)
        place = slice(starts[rank], starts[rank] + parts[rank])
        mine = x[place] if parts[rank] else torch.full_like(x[:1], float("nan"))
        target = targets[place] if parts[rank] else targets[:1]
        mine = mine.clone().requires_grad_()
        y = normalise(own, mine, Worker(meeting, rank, parts[rank] / len(x)))
        loss_of(y, target).backward()
        assert mine.grad is not None
        return Answer(own, y.detach(), mine.grad)

    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(work, range(len(parts))))


def loss_of(y: Tensor, target: Tensor) -> Tensor:
    return ((y - target).square() * y.sigmoid()).mean()


def check(layer: nn.BatchNorm2d, x: Tensor, parts: list[int], *, tolerance: float) -> None:
    targets = torch.randn(x.shape, generator=torch.Generator().manual_seed(9)).to(x.dtype)
    whole, everything = copy.deepcopy(layer), x.clone().requires_grad_()
    y = whole(everything)
    loss_of(y, targets).backward()
    answers = run(layer, x, targets, parts)
    close = {"rtol": tolerance, "atol": tolerance}
    counting = [a for a, part in zip(answers, parts, strict=True) if part]
    torch.testing.assert_close(torch.cat([a.y for a in counting]), y.detach(), **close)
    weights = [part / len(x) for part in parts if part]
    dx = torch.cat([a.dx * weight for a, weight in zip(counting, weights, strict=True)])
    torch.testing.assert_close(dx, everything.grad, **close)
    for parameter, wanted in whole.named_parameters():
        summed = sum(
            a.layer.get_parameter(parameter).grad * weight
            for a, weight in zip(counting, weights, strict=True)
        )
        torch.testing.assert_close(summed, wanted.grad, **close)
    for answer, part in zip(answers, parts, strict=True):
        torch.testing.assert_close(dict(answer.layer.named_buffers()), dict(whole.named_buffers()))
        if not part:
            assert not answer.dx.any(), "a ghost gets no gradient"


@settings(max_examples=30, deadline=None)
@given(
    parts=st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(lambda parts: sum(parts) > 1),
    momentum=st.sampled_from([0.1, 0.7, None]),
    is_affine=st.booleans(),
    is_tracked=st.booleans(),
)
def test_any_parts_give_what_torch_makes_of_all_samples(
    parts: list[int], momentum: float | None, is_affine: bool, is_tracked: bool
) -> None:
    layer = nn.BatchNorm2d(
        3, momentum=momentum, affine=is_affine, track_running_stats=is_tracked
    ).double()
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -2, 2)
    generator = torch.Generator().manual_seed(sum(parts))
    x = torch.randn(sum(parts), 3, 2, 2, generator=generator, dtype=torch.float64) * 3 + 5
    check(layer, x, parts, tolerance=1e-9)


def test_values_far_from_zero_lose_little() -> None:
    x = torch.randn(12, 3, 4, 4, generator=torch.Generator().manual_seed(1)).double() + 1000
    check(nn.BatchNorm2d(3).double(), x, [9, 2, 1], tolerance=1e-9)
    check(nn.BatchNorm2d(3), x.float(), [9, 2, 1], tolerance=2e-3)


def test_equal_values_have_no_variance() -> None:
    check(
        nn.BatchNorm2d(3).double(), torch.full((6, 3, 2, 2), 7.3).double(), [4, 2], tolerance=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_is_normalised_as_torch_does_it(dtype: torch.dtype) -> None:
    x = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(2)).to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    check(nn.BatchNorm2d(3), x, [5, 3], tolerance=tolerance)


def test_one_value_cannot_be_normalised() -> None:
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        normalise(nn.BatchNorm1d(2), torch.ones(1, 2), Worker(Meeting(1), 0, 1.0))


def test_statistics_stay_as_they_are_when_no_sample_counts() -> None:
    layer = nn.BatchNorm1d(2)
    x = torch.randn(3, 2, requires_grad=True)
    y = normalise(layer, x, Worker(Meeting(1), 0, 0.0))
    y.square().sum().backward()
    assert y.isfinite().all()
    assert layer.running_mean is not None
    assert not layer.running_mean.any()
    assert layer.num_batches_tracked == 0
    assert x.grad is not None
    assert not x.grad.any()


def test_a_second_derivative_is_refused() -> None:
    x = torch.randn(3, 2, requires_grad=True)
    y = normalise(nn.BatchNorm1d(2), x, Worker(Meeting(1), 0, 1.0))
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
