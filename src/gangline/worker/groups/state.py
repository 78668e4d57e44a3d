# SPDX-License-Identifier: Apache-2.0
"""Turns a `state_dict` into bytes and tensors, and back, without pickle.

Optimizers, schedulers and scalers keep nested dicts, lists, numbers and tensors. The nesting becomes
a small document in which every tensor is a number into a list of tensors.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import msgspec
import torch
from torch import Tensor

from gangline.spec.errors import UnsupportedError

_DICTS: dict[str, type[dict[Any, Any]]] = {
    "dict": dict,
    "ordered": OrderedDict,
    "counter": Counter,
}
_SCALARS = (bool, int, float, str, bytes, type(None))


def pack_state(state: Any) -> tuple[bytes, list[Tensor]]:
    """The document and the tensors of a nested state."""
    tensors: list[Tensor] = []
    return msgspec.msgpack.encode(_pack(state, "state", tensors)), tensors


def unpack_state(document: bytes, tensors: list[Tensor]) -> Any:
    """The nested state that `pack_state` took apart."""
    return _unpack(msgspec.msgpack.decode(document), tensors)


def tensor_specs(tensors: list[Tensor]) -> list[tuple[str, list[int]]]:
    """Dtype and shape of each tensor: enough to allocate its like elsewhere."""
    return [(str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for tensor in tensors]


def empty_tensors(specs: list[tuple[str, list[int]]]) -> list[Tensor]:
    """Tensors of the given dtypes and shapes, to be filled."""
    return [torch.empty(shape, dtype=getattr(torch, dtype)) for dtype, shape in specs]


def _pack(value: Any, path: str, tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors.append(value.detach())
        return {"tensor": len(tensors) - 1}
    if type(value) is int and not -(1 << 63) <= value < 1 << 64:
        raise UnsupportedError(
            f"{path} is {value}, which does not fit into 64 bits and cannot be sent to other workers"
        )
    if type(value) in _SCALARS:
        return {"value": value}
    for name, kind in _DICTS.items():
        if type(value) is kind:
            pairs = [
                [_pack(key, f"{path} key", tensors), _pack(item, f"{path}[{key!r}]", tensors)]
                for key, item in value.items()
            ]
            return {name: pairs}
    if type(value) in (list, tuple):
        items = [_pack(item, f"{path}[{index}]", tensors) for index, item in enumerate(value)]
        return {"tuple" if type(value) is tuple else "list": items}
    raise UnsupportedError(
        f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be sent to "
        "other workers: state may hold dicts, lists, tuples, numbers, strings and tensors"
    )


def _unpack(node: dict[str, Any], tensors: list[Tensor]) -> Any:
    ((kind, content),) = node.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "value":
        return content
    if kind in _DICTS:
        return _DICTS[kind]({_unpack(k, tensors): _unpack(v, tensors) for k, v in content})
    items = [_unpack(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """`load_state_dict`, after which each tensor has the dtype that it has in `state`.

    Torch gives all of them that of their parameter: 32-bit momenta of a parameter of 16 bits, or the
    other way round, would be rounded or double their size.
    """
    optimizer.load_state_dict(state)
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        if number in state["state"] and parameter in optimizer.state:
            given, loaded = state["state"][number], optimizer.state[parameter]
            optimizer.state[parameter] = _with_dtypes(loaded, given)


def _with_dtypes(loaded: Any, given: Any) -> Any:
    """What was loaded, with those tensors as they were given that were cast."""
    if isinstance(loaded, Tensor) and isinstance(given, Tensor):
        return loaded if loaded.dtype == given.dtype else given.to(loaded.device)
    if type(loaded) is not type(given):
        return loaded
    if type(loaded) is dict and loaded.keys() == given.keys():
        return {key: _with_dtypes(value, given[key]) for key, value in loaded.items()}
    if type(loaded) in (list, tuple) and len(loaded) == len(given):
        return type(loaded)(map(_with_dtypes, loaded, given))
    return loaded
