# SPDX-License-Identifier: Apache-2.0
"""The log when the disk is full, when its process is killed, and in the children of its process."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from gangline.eventlog import LogNotes, read_events
from gangline.spec.event import EventsLost, LogOpened, StepDone

if TYPE_CHECKING:
    from pathlib import Path

PREAMBLE = """
import os, sys, time
from pathlib import Path
from gangline.eventlog import EventWriter
from gangline.spec.event import StepDone

def step(number):
    return StepDone(t=time.time(), worker=0, step=number, epoch=0, view=0, samples=8, start=0, stop=8,
                    compute_s=0.1, data_s=0.0, exchange_s=0.0, update_s=0.0)

log = EventWriter(Path(sys.argv[1]), run="r", source="worker 0")
"""


def run_script(script: str, path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + script, str(path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def steps_in(path: Path) -> list[int]:
    return [event.step for event in read_events(path) if isinstance(event, StepDone)]


def test_the_log_is_whole_and_says_what_is_missing_when_the_disk_was_full(tmp_path: Path) -> None:
    # A limit on the size of files fails as a full disk does: in the middle of a line.
    path = tmp_path / "worker-0.jsonl"
    run_script(
        """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
for number in range(9000):
    log.write(step(number))
log.flush()
assert log.problem == "File too large", log.problem
assert os.path.getsize(sys.argv[1]) < 10_000
assert open(sys.argv[1], "rb").read().endswith(b"}\\n")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
log.write(step(9000))
log.close()
assert log.problem is None
""",
        path,
    )
    events = list(read_events(path))
    steps = [event.step for event in events if isinstance(event, StepDone)]
    lost = sum(event.count for event in events if isinstance(event, EventsLost))
    assert steps[:100] == list(range(100))
    assert steps == sorted(set(steps))
    assert lost > 0
    assert len(steps) + lost == 9001
    assert sum(isinstance(event, LogOpened) for event in events) == 1


def test_nothing_is_written_twice_when_a_forked_child_ends(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.jsonl"
    run_script(
        """
log.write(step(0))
child = os.fork()
if child == 0:
    log.write(step(100))
    log.flush()
    log.close()
    sys.exit(0)
os.waitpid(child, 0)
log.write(step(1))
""",
        path,
    )
    assert steps_in(path) == [0, 1]


def test_a_child_is_not_blocked_when_it_was_forked_during_a_write(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.jsonl"
    run_script(
        """
with log._lock:
    child = os.fork()
    if child == 0:
        import threading
        other = threading.Thread(target=log.write, args=(step(100),))
        other.start()
        other.join()
        log.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
log.write(step(0))
""",
        path,
    )
    assert steps_in(path) == [0]


def test_buffered_steps_are_in_the_log_when_the_process_ends_without_closing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "worker-0.jsonl"
    run_script("log.write(step(0))", path)
    assert steps_in(path) == [0]


def test_a_signal_handler_may_write_when_it_interrupts_a_write(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.jsonl"
    end = run_script(
        """
import itertools, signal
numbers = itertools.count(100_000)
def handle(*_):
    log.write(step(next(numbers)))
    log.flush()
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for number in range(5000):
    log.write(step(number))
    if number % 10 == 0:
        log.flush()
signal.setitimer(signal.ITIMER_REAL, 0)
log.close()
print(next(numbers))
""",
        path,
    )
    steps = steps_in(path)
    assert int(end) > 100_000
    assert sorted(steps) == [*range(5000), *range(100_000, int(end))]
    assert [step for step in steps if step < 100_000] == list(range(5000))


def test_the_log_can_be_read_when_its_writer_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.jsonl"
    script = """
print("ready", flush=True)
number = 0
while True:
    log.write(step(number))
    number += 1
    if number % 50 == 0:
        log.flush()
        print(number, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + script, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip().isdigit() and int(line) >= 500:
                process.kill()
                break
        process.stdout.read()
    assert process.returncode == -signal.SIGKILL
    events = list(read_events(path, notes=LogNotes(path=str(path))))
    steps = [event.step for event in events if isinstance(event, StepDone)]
    assert len(steps) >= 500
    assert steps == list(range(len(steps)))
