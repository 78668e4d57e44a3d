# SPDX-License-Identifier: Apache-2.0
"""A worker's line to the coordinator, as its own threads use it."""

from __future__ import annotations

import errno
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from serving import KEYS, hello, serving, until

from gangline.protocol.messages import (
    Failed,
    FromWorker,
    Hello,
    LeaseAsked,
    Leaving,
    Ready,
    RoundFailed,
    decode_from_worker,
)
from gangline.spec.errors import LaunchError, LeftBehindError
from gangline.spec.exchange.address import WireAddress
from gangline.worker.line import isolation as isolation_module
from gangline.worker.line.client import ControlClient
from gangline.worker.line.isolation import Isolation
from gangline.worker.line.probing import find_reached

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


def ready() -> Ready:
    return Ready(
        global_batch=8, minimum=1, allocation="equal", shares=None, max_samples=None, seed=1
    )


def make_client(url: str, *, worker: int) -> ControlClient:
    said = decode_from_worker(hello(worker))
    assert isinstance(said, Hello)
    return ControlClient(lambda: url, token=KEYS.worker, hello=said, break_off=lambda *group: None)


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


def test_a_worker_is_cut_off_when_it_waits_and_reaches_nobody() -> None:
    waiting_s = 0.0
    isolation = Isolation(lambda: waiting_s, 60.0)
    assert not isolation.is_over(away_s=1000.0, peers={}), "it trains: nobody needs the coordinator"
    waiting_s = 59.0
    assert not isolation.is_over(away_s=1000.0, peers={}), "the exchange may still come to its end"
    waiting_s = 1000.0
    assert not isolation.is_over(away_s=59.0, peers={}), "the coordinator may come back"
    assert isolation.is_over(away_s=61.0, peers={})
    with socket.create_server(("127.0.0.1", 0)) as peer:
        address = WireAddress(host="127.0.0.1", port=peer.getsockname()[1])
        assert not isolation.is_over(away_s=61.0, peers={3: address}), "a member is there"
    assert isolation.is_over(away_s=61.0, peers={3: address})


def test_who_waits_to_be_told_how_to_go_on_is_told_when_it_is_cut_off() -> None:
    with serving(workers=1) as server:
        broken_off = threading.Event()
        is_here = True

        def find_url() -> str:
            if not is_here:
                raise LaunchError("no coordinator")
            return server.url

        said = decode_from_worker(hello(0))
        assert isinstance(said, Hello)
        client = ControlClient(
            find_url,
            token=KEYS.worker,
            hello=said,
            break_off=lambda *group: broken_off.set(),
            alone_s=0.1,
        )
        client.wait_gathered(WAIT_S)
        client.send(ready())
        view = client.wait_group(-1, worker=0, timeout_s=WAIT_S)
        assert view is not None
        is_here = False
        client.cut(0.0)
        try:
            with pytest.raises(
                LeftBehindError, match="neither the coordinator nor the other workers"
            ):
                client.poll_group(view.group, worker=0, timeout_s=WAIT_S)
            assert broken_off.wait(WAIT_S)
        finally:
            client.close()


def test_a_worker_that_cannot_look_for_the_others_still_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = threading.Event()

    def find_none(*args: Any) -> list[int]:
        looked.set()
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(isolation_module, "find_reached", find_none)
    with serving(workers=1) as server:
        said = decode_from_worker(hello(0))
        assert isinstance(said, Hello)
        client = ControlClient(
            lambda: server.url,
            token=KEYS.worker,
            hello=said,
            break_off=lambda *group: None,
            waiting_s=lambda: 1000.0,
            alone_s=-1.0,
        )
        client.wait_gathered(WAIT_S)
        client.send(ready())
        assert client.wait_group(-1, worker=0, timeout_s=WAIT_S) is not None
        try:
            client.cut(0.0)
            assert looked.wait(WAIT_S)
            until(lambda: client._connection is not None, "the line is back")
        finally:
            client.close()


def test_a_name_that_nobody_knows_is_that_of_a_worker_that_is_not_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as peer:
        known = WireAddress(host="127.0.0.1", port=peer.getsockname()[1])
        unknown = WireAddress(host="nobody.invalid", port=1)
        assert find_reached({0: unknown, 3: known}) == [3]


def test_who_comes_when_the_job_is_over_is_left_behind_which_is_no_failure_of_the_job() -> None:
    with serving(workers=1) as server:
        first = make_client(server.url, worker=0)
        first.wait_gathered(WAIT_S)
        first.send(ready())
        assert first.wait_group(-1, worker=0, timeout_s=WAIT_S) is not None
        first.close()
        late = make_client(server.url, worker=-1)
        try:
            with pytest.raises(LeftBehindError, match="the job is over, its workers have ended"):
                late.wait_gathered(WAIT_S)
        finally:
            late.close()
