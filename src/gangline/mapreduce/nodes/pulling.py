# SPDX-License-Identifier: Apache-2.0
"""How nodes ask for rows: the first node of the listing hands out, over a group of two with each.

If it is lost, the others' questions fail, and all meet again without it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import torch

from gangline.paramserver.service.link import ASKER, HOLDER, pair_of
from gangline.spec.errors import ExchangeError
from gangline.worker.groups.beside import GroupsBeside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gangline.collectives import Group
    from gangline.mapreduce.nodes.handout import Handout, Range
    from gangline.spec.exchange.address import WireAddress

_OVER, _ROWS, _WAIT = 0, 1, 2
_ASKED, _STOPPED = 0, 1
_POLL_S = 0.02


class Pairs(GroupsBeside):
    """Makes the groups of two of one round, and ends them."""

    def with_asker(self, worker: int, peer: WireAddress, *, rank: int) -> Group:
        """The group with the asking worker of this number, from either end."""
        addresses = pair_of(self.door.address, peer, rank=rank)
        return self.connect(str(worker), rank=rank, addresses=addresses)


class Holder:
    """The end that hands out: a thread for each other node."""

    def __init__(
        self, pairs: Pairs, handout: Handout, peers: Sequence[tuple[int, int, WireAddress]]
    ) -> None:
        """`peers` are place, worker and address of each other node."""
        self._pairs = pairs
        self._handout = handout
        self._threads = [
            threading.Thread(target=self._serve, args=peer, name="gangline-map-node", daemon=True)
            for peer in peers
        ]
        for thread in self._threads:
            thread.start()

    def close(self, limit_s: float) -> None:
        """Waits until everybody knows that the loop is over, at most so long; then breaks off."""
        until = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        alive = [thread for thread in self._threads if thread.is_alive()]
        for thread in alive:
            while thread.is_alive():  # it may be about to connect
                self._pairs.close()
                thread.join(_POLL_S)

    def _serve(self, node: int, worker: int, address: WireAddress) -> None:
        group: Group | None = None
        try:
            group = self._pairs.with_asker(worker, address, rank=HOLDER)
            while self._answer(group, node):
                pass
        except ExchangeError:
            self._handout.lose(node)
        finally:
            if group is not None:
                with contextlib.suppress(ExchangeError):
                    group.close()

    def _answer(self, group: Group, node: int) -> bool:
        """One question; whether there will be another one."""
        said = torch.zeros(1, dtype=torch.int64)
        group.receive(said, source=ASKER)
        if int(said) == _STOPPED:
            self._handout.stop()
        rows = self._handout.next(node)
        if rows is not None:
            answer = [_ROWS, *rows]
        else:
            answer = [_OVER if self._handout.is_over else _WAIT, 0, 0]
        group.send(torch.tensor(answer, dtype=torch.int64), to=ASKER)
        return answer[0] != _OVER


def pull_own(
    handout: Handout, is_lost: Callable[[], bool], has_failed: Callable[[], bool]
) -> Iterator[Range]:
    """What the node that hands out does itself, until nothing is left or its group is lost."""
    while not handout.is_over and not is_lost():
        rows = handout.next(0)
        if rows is None:
            time.sleep(_POLL_S)
            continue
        yield rows
        if has_failed():
            handout.stop()


def pull_from(
    group: Group, is_lost: Callable[[], bool], has_failed: Callable[[], bool]
) -> Iterator[Range]:
    """What another node is told to do, until it hears that all is over, or its group is lost."""
    said = _ASKED
    while not is_lost():
        group.send(torch.tensor([said], dtype=torch.int64), to=HOLDER)
        answer = torch.zeros(3, dtype=torch.int64)
        group.receive(answer, source=HOLDER)
        kind, start, stop = (int(value) for value in answer)
        if kind == _OVER:
            return
        if kind == _WAIT:
            time.sleep(_POLL_S)
            continue
        yield start, stop
        if has_failed():
            said = _STOPPED
