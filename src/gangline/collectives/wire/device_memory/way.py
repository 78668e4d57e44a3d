# SPDX-License-Identifier: Apache-2.0
"""Sums over the memory of a GPU that all members compute on, without a way through the host.

Each member has a window on the device. It copies its tensor there, waits until the device has done so,
and meets the others at the barrier of their shared memory. Then each adds up everybody's windows, in
rank order. Members read each other's windows and write only their own; and the device never waits for
another process, so one that dies or hangs costs its peers no more than it does in shared memory.

A window has two halves, used in turn: when a member writes a half again, all others have met it once
more since, which they do only after they have read it.

Whether this way is taken must be known to all. Each member notes the first exchange in which it had a
tensor on a device. After the exchange by which all have noted one, they tell each other how to open
their windows, and whether they could. From then on all large sums go this way, wherever the tensor is.
"""

from __future__ import annotations

import logging
import struct
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch

from gangline.collectives.elements import ELEMENTS, HALVES, Flat
from gangline.collectives.wire.device_memory.memory import Offer, Refused, Window
from gangline.spec.errors import ExchangeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gangline.collectives.protocol import Header
    from gangline.collectives.wire.device_memory.memory import DeviceMemory
    from gangline.collectives.wire.shared_memory.shared import SharedExchange

HALF_BYTES = 16 << 20
"""What a window holds of a tensor at once. It is memory of the device, twice, for each member."""
LEAST_BYTES = 16 << 10
"""What is smaller goes through the host: the device takes longer to be asked than to do it."""
_RECORD_BYTES = 2048
_REFUSAL_CHARS = 400
_LENGTH = struct.Struct(">H")
_log = logging.getLogger("gangline.worker")


class DeviceWay:
    """One member's end of it."""

    def __init__(
        self,
        shared: SharedExchange,
        memory: DeviceMemory,
        *,
        rank: int,
        size: int,
        half_bytes: int = HALF_BYTES,
    ) -> None:
        self._shared, self._memory = shared, memory
        self._rank, self._size, self._half_bytes = rank, size, half_bytes
        self._is_settled = False
        self._windows: list[Tensor] | None = None
        """Everybody's bytes, in rank order; None while the way is closed."""
        self._half = 0

    @property
    def is_open(self) -> bool:
        """Whether large sums go this way."""
        return self._windows is not None

    def takes(self, tensor: Tensor) -> bool:
        """Whether a tensor of this size goes this way."""
        return self.is_open and tensor.nbytes >= LEAST_BYTES

    def notice(self, tensor: Tensor) -> None:
        """A tensor is about to be summed through the host."""
        if not self._is_settled and tensor.nbytes >= LEAST_BYTES and self._memory.holds(tensor):
            self._shared.note_device()

    def settle(self) -> None:
        """Opens the way, after the exchange by which all members have noted a device."""
        if not self._is_settled and self._shared.have_all_noted_a_device():
            self._is_settled = True
            refusals = self._open()
            if refusals:
                self._memory.close()
                _log.warning(
                    "gradients go through the host, not over the GPU's memory: %s", refusals[0]
                )

    def all_reduce(self, tensor: Tensor, header: Header | None) -> None:
        """As a group's `all_reduce`."""
        started = time.perf_counter()
        try:
            with self._memory.working():
                flat = tensor.detach().reshape(-1)
                self._all_reduce(flat, header)
                if flat.data_ptr() != tensor.data_ptr():
                    tensor.detach().copy_(flat.view(tensor.shape))
        except RuntimeError as error:
            raise ExchangeError(
                f"the GPU failed in an exchange over its memory: {error}"
            ) from error
        self._shared.note_moved(tensor.nbytes, time.perf_counter() - started)

    def _all_reduce(self, flat: Tensor, header: Header | None) -> None:
        step = self._half_bytes // flat.element_size()
        for low in range(0, flat.numel(), step):
            piece = flat[low : low + step]
            terms = self._terms(piece)
            terms[self._rank].copy_(piece)
            self._memory.wait()  # until this is written, and what the half before held was read
            if low:
                self._shared.meet()
            else:
                self._shared.begin_sum(ELEMENTS[flat.dtype].code, flat.numel(), header)
            _add_up(piece, terms)
            self._half ^= 1

    def close(self) -> None:
        """Lets go of the device's memory."""
        self._is_settled, self._windows = True, None
        try:
            self._memory.close()
        except (Refused, RuntimeError) as error:
            _log.warning("the GPU's memory could not be given back: %s", error)

    def _terms(self, piece: Tensor) -> list[Tensor]:
        """Where everybody's piece is, in rank order."""
        assert self._windows is not None
        start = self._half * self._half_bytes
        return [window[start : start + piece.nbytes].view(piece.dtype) for window in self._windows]

    def _open(self) -> list[str]:
        """Opens everybody's window; why not, where somebody could not."""
        num_bytes = 2 * self._half_bytes
        own: Window | None = None
        try:
            own, offer = self._memory.offer(num_bytes)
        except (Refused, RuntimeError) as error:
            offer = Offer(refusal=f"member {self._rank}: {error}"[:_REFUSAL_CHARS])
        offers = self._tell(offer)
        refusals = [one.refusal for one in offers if one.refusal]
        if refusals or own is None:
            return refusals
        windows, verdict = [], Offer()
        try:
            for rank, one in enumerate(offers):
                is_own = rank == self._rank
                windows.append(own if is_own else self._memory.open(one, num_bytes))
        except (Refused, RuntimeError) as error:
            said = f"member {self._rank} cannot open that of member {rank}: {error}"
            verdict = Offer(refusal=said[:_REFUSAL_CHARS])
        refusals = [one.refusal for one in self._tell(verdict) if one.refusal]
        if not refusals:
            self._windows = [window.memory for window in windows]
        return refusals

    def _tell(self, offer: Offer) -> list[Offer]:
        """What all members say, in rank order."""
        said = msgspec.msgpack.encode(offer)
        padded = (_LENGTH.pack(len(said)) + said).ljust(_RECORD_BYTES, b"\0")
        record = np.frombuffer(padded, dtype=np.uint8)
        rows = [np.empty_like(record) for _ in range(self._size)]
        self._shared.all_gather(Flat(record, torch.uint8), rows)
        try:
            return [_decoded(row.tobytes()) for row in rows]
        except msgspec.DecodeError as error:
            raise ExchangeError(f"what a member said of its GPU makes no sense: {error}") from error


def _decoded(record: bytes) -> Offer:
    return msgspec.msgpack.decode(record[2 : 2 + _LENGTH.unpack_from(record)[0]], type=Offer)


def _add_up(out: Tensor, terms: Sequence[Tensor]) -> None:
    """out = terms[0] + terms[1] + …, in this order; half precision is rounded once."""
    if out.dtype in HALVES:
        total = terms[0].float()
    elif out.device == terms[0].device:
        total = torch.add(terms[0], terms[1], out=out)
        terms = terms[1:]
    else:
        total = terms[0].clone()
    for term in terms[1:]:
        total.add_(term)
    if total is not out:
        out.copy_(total)
