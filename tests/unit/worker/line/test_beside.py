# SPDX-License-Identifier: Apache-2.0
"""Who speaks for a worker that computes without letting its threads run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from serving import KEYS, serving, until

from gangline.coordinator import Federation
from gangline.worker.line.beside import Beside, Vitals

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

COMPUTING = "while True: pass"
SLEEPING = "import time; time.sleep(600)"


@contextlib.contextmanager
def process(code: str) -> Iterator[int]:
    """A process that does this; its number."""
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", code])
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_a_process_that_computes_is_busy_and_one_that_was_stopped_is_not() -> None:
    with process(COMPUTING) as pid:
        vitals = Vitals(pid)
        until(vitals.is_busy, "it to compute")
        os.kill(pid, signal.SIGSTOP)
        until(lambda: state_of(pid) == "T", "it to stop")
        assert not vitals.is_busy()
        os.kill(pid, signal.SIGCONT)
        until(vitals.is_busy, "it to go on")


def test_a_process_that_sleeps_is_not_busy() -> None:
    with process(SLEEPING) as pid:
        vitals = Vitals(pid)
        until(lambda: not vitals.is_busy() and state_of(pid) == "S", "it to sleep")
        assert not vitals.is_busy()


def test_a_process_that_is_gone_is_not_busy() -> None:
    with process(SLEEPING) as pid:
        vitals = Vitals(pid)
    assert not vitals.is_busy()


def test_the_coordinator_is_told_while_the_lines_stay_away(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(Federation, "see_busy", lambda self, *who: told.append(who))
    with serving() as server:
        beside = Beside(token=KEYS.worker, authority=None)
        try:
            beside.beat(server.url, 3)
            deadline = time.monotonic() + 20

            def is_told() -> bool:
                sum(range(300_000))  # this process computes
                return bool(told) or time.monotonic() > deadline

            until(is_told, "somebody to speak for it")
            assert told[0] == (3, os.getpid())
        finally:
            beside.close()


def test_nobody_is_left_when_the_worker_ends() -> None:
    code = (
        "import time\n"
        "from gangline.worker.line.beside import Beside\n"
        "print(Beside(token='t', authority=None)._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        beside = int(child.stdout.readline())
        child.kill()

    def is_gone() -> bool:
        try:
            return state_of(beside) == "Z"
        except FileNotFoundError:
            return True

    until(is_gone, "the process beside it to end")
