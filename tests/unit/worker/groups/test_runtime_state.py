# SPDX-License-Identifier: Apache-2.0
"""A state that was taken apart and put together again is the state that it was."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn
from torch.optim import lr_scheduler

from gangline.spec.errors import UnsupportedError
from gangline.worker.groups.state import (
    empty_tensors,
    load_optimizer,
    pack_state,
    tensor_specs,
    unpack_state,
)

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    return torch.ones(shape, dtype=draw(st.sampled_from(DTYPES)))


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
)
KEYS = st.one_of(st.integers(-5, 5), st.text(max_size=3), st.tuples(st.integers(0, 3)))
STATES = st.recursive(
    SCALARS | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(KEYS, st.integers(0, 9), max_size=3).map(Counter)
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def through(state: Any) -> Any:
    """The state as another worker would put it together from document and tensors."""
    document, packed = pack_state(state)
    received = empty_tensors(tensor_specs(packed))
    for target, source in zip(received, packed, strict=True):
        target.copy_(source)
    return unpack_state(document, received)


@given(state=STATES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_nested_state_comes_back_as_it_was(state: Any) -> None:
    assert same(through(state), state)


def trained_optimizer(kind: type[torch.optim.Optimizer], **options: Any) -> torch.optim.Optimizer:
    model = nn.Linear(3, 2)
    optimizer = kind(
        [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}], lr=0.1, **options
    )
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.Adagrad, {}),
        (torch.optim.RMSprop, {"centered": True}),
        (torch.optim.NAdam, {}),
        (torch.optim.Adadelta, {}),
        (torch.optim.Rprop, {}),
        (torch.optim.Adafactor, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_optimizer_state_comes_back_as_it_was(kind: Any, options: dict[str, Any]) -> None:
    state = trained_optimizer(kind, **options).state_dict()
    back = through(state)
    assert same(back, state)
    fresh = kind(
        [{"params": [nn.Parameter(torch.zeros(2, 3))]}, {"params": [nn.Parameter(torch.zeros(2))]}]
    )
    fresh.load_state_dict(back)
    assert same(fresh.state_dict(), state)


SCHEDULERS = {
    "steps": lambda opt: lr_scheduler.MultiStepLR(opt, [1, 3, 3]),
    "lambda": lambda opt: lr_scheduler.LambdaLR(opt, lambda epoch: 0.9**epoch),
    "cycle": lambda opt: lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=9),
    "plateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt),
    "cosine": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 4),
    "sequence": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.ConstantLR(opt), lr_scheduler.ExponentialLR(opt, 0.9)], [2]
    ),
    "chain": lambda opt: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(opt), lr_scheduler.ExponentialLR(opt, 0.9)]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_scheduler_state_comes_back_as_it_was(name: str) -> None:
    optimizer = trained_optimizer(torch.optim.SGD, momentum=0.9)
    scheduler = SCHEDULERS[name](optimizer)
    for _ in range(3):
        optimizer.step()
        scheduler.step(*([1.0] if name == "plateau" else []))
    state = scheduler.state_dict()
    assert same(through(state), state)
    scheduler.load_state_dict(through(state))


def test_scaler_state_comes_back_as_it_was() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=32.0)
    scaler.scale(torch.ones(1))
    assert same(through(scaler.state_dict()), scaler.state_dict())


@pytest.mark.parametrize(
    ("state", "match"),
    [
        ({"a": [0, {1}]}, r"^state\['a'\]\[1\] is a builtins\.set, which cannot be sent to other"),
        ({"a": {"b": object()}}, r"^state\['a'\]\['b'\] is a builtins\.object"),
        ((np.float64(1.0),), r"^state\[0\] is a numpy\.float64"),
        (
            {"table": np.zeros(2)},
            r"^state\['table'\] is a numpy\.ndarray.*numbers, strings and tensors",
        ),
        (defaultdict(int), r"^state is a collections\.defaultdict"),
        ({frozenset(): 1}, r"^state key is a builtins\.frozenset"),
        ({"seed": [1 << 64]}, r"^state\['seed'\]\[0\].*64"),
        ({"seed": -(1 << 63) - 1}, r"^state\['seed'\].*64"),
    ],
    ids=["set", "object", "numpy_number", "array", "defaultdict", "key", "too_large", "too_small"],
)
def test_what_cannot_be_sent_is_named_by_its_path(state: Any, match: str) -> None:
    with pytest.raises(UnsupportedError, match=match):
        pack_state(state)


@pytest.mark.parametrize(
    ("of_parameter", "of_state"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)],
)
def test_an_optimizer_that_is_loaded_keeps_the_dtypes_of_its_state(
    of_parameter: torch.dtype, of_state: torch.dtype
) -> None:
    def optimizer() -> torch.optim.Optimizer:
        layer = nn.Linear(3, 2, dtype=of_parameter)
        return torch.optim.AdamW(layer.parameters(), lr=0.1)

    source, target = optimizer(), optimizer()
    for parameter in source.param_groups[0]["params"]:
        source.state[parameter] = {
            "step": torch.tensor(3.0),
            "exp_avg": torch.full_like(parameter, 1 / 3, dtype=of_state),
            "factors": [torch.full((2,), 1 / 3, dtype=of_state)],
            "same": torch.full_like(parameter, 1 / 3),
        }
    load_optimizer(target, source.state_dict())
    for one, other in zip(source.state.values(), target.state.values(), strict=True):
        assert one.keys() == other.keys()
        for key in ("step", "exp_avg", "same"):
            assert one[key].dtype == other[key].dtype
            assert torch.equal(one[key], other[key])
        assert other["factors"][0].dtype == of_state
        assert torch.equal(one["factors"][0], other["factors"][0])
