# SPDX-License-Identifier: Apache-2.0
"""A spare gets the state with which each epoch begins, beside the others' training.

So what its loop does between epochs, to evaluate or to save, it does with the trained parameters. And
if all members are lost, an epoch is lost at most, not all since it was put out.

The first member keeps a copy when an epoch begins, and a thread per spare sends it there, epoch by
epoch. Where sending takes longer than an epoch, copies wait, as far as there is room.
It comes with the results of the calls that the members have made before that epoch: the spare's loop is
given them where it makes the same calls, as that of a worker which is behind.
"""

from __future__ import annotations

import contextlib
import queue
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from gangline.collectives import GroupKey
from gangline.protocol.messages import StateOffered
from gangline.spec.errors import ExchangeError
from gangline.spec.event import StateHandedDown
from gangline.spec.position import ORDER, Position
from gangline.worker.groups.side import SideGroup, SideTask
from gangline.worker.prepare.handshake import Parcel, receive_value, send_parcel
from gangline.worker.session import now

if TYPE_CHECKING:
    from gangline.protocol.messages import FetchState
    from gangline.spec.exchange.address import WireAddress
    from gangline.worker.groups.regroup import Results
    from gangline.worker.groups.snapshot import Snapshot
    from gangline.worker.session import Session

LEVEL = "spare"
MAX_WAITING = 16
MAX_WAITING_BYTES = 256 << 20
"""So many copies wait, and so large ones, before an epoch is left out."""
DRAIN_S = 10.0
"""How long the last member waits at its script's end for those that still wait to be sent."""
_LOOK_S = 0.02


class Heritage(NamedTuple):
    """Where the members were when an epoch began, and with what."""

    position: Position
    results: Results
    state: dict[str, Any]


class _Way:
    """What is sent to one spare, by a thread of its own: another one that hangs does not hold it up."""

    def __init__(self, session: Session, spare: int) -> None:
        assert session.door is not None
        self._session = session
        self._spare = spare
        self._waiting: queue.SimpleQueue[tuple[Parcel, Position] | None] = queue.SimpleQueue()
        self._num_put = self._num_done = 0
        """The loop counts the one, and the thread the other."""
        self._copy_bytes = 0
        self._is_closed = False
        self._side = SideGroup(session.door)
        self._task = SideTask(self._send_all)

    @property
    def num_waiting(self) -> int:
        """How many copies are to be sent, or being sent; 0 where the thread has failed."""
        return self._num_put - self._num_done if self._task.is_under_way else 0

    @property
    def is_full(self) -> bool:
        """Whether too much waits already, to go by the last copy."""
        count = self.num_waiting
        return count > MAX_WAITING or count * self._copy_bytes > MAX_WAITING_BYTES

    def put(self, parcel: Parcel, position: Position) -> None:
        """Sends this as soon as all before it is sent."""
        self._num_put += 1
        self._copy_bytes = parcel.num_bytes
        self._waiting.put((parcel, position))

    def close(self) -> None:
        """Breaks off what is under way."""
        self._is_closed = True
        self._waiting.put(None)
        self._side.break_off(self._task)

    def _send_all(self) -> None:
        client = self._session.client
        assert client is not None
        while (found := self._waiting.get()) is not None and not self._is_closed:
            parcel, position = found
            address = client.spares.get(self._spare)
            if address is not None:  # else it is back, or lost
                client.send(StateOffered(step=position.step, spares=(self._spare,)))
                self._send(parcel, position, address)
            self._num_done += 1

    def _send(self, parcel: Parcel, position: Position, address: WireAddress) -> None:
        door, worker, spare = self._session.door, self._session.place.worker, self._spare
        assert door is not None
        begun_s, error = time.perf_counter(), ""
        try:
            group = self._side.connect(
                _key(self._session, step=position.step, source=worker, spare=spare),
                rank=0,
                addresses=(door.address, address),
            )
            send_parcel(group, parcel, to=1)
        except ExchangeError as failure:  # it is lost, or was asked back just now
            error = str(failure)
        finally:
            self._side.leave()
        self._session.record(
            StateHandedDown(
                t=now(),
                worker=worker,
                spare=spare,
                step=position.step,
                num_bytes=parcel.num_bytes,
                took_s=time.perf_counter() - begun_s,
                error=error[:200],
            )
        )


class Giver:
    """Sends the state with which an epoch begins to the spares, if there are any."""

    def __init__(self, session: Session, snapshot: Snapshot) -> None:
        self._session = session
        self._snapshot = snapshot
        self._ways: dict[int, _Way] = {}

    @property
    def is_busy(self) -> bool:
        """Whether something is being sent."""
        return any(way.num_waiting for way in self._ways.values())

    def give(self, position: Position, results: Results) -> None:
        """An epoch begins.

        The members' results of calls are known to all of them. The order of the epoch that begins is
        left out: the spare has no part in it, and waits where it needs one.
        """
        client = self._session.client
        spares = {} if client is None or self._session.door is None else client.spares
        for spare in {*spares} - {*self._ways}:
            self._ways[spare] = _Way(self._session, spare)
        ways = [self._ways[spare] for spare in spares if not self._ways[spare].is_full]
        if not ways:
            return
        known = {key: value for key, value in results.items() if key != (ORDER, position.epoch)}
        parcel = Parcel.copied((list(position), known, self._snapshot.export()))
        for way in ways:
            way.put(parcel, position)

    def drain(self) -> None:
        """The script is over: waits a while for what is still to be sent."""
        deadline_s = time.monotonic() + DRAIN_S
        while self.is_busy and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Breaks off what is under way."""
        for way in self._ways.values():
            way.close()


def fetch(session: Session, offer: FetchState, *, group: int) -> Heritage | None:
    """The state that a member has for this spare; None where it is lost, or asks for this worker.

    `group` is the last group that this worker was in.
    """
    client, door, worker = session.client, session.door, session.place.worker
    assert client is not None
    assert door is not None
    side = SideGroup(door)

    def receive() -> Heritage:
        pair = side.connect(
            _key(session, step=offer.step, source=offer.source, spare=worker),
            rank=1,
            addresses=(offer.address, door.address),
        )
        place, results, state = receive_value(pair, source=0)
        return Heritage(Position(*place), results, state)

    task = SideTask(receive)
    try:
        while task.is_under_way:
            if client.is_awaited(group, worker=worker):
                return None
            task.wait(_LOOK_S)
        return task.result
    finally:
        with contextlib.suppress(ExchangeError):
            side.break_off(task)


def _key(session: Session, *, step: int, source: int, spare: int) -> GroupKey:
    level = f"{LEVEL}-{source}"
    return GroupKey(run=session.place.run, view=step, attempt=spare, level=level)
