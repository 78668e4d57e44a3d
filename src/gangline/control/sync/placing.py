# SPDX-License-Identifier: Apache-2.0
"""Which workers hold the shards of the parameters: at first, and when one of them is lost."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from gangline.spec.errors import UsageError
from gangline.spec.serving import NOBODY, ShardPlace

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gangline.spec.serving import Service


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that can hold shards."""

    worker: int
    machine: str = ""
    """A copy is better kept on another one."""
    capacity: float = 1.0
    """How much it can serve, by its links and by what else it does, in any unit."""
    only_serves: bool = False
    """Whether it computes nothing: then it goes before those that do."""


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker would have to hold of all parameters, and has room for; 0: that is not known."""

    needed_bytes: int
    free_bytes: int

    def holds(self, servers: int) -> bool:
        """Whether one of so many equal shards fits, as far as anything is known."""
        return not self.free_bytes or self.needed_bytes <= servers * self.free_bytes


def check_rooms(service: Service, rooms: Mapping[int, Room]) -> None:
    """Raises UsageError where too few workers have the memory for a shard."""
    cramped = {worker: one for worker, one in rooms.items() if not one.holds(service.servers)}
    if len(rooms) - len(cramped) >= service.servers:
        return
    needed = max(one.needed_bytes for one in cramped.values()) / service.servers
    shown = ", ".join(
        f"worker {worker} has room for {_gib(one.free_bytes)}" for worker, one in cramped.items()
    )
    raise UsageError(
        f"{service} needs {service.servers} of {len(rooms)} workers with {_gib(needed)} of memory for "
        f"a shard of the parameters and of the optimizer's state: {shown}. To do: more servers "
        f"(servers={service.servers + 1}), whose shards are smaller; machines with more memory that "
        "only serve (--only-serve); or an optimizer with less state"
    )


def _gib(size: float) -> str:
    return f"{size / 2**30:.3g} GiB"


def place_shards(service: Service, candidates: Sequence[Candidate]) -> tuple[ShardPlace, ...]:
    """The first places: the best servers get shards in proportion to what they can serve.

    Servers on one machine share its link: each of them can serve so much less.
    """
    best: list[Candidate] = []
    left = {one.worker: one for one in candidates}
    shared: Counter[str] = Counter()  # how many servers each machine has
    for _ in range(service.servers):
        one = min(
            left.values(),
            key=lambda one: (not one.only_serves, -_part(one, shared[one.machine]), one.worker),
        )
        best.append(left.pop(one.worker))
        shared[one.machine] += 1
    weights = [_part(one, shared[one.machine] - 1) for one in best]
    places = tuple(
        ShardPlace(primary=one.worker, weight=weight / max(weights))
        for one, weight in zip(best, weights, strict=True)
    )
    return with_replicas(places, candidates) if service.replicas else places


def _part(one: Candidate, others: int) -> float:
    """What a worker can serve beside so many others on its machine, if it is known which that is."""
    return one.capacity / (1 + others) if one.machine else one.capacity


def capacities(workers: Sequence[int], rates: Sequence[float]) -> dict[int, float]:
    """What each worker can serve, by the rates of those that were measured, in worker order.

    Who was not measured is taken to be like the others are on average.
    """
    found = {one: rates[one] for one in workers if one < len(rates) and math.isfinite(rates[one])}
    usual = sum(found.values()) / len(found) if found else 1.0
    return {one: found.get(one, usual) for one in workers}


def move_shards(
    places: Sequence[ShardPlace],
    candidates: Sequence[Candidate],
    *,
    replicas: int,
    copied: Collection[tuple[int, int]],
) -> tuple[ShardPlace, ...]:
    """The places when only these workers are left: copies become shards, and get copies again.

    `copied` says which workers have a whole copy of which shard. A shard that nobody holds any more is
    marked as lost, and gets the worker that serves least.
    """
    present = {one.worker for one in candidates}
    moved = []
    for number, place in enumerate(places):
        holders = [one for one in (place.primary, place.replica) if one in present]
        if place.primary not in present and (number, place.replica) not in copied:
            holders = []
        if not holders:
            moved.append(ShardPlace(primary=NOBODY, weight=place.weight, is_lost=True))
            continue
        replica = holders[1] if len(holders) > 1 else NOBODY
        # What is lost stays so until it is rebuilt.
        moved.append(msgspec.structs.replace(place, primary=holders[0], replica=replica))
    for number, place in enumerate(moved):
        if place.primary == NOBODY:
            worker = _least_loaded(moved, candidates, place.weight, without=NOBODY, machine="")
            moved[number] = msgspec.structs.replace(place, primary=worker)
    return with_replicas(tuple(moved), candidates) if replicas else tuple(moved)


def found(places: Sequence[ShardPlace]) -> tuple[ShardPlace, ...]:
    """The same places, and none is lost any more."""
    return tuple(msgspec.structs.replace(place, is_lost=False) for place in places)


def lost(places: Sequence[ShardPlace]) -> tuple[ShardPlace, ...]:
    """The same places, and all are lost."""
    return tuple(msgspec.structs.replace(place, is_lost=True) for place in places)


def with_replicas(
    places: Sequence[ShardPlace], candidates: Sequence[Candidate]
) -> tuple[ShardPlace, ...]:
    """Gives each shard a copy that has none, where there is another worker for it."""
    machines = {one.worker: one.machine for one in candidates}
    found = list(places)
    for number, place in enumerate(found):
        if place.replica != NOBODY or len(candidates) < 2:
            continue
        replica = _least_loaded(
            found,
            candidates,
            place.weight,
            without=place.primary,
            machine=machines.get(place.primary, ""),
        )
        found[number] = msgspec.structs.replace(place, replica=replica)
    return tuple(found)


def _least_loaded(
    places: Sequence[ShardPlace],
    candidates: Sequence[Candidate],
    weight: float,
    *,
    without: int,
    machine: str,
) -> int:
    """Who holds least for what it can serve, with this weight; on another machine, if there is one."""
    load: Mapping[int, float] = {
        one.worker: sum(
            (place.weight for place in places if one.worker in (place.primary, place.replica)),
            start=weight,
        )
        / one.capacity
        for one in candidates
    }
    others = [one for one in candidates if one.worker != without]
    return min(
        others,
        key=lambda one: (
            bool(machine) and one.machine == machine,
            not one.only_serves,
            load[one.worker],
            -one.capacity,
            one.worker,
        ),
    ).worker
