# SPDX-License-Identifier: Apache-2.0
"""A worker whose samples take time and no processor: it sleeps as long as its machine would compute."""

from __future__ import annotations

import random
import time
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gangline
from gangline.worker.samples.pulling import Pulls


class Step(NamedTuple):
    """What one step took, and what this worker lost in it."""

    best_s: float
    """Where nobody waits and nothing is lost."""
    took_s: float
    parts: int
    extra_s: float
    """Of all parts but the last, whose exchange waits for others: what they took beside their samples
    and the wait for them. Sleeping takes longer than asked for, and the loop costs processor time."""
    asked_s: float
    """How long it waited for parts that it had asked for."""


class Case(NamedTuple):
    """How fast the workers are, and how that changes."""

    speeds: tuple[float, ...]
    noise: float = 0.0
    """The spread of a step's time, between steps and workers."""
    drop_every_s: float = 0.0
    """Every so many seconds another worker is at a third of its speed, for half of that time."""
    fixed_s: float = 0.002
    """What a pass takes however small it is, at speed 1."""
    per_sample_s: float = 0.002

    def speed(self, rank: int, *, step: int, at_s: float, seed: int) -> float:
        """A worker's speed in a step."""
        chance = random.Random(f"{seed} {rank} {step}")
        speed = self.speeds[rank] / 2.718281828 ** (self.noise * chance.gauss(0, 1))
        if self.drop_every_s:
            turn, rest = divmod(at_s, self.drop_every_s)
            is_dropped = int(turn) % len(self.speeds) == rank and rest < self.drop_every_s / 2
            speed /= 3 if is_dropped else 1
        return speed


class Sleeping(nn.Module):
    """A few weights. The forward pass takes a third of the time, the backward pass the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 1)
        self.takes_s = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.takes_s / 3)
        found: torch.Tensor = self.line(x)
        if found.requires_grad:
            found.register_hook(lambda gradient: time.sleep(self.takes_s * 2 / 3))
        return found


class Asking:
    """Notes how long this process waits for parts."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        self._take = Pulls.take
        Pulls.take = lambda *given: self._timed(*given)  # type: ignore[method-assign]

    def _timed(self, *given: Any) -> Any:
        begun = time.perf_counter()
        try:
            return self._take(*given)
        finally:
            self.waited_s += time.perf_counter() - begun


def train(case: Case, allocation: str, batch: int, steps: int, seed: int) -> list[Step]:
    """Each step, as this worker sees it."""
    gangline.init()
    asking = Asking()
    torch.manual_seed(0)
    model = Sleeping()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(batch * steps, 4), torch.randn(batch * steps, 1))
    model, optimizer, loader = gangline.prepare(
        model, optimizer, DataLoader(data, batch_size=batch), allocation=allocation
    )
    step, parts, extra_s, taken = 0, 0, 0.0, []
    begun = since = turn = time.perf_counter()
    waited_s, ranks = 0.0, range(len(case.speeds))
    for x, y in loader:
        at_s = since - begun
        speed = case.speed(gangline.rank(), step=step, at_s=at_s, seed=seed)
        model.takes_s = (case.fixed_s + case.per_sample_s * len(x)) / speed
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        parts, now = parts + 1, time.perf_counter()
        if gangline.is_update():
            rate = sum(case.speed(rank, step=step, at_s=at_s, seed=seed) for rank in ranks)
            best_s = (case.per_sample_s * batch + case.fixed_s * len(ranks)) / rate
            taken.append(Step(best_s, now - since, parts, extra_s, asking.waited_s))
            step, parts, extra_s, since = step + 1, 0, 0.0, now
            asking.waited_s = 0.0
        else:
            extra_s += now - turn - model.takes_s - (asking.waited_s - waited_s)
        turn, waited_s = now, asking.waited_s
    return taken
