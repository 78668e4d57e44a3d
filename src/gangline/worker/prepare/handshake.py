# SPDX-License-Identifier: Apache-2.0
"""The start of a job: all workers must train the same thing, from the same state."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from gangline.collectives import Group, gather_bytes
from gangline.spec.config import SHARED
from gangline.spec.errors import MismatchError
from gangline.worker.groups.state import (
    empty_tensors,
    load_optimizer,
    pack_state,
    tensor_specs,
    unpack_state,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_PIECE_BYTES = 32 << 20
_UNSAID = ("torch_version", "data_set_samples")
"""What a worker may leave empty: it is not compared then."""
_SHORT = 60
"""Up to so many characters a field is shown as it is."""


class Introduction(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself; all fields must be equal on all workers."""

    data: str = SHARED
    """Whose it is: every worker's, or each one's own."""
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
    min_share: int | None = None
    sync_batchnorm: bool = False
    stateful: tuple[str, ...]
    data_set_samples: str = ""
    """A hash of some samples; empty where they are not compared."""
    data_of_workers: tuple[int, ...] = ()
    """How many samples each worker has of its own; empty where all read the same."""

    def traits(self) -> dict[str, str]:
        """All fields in short, for who does not compare them itself: long ones by their hash."""
        every = {name: getattr(self, name) for name in self.__struct_fields__}
        shown = {name: repr(one) for name, one in every.items() if one or name not in _UNSAID}
        return {
            name: text
            if len(text) <= _SHORT
            else f"those with the hash {sha256(text.encode()).hexdigest()[:16]}"
            for name, text in shown.items()
        }


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What a founder asks of the run, by its script or else by the run's configuration.

    The coordinator goes by the first founder's, so all must ask for the same. Who comes later takes
    part in what was asked.
    """

    allocation: str
    shares: tuple[float, ...] | None
    sync: str
    structure: str


_WHAT_TO_DO = {
    "gangline_version": "install the same gangline everywhere",
    "torch_version": "install the same torch everywhere",
    "data_set_length": "give every worker the same data set",
    "data_set_samples": "give every worker the same data, or start the job with --compare-samples 0",
    "parameters": "build the same model, with the same frozen parameters, on every worker",
    "buffers": "build the same model on every worker",
    "structure": "start all workers with one configuration",
}


def compare(group: Group, mine: Introduction | Wishes) -> None:
    """Raises the same MismatchError on all workers if one of them trains something else."""
    others = [
        msgspec.msgpack.decode(payload, type=type(mine))
        for payload in gather_bytes(group, msgspec.msgpack.encode(mine))
    ]
    first = others[0]
    for rank, other in enumerate(others):
        for name in mine.__struct_fields__:
            expected, found = getattr(first, name), getattr(other, name)
            is_said = name not in _UNSAID or (expected and found)
            if expected != found and is_said:
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


Carry = Callable[[Tensor], None]
"""Moves a flat tensor in host memory between workers: out of it, or into it."""


def copy_tensors(group: Group, tensors: Sequence[Tensor], *, root: int = 0) -> None:
    """Gives all workers the root's values, whatever their devices."""
    _carry_tensors(tensors, lambda flat: group.broadcast(flat, root), is_source=group.rank == root)


def _carry_tensors(tensors: Sequence[Tensor], carry: Carry, *, is_source: bool) -> None:
    """Moves tensors in pieces of a few megabytes; large ones are pieces of their own."""
    piece: list[Tensor] = []
    size = 0
    for tensor in [*tensors, None]:
        if piece and (
            tensor is None or tensor.dtype != piece[0].dtype or size + tensor.nbytes > _PIECE_BYTES
        ):
            _carry_piece(piece, carry, is_source=is_source)
            piece, size = [], 0
        if tensor is not None and tensor.numel():
            piece.append(tensor)
            size += tensor.nbytes


def _carry_piece(tensors: list[Tensor], carry: Carry, *, is_source: bool) -> None:
    first = tensors[0].detach()
    if len(tensors) == 1 and first.is_cpu and first.is_contiguous():
        flat = first.reshape(-1)  # the tensor's own memory
    elif is_source:
        flat = torch.cat([tensor.detach().reshape(-1).cpu() for tensor in tensors])
    else:
        flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=first.dtype)
    carry(flat.view(torch.uint8) if flat.dtype == torch.bool else flat)
    if is_source or flat.data_ptr() == first.data_ptr():
        return
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
            if isinstance(item, torch.optim.Optimizer):
                load_optimizer(item, state)
            else:
                item.load_state_dict(state)


def copy_value(group: Group, value: Any, *, root: int) -> Any:
    """The root's value on all workers: nested dicts, lists, numbers and tensors."""

    def carry(flat: Tensor) -> None:
        group.broadcast(flat, root)

    if group.rank == root:
        _carry_out(value, carry)
        return value
    return _carry_in(carry)


def copy_value_to(group: Group, value: Any, *, root: int, to: Sequence[int]) -> Any:
    """The root's value on the workers `to`; the others take no part, and get None.

    Where it is for most of them, all take part: a broadcast is one way for all.
    """
    if 2 * len(to) > group.size:
        return copy_value(group, value, root=root)
    if group.rank == root:
        for rank in to:
            _carry_out(value, lambda flat, rank=rank: group.send(flat, rank))  # type: ignore[misc]
        return value
    if group.rank in to:
        return receive_value(group, source=root)
    return None


class Parcel(NamedTuple):
    """A value that is taken apart, and can be sent."""

    document: bytes
    tensors: list[Tensor]

    @classmethod
    def copied(cls, value: Any) -> Parcel:
        """A copy of the value as it is now, in the memory of the host."""
        document, tensors = pack_state(value)
        return cls(document, [tensor.to("cpu", copy=True) for tensor in tensors])

    @property
    def num_bytes(self) -> int:
        """What is sent of it, but for its shapes."""
        return len(self.document) + sum(tensor.nbytes for tensor in self.tensors)


def send_parcel(group: Group, parcel: Parcel, *, to: int) -> None:
    """Sends it to one member, who calls `receive_value`."""
    _carry_parcel(parcel, lambda flat: group.send(flat, to))


def receive_value(group: Group, *, source: int) -> Any:
    """The value that a member sends."""
    return _carry_in(lambda flat: group.receive(flat, source))


def _carry_out(value: Any, carry: Carry) -> None:
    _carry_parcel(Parcel(*pack_state(value)), carry)


def _carry_parcel(parcel: Parcel, carry: Carry) -> None:
    document, tensors = parcel
    payload = msgspec.msgpack.encode((document, tensor_specs(tensors)))
    carry(torch.tensor([len(payload)], dtype=torch.int64))
    carry(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
    _carry_tensors(tensors, carry, is_source=True)


def _carry_in(carry: Carry) -> Any:
    length = torch.zeros(1, dtype=torch.int64)
    carry(length)
    payload = torch.zeros(int(length), dtype=torch.uint8)
    carry(payload)
    document, specs = msgspec.msgpack.decode(
        payload.numpy().tobytes(), type=tuple[bytes, list[tuple[str, list[int]]]]
    )
    received = empty_tensors(specs)
    _carry_tensors(received, carry, is_source=False)
    return unpack_state(document, received)
