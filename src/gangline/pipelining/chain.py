# SPDX-License-Identifier: Apache-2.0
"""A model as a chain of layers, between any two of which it may be cut.

An `nn.Sequential` is a chain. Any other model is traced by torch.fx: it may be cut where one value is
all that the rest of the model needs. A submodule that cannot be traced (because it goes by the values
of tensors) is one layer. Operations without parameters belong to the layer before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gangline.pipelining.tracing import segments_of
from gangline.spec.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class ChainLayer:
    """One layer: modules that are called one after the other, with the names that they have."""

    def __init__(self, parts: list[tuple[str, nn.Module]]) -> None:
        self.parts = parts

    @property
    def name(self) -> str:
        """Its modules' names, for people."""
        names = [name for name, _ in self.parts]
        return names[0] if len(names) == 1 else f"{names[0]}…{names[-1]}"

    def __call__(self, x: Tensor, values: Mapping[str, Tensor] | None = None) -> Any:
        """The layer's output; with `values`, by these instead of its parameters."""
        for prefix, module in self.parts:
            if values is None:
                x = module(x)
                continue
            own = {
                name: values[_full_name(prefix, module, name)]
                for name, _ in module.named_parameters()
            }
            x = torch.func.functional_call(module, own, (x,))
        return x

    def parameters(self) -> dict[str, nn.Parameter]:
        """By the names that they have in the model."""
        return dict(self._named(lambda module: module.named_parameters()))

    def buffers(self) -> dict[str, Tensor]:
        """By the names that they have in the model."""
        return dict(self._named(lambda module: module.named_buffers()))

    def is_inplace(self) -> bool:
        """Whether it may overwrite what it is given."""
        return any(
            getattr(inner, "inplace", False)
            for _, module in self.parts
            for inner in module.modules()
        )

    def _named(self, of: Any) -> Iterator[tuple[str, Any]]:
        for prefix, module in self.parts:
            for name, value in of(module):
                yield _full_name(prefix, module, name), value


def _full_name(prefix: str, module: nn.Module, name: str) -> str:
    """A parameter's name in the model: what was traced has kept it."""
    return name if isinstance(module, torch.fx.GraphModule) or not prefix else f"{prefix}.{name}"


def chain_of(model: nn.Module) -> list[ChainLayer]:
    """The layers of a model. Raises UnsupportedError, with what is in the way, where it has but one."""
    parts = list(_children(model, "")) if _is_sequential(model) else segments_of(model)
    layers: list[ChainLayer] = []
    for part in parts:
        has_none = next(part[1].parameters(), None) is None
        if layers and has_none:
            layers[-1].parts.append(part)
        elif layers and len(layers) == 1 and not layers[0].parameters():
            layers[0].parts.append(part)  # what comes before the first parameter
        else:
            layers.append(ChainLayer([part]))
    if not layers:
        raise UnsupportedError("the model has no layers: there is nothing to train")
    _check_ties(layers)
    return layers


def _is_sequential(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _children(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        if _is_sequential(child):
            yield from _children(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


def _check_ties(layers: list[ChainLayer]) -> None:
    """Two layers that share a parameter would each train their own."""
    owners: dict[int, tuple[str, str]] = {}
    for layer in layers:
        for name, parameter in layer.parameters().items():
            other = owners.setdefault(id(parameter), (layer.name, name))
            if other[0] != layer.name:
                raise UnsupportedError(
                    f"the model cannot be cut: the layers {other[0]!r} and {layer.name!r} share the "
                    f"parameter {other[1]!r}, which two machines cannot both have. Give each its own, "
                    "or train the whole model on each machine by gangline.prepare"
                )
