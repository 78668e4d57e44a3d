# SPDX-License-Identifier: Apache-2.0
"""What travels, when, and what is never allocated: the exchange against a recorded group."""

from __future__ import annotations

import math
import threading
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from runtime_jobs import exchanging
from torch import nn
from torch.utils.checkpoint import checkpoint

from gangline.spec.errors import ExchangeError, UnsupportedError
from gangline.worker.checks.scrutiny import NOT_FINITE, UNSAID, norm_of
from gangline.worker.gradients import backward
from gangline.worker.gradients.layout import build_layout

BUSY_S = 20.0
"""How long a test waits for something that is certain to come."""


def layers(count: int, *, width: int = 4) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))


LAYER_BYTES = 4 * 4 * 4


def test_units_are_sent_before_the_backward_pass_ends() -> None:
    model = layers(3)
    with exchanging(model, unit_bytes=LAYER_BYTES) as exchange:
        exchange.gradients.start(1.0, is_update=True)
        arrived_early = []

        def wait_for_first_unit(gradient: torch.Tensor) -> None:
            arrived_early.append(exchange.group.arrived.acquire(timeout=BUSY_S))

        hidden = model[0](torch.ones(2, 4))
        hidden.register_hook(wait_for_first_unit)  # called when two of three layers are done
        model[2](model[1](hidden)).sum().backward()
        sent = exchange.group.take()
    assert arrived_early == [True]
    assert [part.num_bytes for part in sent] == [LAYER_BYTES] * 3
    assert [part.has_header for part in sent] == [False, False, True], "the last one is agreed on"


def test_a_hook_that_was_put_on_later_changes_the_gradient_before_it_is_moved() -> None:
    def triple(parameter: torch.Tensor) -> None:
        parameter.grad.mul_(3)

    model = layers(2)
    with exchanging(model) as exchange:
        for layer in model:
            layer.weight.register_post_accumulate_grad_hook(triple)
        seen = []
        model[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        exchange.gradients.start(0.5, is_update=True)
        model(torch.ones(2, 4)).sum().backward()
        own = torch.autograd.grad(model(torch.ones(2, 4)).sum(), list(model.parameters()))
        assert torch.equal(seen[0], 3 * own[0]), "not weighted yet, wherever the hook stands"
        for layer, expected in zip(model, own, strict=True):
            assert torch.equal(layer.weight.grad, 1.5 * expected)


def test_a_model_of_one_unit_costs_one_exchange() -> None:
    model = layers(3)
    with exchanging(model) as exchange:
        for _ in range(3):
            exchange.gradients.start(1.0, is_update=True)
            model(torch.ones(2, 4)).sum().backward()
            (only,) = exchange.group.take()
            assert only == (3 * LAYER_BYTES, True)


def test_the_other_half_of_a_gan_does_not_travel() -> None:
    generator, discriminator = layers(1), layers(3)
    with exchanging(generator, discriminator) as exchange:

        def step(x: torch.Tensor) -> list[int]:
            exchange.gradients.start(1.0, is_update=True)
            for model in (generator, discriminator):
                model.zero_grad()
            discriminator(generator(x).detach()).sum().backward()
            return [part.num_bytes for part in exchange.group.take()]

        step(torch.ones(2, 4))  # the first time nobody knows what the others will change
        assert step(torch.ones(2, 4)) == [3 * LAYER_BYTES]


def test_each_phase_sends_its_own_units_when_two_losses_take_turns() -> None:
    first, second = layers(1), layers(2)
    with exchanging(first, second) as exchange:
        found = []
        for _ in range(2):
            exchange.gradients.start(1.0, is_update=True)
            first(torch.ones(2, 4)).sum().backward()
            exchange.group.take()
            second(torch.ones(2, 4)).sum().backward()
            found.append(sum(part.num_bytes for part in exchange.group.take()))
    assert found[-1] == 2 * LAYER_BYTES


def test_frozen_parameters_take_no_memory_and_do_not_travel() -> None:
    model = layers(2)
    model[0].requires_grad_(False)
    with exchanging(model) as exchange:
        exchange.gradients.start(1.0, is_update=True)
        model(torch.ones(2, 4)).sum().backward()
        assert [part.num_bytes for part in exchange.group.take()] == [LAYER_BYTES]
        allocated = {
            slot.name: unit.flat is not None
            for unit in exchange.layout.units
            for slot in unit.slots
        }
    assert allocated == {"0.weight": False, "1.weight": True}
    assert model[0].weight.grad is None
    assert not model[0].weight.requires_grad


class Tables(nn.Module):
    """A constant buffer, a running one, and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, bias=False)
        self.register_buffer("constant", torch.ones(100))
        self.register_buffer("running", torch.zeros(3))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.running.mul_(0.5).add_(x.mean().detach())
        self.count += 1
        return self.linear(x)


def test_only_buffers_that_change_travel() -> None:
    model = Tables()
    with exchanging(model) as exchange:
        exchange.gradients.start(1.0, is_update=True)
        model(torch.ones(2, 4)).sum().backward()
        sizes = [part.num_bytes for part in exchange.group.take()]
    assert sizes == [LAYER_BYTES, 3 * 8], "the running buffer in double precision, nothing else"
    assert int(model.count) == 1


def test_gradients_have_the_strides_of_their_parameters() -> None:
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    with exchanging(model) as exchange:
        exchange.gradients.start(0.5, is_update=True)
        model(torch.ones(2, 3, 5, 5)).sum().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.stride() == model.weight.stride()


# --- layout ------------------------------------------------------------------------------------------


def test_a_parameter_larger_than_a_unit_shares_it_with_next_to_nothing() -> None:
    """A bias before it: each unit of its own would cost an exchange."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 100), nn.Linear(100, 2))
    layout = build_layout([model], [], unit_bytes=64)
    assert [[slot.name for slot in unit.slots] for unit in layout.units] == [
        ["2.bias", "2.weight"],
        ["1.bias"],
        ["1.weight"],
        ["0.bias", "0.weight"],
    ]
    assert layout.num_parameters == sum(p.numel() for p in model.parameters())


def test_units_of_a_large_model_are_larger() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(200)))
    layout = build_layout([model], [])
    assert 50 <= len(layout.units) <= 70
    assert min(unit.length for unit in layout.units) * 4 > 4 << 20
    assert max(unit.length for unit in layout.units) * 4 <= 16 << 20


def test_a_unit_holds_one_dtype_one_model_and_either_frozen_or_trainable() -> None:
    first = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False).double()])
    first.append(nn.Linear(1, 1, bias=False).requires_grad_(False))
    layout = build_layout([first, nn.Linear(1, 1, bias=False)], [])
    assert sorted(slot.name for unit in layout.units for slot in unit.slots) == [
        "model 0: 0.weight",
        "model 0: 1.weight",
        "model 0: 2.weight",
        "model 1: weight",
    ]
    assert len(layout.units) == 4


def test_shared_and_loose_parameters_are_laid_out_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    loose = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([*model.parameters(), loose], lr=0.1)
    names = [slot.name for slot in build_layout([model, model], [optimizer]).slots]
    assert sorted(names) == sorted(
        ["model 0: 0.bias", "model 0: 0.weight", "model 0: 1.bias", "optimizer 0: parameter 3"]
    )


def test_layouts_have_one_digest_if_and_only_if_they_are_equal() -> None:
    digests = [
        build_layout([model], []).digest
        for model in (
            nn.Linear(2, 3),
            nn.Linear(2, 3),
            nn.Linear(3, 2),
            nn.Linear(2, 3).double(),
            nn.Linear(2, 3).requires_grad_(False),
        )
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


# --- passes that are refused or fail -----------------------------------------------------------------


def test_sparse_gradients_are_refused() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    match = r"gradient of parameter 'weight' is sparse; use sparse=False in its layer, or leave"
    with exchanging(model) as exchange:
        exchange.gradients.start(1.0, is_update=True)
        loss = model(torch.tensor([1])).sum()
        with pytest.raises(UnsupportedError, match=match):
            loss.backward()


def test_where_sparse_gradients_travel_by_rows_those_of_all_passes_are_known() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    with exchanging(model) as exchange:
        exchange.gradients.takes_rows = lambda: True
        exchange.gradients.start(0.5, is_update=False)
        model(torch.tensor([3, 1, 3])).sum().backward()
        exchange.gradients.start(0.5, is_update=True)
        model(torch.tensor([1, 4])).sum().backward()
        (rows,) = exchange.gradients.rows().values()
        assert rows.tolist() == [1, 3, 4]
        assert model.weight.grad is not None
        assert model.weight.grad[:, 0].tolist() == [0, 1, 0, 1, 0.5]


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_a_graph_of_the_gradient_is_refused() -> None:
    model = layers(1)
    match = r"create_graph=True\) keeps a graph in the gradient of parameter '0\.weight'.*grad\("
    with exchanging(model) as exchange:
        exchange.gradients.start(1.0, is_update=True)
        loss = model(torch.ones(1, 4)).square().sum()
        with pytest.raises(UnsupportedError, match=match):
            loss.backward(create_graph=True)


def test_a_parameter_in_two_reentrant_checkpoints_is_refused() -> None:
    model = layers(1)
    match = (
        r"parameter '0\.weight' got its gradient twice in one backward pass.*use_reentrant=False"
    )
    with exchanging(model) as exchange:
        exchange.gradients.start(1.0, is_update=True)
        x = checkpoint(model, torch.ones(1, 4, requires_grad=True), use_reentrant=True)
        loss = checkpoint(model, x, use_reentrant=True).sum()
        with pytest.raises(UnsupportedError, match=match):
            loss.backward()


def test_reentrant_checkpoints_work_when_each_has_its_own_parameters() -> None:
    model = layers(2)
    x = torch.ones(1, 4, requires_grad=True)
    with exchanging(model) as exchange:
        exchange.gradients.start(1.0, is_update=True)
        hidden = checkpoint(model[0], x, use_reentrant=True)
        checkpoint(model[1], hidden, use_reentrant=True).sum().backward()
        assert len(exchange.group.take()) == 1
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(x).sum().backward()
    assert all(torch.allclose(a, p.grad) for a, p in zip(found, model.parameters(), strict=True))


def test_backward_passes_of_two_threads_at_once_are_refused() -> None:
    model, other = layers(1), layers(1)
    caught: list[BaseException] = []

    def pass_of_another_thread() -> None:
        try:
            other(torch.ones(1, 4)).sum().backward()
        except UnsupportedError as error:
            caught.append(error)

    def start_other(gradient: torch.Tensor) -> None:
        thread = threading.Thread(target=pass_of_another_thread, name="second")
        thread.start()
        thread.join()

    with exchanging(model) as exchange:
        exchange.gradients.start(1.0, is_update=True)
        output = model(torch.ones(1, 4))
        output.register_hook(start_other)
        output.sum().backward()
    assert len(caught) == 1
    assert "backward() was called by thread 'second' while thread 'MainThread'" in str(caught[0])
    assert "call backward() from one thread" in str(caught[0])


class Broken(torch.autograd.Function):
    """Raises in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ValueError("a bug in the user's layer")


@pytest.mark.parametrize("unit_bytes", [LAYER_BYTES, 1 << 20])
def test_training_goes_on_after_a_backward_pass_that_raised(unit_bytes: int) -> None:
    model = layers(3)
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    with exchanging(model, unit_bytes=unit_bytes) as exchange:
        exchange.gradients.start(1.0, is_update=True)
        with pytest.raises(ValueError, match="a bug in the user's layer"):
            model[2](model[1](Broken.apply(model[0](x)))).sum().backward()
        assert backward._door.depth == 0
        model.zero_grad()
        model(x).sum().backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(x).sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(found, model.parameters(), strict=True))


def test_the_exchanged_gradient_survives_a_later_pass_that_raised() -> None:
    """As in torch: what a pass did not reach keeps the gradient that it had."""
    model = layers(2)
    x = torch.ones(2, 4)
    with exchanging(model) as exchange:
        exchange.gradients.start(1.0, is_update=True)
        model(x).sum().backward()
        before = model[0].weight.grad
        assert before is not None
        expected = before.clone()
        with pytest.raises(ValueError, match="a bug"):
            model[1](Broken.apply(model[0](x))).sum().backward()
        assert model[0].weight.grad is not None
        assert torch.equal(model[0].weight.grad, expected)


def test_a_failed_exchange_is_raised_by_backward_and_by_every_later_one() -> None:
    model = layers(1)

    def fail(tensor: torch.Tensor, header: Any = None) -> None:
        raise ExchangeError("worker 1 is gone")

    with exchanging(model) as exchange:
        exchange.group.all_reduce = fail
        exchange.gradients.start(1.0, is_update=True)
        for _ in range(2):
            with pytest.raises(ExchangeError, match="worker 1 is gone"):
                model(torch.ones(1, 4)).sum().backward()
    model(torch.ones(1, 4)).sum().backward()  # torch's own function is back


def test_passes_of_other_models_are_nobodys_business() -> None:
    model, other = layers(1), layers(1)
    with exchanging(model) as exchange:
        other(torch.ones(1, 4)).sum().backward()
        assert exchange.group.take() == []
    assert other[0].weight.grad is not None


def test_paused_passes_add_up_locally_until_one_is_exchanged() -> None:
    model = layers(1)
    with exchanging(model) as exchange:
        exchange.gradients.start(0.5, is_update=True)
        with exchange.gradients.paused():
            model(torch.ones(1, 4)).sum().backward()
        assert exchange.group.take() == []
        model(torch.ones(1, 4)).sum().backward()
        assert len(exchange.group.take()) == 1
    assert model[0].weight.grad is not None
    assert torch.equal(model[0].weight.grad, torch.ones(4, 4)), "twice a half of 1"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_is_found_in_any_unit(
    dtype: torch.dtype, value: float
) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4, dtype=dtype) for _ in range(3)))
    with exchanging(model, unit_bytes=64) as exchange:
        for layer in range(3):
            exchange.gradients.start(0.5, is_update=True)
            model(torch.ones(2, 4, dtype=dtype)).sum().backward()
            assert 0 < exchange.gradients.size < NOT_FINITE
            handle = model[layer].bias.register_hook(lambda gradient: gradient.fill_(value))
            model.zero_grad()
            exchange.gradients.start(0.5, is_update=True)
            model(torch.ones(2, 4, dtype=dtype)).sum().backward()
            handle.remove()
            assert exchange.gradients.size == NOT_FINITE
            model.zero_grad()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_gradients_size_does_not_depend_on_the_share_or_the_units(dtype: torch.dtype) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4, dtype=dtype) for _ in range(3)))
    with exchanging(model, unit_bytes=64) as exchange:
        for share in (1.0, 0.5, 0.01):
            model.zero_grad()
            exchange.gradients.start(share, is_update=True, part=share)
            model(torch.ones(2, 4, dtype=dtype)).sum().backward()
            own = [p.grad.double() / share for p in model.parameters() if p.grad is not None]
            norm = float(torch.cat([grad.reshape(-1) for grad in own]).norm())
            assert norm_of(exchange.gradients.size) == pytest.approx(norm, rel=0.1)


def test_a_gradients_size_is_unsaid_when_it_holds_that_of_an_earlier_pass() -> None:
    model = layers(2)
    with exchanging(model) as exchange:
        for _ in range(2):
            exchange.gradients.start(1.0, is_update=True)
            model(torch.ones(2, 4)).sum().backward()
        assert exchange.gradients.size == UNSAID
        model.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        assert exchange.gradients.size > UNSAID


def test_two_devices_threads_may_both_find_that_the_weight_is_not_known_yet() -> None:
    model = layers(1)
    with exchanging(model) as exchange:

        class Interrupted(type(exchange.gradients)):  # type: ignore[misc]
            """Whose other thread resolves the weight whenever this one has looked at it."""

            @property
            def _weight_future(self) -> Future[float] | None:
                found: Future[float] | None = self.__dict__.pop("future", None)
                if found is not None:
                    self._weight = found.result()
                return found

            @_weight_future.setter
            def _weight_future(self, future: Future[float] | None) -> None:
                if future is not None:
                    self.__dict__["future"] = future

        exchange.gradients.__class__ = Interrupted
        total: Future[float] = Future()
        total.set_result(0.25)
        exchange.gradients.start(total, is_update=True)
        assert [exchange.gradients.weight, exchange.gradients.weight] == [0.25, 0.25]
