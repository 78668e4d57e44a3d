# SPDX-License-Identifier: Apache-2.0
"""Workers that serve and train, for tests: all in this process, each with its own listener."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from gangline.collectives import GroupKey, wire
from gangline.paramserver.service.client import ServiceClient
from gangline.paramserver.service.link import pair_of
from gangline.paramserver.service.server import ServiceHost
from gangline.paramserver.service.shard import Shard, shard_indices
from gangline.spec.serving import NOBODY, Entry, Host, Part, Serving, ShardPlace
from wire_members import TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gangline.collectives import Group
    from gangline.collectives.wire import WireOptions

PATIENCE_S = 5.0
SHAPES = ((4, 3), (3,), (5, 3), (2, 2, 2), (1,))


def momentum(parameters: Any) -> Optimizer:
    return SGD(parameters, lr=0.1, momentum=0.9)


def model(seed: int = 0) -> list[nn.Parameter]:
    """All workers begin with the same."""
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def gradients(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def entry(number: int, *parts: tuple[int, int, float]) -> Entry:
    return Entry(number, tuple(Part(*part) for part in parts))


class Doors:
    """A worker's connector: by its listener."""

    def __init__(self, options: WireOptions, timeout_s: float = 30.0) -> None:
        self.listener = wire.listen()
        self.token = TOKEN
        self._options, self._timeout_s = options, timeout_s

    def connect(self, level: str, *, rank: int, peer: Host, serving_number: int) -> Group:
        return wire.connect(
            GroupKey("run", serving_number, 0, level),
            rank=rank,
            addresses=pair_of(self.listener.address, peer.address, rank=rank),
            listener=self.listener,
            token=self.token,
            timeout_s=self._timeout_s,
            options=self._options,
        )

    def cancel(self, level: str, *, serving_number: int) -> None:
        self.listener.cancel(GroupKey("run", serving_number, 0, level))


class Worker:
    """One worker: a host and a client."""

    def __init__(
        self,
        number: int,
        doors: Doors,
        make: Callable[[Any], Optimizer],
        patience_s: float,
        shard_options: dict[str, Any],
    ) -> None:
        self.number, self.doors = number, doors
        self.parameters = model()
        self.optimizer = make(self.parameters)
        self.serving: Serving | None = None
        first, optimizer = model(), None
        if shard_options.get("mode") != "differences":
            optimizer = make(first)

        def make_shard(shard: int) -> Shard:
            assert self.serving is not None
            indices = shard_indices(first, self.serving)[shard]
            return Shard(shard, indices, first, optimizer, **shard_options)

        self.host = ServiceHost(doors, own=number, make_shard=make_shard, patience_s=patience_s)
        self.client = ServiceClient(
            doors,
            own=number,
            team=number,
            parameters=self.parameters,
            optimizer=self.optimizer,
            host=self.host,
            keeps_pulled=True,
            patience_s=patience_s,
        )

    def follow(self, serving: Serving) -> None:
        self.serving = serving
        self.host.follow(serving)
        self.client.follow(serving)

    def die(self) -> None:
        """As its process would: all connections break."""
        self.doors.listener.close()
        self.host.close()
        self.client.close()


class Workers(list[Worker]):
    """All workers of a job."""

    def serving(
        self, number: int, *places: tuple[int, int], lost: Sequence[int] = (), **more: Any
    ) -> Serving:
        """A serving: who is primary and replica of each shard, and who is gone."""
        return Serving(
            number=number,
            shards=tuple(ShardPlace(primary=first, replica=second) for first, second in places),
            hosts=tuple(
                Host(worker=worker.number, address=worker.doors.listener.address)
                for worker in self
                if worker.number not in lost
            ),
            **more,
        )

    def follow(self, serving: Serving) -> None:
        for worker in self:
            if any(host.worker == worker.number for host in serving.hosts):
                worker.follow(serving)


@contextlib.contextmanager
def workers(
    count: int,
    options: WireOptions,
    *,
    make: Callable[[Any], Optimizer] = momentum,
    patience_s: float = PATIENCE_S,
    timeout_s: float = 30.0,
    **shard_options: Any,
) -> Iterator[Workers]:
    """So many workers, which leave no thread behind."""
    before = set(threading.enumerate())
    made = Workers(
        Worker(number, Doors(options, timeout_s), make, patience_s, shard_options)
        for number in range(count)
    )
    try:
        yield made
    finally:
        began_s = time.monotonic()
        for worker in made:
            worker.client.close()
            worker.host.close()
        closed_s = time.monotonic() - began_s
        for worker in made:
            worker.doors.listener.close()
    ends_at = time.monotonic() + 1.0
    while left := [t for t in threading.enumerate() if t not in before and t.is_alive()]:
        assert time.monotonic() < ends_at, f"threads are left: {left}"
        time.sleep(0.01)
    assert closed_s < 1.0 * count


class Reference:
    """What a plain optimizer makes of the same entries."""

    def __init__(self, make: Callable[[Any], Optimizer] = momentum) -> None:
        self.parameters = model()
        self.optimizer = make(self.parameters)

    def apply(self, *parts: tuple[float, Sequence[torch.Tensor]]) -> None:
        (weight, first), *others = parts
        for place, parameter in enumerate(self.parameters):
            total = first[place] if weight == 1.0 and not others else first[place] * weight
            for factor, other in others:
                total = total.add(other[place], alpha=factor)
            parameter.grad = total.clone()
        self.optimizer.step()

    def is_equal(self, parameters: Sequence[torch.Tensor]) -> bool:
        return all(
            torch.equal(own.detach(), other.detach())
            for own, other in zip(self.parameters, parameters, strict=True)
        )


ALONE = NOBODY
