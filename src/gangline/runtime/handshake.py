# SPDX-License-Identifier: Apache-2.0
"""The start of a job: all workers must train the same thing, from the same state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from gangline.collectives import Group, gather_bytes
from gangline.runtime.state import empty_tensors, pack_state, tensor_specs, unpack_state
from gangline.spec.errors import MismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PIECE_BYTES = 32 << 20


class Introduction(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself; all fields must be equal on all workers."""

    gangline_version: str
    torch_version: str
    data_set_length: int
    global_batch: int
    accumulate: int
    drop_last: bool
    order: str
    samples_per_epoch: int
    reduction: str
    has_weight: bool
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    optimizers: tuple[str, ...]
    shares: tuple[float, ...] | None
    stateful: tuple[str, ...]


_WHAT_TO_DO = {
    "gangline_version": "install the same gangline everywhere",
    "torch_version": "install the same torch everywhere",
    "data_set_length": "give every worker the same data set",
    "parameters": "build the same model, with the same frozen parameters, on every worker",
    "buffers": "build the same model on every worker",
}


def compare(group: Group, mine: Introduction) -> None:
    """Raises the same MismatchError on all workers if one of them trains something else."""
    others = [
        msgspec.msgpack.decode(payload, type=Introduction)
        for payload in gather_bytes(group, msgspec.msgpack.encode(mine))
    ]
    first = others[0]
    for rank, other in enumerate(others):
        for name in Introduction.__struct_fields__:
            expected, found = getattr(first, name), getattr(other, name)
            if expected != found:
                raise MismatchError(
                    f"worker {rank} differs from worker 0 in {name.replace('_', ' ')}: "
                    f"{describe_difference(expected, found)}. "
                    f"To do: {_WHAT_TO_DO.get(name, 'call prepare() alike on every worker')}"
                )


def describe_difference(expected: Any, found: Any) -> str:
    """In which way a value differs from what was expected."""
    if not (isinstance(expected, tuple) and isinstance(found, tuple)):
        return f"{found!r} instead of {expected!r}"
    for index, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            return f"number {index} is {other!r} instead of {one!r}"
    return f"{len(found)} of them instead of {len(expected)}"


def copy_tensors(group: Group, tensors: Sequence[Tensor], *, root: int = 0) -> None:
    """Gives all workers the root's values, in pieces of a few megabytes, whatever their devices."""
    piece: list[Tensor] = []
    size = 0
    for tensor in [*tensors, None]:
        if piece and (
            tensor is None or tensor.dtype != piece[0].dtype or size + tensor.nbytes > _PIECE_BYTES
        ):
            _copy_piece(group, piece, root)
            piece, size = [], 0
        if tensor is not None and tensor.numel():
            piece.append(tensor)
            size += tensor.nbytes


def _copy_piece(group: Group, tensors: list[Tensor], root: int) -> None:
    flat = torch.cat([tensor.detach().reshape(-1).cpu() for tensor in tensors])
    carrier = flat.view(torch.uint8) if flat.dtype == torch.bool else flat
    group.broadcast(carrier, root)
    start = 0
    for tensor in tensors:
        _copy(tensor.data, flat[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()


def _copy(target: Tensor, source: Tensor) -> None:
    """Copies, also into an expanded tensor, whose equal elements share their memory."""
    for dimension, stride in enumerate(target.stride()):
        if stride == 0:
            target, source = target.narrow(dimension, 0, 1), source.narrow(dimension, 0, 1)
    target.copy_(source)


def copy_state(group: Group, objects: Sequence[Any], *, root: int = 0) -> None:
    """Gives all workers the root's `state_dict` of each object (optimizers, schedulers, scalers)."""
    own = [item.state_dict() for item in objects] if group.rank == root else None
    states = copy_value(group, own, root=root)
    if group.rank != root:
        for item, state in zip(objects, states, strict=True):
            item.load_state_dict(state)


def copy_value(group: Group, value: Any, *, root: int) -> Any:
    """The root's value on all workers: nested dicts, lists, numbers and tensors."""
    is_root = group.rank == root
    payload, tensors = b"", list[Tensor]()
    if is_root:
        document, tensors = pack_state(value)
        payload = msgspec.msgpack.encode((document, tensor_specs(tensors)))
    length = torch.tensor([len(payload)], dtype=torch.int64)
    group.broadcast(length, root)
    carrier = torch.zeros(int(length), dtype=torch.uint8)
    if is_root:
        carrier = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    group.broadcast(carrier, root)
    if is_root:
        copy_tensors(group, [tensor.cpu() for tensor in tensors], root=root)
        return value
    document, specs = msgspec.msgpack.decode(
        carrier.numpy().tobytes(), type=tuple[bytes, list[tuple[str, list[int]]]]
    )
    received = empty_tensors(specs)
    copy_tensors(group, received, root=root)
    return unpack_state(document, received)
