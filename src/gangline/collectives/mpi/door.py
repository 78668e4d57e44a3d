# SPDX-License-Identifier: Apache-2.0
"""Where workers of an MPI job meet: the founders exchange by MPI, whoever is left of them by `wire`.

MPI's world is fixed when it begins. So its collectives carry the group of all of it, which founds the
job. When somebody is lost, put out or has come from elsewhere, all members of the next group know by
its name that it is another one, and it is made of wire's connections.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.collectives.mpi.group import MpiGroup
from gangline.collectives.mpi.library import check_world, load_mpi
from gangline.spec.errors import ExchangeAborted, ExchangeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.collectives import Group, GroupKey
    from gangline.collectives.transports import WireDoor
    from gangline.spec.exchange.address import WireAddress

_LOOK_S = 0.001


class MpiDoor:
    """MPI's world, and a door of `wire` for all other groups."""

    def __init__(self, wire: WireDoor, *, timeout_s: float) -> None:
        try:
            self._mpi: Any = load_mpi()
            check_world(self._mpi)
        except BaseException:
            wire.close()
            raise
        self._wire = wire
        self._timeout_s = timeout_s
        self._is_given_up = False
        rank = self._mpi.COMM_WORLD.Get_rank()
        self.address = msgspec.structs.replace(wire.address, mpi_rank=rank)

    def connect(self, key: GroupKey, *, rank: int, addresses: Sequence[WireAddress]) -> Group:
        if not is_whole_world(key, addresses, size=self._mpi.COMM_WORLD.Get_size()):
            return self._wire.connect(key, rank=rank, addresses=addresses)
        return MpiGroup(self._mpi, self._communicator(addresses), timeout_s=self._timeout_s)

    def connect_beside(
        self,
        key: GroupKey,
        *,
        rank: int,
        addresses: Sequence[WireAddress],
        idle_s: float | None = None,
    ) -> Group:
        return self._wire.connect_beside(key, rank=rank, addresses=addresses, idle_s=idle_s)

    def cancel(self, key: GroupKey) -> None:
        self._wire.cancel(key)

    def give_up(self, *, before: tuple[int, int]) -> None:
        self._is_given_up = self._is_given_up or before > (0, 0)
        self._wire.give_up(before=before)

    def forget_groups(self) -> None:
        self._wire.forget_groups()

    def close(self) -> None:
        self._wire.close()

    def _communicator(self, addresses: Sequence[WireAddress]) -> Any:
        """A communicator of the whole world, in the order of the group's ranks."""
        world = self._mpi.COMM_WORLD
        world.Set_errhandler(self._mpi.ERRORS_RETURN)
        try:
            copy, request = world.Idup()
            deadline = time.monotonic() + self._timeout_s
            while not request.Test():
                if self._is_given_up:
                    raise ExchangeAborted("mpi: the group was given up before it was there")
                if time.monotonic() > deadline:
                    raise ExchangeError(
                        f"mpi: not all ranks have come within {self._timeout_s:g} s"
                    )
                time.sleep(_LOOK_S)
            order = [address.mpi_rank for address in addresses]
            if order == sorted(order):
                return copy
            return copy.Create_group(copy.Get_group().Incl(order))
        except self._mpi.Exception as error:
            raise ExchangeError(f"mpi: the ranks could not meet: {error}") from error


def is_whole_world(key: GroupKey, addresses: Sequence[WireAddress], *, size: int) -> bool:
    """Whether a group is the one that founds the job, at the first try, of all ranks of MPI's world."""
    is_first = (key.view, key.attempt, key.level) == (0, 0, "flat")
    return is_first and sorted(one.mpi_rank for one in addresses) == list(range(size))
