# SPDX-License-Identifier: Apache-2.0
"""Utilisation is measured beside the training, and never in its way."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from runtime_jobs import alone as alone

import gangline
from gangline.eventlog import NullWriter, read_run
from gangline.spec.event import Event, Utilisation
from gangline.worker import api
from gangline.worker.telling import utilisation
from gangline.worker.telling.utilisation import Sampler, UtilisationThread

if TYPE_CHECKING:
    from pathlib import Path


class Memory(NullWriter):
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.has_two = threading.Event()

    def write(self, event: Event) -> None:
        self.events.append(event)
        if len(self.events) == 2:
            self.has_two.set()


def test_a_busy_process_is_seen() -> None:
    sampler = Sampler(3)
    until = time.process_time() + 0.2
    began_s = time.monotonic()
    while time.process_time() < until:
        pass
    elapsed_s = time.monotonic() - began_s
    found = sampler.sample()
    assert found.worker == 3
    assert 0.15 / elapsed_s <= found.cpu <= 2.0
    assert 0.0 < found.node_cpu <= 1.0
    assert 0.0 < found.node_memory < 1.0
    assert found.memory_bytes > 1 << 20
    assert found.threads >= 1
    assert found.gpu is None


def test_a_thread_writes_them_until_it_is_closed() -> None:
    memory = Memory()
    thread = UtilisationThread(0, memory, interval_s=0.01)
    assert memory.has_two.wait(10)
    thread.close()
    count = len(memory.events)
    time.sleep(0.05)
    assert len(memory.events) == count
    assert all(isinstance(event, Utilisation) for event in memory.events)


def test_a_system_that_tells_nothing_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise psutil.AccessDenied(1)

    monkeypatch.setattr(utilisation, "Sampler", refuse)
    memory = Memory()
    thread = UtilisationThread(0, memory, interval_s=0.01)
    thread.close()
    assert memory.events == []


@pytest.mark.usefixtures("alone")
def test_a_process_without_a_log_is_not_watched(tmp_path: Path) -> None:
    def watching() -> bool:
        return any(one.name == "gangline-utilisation" for one in threading.enumerate())

    assert not watching()
    api.shutdown()
    gangline.init(run_dir=str(tmp_path))
    assert watching()
    api.shutdown()
    assert not watching()
    assert list(read_run(tmp_path))
