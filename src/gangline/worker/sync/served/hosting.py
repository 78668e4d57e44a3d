# SPDX-License-Identifier: Apache-2.0
"""Follows who holds the parameters, on a thread of its own: a step may take long."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, TypeVar

import torch

from gangline.paramserver.service.client import ServiceClient
from gangline.paramserver.service.server import ServiceHost
from gangline.paramserver.service.shard import Shard, shard_indices
from gangline.protocol.messages import Holds, Unserved
from gangline.spec.errors import GanglineError
from gangline.spec.serving import NOBODY, WORKER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.optim import Optimizer

    from gangline.spec.serving import Service, Serving
    from gangline.worker.line.client import ControlClient
    from gangline.worker.sync.served.links import ServerLinks

T = TypeVar("T")

_log = logging.getLogger("gangline.worker")
_LOOK_S = 0.02


class Hosting:
    """Holds this worker's shards, and keeps its client at the servers that there are now."""

    def __init__(
        self,
        line: ControlClient,
        links: ServerLinks,
        *,
        worker: int,
        team: int,
        service: Service,
        parameters: Sequence[Tensor],
        pulled: Sequence[Tensor],
        optimizer: Optimizer,
        names: Sequence[str],
        lazy: Sequence[int] = (),
    ) -> None:
        """`pulled` is where pulls are written to; of those in `lazy`, hot rows only."""
        self._line = line
        self._worker = worker
        self._service = service
        self._optimizer = optimizer
        self._names = names
        self._parameters = parameters
        self._indices: tuple[tuple[int, ...], ...] = ()
        self._host = ServiceHost(links, own=worker, make_shard=self._make_shard)
        self.client = ServiceClient(
            links,
            own=worker,
            team=team,
            parameters=pulled,
            optimizer=optimizer,
            host=self._host,
            keeps_pulled=True,
            lazy=lazy,
        )
        """For the training loop, which calls it by `ask`."""
        self._asking = threading.Lock()
        self._followed = threading.Condition()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gangline-serving", daemon=True)
        self._teams: tuple[int, ...] = ()
        self._told: Holds | None = None
        self.rebuilt: tuple[int, int] = (-1, 0)
        """The order of servers with which all went back last, and to before which entry."""
        self.number = -1
        """Of the newest order of servers that this worker follows."""

    def begin(self, serving: Serving) -> None:
        """Serves from here on, beginning with the parameters as they are now."""
        self._teams = serving.teams
        self._indices = shard_indices(self._parameters, serving)
        self._follow(serving)
        if serving.applied == 0:
            self.client.keep()  # if nobody ever pulls, this is what there is
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether nobody is asked any more."""
        return self._is_closed.is_set()

    def wait_after(self, number: int, timeout_s: float) -> bool:
        """Waits until a newer order of servers is followed than this one; False: in vain."""
        with self._followed:
            return self._followed.wait_for(lambda: self.number > number, timeout_s)

    def ask(self, ask: Callable[[ServiceClient], T]) -> T:
        """Asks the servers, while nobody changes whom."""
        with self._asking:
            return ask(self.client)

    def begin_to_ask(self, ask: Callable[[ServiceClient], T]) -> T | None:
        """Begins to ask something; None where that is not possible at this moment."""
        if not self._asking.acquire(blocking=False):
            return None
        try:
            return ask(self.client)
        except GanglineError:
            return None
        finally:
            self._asking.release()

    def _make_shard(self, number: int) -> Shard:
        service = self._service
        is_worker = service.update == WORKER
        # It is made while a pull may be under way, which it must not wait for.
        with torch._C.DisableTorchFunctionSubclass():
            return Shard(
                number,
                self._indices[number],
                self._parameters,
                None if is_worker else self._optimizer,
                names=self._names,
                mode="differences" if is_worker else "gradients",
                rate="staleness" if service.rate == "staleness" else "plain",
                compensation=service.compensation,
            )

    def _watch(self) -> None:
        while not self._is_closed.wait(_LOOK_S):
            self._tell_held()
            serving = self._line.post.serving
            is_own = serving is not None and serving.teams == self._teams
            if serving is None or not is_own or serving.number <= self.number:
                continue
            try:
                self._follow(serving)
            except GanglineError as error:  # another order comes if this one cannot be followed
                _log.warning("gangline: parameter servers, order %d: %s", serving.number, error)
                self._note(serving.number)

    def _tell_held(self) -> None:
        """Copies that have become whole may take the place of what they are copies of."""
        holds = Holds(number=self.number, shards=self._host.whole)
        if holds != self._told:
            self._told = holds
            self._line.send(holds)

    def _follow(self, serving: Serving) -> None:
        self.client.abort()
        with self._asking:  # what was under way is broken off
            self._host.follow(serving)
            self.client.follow(serving)
            if serving.is_incomplete:
                kept = self.client.kept_at
                self._line.send(Unserved(number=serving.number, known=-1 if kept is None else kept))
            elif serving.source == self._worker:
                self.client.restore()
            if serving.source != NOBODY:
                self.rebuilt = (serving.number, serving.applied)
            self._note(serving.number)

    def _note(self, number: int) -> None:
        with self._followed:
            self.number = number
            self._followed.notify_all()

    def close(self) -> None:
        """Serves no more."""
        self._is_closed.set()
        self.client.close()
        self._host.close()
