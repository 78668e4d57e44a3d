# SPDX-License-Identifier: Apache-2.0
"""A worker's line to the coordinator, as its own threads use it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from serving import KEYS, hello

from gangline.runtime.client import ControlClient
from gangline.runtime.isolation import Isolation
from gangline.runtime.messages import (
    Failed,
    FromWorker,
    Hello,
    LeaseAsked,
    Leaving,
    RoundFailed,
    decode_from_worker,
)
from gangline.spec.errors import LaunchError, LeftBehindError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAUSE_S = 0.2
WAIT_S = 10.0


@pytest.fixture
def line() -> Iterator[ControlClient]:
    """A client whose coordinator is nowhere."""

    def find_nothing() -> str:
        raise LaunchError("no coordinator")

    said = decode_from_worker(hello(0))
    assert isinstance(said, Hello)
    client = ControlClient(
        find_nothing, token=KEYS.worker, hello=said, break_off=lambda *group: None
    )
    yield client
    client.close()


class Interrupted(dict[type[FromWorker], FromWorker]):
    """Lets another thread run while it is read, for as long as that thread can."""

    def __init__(self, said: dict[type[FromWorker], FromWorker], other: threading.Thread) -> None:
        super().__init__(said)
        self._other = other

    def keys(self) -> Any:
        if self._other.ident is None:
            self._other.start()
            self._other.join(PAUSE_S)
        return super().keys()

    def items(self) -> Any:
        self.keys()
        return super().items()

    def __iter__(self) -> Iterator[type[FromWorker]]:
        return iter(self.keys())


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.send(LeaseAsked(epoch=0, number=0, length=8)),
        lambda line: line.send(Leaving()),
        lambda line: line.withdraw(Failed),
    ],
    ids=["another message", "leaving", "withdrawn"],
)
def test_what_two_threads_say_is_both_said_again_when_the_line_is_back(
    line: ControlClient, change: Callable[[ControlClient], None]
) -> None:
    line.send(Failed(group=0, step=0, error=""))
    failed = RoundFailed(number=1, error="")
    other = threading.Thread(target=line.send, args=(failed,))
    line._standing = Interrupted(line._standing, other)
    change(line)
    other.join(WAIT_S)
    assert line._standing.get(RoundFailed) == failed


def test_a_worker_is_cut_off_when_it_waits_in_an_exchange_and_the_coordinator_is_away() -> None:
    waiting_s = 0.0
    isolation = Isolation(lambda: waiting_s, 60.0)
    assert not isolation.is_lasting(away_s=1000.0), "it trains: nobody needs the coordinator"
    waiting_s = 59.0
    assert not isolation.is_lasting(away_s=1000.0), "the exchange may still come to its end"
    waiting_s = 1000.0
    assert not isolation.is_lasting(away_s=59.0), "the coordinator may come back"
    assert isolation.is_lasting(away_s=61.0)


def test_whatever_waits_is_told_when_this_worker_is_cut_off() -> None:
    broken_off = threading.Event()

    def find_nothing() -> str:
        raise LaunchError("no coordinator")

    said = decode_from_worker(hello(0))
    assert isinstance(said, Hello)
    client = ControlClient(
        find_nothing,
        token=KEYS.worker,
        hello=said,
        break_off=lambda *group: broken_off.set(),
        waiting_s=lambda: 1000.0,
        alone_s=0.1,
    )
    try:
        with pytest.raises(LeftBehindError, match="neither the coordinator nor the other workers"):
            client.wait_group(0, worker=0, timeout_s=WAIT_S)
        assert broken_off.wait(WAIT_S)
    finally:
        client.close()
