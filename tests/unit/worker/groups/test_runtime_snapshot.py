# SPDX-License-Identifier: Apache-2.0
"""What is kept at the hand-out and put back after a failed attempt, or copied to another worker."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from gangline.worker.groups.snapshot import Snapshot
from gangline.worker.prepare.prepared import Prepared


class Parts:
    """A model with statistics, an optimizer, a scheduler and a scaler, some steps on."""

    def __init__(self, seed: int, *, steps: int = 2) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
        self.prepared = Prepared(
            models=[self.model],
            optimizers=[self.optimizer],
            stateful=(self.schedule, self.scaler),
        )
        for _ in range(steps):
            self.train()

    def train(self, *, is_applied: bool = True) -> None:
        """One turn of the loop; a failed attempt goes through all of it without gradients."""
        self.optimizer.zero_grad()
        self.scaler.scale(self.model(torch.randn(5, 3)).square().mean()).backward()
        if not is_applied:
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self.scaler.unscale_(self.optimizer)
            self.optimizer.zero_grad()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()

    def describe(self) -> dict[str, Any]:
        return copy.deepcopy(
            {
                "model": dict(self.model.state_dict()),
                "optimizer": self.optimizer.state_dict(),
                "schedule": self.schedule.state_dict(),
                "scaler": self.scaler.state_dict(),
            }
        )


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


def test_a_failed_attempt_leaves_no_trace() -> None:
    parts = Parts(0)
    snapshot = Snapshot(parts.prepared)
    before = parts.describe()
    parts.train(is_applied=False)
    assert parts.scaler.get_scale() != before["scaler"]["scale"], "the attempt moved something"
    snapshot.restore()
    assert_same(parts.describe(), before)


def test_what_is_kept_does_not_change_with_what_it_was_taken_from() -> None:
    parts = Parts(0)
    snapshot = Snapshot(parts.prepared)
    before = parts.describe()
    for _ in range(2):
        parts.train(is_applied=False)
        snapshot.restore()
        assert_same(parts.describe(), before)


def test_the_next_hand_out_is_kept_in_place_of_the_last() -> None:
    parts = Parts(0)
    snapshot = Snapshot(parts.prepared)
    parts.train()
    snapshot.take()
    before = parts.describe()
    parts.train(is_applied=False)
    snapshot.restore()
    assert_same(parts.describe(), before)


def test_a_worker_becomes_like_the_one_whose_state_it_loads() -> None:
    ahead, behind = Parts(0, steps=4), Parts(1, steps=1)
    exported = Snapshot(ahead.prepared).export()
    Snapshot(behind.prepared).load(copy.deepcopy(exported))
    assert_same(behind.describe(), ahead.describe())
    torch.manual_seed(9)
    ahead.train()
    torch.manual_seed(9)
    behind.train()
    assert_same(behind.describe(), ahead.describe())


def test_optimizer_state_is_kept_where_the_loop_changes_it() -> None:
    def shrink() -> None:
        for state in parts.optimizer.state.values():
            state["exp_avg"].mul_(0.5)

    parts = Parts(0)
    snapshot = Snapshot(parts.prepared)
    shrink()
    snapshot.by_hand.look_at_states()
    snapshot.take()
    before = parts.describe()
    for _ in range(2):
        shrink()
        snapshot.restore()
        assert_same(parts.describe(), before)
    shrink()
    assert_same(snapshot.export()["optimizers"], [before["optimizer"]["state"]])


def test_optimizer_state_that_only_steps_change_is_not_copied() -> None:
    parts = Parts(0)
    snapshot = Snapshot(parts.prepared)
    for _ in range(3):
        snapshot.by_hand.look_at_states()
        parts.train()
        snapshot.by_hand.note_states()
        snapshot.load(snapshot.export())
    snapshot.by_hand.look_at_states()
    assert not snapshot.by_hand.is_state_seen


def test_a_worker_trains_what_the_one_trains_whose_state_it_loads() -> None:
    """It was not there when the others froze and unfroze layers."""
    giver, taker = Parts(0), Parts(1)
    taker.model[0].requires_grad_(False)
    giver.model[2].requires_grad_(False)
    Snapshot(taker.prepared).load(Snapshot(giver.prepared).export())
    flags = [parameter.requires_grad for parameter in taker.model.parameters()]
    assert flags == [True, True, True, True, False, False]


def test_what_is_exported_is_the_state_of_the_hand_out() -> None:
    """Who copies it runs the loop from there, and moves schedulers and statistics by itself."""
    ahead, behind = Parts(0), Parts(1)
    snapshot = Snapshot(ahead.prepared)
    before = ahead.describe()
    ahead.train(is_applied=False)
    Snapshot(behind.prepared).load(copy.deepcopy(snapshot.export()))
    assert_same(behind.describe(), before)


def test_a_fresh_optimizer_takes_over_the_state_of_a_used_one() -> None:
    ahead, fresh = Parts(0), Parts(1, steps=0)
    assert fresh.optimizer.state_dict()["state"] == {}
    Snapshot(fresh.prepared).load(copy.deepcopy(Snapshot(ahead.prepared).export()))
    assert_same(fresh.describe(), ahead.describe())


def test_state_of_another_dtype_than_its_parameter_is_copied_as_it_is() -> None:
    ahead, fresh = Parts(0), Parts(1, steps=0)
    for state in ahead.optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].bfloat16()
        state["exp_avg_sq"] = state["exp_avg_sq"].double()
    Snapshot(fresh.prepared).load(copy.deepcopy(Snapshot(ahead.prepared).export()))
    for one, other in zip(
        ahead.optimizer.state.values(), fresh.optimizer.state.values(), strict=True
    ):
        assert [value.dtype for value in one.values()] == [value.dtype for value in other.values()]
    assert_same(fresh.describe(), ahead.describe())
