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

import pytest
from serving import KEYS, serving, until

from gangline.collectives.forking import close_in_children
from gangline.coordinator import Federation
from gangline.worker.line.beside import Beside, Vitals

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def test_a_forked_child_keeps_what_has_the_number_of_a_pipe_that_was_closed() -> None:
    """Data loaders fork after a job has ended, and have descriptors of their own."""
    beside = Beside(token=KEYS.worker, authority=None)
    close_in_children(beside, beside.pipe)
    (number,) = beside.pipe
    beside.close()
    reader, writer = os.pipe()
    os.dup2(reader, number)
    try:
        child = os.fork()
        if child == 0:
            try:
                os.fstat(number)
                os._exit(0)
            except OSError:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        for descriptor in {reader, writer, number}:
            os.close(descriptor)


def test_nothing_is_written_to_what_has_the_number_of_a_pipe_that_was_closed() -> None:
    beside = Beside(token=KEYS.worker, authority=None)
    (number,) = beside.pipe
    beside.close()
    reader, writer = os.pipe()
    os.dup2(writer, number)
    try:
        beside.beat("ws://127.0.0.1:1", 0)
        os.set_blocking(reader, False)
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)
    finally:
        for descriptor in {reader, writer, number}:
            os.close(descriptor)
