# SPDX-License-Identifier: Apache-2.0
"""The processes of a job, for `gangline.paramserv(..., where="job")`: connections beside its own."""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from gangline.collectives import GroupKey, gather_bytes
from gangline.paramserver.service.link import pair_of
from gangline.spec.errors import ExchangeError, UsageError
from gangline.spec.exchange.address import WireAddress

if TYPE_CHECKING:
    from gangline.collectives import Group
    from gangline.worker.job import Job

_CONNECT_S = 60.0
"""How long the other end of a connection may take to come; it was there a moment before."""
_BREAK_S = 0.05
_IDLE_S = 86400.0
"""A worker may hear nothing for long: how long it may compute is the server's to judge."""
_numbers = count()


class _Present(msgspec.Struct):
    address: WireAddress
    payload: bytes


class JobCompany:
    """All workers that founded the job, before `prepare`."""

    def __init__(self, job: Job) -> None:
        if job.training is not None:
            raise UsageError(
                "paramserv(where='job') was called after prepare(), which has the workers of this job "
                "train together: call it before, or use where='threads'"
            )
        session = job.opened()
        if session.client is None or session.door is None:
            raise UsageError(
                "where='job' is for a script that `gangline run`, `gangline up` or torchrun has "
                "started, and this process has no peers. To do: start it so; or compute on this "
                "machine alone, with where='threads' or where='processes'"
            )
        if session.is_late:
            raise UsageError(
                "where='job' is for the workers that a job begins with, and this one came later: its "
                "rows are computed by the others"
            )
        self._session, self._door = session, session.door
        self._addresses: list[WireAddress] = []
        self._number = next(_numbers)
        self.rank = 0

    @property
    def size(self) -> int:
        """How many have met."""
        return len(self._addresses)

    def meet(self, payload: bytes) -> list[bytes]:
        """What all bring; who is lost on the way is left out."""
        own = msgspec.msgpack.encode(_Present(self._door.address, payload))
        while True:
            try:
                told = self._session.communicator.call(lambda group: gather_bytes(group, own))
                break
            except ExchangeError as error:
                self._session.met_again(error, what="meeting the other workers")
        present = [msgspec.msgpack.decode(one, type=_Present) for one in told]
        self._addresses = [one.address for one in present]
        self.rank = self._session.group.rank
        return [one.payload for one in present]

    def pair(self, peer: int) -> Group:
        """The one of lower rank waits, and the other one opens the connections."""
        low, high = sorted((self.rank, peer))
        key = GroupKey(
            run=self._session.place.run,
            view=self._number,
            attempt=self._session.gathering,
            level=f"paramserv {low} {high}",
        )
        rank = int(self.rank == high)
        addresses = pair_of(self._addresses[self.rank], self._addresses[peer], rank=rank)
        over = threading.Event()
        timer = threading.Timer(_CONNECT_S, self._give_up, (key, over))
        timer.daemon = True
        timer.start()
        try:
            return self._door.connect_beside(key, rank=rank, addresses=addresses, idle_s=_IDLE_S)
        finally:
            over.set()
            timer.cancel()

    def _give_up(self, key: GroupKey, over: threading.Event) -> None:
        while not over.wait(_BREAK_S):
            self._door.cancel(key)
