# SPDX-License-Identifier: Apache-2.0
"""The line between a launcher and its coordinator, and when silence on it means that it hangs."""

from __future__ import annotations

import socket
from typing import Any

import psutil
import pytest

from gangline.coordinator.server.lifeline import BEAT_S, Lifeline
from gangline.engines import heartbeat
from gangline.engines.heartbeat import DISK_S, SILENT_S, STOPPED_S, Keeper
from gangline.protocol.lifeline import AnyOrder, Dissolve, Line, ProcessEnded, Serve, Standing

LOOK_S = 0.05


class Coordinator:
    """The other end, a process in some state, and the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.state: str = psutil.STATUS_SLEEPING
        monkeypatch.setattr(heartbeat.time, "monotonic", lambda: self.now)
        self.keeper = Keeper()
        self.lifeline = Lifeline(
            socket.fromfd(self.keeper.descriptor, socket.AF_UNIX, socket.SOCK_STREAM).detach()
        )
        process: Any = type("Process", (), {"status": lambda _: self.state})()
        monkeypatch.setattr(heartbeat.psutil, "Process", lambda pid: process)
        self.keeper.started(1)

    def beat(self) -> None:
        self.lifeline.beat(Standing(main=0), self.now)

    def watch(self, seconds: float) -> str | None:
        """Looks again and again; the first reason to give it up, if any."""
        for _ in range(round(seconds / LOOK_S)):
            self.now += LOOK_S
            fault = self.keeper.look()
            if fault is not None:
                return fault
        return None

    def close(self) -> None:
        self.keeper.close()
        self.lifeline.close()


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Any:
    one = Coordinator(monkeypatch)
    yield one
    one.close()


def test_a_stopped_coordinator_is_given_up_soon(coordinator: Coordinator) -> None:
    coordinator.beat()
    assert coordinator.watch(STOPPED_S / 2) is None
    coordinator.state = psutil.STATUS_STOPPED
    fault = coordinator.watch(STOPPED_S + 0.2)
    assert fault is not None
    assert "it is stopped, and has not answered for" in fault


@pytest.mark.parametrize(
    ("state", "patience_s"),
    [
        (psutil.STATUS_RUNNING, SILENT_S),
        (psutil.STATUS_SLEEPING, SILENT_S),
        (psutil.STATUS_DISK_SLEEP, DISK_S),
        (psutil.STATUS_TRACING_STOP, SILENT_S),
    ],
)
def test_a_slow_coordinator_is_waited_for(
    coordinator: Coordinator, state: str, patience_s: float
) -> None:
    coordinator.state = state
    coordinator.beat()
    assert coordinator.watch(patience_s - 0.2) is None
    coordinator.beat()
    assert coordinator.watch(patience_s - 0.2) is None
    assert coordinator.watch(0.4) is not None


def test_a_launcher_that_was_held_up_itself_blames_nobody(coordinator: Coordinator) -> None:
    coordinator.beat()
    assert coordinator.watch(0.2) is None
    coordinator.now += 60.0  # both were suspended
    assert coordinator.watch(0.2) is None
    coordinator.beat()
    assert coordinator.watch(SILENT_S - 0.2) is None


def test_a_coordinator_that_is_still_starting_is_waited_for(coordinator: Coordinator) -> None:
    assert coordinator.watch(60.0) is None


def test_a_spare_hears_what_was_said_before_it_served(coordinator: Coordinator) -> None:
    ended = ProcessEnded(worker=3, has_failed=True)
    coordinator.keeper.order(Serve(port=7700))
    coordinator.keeper.order(ended)
    assert coordinator.lifeline.await_serve() == 7700
    coordinator.keeper.look()
    assert coordinator.keeper.is_loaded
    assert coordinator.keeper.standing is None, "it does not serve yet"
    coordinator.keeper.order(Dissolve(reason="why", own=(0,)))
    assert coordinator.lifeline.take_orders() == [ended, Dissolve(reason="why", own=(0,))]
    assert coordinator.lifeline.take_orders() == []


def test_a_spare_ends_with_its_launcher(coordinator: Coordinator) -> None:
    coordinator.keeper.close()
    assert coordinator.lifeline.await_serve() is None


def test_news_are_told_at_once_and_the_same_now_and_then(coordinator: Coordinator) -> None:
    told = []
    for silent_s, main in ((0.0, 0), (1.0, 0), (2.0, 1), (3.0, 1)):
        coordinator.lifeline.beat(Standing(main=main, silent_s=silent_s), coordinator.now)
        coordinator.keeper.look()
        told.append(coordinator.keeper.standing)
    assert [(one.main, one.silent_s) for one in told if one] == [(0, 0), (0, 0), (1, 2), (1, 2)]
    coordinator.now += BEAT_S
    coordinator.lifeline.beat(Standing(main=1, silent_s=9.0), coordinator.now)
    coordinator.keeper.look()
    assert coordinator.keeper.standing == Standing(main=1, silent_s=9.0)


def test_nobody_waits_for_an_end_that_does_not_read() -> None:
    ends = socket.socketpair()
    line: Line[Standing] = Line(ends[0], Standing)
    other: Line[Any] = Line(ends[1], AnyOrder)  # type: ignore[arg-type]
    orders = [ProcessEnded(worker=number, has_failed=True) for number in range(6000)]
    for order in orders:
        line.send(order)
    assert not line.is_clear
    heard: list[Any] = []
    while len(heard) < len(orders):
        heard += other.receive()
        line.flush()
    assert heard == orders
    for end in ends:
        end.close()
