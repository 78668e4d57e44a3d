# SPDX-License-Identifier: Apache-2.0
"""The group of the wire transport: checks what it is given, and lets an exchange carry it out."""

from __future__ import annotations

import threading
import traceback
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from gangline.collectives.elements import Array, Flat, element_of, flat_of
from gangline.collectives.staging import Staging
from gangline.collectives.wire.operation import MAX_HEADER_WORDS
from gangline.spec.errors import ExchangeAborted, ExchangeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.collectives.protocol import GroupKey, Header
    from gangline.collectives.wire.device_memory.way import DeviceWay
    from gangline.collectives.wire.joining.listener import Listener
    from gangline.collectives.wire.nouns import HopStats
    from gangline.collectives.wire.waiting import Alarm

T = TypeVar("T")


class Exchange(Protocol):
    """What moves flat arrays between the members: through shared memory, or over TCP."""

    name: str

    def all_reduce(self, flat: Flat, header: Header | None) -> None: ...
    def reduce_scatter(self, flat: Flat) -> Array: ...
    def all_gather(self, flat: Flat, rows: list[Array]) -> None: ...
    def broadcast(self, flat: Flat, root: int) -> None: ...
    def send(self, flat: Flat, to: int) -> None: ...
    def receive(self, flat: Flat, source: int) -> None: ...
    def hops(self) -> list[HopStats]: ...
    def hang_up(self) -> None: ...
    def close(self) -> None: ...


class WireGroup:
    """One member's end of a group (see `gangline.collectives.protocol.Group`)."""

    def __init__(
        self,
        key: GroupKey,
        *,
        rank: int,
        size: int,
        exchange: Exchange,
        door: Door,
        way: DeviceWay | None = None,
    ) -> None:
        """`way` is that over device memory, where the members share this host's."""
        self.key, self.rank, self.size = key, rank, size
        self._exchange, self._door, self._way = exchange, door, way
        self._staging = Staging()
        self._failure: str | None = None

    @property
    def transport(self) -> str:
        over_device = self._way is not None and self._way.is_open
        return f"wire ({'device memory' if over_device else self._exchange.name})"

    def bring(self, tensor: Tensor, ready: torch.cuda.Event) -> None:
        """A tensor on a device is summed soon: begins to bring it to host memory, where it must."""
        if self._way is None or not self._way.takes(tensor):
            self._staging.bring(tensor, ready)

    def all_reduce(self, tensor: Tensor, header: Header | None = None) -> None:
        element_of(tensor, summed=True)
        if header is not None:
            check_header(header)
        way = self._way
        if way is not None and way.takes(tensor):
            self._do(lambda: way.all_reduce(tensor, header))
            return
        if way is not None:
            way.notice(tensor)
        host = self._staging.host_of(tensor)
        self._do(lambda: self._exchange.all_reduce(flat_of(host), header))
        self._staging.write_back(host, tensor)
        if way is not None:
            self._do(way.settle)
            if way.is_open:
                self._staging.forget()

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        element_of(tensor, summed=True)
        host = self._staging.host_of(tensor)
        part = self._do(lambda: self._exchange.reduce_scatter(flat_of(host)))
        return torch.from_numpy(part).view(tensor.dtype).to(tensor.device)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        element_of(tensor, summed=False)
        host = self._staging.host_of(tensor)
        rows = [torch.empty(tensor.shape, dtype=tensor.dtype) for _ in range(self.size)]
        arrays = [flat_of(row).array for row in rows]
        self._do(lambda: self._exchange.all_gather(flat_of(host), arrays))
        return [row.to(tensor.device) for row in rows]

    def broadcast(self, tensor: Tensor, root: int) -> None:
        element_of(tensor, summed=False)
        if not 0 <= root < self.size:
            raise UsageError(f"root {root}: the members are 0 to {self.size - 1}")
        host = self._staging.host_of(tensor)
        self._do(lambda: self._exchange.broadcast(flat_of(host), root))
        self._staging.write_back(host, tensor)

    def send(self, tensor: Tensor, to: int) -> None:
        element_of(tensor, summed=False)
        self._check_peer(to)
        host = self._staging.host_of(tensor)
        self._do(lambda: self._exchange.send(flat_of(host), to))

    def receive(self, tensor: Tensor, source: int) -> None:
        element_of(tensor, summed=False)
        self._check_peer(source)
        host = self._staging.host_of(tensor)
        self._do(lambda: self._exchange.receive(flat_of(host), source))
        self._staging.write_back(host, tensor)

    def hops(self) -> list[HopStats]:
        """What was measured so far on the way to each peer that was used."""
        return [] if self._failure else self._exchange.hops()

    def abort(self) -> None:
        self._door.slam()

    def close(self) -> None:
        self._failure = self._failure or "it is closed"
        self._door.close()

    def _check_peer(self, peer: int) -> None:
        if not 0 <= peer < self.size or peer == self.rank:
            raise UsageError(
                f"member {peer}: the other members of this group of {self.size} are all but "
                f"{self.rank}"
            )

    def _do(self, operation: Callable[[], T]) -> T:
        """Runs an operation; any failure ends the group, so that the other members learn of it."""
        if self._failure:
            raise ExchangeError(f"the group {self.key} cannot be used any more: {self._failure}")
        try:
            self._door.alarm.check()
            return operation()
        except BaseException as error:
            self._failure = str(error) or type(error).__name__
            # What the traceback still shows must not keep the shared memory alive.
            traceback.clear_frames(error.__traceback__)
            self._door.close()
            if self._door.alarm.aborted and not isinstance(error, ExchangeAborted):
                # The broken connections were this process's own doing.
                raise ExchangeAborted("the exchange was broken off by this process") from error
            raise


class Door:
    """What ends a group: from any thread at once, and for good by its own thread."""

    def __init__(self, key: GroupKey, *, listener: Listener, alarm: Alarm) -> None:
        self.alarm = alarm
        self._key, self._listener = key, listener
        self._exchange: Exchange | None = None
        self._way: DeviceWay | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def guard(self, exchange: Exchange, way: DeviceWay | None) -> None:
        """From now on, these end with the group."""
        self._exchange, self._way = exchange, way

    def slam(self) -> None:
        """Breaks off what is going on."""
        with self._lock:
            if not self._is_closed:
                self.alarm.abort()
                if self._exchange is not None:
                    self._exchange.hang_up()

    def close(self) -> None:
        """Frees everything; may be called twice."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._listener.forget(self._key)
        if self._way is not None:
            self._way.close()
        if self._exchange is not None:
            self._exchange.close()
        self.alarm.close()


def check_header(header: Header) -> None:
    if header.dtype != np.int64 or header.ndim != 1 or not header.flags.c_contiguous:
        raise UsageError(
            f"a header is a contiguous row of int64, not {header.dtype} of shape {header.shape}"
        )
    if len(header) > MAX_HEADER_WORDS:
        raise UsageError(f"a header has at most {MAX_HEADER_WORDS} words, not {len(header)}")
