# SPDX-License-Identifier: Apache-2.0
"""What teams merge: taken as one vector, moved, and taken over, whatever the model is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from made_up_device import made_up_device as made_up_device
from torch import nn

from gangline.worker.prepare.prepared import Prepared
from gangline.worker.sync.teams import replica as replica_module
from gangline.worker.sync.teams.replica import Copy, Replica

if TYPE_CHECKING:
    from made_up_device import MadeUpDevice


def normalised() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))


def prepared(model: nn.Module, kind: type[torch.optim.Optimizer] = torch.optim.Adam) -> Prepared:
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    return Prepared(models=[model], optimizers=[optimizer], stateful=())


def train(prepared: Prepared, steps: int, *, seed: int = 0) -> None:
    (model,), (optimizer,) = prepared.models, prepared.optimizers
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 4, generator=generator, dtype=dtype)).square().sum().backward()
        optimizer.step()


def assert_alike(one: Prepared, other: Prepared) -> None:
    for name, value in one.models[0].state_dict().items():
        assert torch.equal(value, other.models[0].state_dict()[name]), name
    ours, theirs = (each.optimizers[0].state_dict()["state"] for each in (one, other))
    assert ours.keys() == theirs.keys()
    for number, state in ours.items():
        for name, value in state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(theirs[number][name])), name


def test_a_copy_is_parameters_then_running_statistics() -> None:
    parts = prepared(normalised())
    replica = Replica(parts)
    copy = replica.copy(is_whole=False)
    model = parts.models[0]
    flat = [p.detach().reshape(-1) for p in model.parameters()]
    assert replica.num_parameters == sum(len(part) for part in flat)
    assert torch.equal(copy.values[: replica.num_parameters], torch.cat(flat))
    assert len(copy.values) == replica.num_shared == replica.num_parameters + 2 * 5
    assert copy.counters == ()


def test_a_copy_stays_as_it_was_while_training_goes_on() -> None:
    parts = prepared(normalised())
    copy = Replica(parts).copy(is_whole=False)
    before = copy.values.clone()
    train(parts, 1)
    assert torch.equal(copy.values, before)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_a_whole_copy_makes_another_worker_alike(kind: type[torch.optim.Optimizer]) -> None:
    one, other = prepared(normalised(), kind), prepared(normalised(), kind)
    train(one, 3)
    train(other, 1, seed=9)
    copy = Replica(one).copy(is_whole=True)
    Replica(other).become(copy)
    assert_alike(one, other)
    assert 3.0 in copy.counters


def test_momentum_is_merged_and_counters_are_batch_norms() -> None:
    def momentum(model: nn.Module) -> Prepared:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return Prepared(models=[model], optimizers=[optimizer], stateful=())

    one, other = momentum(normalised()), momentum(normalised())
    train(one, 2)
    train(other, 5, seed=9)
    copy = Replica(one).copy(is_whole=True)
    assert len(copy.values) == Replica(one).num_shared + Replica(one).num_parameters
    assert copy.counters == (2.0,)
    Replica(other).become(copy)
    assert_alike(one, other)


def test_counters_are_taken_over_where_the_optimizer_has_no_state() -> None:
    one, other = prepared(normalised(), torch.optim.SGD), prepared(normalised(), torch.optim.SGD)
    train(one, 2)
    train(other, 5, seed=9)
    Replica(other).become(Replica(one).copy(is_whole=True))
    assert_alike(one, other)


def test_moving_keeps_what_was_trained_meanwhile() -> None:
    parts = prepared(normalised())
    replica = Replica(parts)
    copy = replica.copy(is_whole=False)
    train(parts, 2)
    now = replica.copy(is_whole=False).values
    mean = copy.values + 0.25
    replica.move(mean - copy.values)
    torch.testing.assert_close(replica.copy(is_whole=False).values, now + 0.25)


def test_a_gpu_is_waited_for_when_its_copy_is_read_and_not_when_it_is_taken(
    made_up_device: MadeUpDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "pinned", lambda n, dtype: torch.empty(n, dtype=dtype))
    parts = prepared(normalised())
    replica = Replica(parts)
    copy = replica.copy(is_whole=False)
    before = parts.models[0][0].weight.detach().clone()
    train(parts, 1)
    replica.move(replica.difference(copy.flat + 0.25, copy.flat))
    assert made_up_device.num_waits == 0
    assert torch.equal(copy.values[: before.numel()].view_as(before), before)
    assert made_up_device.num_waits == 1


def test_moving_leaves_optimizer_state_and_counters() -> None:
    parts = prepared(normalised())
    train(parts, 2)
    replica = Replica(parts)
    before = replica.copy(is_whole=True)
    replica.move(torch.ones(replica.num_shared))
    after = replica.copy(is_whole=True)
    assert torch.equal(before.values[replica.num_shared :], after.values[replica.num_shared :])
    assert before.counters == after.counters


def test_double_precision_is_kept() -> None:
    parts = prepared(normalised().double())
    train(parts, 2)
    replica = Replica(parts)
    copy = replica.copy(is_whole=True)
    assert copy.values.dtype == torch.float64
    other = prepared(normalised().double())
    train(other, 1, seed=4)
    Replica(other).become(copy)
    assert_alike(parts, other)


def test_half_precision_is_merged_in_single_precision() -> None:
    model = nn.Linear(4, 2).half()
    parts = prepared(model, torch.optim.SGD)
    replica = Replica(parts)
    assert replica.copy(is_whole=False).values.dtype == torch.float32
    before = model.weight.detach().clone()
    replica.move(torch.full((replica.num_shared,), 0.5))
    assert model.weight.dtype == torch.float16
    torch.testing.assert_close(model.weight.detach(), before + 0.5)


def test_without_a_step_there_is_no_optimizer_state_and_only_the_rest_is_merged() -> None:
    fresh, other = prepared(normalised()), prepared(normalised())
    train(other, 2)
    copy = Replica(fresh).copy(is_whole=True)
    assert len(copy.values) == Replica(fresh).num_shared
    assert copy.counters == (0.0,)
    kept = Replica(other).copy(is_whole=True)
    Replica(other).become(Copy(copy.values, ()))
    after = Replica(other).copy(is_whole=True)
    shared = Replica(other).num_shared
    assert torch.equal(after.values[:shared], copy.values)
    assert torch.equal(after.values[shared:], kept.values[shared:]), "its own state stays"


def test_several_models_and_optimizers_are_one_vector() -> None:
    first, second = nn.Linear(4, 2), nn.Linear(4, 3)
    parts = Prepared(
        models=[first, second],
        optimizers=[
            torch.optim.Adam(first.parameters()),
            torch.optim.SGD(second.parameters(), lr=0.1),
        ],
        stateful=(),
    )
    replica = Replica(parts)
    assert replica.num_shared == 4 * 2 + 2 + 4 * 3 + 3
    change = torch.arange(float(replica.num_shared))
    before = second.bias.detach().clone()
    replica.move(change)
    torch.testing.assert_close(second.bias.detach(), before + change[-3:])


def test_a_model_without_parameters_has_an_empty_copy() -> None:
    replica = Replica(Prepared(models=[nn.Identity()], optimizers=[], stateful=()))
    assert replica.copy(is_whole=True).values.numel() == 0
