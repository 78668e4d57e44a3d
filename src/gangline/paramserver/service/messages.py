# SPDX-License-Identifier: Apache-2.0
"""What is said between who pushes and pulls, and who holds a shard.

A message is three things, each sent as a tensor: a header of whole numbers; msgpack, with the small
tensors after it; and every large tensor by itself, as bytes, so that it is never copied. They go by
broadcast: in a group of two that is to send, over the links that are there since it was made, whose
end is noticed at once. A link of its own, which `send` opens late, might still come when the same two
have connected anew, and bring what is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import torch
from torch import Tensor

from gangline.collectives.elements import ELEMENTS
from gangline.spec.errors import ExchangeError, UnsupportedError
from gangline.spec.serving import Entry

if TYPE_CHECKING:
    from gangline.collectives import Group
    from gangline.paramserver.service.pool import Pool

T = TypeVar("T")
OnTensor = Callable[[int, Tensor], None]
"""Is told the number of a tensor in a message, and the tensor."""

LARGE_BYTES = 64 << 10
MAX_TEXT_BYTES = 256 << 20
_MAGIC = 0x474C7073
_HEADER_WORDS = 5
_ALIGNED = 16
_TENSOR = 1
_CODES = {element.code: dtype for dtype, element in ELEMENTS.items()}

Pulls = tuple[tuple[int, int], ...]
"""For a replica: which team has pulled after how many updates."""


class Pushing(msgspec.Struct, frozen=True, kw_only=True, tag="push"):
    """A team's gradient at one clock, and entries that may be new."""

    serving: int
    team: int
    clock: int
    gradients: Any
    options: Any = ()
    entries: tuple[Entry, ...] = ()
    pulls: Pulls = ()
    early: dict[int, int] = {}
    """By the parameter's index: under which number its gradient was pushed early."""


class PushingEarly(msgspec.Struct, frozen=True, kw_only=True, tag="push_early"):
    """Some gradients of a push to come. They count if that push names their number."""

    serving: int
    team: int
    clock: int
    number: int
    gradients: Any
    """By the parameter's index."""
    entries: tuple[Entry, ...] = ()
    pulls: Pulls = ()


class Pulling(msgspec.Struct, frozen=True, kw_only=True, tag="pull"):
    """The parameters after all entries before `upto`, as far as who asks does not have them."""

    serving: int
    team: int
    upto: int
    entries: tuple[Entry, ...] = ()
    is_rows_only: bool = False
    """Whether nothing is wanted but what `lazy` names."""
    standing: tuple[int, int] | None = None
    """What was read last: of which history, and how many updates of it. None: nothing that still is."""
    own: Any = None
    """By the parameter's index: the rows that who asks has changed since; None: all of them."""
    lazy: Any = None
    """By the parameter's index: the only rows that are wanted, if they have changed, and after how many
    updates of the history in `standing` each was read."""
    order: tuple[int, ...] = ()
    """In which the parameters are to come, by their indices; empty: that of the shard."""


class PullingState(msgspec.Struct, frozen=True, kw_only=True, tag="pull_state"):
    """The optimizer's state after all entries before `upto`."""

    serving: int
    upto: int
    entries: tuple[Entry, ...] = ()


class Forgetting(msgspec.Struct, frozen=True, kw_only=True, tag="forget"):
    """A team is gone; these are the last entries that it may be in."""

    serving: int
    team: int
    entries: tuple[Entry, ...] = ()
    pulls: Pulls = ()


class Resetting(msgspec.Struct, frozen=True, kw_only=True, tag="reset"):
    """What was pulled last before a shard was lost."""

    serving: int
    applied: int
    values: Any


class Loading(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """All of a shard, for its replica."""

    serving: int
    exported: Any


class Advancing(msgspec.Struct, frozen=True, kw_only=True, tag="advance"):
    """Entries that the primary has applied, for its replica."""

    serving: int
    entries: tuple[Entry, ...] = ()
    pulls: Pulls = ()


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """It is kept. `applied` is the first entry that is not applied."""

    applied: int


class Values(msgspec.Struct, frozen=True, kw_only=True, tag="values"):
    """Parameters in the order of the shard or in the one that was asked for; rows by the index."""

    applied: int
    values: Any
    changed: Any = None
    """Those that differ from what was read last: their numbers, and their values."""
    history: int = 0
    """Which history of updates this is: after lost shards all begin another one."""


class State(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """The optimizer's state by the parameter's index."""

    applied: int
    state: Any


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """It is not kept, and why."""

    kind: str
    reason: str


Request = (
    Pushing | PushingEarly | Pulling | PullingState | Forgetting | Resetting | Loading | Advancing
)
Answer = Done | Values | State | Refused


def send(group: Group, message: msgspec.Struct, *, ticket: int) -> None:
    """Sends a message to the other member of a group of two; an answer has its request's ticket."""
    tensors: list[Tensor] = []
    body = msgspec.msgpack.encode(message, enc_hook=lambda value: _noted(value, tensors))
    shapes = [[ELEMENTS[t.dtype].code, list(t.shape)] for t in tensors]
    text = msgspec.msgpack.encode([shapes, body])
    small = [t for t in tensors if _num_bytes(t) < LARGE_BYTES]
    large = [t for t in tensors if _num_bytes(t) >= LARGE_BYTES]
    length = _aligned(len(text)) + sum(_aligned(_num_bytes(t)) for t in small)
    total = sum(_num_bytes(t) for t in large)
    header = torch.tensor([_MAGIC, ticket, len(text), length, total], dtype=torch.int64)
    packed = torch.empty(length, dtype=torch.uint8)
    packed[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    place = _aligned(len(text))
    for tensor in small:
        packed[place : place + _num_bytes(tensor)] = _bytes_of(tensor)
        place += _aligned(_num_bytes(tensor))
    group.broadcast(header, group.rank)
    group.broadcast(packed, group.rank)
    for tensor in large:
        group.broadcast(_bytes_of(tensor), group.rank)


def receive(
    group: Group,
    kind: Any,
    *,
    max_bytes: int,
    pool: Pool | None = None,
    ticket: int | None = None,
    on_tensor: OnTensor | None = None,
) -> tuple[Any, int]:
    """A message of one of these kinds, and its ticket; an ExchangeError where it is none of them.

    Its large tensors are in memory of the pool, if there is one. With a `ticket` it must be the answer
    to that request. `on_tensor` is told of each tensor when it is there, in the order of the message.
    """
    header = torch.empty(_HEADER_WORDS, dtype=torch.int64)
    group.broadcast(header, 1 - group.rank)
    magic, given, text_length, length, total = header.tolist()
    if magic != _MAGIC or not 0 <= text_length <= length or total < 0:
        raise ExchangeError(f"this is not the beginning of a message: {header.tolist()}")
    if text_length > MAX_TEXT_BYTES or length + total > max_bytes + MAX_TEXT_BYTES:
        raise ExchangeError(
            f"a message of {length + total} bytes, of which {text_length} are text, is larger than the "
            f"{max_bytes} bytes that are taken here"
        )
    if ticket is not None and given != ticket:
        # The other end still had the connection before this one, and has now answered over this.
        raise ExchangeError("the answer is to an earlier request")
    packed = torch.empty(length, dtype=torch.uint8)
    group.broadcast(packed, 1 - group.rank)
    try:
        shapes, body = msgspec.msgpack.decode(
            packed[:text_length].numpy().tobytes(), type=tuple[list[tuple[int, list[int]]], bytes]
        )
        tensors = _take(group, shapes, packed, _aligned(text_length), total, pool, on_tensor)
        message = msgspec.msgpack.decode(
            body, type=kind, ext_hook=lambda code, data: tensors[int.from_bytes(data, "big")]
        )
    except (msgspec.MsgspecError, KeyError, IndexError, ValueError, RuntimeError) as error:
        raise ExchangeError(f"a message cannot be read: {error}") from error
    return message, given


def _take(
    group: Group,
    shapes: list[tuple[int, list[int]]],
    packed: Tensor,
    place: int,
    total: int,
    pool: Pool | None,
    on_tensor: OnTensor | None,
) -> list[Tensor]:
    """The tensors of a message: small ones are views of what came with the text."""
    tensors = []
    for code, shape in shapes:
        dtype = _CODES[code]
        size = torch.Size(shape).numel() * dtype.itemsize
        if size < 0 or (size >= LARGE_BYTES and size > total):
            raise ValueError(f"a tensor of shape {shape} is not in the message")
        if size < LARGE_BYTES:
            raw = packed[place : place + size]
            place += _aligned(size)
        else:
            raw = torch.empty(size, dtype=torch.uint8) if pool is None else pool.take(size)
            group.broadcast(raw, 1 - group.rank)
            total -= size
        tensors.append(raw.view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype))
        if on_tensor is not None:
            on_tensor(len(tensors) - 1, tensors[-1])
    return tensors


def _noted(value: Any, tensors: list[Tensor]) -> Any:
    """A tensor as its number in the message."""
    if not isinstance(value, Tensor):
        raise UnsupportedError(
            f"{type(value).__name__} in an optimizer's state cannot be sent: servers keep tensors, "
            "numbers and text"
        )
    if value.dtype not in ELEMENTS:
        raise UnsupportedError(f"servers cannot keep {value.dtype}: convert it")
    tensors.append(value.detach().cpu().contiguous())
    return msgspec.msgpack.Ext(_TENSOR, (len(tensors) - 1).to_bytes(4, "big"))


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _aligned(length: int) -> int:
    return -(-length // _ALIGNED) * _ALIGNED
