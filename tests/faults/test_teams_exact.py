# SPDX-License-Identifier: Apache-2.0
"""What teams compute, step by step and merge by merge, done again in plain torch in one process.

The run's events say which team made which steps on which samples, and what each round merged; that
is all that a run may depend on. Where teams go on beside a merge, each of them says after which step it
took what the merge brought.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Parts, Setup, mlp
from elastic_jobs import TOLERANCE, run_with

from gangline.spec.event import RoundEnded, SamplesLeased, StepDone
from gangline.spec.sync import NESTEROV, parse_sync
from gangline.worker.sync.teams.merging import OUTER_MOMENTUM, OUTER_RATE

if TYPE_CHECKING:
    from elastic_jobs import Outcome

SETUP = Setup(samples=130, batch=12, epochs=2, allocation="balanced")
WORKERS = 3


class Copy:
    """One team's model and optimizer, as the loop under test makes them."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.model = mlp()
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01
        )
        self.merged = (0, 0)
        """Epoch, and how many samples of the team's order were in its last merge."""
        self.num_steps = 0
        self.coming: dict[int, Tensor] = {}
        """What each merge that is under way will add, by its number."""

    def catch_up(self, stage: int) -> None:
        """Takes what the merges up to this one brought."""
        for number in [one for one in self.coming if one <= stage]:
            self.take(self.parameters + self.coming.pop(number), None)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()
        self.num_steps += 1

    @property
    def parameters(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()

    @property
    def momentum(self) -> Tensor:
        state = self.optimizer.state
        rows = [state[p]["momentum_buffer"].reshape(-1) for p in self.model.parameters()]
        return torch.cat(rows)

    def take(self, parameters: Tensor, momentum: Tensor | None) -> None:
        nn.utils.vector_to_parameters(parameters.clone(), self.model.parameters())
        start = 0
        for parameter in self.model.parameters() if momentum is not None else ():
            part = momentum[start : start + parameter.numel()].view_as(parameter)
            self.optimizer.state[parameter]["momentum_buffer"] = part.clone()
            start += parameter.numel()


class Replay:
    """All teams of a run, gone through once more."""

    def __init__(self, outcome: Outcome, *, has_outer: bool) -> None:
        self._outcome = outcome
        self._has_outer = has_outer
        self._copies = {team: Copy() for team in range(WORKERS)}
        self._common = self._copies[0].parameters
        self._velocity = torch.zeros_like(self._common)
        self._data = Parts(SETUP, is_alone=True).loader().dataset
        self._steps = {team: self._steps_of(team) for team in range(WORKERS)}
        self._orders: dict[tuple[int, int], list[int]] = {}
        for lease in sorted(outcome.of_kind(SamplesLeased), key=lambda one: one.number):
            order = self._orders.setdefault((lease.team, lease.epoch), [])
            order += range(lease.start, lease.stop)
        self.orders_drawn: dict[tuple[int, int], list[int]] = {}
        """By team and epoch: the samples that it was given, where the order was shuffled."""

    def _steps_of(self, team: int) -> list[StepDone]:
        steps = [one for one in self._outcome.of_kind(StepDone) if one.team == team]
        return sorted(steps, key=lambda one: one.step)

    def run(self) -> Tensor:
        rounds = sorted(self._outcome.of_kind(RoundEnded), key=lambda one: one.number)
        assert all(one.is_committed for one in rounds)
        last = {one.epoch: one.number for one in rounds}
        for one in rounds:
            offsets = {int(team): offset for team, offset in one.offsets.items()}
            for team, offset in offsets.items():
                self._train(team, one.epoch, offset)
            self._merge(one, offsets, is_end=one.number == last[one.epoch])
        assert not any(self._steps.values()), "every step was merged"
        return self._common

    def _train(self, team: int, epoch: int, offset: int) -> None:
        """The team's steps up to this offset of its order."""
        steps = self._steps[team]
        while steps and steps[0].epoch == epoch and steps[0].stop <= offset:
            one = steps.pop(0)
            stage = self._outcome.results[team]["stages"][epoch, one.step]
            self._copies[team].catch_up(stage)
            order = self.orders_drawn.get((team, epoch), self._orders[team, epoch])
            indices = order[one.start : one.stop]
            assert len(indices) == one.samples
            rows = [self._data[index] for index in indices]
            x, y = (torch.stack([row[column] for row in rows]) for column in (0, 1))
            self._copies[team].step(x, y)

    def _merge(self, one: RoundEnded, offsets: dict[int, int], *, is_end: bool) -> None:
        samples, epoch = {}, one.epoch
        for team, offset in offsets.items():
            copy = self._copies[team]
            copy.catch_up(one.number - 1)
            samples[team] = offset - (copy.merged[1] if copy.merged[0] == epoch else 0)
            copy.merged = (epoch, offset)
        total = sum(samples.values())
        weights = {team: count / total if total else 1 / WORKERS for team, count in samples.items()}
        mean = sum(weights[team] * copy.parameters for team, copy in self._copies.items())
        momentum: Any = None
        if is_end and all(copy.num_steps for copy in self._copies.values()):
            momentum = sum(weights[team] * copy.momentum for team, copy in self._copies.items())
        if self._has_outer:
            way = mean - self._common
            self._velocity = OUTER_MOMENTUM * self._velocity + way
            mean = self._common + OUTER_RATE * (way + OUTER_MOMENTUM * self._velocity)
        self._common = mean
        for copy in self._copies.values():
            if one.is_whole:
                copy.take(mean, momentum)
            else:
                copy.coming[one.number] = mean - copy.parameters


@pytest.fixture
def double() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    "mode",
    ["local(2)", "local(2, nesterov)", "local(2, strict)", "local(2, nesterov, strict)"],
)
def test_teams_compute_what_one_process_makes_of_their_steps_and_merges(
    tmp_path: Path, mode: str
) -> None:
    sync = parse_sync(mode)
    outcome = run_with(tmp_path, SETUP, [], workers=WORKERS, sync=sync)
    assert outcome.exit_codes == [0] * WORKERS, outcome.outputs
    beside = [one for one in outcome.of_kind(RoundEnded) if not one.is_whole]
    assert bool(beside) != sync.is_strict
    replay = Replay(outcome, has_outer=sync.outer == NESTEROV)
    expected = replay.run()
    state = outcome.results[0]["state"]
    found = torch.cat([state[f"0.{name}"].reshape(-1) for name in mlp().state_dict()])
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    momentum = [state[f"opt0.{number}.momentum_buffer"].reshape(-1) for number in range(4)]
    torch.testing.assert_close(
        torch.cat(momentum), replay._copies[0].momentum, rtol=TOLERANCE, atol=TOLERANCE
    )
