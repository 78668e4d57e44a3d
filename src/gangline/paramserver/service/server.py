# SPDX-License-Identifier: Apache-2.0
"""The shards that this worker holds, and the threads that answer for them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gangline.paramserver.service.held import Held
from gangline.paramserver.service.link import PATIENCE_S, Connector, Link
from gangline.paramserver.service.messages import Answer, Refused, Request
from gangline.paramserver.service.reception import Reception
from gangline.spec.serving import NOBODY, Host, Serving, ShardPlace

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.paramserver.service.shard import Shard

_ROOM = 64
"""A message has at most so many times the bytes of its shard: with what is staged, and the state."""
_LEAST_BYTES = 1 << 30


class ServiceHost:
    """Makes, promotes and drops shards as the servings say, and answers who pushes and pulls."""

    def __init__(
        self,
        connector: Connector,
        *,
        own: int,
        make_shard: Callable[[int], Shard],
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`own` is this worker; `make_shard` makes a shard of what all begin with.

        `patience_s`: how long a request waits for a replica, or for a serving that the asker knows.
        """
        self._connector, self._own, self._make_shard = connector, own, make_shard
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._held: dict[int, Held] = {}
        self._receptions: dict[tuple[int, int, bool], Reception] = {}
        self._number = -1
        self._is_closed = False

    @property
    def whole(self) -> tuple[int, ...]:
        """The shards that this worker holds, and has all of: who is a replica at first has nothing."""
        held = list(self._held.items())  # another thread may follow meanwhile
        return tuple(sorted(number for number, one in held if one.is_whole))

    def follow(self, serving: Serving) -> None:
        """Plays the part that a serving gives to this worker. An older one changes nothing."""
        with self._lock:
            if self._is_closed or serving.number <= self._number:
                return
            self._number = serving.number
            wanted: dict[tuple[int, int, bool], Host] = {}
            for number, place in enumerate(serving.shards):
                if self._own in (place.primary, place.replica):
                    self._hold(serving, number, place)
                    wanted.update(self._visitors(serving, number, place))
                else:
                    self._drop(number)
            self._receive(serving, wanted)

    def answer(self, shard: int, request: Request, *, is_wanted: Callable[[], bool]) -> Answer:
        """Answers a client in this process, as long as that wants it."""
        held = self._held.get(shard)
        if held is None:
            return Refused(kind="lost", reason=f"worker {self._own} does not hold shard {shard}")
        return held.answer(request, is_wanted=is_wanted)

    def wake(self, shard: int) -> None:
        """What waits for this shard looks whether it is still wanted, from any thread."""
        held = self._held.get(shard)
        if held is not None:
            held.wake()

    def close(self) -> None:
        """Ends all threads and connections. May be called twice."""
        with self._lock:
            self._is_closed = True
            for held in self._held.values():
                held.close()
            self._end(list(self._receptions))
            self._held.clear()

    def _hold(self, serving: Serving, number: int, place: ShardPlace) -> None:
        held = self._held.get(number)
        if held is None:
            shard = self._make_shard(number)
            held = Held(shard, own=self._own, patience_s=self._patience_s)
        replica = None
        if place.primary == self._own and place.replica != NOBODY:
            peer = _host(serving, place.replica)
            replica = held.replication.link
            if replica is None or replica.peer != peer:
                level = f"replica.{number}.{self._own}"
                replica = Link(
                    self._connector, level, shard=number, peer=peer, patience_s=self._patience_s
                )
        old = held.follow(serving, replica)
        self._held[number] = held
        if old is not None:
            old.close()
        if not held.replication.has_loaded:
            name = f"gangline-load-{number}"
            threading.Thread(target=held.load_replica, name=name, daemon=True).start()

    def _visitors(
        self, serving: Serving, number: int, place: ShardPlace
    ) -> dict[tuple[int, int, bool], Host]:
        """Who may come about a shard: all clients to its primary, the primary to its replica."""
        if place.primary != self._own:
            return {(number, place.primary, True): _host(serving, place.primary)}
        others = [host for host in serving.hosts if host.worker != self._own]
        return {(number, host.worker, False): host for host in others}

    def _receive(self, serving: Serving, wanted: dict[tuple[int, int, bool], Host]) -> None:
        present = self._receptions
        self._end([k for k, reception in present.items() if wanted.get(k) != reception.peer])
        for reception in self._receptions.values():
            reception.announce(serving.number)
        for reception in self._receptions.values():
            reception.renumber(serving.number)
        for key, peer in wanted.items():
            if key not in present:
                present[key] = self._open(key, peer, serving.number)

    def _open(self, key: tuple[int, int, bool], peer: Host, number: int) -> Reception:
        shard, worker, is_primary = key
        held = self._held[shard]
        return Reception(
            self._connector,
            f"{'replica' if is_primary else 'serve'}.{shard}.{worker}",
            peer=peer,
            number=number,
            answer=lambda request: held.answer(request, is_from_primary=is_primary),
            max_bytes=max(_LEAST_BYTES, _ROOM * held.shard.num_bytes),
        )

    def _drop(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is not None:
            held.close()

    def _end(self, keys: list[tuple[int, int, bool]]) -> None:
        for key in keys:
            self._receptions[key].stop()
        for key in keys:
            self._receptions.pop(key).close()


def _host(serving: Serving, worker: int) -> Host:
    return Host(worker=worker, address=serving.address_of(worker))
