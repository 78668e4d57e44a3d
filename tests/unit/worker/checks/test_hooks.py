# SPDX-License-Identifier: Apache-2.0
"""Which hooks are warned of, because they change gradients that are not whole yet."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from gangline.worker.checks.hooks import GradientHooks
from gangline.worker.gradients.layout import build_layout

if TYPE_CHECKING:
    from collections.abc import Callable

SEEN: list[Any] = []


def clip(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.clamp(-1, 1)


def clip_in_place(gradient: torch.Tensor) -> None:
    gradient.clamp_(-1, 1)


def clip_added(parameter: torch.Tensor) -> None:
    parameter.grad.clamp_(-1, 1)


def drop_added(parameter: torch.Tensor) -> None:
    parameter.grad = None


def watch(*args: Any) -> None:
    if not args:
        return
    SEEN.append(args)


def clip_all(module: nn.Module, gradients: Any, more: Any = None) -> Any:
    return tuple(None if one is None else one.clamp(-1, 1) for one in gradients)


def clip_some(module: nn.Module, gradients: Any, more: Any = None) -> Any:
    return SEEN or None


class Clipper:
    def __call__(self, module: nn.Module, gradients: Any, more: Any = None) -> Any:
        return clip_all(module, gradients)

    def watch(self, module: nn.Module, gradients: Any, more: Any = None) -> None:
        SEEN.append(gradients)


def network() -> nn.Sequential:
    return nn.Sequential(OrderedDict(first=nn.Linear(3, 4), last=nn.Linear(4, 2)))


def warnings_of(
    model: nn.Module,
    put: Callable[[Any], Any] = lambda model: None,
    *,
    workers: int = 2,
    called: Any = None,
) -> list[str]:
    """What is said in two backward passes, the hooks being put on before the second one."""
    hooks = GradientHooks([model], build_layout([model], []).slots, is_shared=lambda: workers > 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for turn in range(4):
            if turn == 1:
                put(model)
            hooks.look()
            (model if called is None else called)(torch.ones(5, 3)).sum().backward()
    hooks.close()
    return [str(one.message) for one in caught if "whole batch" in str(one.message)]


@pytest.mark.parametrize(
    ("put", "where"),
    [
        (lambda m: m.last.bias.register_hook(clip), "hook clip (test_hooks.py:"),
        (
            lambda m: m.last.bias.register_hook(clip),
            "of parameter 'last.bias' (Tensor.register_hook)",
        ),
        (lambda m: m.last.bias.register_hook(lambda g: g * g.norm()), "<lambda> (test_hooks.py:"),
        (lambda m: m.last.bias.register_hook(partial(torch.clamp, max=1)), "parameter 'last.bias'"),
        (lambda m: m.last.bias.register_hook(clip_in_place), "the hook clip_in_place"),
        (
            lambda m: m.first.weight.register_post_accumulate_grad_hook(clip_added),
            "parameter 'first.weight' (Tensor.register_post_accumulate_grad_hook)",
        ),
        (lambda m: m.first.weight.register_post_accumulate_grad_hook(drop_added), "drop_added"),
        (
            lambda m: m.last.register_full_backward_hook(clip_all),
            "clip_all (test_hooks.py:",
        ),
        (
            lambda m: m.last.register_full_backward_pre_hook(clip_all),
            "of module 'last' (Module.register_full_backward_pre_hook)",
        ),
        (lambda m: m.register_full_backward_hook(Clipper()), "Clipper.__call__"),
        (lambda m: m.last.register_full_backward_hook(clip_some), "clip_some"),
    ],
)
def test_a_hook_that_changes_gradients_is_named_once(put: Callable[[Any], Any], where: str) -> None:
    SEEN.clear()
    (message,) = warnings_of(network(), put)
    assert where in message
    assert "between backward() and step()" in message


@pytest.mark.parametrize(
    "put",
    [
        lambda m: m.last.bias.register_hook(watch),
        lambda m: m.last.bias.register_hook(lambda gradient: SEEN.append(gradient.norm())),
        lambda m: m.first.weight.register_post_accumulate_grad_hook(watch),
        lambda m: m.last.register_full_backward_hook(watch),
        lambda m: m.last.register_full_backward_pre_hook(Clipper().watch),
        lambda m: m.last.register_forward_hook(watch),
        lambda m: prune.l1_unstructured(m.last, "weight", amount=2),
        lambda m: parametrizations.weight_norm(m.last),
    ],
)
def test_a_hook_that_only_looks_is_not(put: Callable[[Any], Any]) -> None:
    model = network()
    assert not warnings_of(model, put)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_hook_on_an_activation_is_watched(is_compiled: bool) -> None:
    class Clipped(nn.Module):
        def __init__(self, hook: Any) -> None:
            super().__init__()
            self.layers, self.hook = network(), hook

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.layers.first(x)
            hidden.register_hook(self.hook)
            return self.layers.last(hidden)

    plain = torch.Tensor.register_hook
    for hook, count in ((clip, 1), (watch, 0)):
        model = Clipped(hook)
        called: Any = torch.compile(model, backend="eager") if is_compiled else model
        messages = warnings_of(model, called=called)
        assert len(messages) == count
        assert is_compiled or all("clip (test_hooks.py:" in one for one in messages)
        assert all("an activation of the shape (5, 4)" in one for one in messages)
    assert torch.Tensor.register_hook is plain


def test_alone_every_hook_sees_the_whole_batch() -> None:
    model = network()
    model.last.bias.register_hook(clip)
    assert not warnings_of(model, workers=1)


def test_hooks_do_what_they_did_and_can_be_taken_off() -> None:
    model = network()
    handles = [model.last.bias.register_hook(clip)]
    handles += [model.last.register_full_backward_hook(clip_all)]
    assert len(warnings_of(model)) == 1
    assert list(model.last.bias._backward_hooks.values()) == [clip]
    copied = copy.deepcopy(model)
    assert list(pickle.loads(pickle.dumps(copied)).last._backward_hooks.values()) == [clip_all]
    model.zero_grad()
    (100 * model(torch.ones(5, 3))).sum().backward()
    assert model.last.bias.grad.tolist() == [1.0, 1.0]
    for handle in handles:
        handle.remove()
    assert not model.last.bias._backward_hooks
