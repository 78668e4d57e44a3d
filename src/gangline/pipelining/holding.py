# SPDX-License-Identifier: Apache-2.0
"""The layers that this worker holds, its own and copies of others', with the optimizer for them.

Of all other layers only the shapes are left here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gangline.paramserver.service.optimizers import (
    check_shardable,
    clone,
    make_step,
    options_of,
    set_options,
)
from gangline.pipelining.filling import empty, fill
from gangline.spec.errors import UsageError
from gangline.worker.prepare.serving_need import state_ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch.optim import Optimizer

    from gangline.pipelining.chain import ChainLayer

LayerState = dict[str, Any]
"""Of one layer: `parameters` and `buffers` by name, and the `optimizer`'s state by parameter."""


class Holdings:
    """What this worker has of the model."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        chain: Sequence[ChainLayer],
        *,
        device: torch.device,
        seed: int,
    ) -> None:
        self._chain, self._device, self._seed = chain, device, seed
        self._optimizer = optimizer
        self._ids = _detach(model, optimizer)
        self.held: set[int] = set(range(len(chain)))
        """By number. At first everybody has the same values of all of them."""
        self._own: Optimizer | None = None
        self._numbers: tuple[int, ...] = ()
        self._arrived: dict[int, LayerState] = {}
        """What came with layers that were moved in, until the next `keep`."""

    def parameters(self, layer: int) -> dict[str, nn.Parameter]:
        """The parameters of a layer."""
        return self._chain[layer].parameters()

    def buffers(self, layer: int) -> dict[str, Tensor]:
        """The buffers of a layer."""
        return self._chain[layer].buffers()

    def take(self, layers: Collection[int]) -> None:
        """Gives memory to layers, and their first values; those that are moved in are overwritten."""
        for index in sorted(layers):
            for _, module in self._chain[index].parts:
                fill(module, self._device, seed=self._seed + index)
                module.train()

    def keep(self, layers: Collection[int]) -> None:
        """Holds these layers from here on, and gives back the memory of all others."""
        states = {index: self.export(index) for index in sorted(layers)}
        for index, layer in enumerate(self._chain):
            if index not in layers:
                for _, module in layer.parts:
                    empty(module)
        self.held = set(layers)
        trained = {
            self._ids[name]: parameter
            for index in sorted(layers)
            for name, parameter in self.parameters(index).items()
            if name in self._ids
        }
        self._own, self._arrived = None, {}
        if trained:
            self._own, self._numbers = clone(self._optimizer, trained)
            for state in states.values():
                self._load_optimizer(self._own, state)

    def export(self, layer: int) -> LayerState:
        """All that there is of a layer, as it can be sent."""
        parameters = self.parameters(layer)
        states = {} if self._own is None else self._own.state
        optimizer = {name: dict(states[p]) for name, p in parameters.items() if p in states}
        if layer in self._arrived:
            optimizer = self._arrived[layer]["optimizer"]
        return {
            "parameters": {name: p.detach() for name, p in parameters.items()},
            "buffers": dict(self.buffers(layer)),
            "optimizer": optimizer,
        }

    def load(self, layer: int, state: LayerState) -> None:
        """Holds a layer that came from elsewhere, from here on."""
        with torch.no_grad():
            for name, parameter in self.parameters(layer).items():
                parameter.copy_(state["parameters"][name])
            for name, buffer in self.buffers(layer).items():
                buffer.copy_(state["buffers"][name])
        self._arrived[layer] = state
        self.held.add(layer)

    def snapshot(self) -> dict[int, LayerState]:
        """A copy of all that is held, for `put_back`."""
        return {index: _cloned(self.export(index)) for index in sorted(self.held)}

    def put_back(self, states: Mapping[int, LayerState]) -> None:
        """Layers that are held get these states."""
        for index, state in states.items():
            self.load(index, state)
            for parameter in self.parameters(index).values():
                if self._own is not None:
                    self._own.state.pop(parameter, None)
            if self._own is not None:
                self._load_optimizer(self._own, state)
        self._arrived.clear()

    def step(self) -> None:
        """Updates all layers that are held, with the options that the script's optimizer has now."""
        vars(self._optimizer)["_opt_called"] = True  # by which schedules know that a step was made
        if self._own is not None:
            set_options(self._own, self._numbers, options_of(self._optimizer))
            make_step(self._own)
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """As if nothing had been computed."""
        for index in self.held:
            for parameter in self.parameters(index).values():
                parameter.grad = None

    def _load_optimizer(self, optimizer: Optimizer, state: LayerState) -> None:
        by_name = {n: p for index in self.held for n, p in self.parameters(index).items()}
        for name, values in state["optimizer"].items():
            parameter = by_name[name]
            optimizer.state[parameter] = {
                # A counter of steps stays where the optimizer keeps it: in main memory.
                key: value.to(parameter.device) if _is_large(value) else _cloned(value)
                for key, value in values.items()
            }


def ratio_by_parameter(optimizer: Optimizer) -> Callable[[Tensor], float]:
    """The optimizer's state of a parameter, in bytes per byte of it, tried on a small one."""
    ratios = {
        id(parameter): ratio
        for group in optimizer.param_groups
        if group["params"]
        for ratio in [state_ratio(optimizer, group)]
        for parameter in group["params"]
    }
    return lambda parameter: ratios.get(id(parameter), 0.0)


def check_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    """Refuses what cannot update some layers without the others, or has begun already."""
    check_shardable(optimizer)
    if optimizer.state:
        raise UsageError(
            "the optimizer has made steps already: give pipeline() a new one, made for the model's "
            "parameters"
        )
    known = {id(parameter) for parameter in model.parameters()}
    if any(id(p) not in known for group in optimizer.param_groups for p in group["params"]):
        raise UsageError("the optimizer has parameters that are none of the model's")


def _detach(model: nn.Module, optimizer: Optimizer) -> dict[str, int]:
    """Puts empty tensors into the script's optimizer, so that it holds no memory; their ids by name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    ids = {}
    for group in optimizer.param_groups:
        stand_ins = []
        for parameter in group["params"]:
            stand_in = nn.Parameter(
                torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad
            )
            ids[names[id(parameter)]] = id(stand_in)
            stand_ins.append(stand_in)
        group["params"] = stand_ins
    return ids


def _cloned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _cloned(inner) for key, inner in value.items()}
    return value.clone() if isinstance(value, Tensor) else value


def _is_large(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0
