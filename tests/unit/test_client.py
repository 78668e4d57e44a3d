# SPDX-License-Identifier: Apache-2.0
"""A worker's line to the coordinator, as its own threads use it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from serving import KEYS, hello

from gangline.runtime.client import ControlClient
from gangline.runtime.messages import (
    Failed,
    FromWorker,
    Hello,
    LeaseAsked,
    Leaving,
    RoundFailed,
    decode_from_worker,
)
from gangline.spec.errors import LaunchError

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
