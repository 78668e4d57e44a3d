# SPDX-License-Identifier: Apache-2.0
"""One level of a tree, on one member: how its group reduces to its leader, and gets the result back.

A ring reduces by an all-reduce, which moves as many bytes over each link as a reduce-scatter and a
gather to the leader would. A parameter server uses the links between its members and the server only.
A ring may compress the gradients that it sums; what comes back is sent as it is.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from gangline.collectives.compression import Compressor, Trial, Verdict
from gangline.collectives.elements import flat_of, sum_into
from gangline.spec.errors import ExchangeError
from gangline.spec.exchange.compression import Compression
from gangline.spec.exchange.structure import SERVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from gangline.collectives.hierarchy.seats import Seat
    from gangline.collectives.protocol import Group, Header

_SHOWN = 16

Key = tuple[int, int]
"""The unit of the gradient, and the piece of it."""


@contextmanager
def naming(seat: Seat) -> Iterator[None]:
    """What fails at this level says whom it means: groups number their members by themselves."""
    try:
        yield
    except ExchangeError as error:
        shown = ", ".join(map(str, seat.speakers[:_SHOWN]))
        more = ", …" if len(seat.speakers) > _SHOWN else ""
        raise type(error)(
            f"{error} (group {seat.name}: members 0, 1, … are ranks {shown}{more})"
        ) from error


class Level(Protocol):
    """This member's part in the exchanges of one level.

    Tensors are flat, and in host memory unless the level encodes on their device.
    """

    seat: Seat
    group: Group

    def reduce(self, piece: Tensor, header: Header | None, *, key: Key | None = None) -> None:
        """Afterwards the leader has the sum and the greatest header; the others' are undefined.

        A piece of the gradient has a key, and may be compressed.
        """
        ...

    def spread(self, piece: Tensor, header: Header | None) -> None:
        """Everybody gets what the leader has."""
        ...

    def total(self, piece: Tensor, header: Header | None, *, key: Key | None = None) -> None:
        """Everybody gets the sum and the greatest header."""
        ...

    def encodes_on(self, device: torch.device) -> bool:
        """Whether pieces of the gradient may stay on this device: they are compressed there."""
        ...

    def take_verdict(self) -> Verdict | None:
        """What came of trying a codec, once; None where nothing is to be said."""
        ...


class RingLevel:
    """A group whose members are alike."""

    def __init__(self, seat: Seat, group: Group, *, seed: int) -> None:
        self.seat, self.group = seat, group
        compression = Compression.parse(seat.compression)
        self._compressor = None if compression.is_none else Compressor(compression, seed=seed)
        self._trial = None if compression.is_insisted else Trial(seat.name, seat.compression)
        self._is_told = False

    def encodes_on(self, device: torch.device) -> bool:
        """Whether it compresses what is on a device there: only short messages leave it."""
        return self._compressor is not None and self._compressor.runs_on(device)

    def take_verdict(self) -> Verdict | None:
        """Whether the codec pays, once it is known; said once, by the leader."""
        verdict = None if self._trial is None or self._is_told else self._trial.verdict
        self._is_told = self._is_told or verdict is not None
        return verdict if self.seat.is_leader else None

    def reduce(self, piece: Tensor, header: Header | None, *, key: Key | None = None) -> None:
        self.total(piece, header, key=key)

    def spread(self, piece: Tensor, header: Header | None) -> None:
        self.group.broadcast(piece, self.seat.leader)
        if header is not None:
            self.group.broadcast(torch.from_numpy(header), self.seat.leader)

    def total(self, piece: Tensor, header: Header | None, *, key: Key | None = None) -> None:
        if key is None or self._compressor is None:
            self.group.all_reduce(piece, header)
        elif self._trial is None:
            self._compressor.all_reduce(self.group, piece, header, key=key)
        else:
            with self._trial.exchange(self.group, key) as is_coded:
                self._compressor.all_reduce(self.group, piece, header, key=key, is_coded=is_coded)


class ServerLevel:
    """A group whose leader is a server: the others send to it, and receive from it."""

    def __init__(self, seat: Seat, group: Group) -> None:
        self.seat, self.group = seat, group

    def encodes_on(self, device: torch.device) -> bool:
        """A server compresses nothing."""
        return False

    def take_verdict(self) -> Verdict | None:
        """A server compresses nothing."""
        return None

    def reduce(self, piece: Tensor, header: Header | None, *, key: Key | None = None) -> None:
        if not self.seat.is_leader:
            self._send(piece, header, to=self.seat.leader)
            return
        received = torch.empty_like(piece)
        own = flat_of(piece)
        for place in self._others():
            self.group.receive(received, place)
            sum_into(own.array, [own.array, flat_of(received).array], own.dtype)
            if header is not None:
                words = np.empty_like(header)
                self.group.receive(torch.from_numpy(words), place)
                np.maximum(header, words, out=header)

    def spread(self, piece: Tensor, header: Header | None) -> None:
        if not self.seat.is_leader:
            self._receive(piece, header, source=self.seat.leader)
            return
        for place in self._others():
            self._send(piece, header, to=place)

    def total(self, piece: Tensor, header: Header | None, *, key: Key | None = None) -> None:
        self.reduce(piece, header)
        self.spread(piece, header)

    def _others(self) -> Iterator[int]:
        return (place for place in range(len(self.seat.speakers)) if place != self.seat.leader)

    def _send(self, piece: Tensor, header: Header | None, *, to: int) -> None:
        self.group.send(piece, to)
        if header is not None:
            self.group.send(torch.from_numpy(header), to)

    def _receive(self, piece: Tensor, header: Header | None, *, source: int) -> None:
        self.group.receive(piece, source)
        if header is not None:
            self.group.receive(torch.from_numpy(header), source)


def level_of(seat: Seat, group: Group, *, seed: int) -> Level:
    """The level of a seat, over the group that was connected for it; `seed` is alike on all members."""
    if seat.topology == SERVER:
        return ServerLevel(seat, group)
    return RingLevel(seat, group, seed=seed)
