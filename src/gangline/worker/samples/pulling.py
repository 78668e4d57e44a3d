# SPDX-License-Identifier: Apache-2.0
"""Parts of a global batch that this worker pulls, one after the other, until none is left.

Which part is a worker's last one is known only when it has asked for another. It asks when the
backward pass of a part begins, and needs the answer when that pass is over: then the window either goes
on, or is exchanged. A loader with processes of its own asks as far ahead as it fetches.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from gangline.protocol.messages import PartAsked
from gangline.spec.errors import ExchangeAborted

if TYPE_CHECKING:
    from gangline.control.shares.pulling import Pulling
    from gangline.spec.view import View
    from gangline.worker.line.client import ControlClient
    from gangline.worker.samples.handout import Handout


class Pool(NamedTuple):
    """What the members of a group pull of one global batch, and what this worker has without asking."""

    group: int
    epoch: int
    step: int
    start: int
    stop: int
    """Of the epoch's order; empty where all of it is in the members' shares."""
    head: tuple[int, int]
    """The part that this worker begins with; empty where it pulls all."""

    @property
    def has_head(self) -> bool:
        return self.head[0] < self.head[1]


class Pulls:
    """Asks the coordinator for parts."""

    def __init__(self, client: ControlClient, pulling: Pulling, *, minimum: int) -> None:
        """A batch of fewer than `minimum` samples cannot be computed."""
        self._client = client
        self._pulling = pulling
        self._minimum = minimum
        self._asked: PartAsked | None = None
        self._handed_out_s: float | None = None
        self._computed = (0, 0.0)

    def pool_of(
        self, view: View, rank: int, *, epoch: int, step: int, start: int, stop: int
    ) -> Pool:
        """What is pulled of the global batch start … stop - 1."""
        heads = [0] * len(view.shares)
        if stop - start == view.global_batch:  # of a ragged batch, everything
            heads = self._pulling.heads(view.shares, minimum=self._minimum)
        first = start + sum(heads[:rank])
        head = (first, first + heads[rank])
        return Pool(view.group, epoch, step, start + sum(heads), stop, head)

    def take(self, pool: Pool, micro: int) -> tuple[int, int] | None:
        """This worker's part `micro` of the global batch; None: it has got all its parts.

        Waits for the coordinator. Raises ExchangeAborted where the group is no more.
        """
        if pool.has_head and micro == 0:
            return pool.head
        if pool.start == pool.stop:
            return None
        asked = self.ask(pool, micro)
        given = self._client.wait_post(
            lambda: self._client.parts.find(asked), "a part of the global batch"
        )
        self._client.withdraw(PartAsked)
        if given.void:
            raise ExchangeAborted(f"no more parts of step {pool.step} are handed out: {given.void}")
        return None if given.start == given.stop else (given.start, given.stop)

    def ask(self, pool: Pool, micro: int) -> PartAsked:
        """Asks for a part, if that was not done; the answer may come later."""
        samples, compute_s = self._computed
        asked = PartAsked(
            group=pool.group,
            epoch=pool.epoch,
            step=pool.step,
            start=pool.start,
            stop=pool.stop,
            number=micro - pool.has_head,
            samples=samples,
            compute_s=compute_s,
        )
        is_asked = self._asked is not None and _is_same(self._asked, asked)
        if not is_asked and self._client.parts.find(asked) is None:
            self._asked, self._computed = asked, (0, 0.0)
            self._client.send(asked)
        return asked

    def ask_behind(self, handout: Handout) -> None:
        """Asks for the part after this one, which is being computed."""
        pool = handout.pool
        if pool is not None and handout.is_open and pool.start < pool.stop:
            self.ask(pool, handout.micro + 1)

    def is_last(self, handout: Handout) -> bool:
        """Whether there is no other part after this one. Raises ExchangeAborted."""
        assert handout.pool is not None
        return self.take(handout.pool, handout.micro + 1) is None

    def begin(self) -> None:
        """The loop begins to compute a part."""
        self._handed_out_s = time.perf_counter()

    def end(self, samples: int) -> None:
        """It has computed it: so long, which tells the coordinator how fast this worker is."""
        if self._handed_out_s is not None:
            took_s = time.perf_counter() - self._handed_out_s
            self._computed = (self._computed[0] + samples, self._computed[1] + took_s)
        self._handed_out_s = None


def _is_same(one: PartAsked, other: PartAsked) -> bool:
    return (one.group, one.epoch, one.step, one.number) == (
        other.group,
        other.epoch,
        other.step,
        other.number,
    )
