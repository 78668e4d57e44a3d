# SPDX-License-Identifier: Apache-2.0
"""Measures what a node computes: `a + b·n` seconds for n samples, and how fast its memory is.

A forward and a backward pass are timed at a few numbers of samples, in turn, so that a machine that
gets slower meanwhile slows all of them alike. Medians are fitted by least squares. The cost is
`ROUNDS` × the sum of `SAMPLES` samples, however large the cluster: every node measures itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SAMPLES = (1, 8, 16, 32)
ROUNDS = 7
_BLOCK_BYTES = 1 << 26
_UNIT_BYTES = 1 << 22


class ComputeCost(NamedTuple):
    """What was measured about one model on this machine."""

    fixed_s: float
    per_sample_s: float
    spread: float
    """Interquartile range over median of the largest number of samples."""


def measure_compute(
    model: nn.Module, shape: tuple[int, ...], *, threads: int, samples: Sequence[int] = SAMPLES
) -> ComputeCost:
    """Times training passes of `model` over random samples of `shape`."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        passes = {count: _pass_of(model, torch.randn(count, *shape)) for count in samples}
        for one in passes.values():
            one()
        times: dict[int, list[float]] = {count: [] for count in samples}
        for _ in range(ROUNDS):
            for count, one in passes.items():
                times[count].append(_timed(one))
    finally:
        torch.set_num_threads(before)
    return fit_cost(times)


def fit_cost(times: dict[int, list[float]]) -> ComputeCost:
    """`a + b·n` through the medians; where noise would make a or b negative, the line through 0."""
    counts = np.array(sorted(times), dtype=np.float64)
    medians = np.array([np.median(times[int(count)]) for count in counts])
    per_sample, fixed = np.polyfit(counts, medians, 1)
    if fixed < 0 or per_sample <= 0:
        fixed, per_sample = 0.0, float((medians * counts).sum() / (counts**2).sum())
    low, middle, high = np.percentile(times[int(counts[-1])], [25, 50, 75])
    return ComputeCost(float(fixed), float(per_sample), float((high - low) / middle))


def reduce_s_per_byte() -> float:
    """γ: seconds to add one received byte to a local one."""
    here, there = torch.ones(2, _UNIT_BYTES // 4).unbind()
    times = [_timed(lambda: here.add_(there)) for _ in range(9)]
    return float(np.median(times)) / _UNIT_BYTES


def memory_bytes_per_s() -> float:
    """How fast memory is read: a sum over far more than fits into a cache."""
    block = torch.ones(_BLOCK_BYTES // 4)
    times = [_timed(block.sum) for _ in range(5)]
    return _BLOCK_BYTES / min(times)


def _pass_of(model: nn.Module, batch: torch.Tensor) -> Callable[[], object]:
    def run() -> None:
        model.zero_grad()
        output: torch.Tensor = model(batch)
        torch.autograd.backward(output.square().mean())

    return run


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
