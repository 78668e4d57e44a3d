# SPDX-License-Identifier: Apache-2.0
"""The log when the disk is full, when its process is killed, and in the children of its process."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gangline.eventlog import LogNotes, read_events
from gangline.observe import summarize
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


def run_script(script: str, path: Path, *, exit_code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + script, str(path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == exit_code, done.stderr
    return done.stdout


def steps_in(path: Path) -> list[int]:
    return [event.step for event in read_events(path) if isinstance(event, StepDone)]


# A limit on the size of files fails as a full disk does: in the middle of a line.
FILL = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
for number in range(3000):
    log.write(step(number))
log.flush()
assert log.problem == "File too large", log.problem
assert os.path.getsize(sys.argv[1]) <= 10_000
assert open(sys.argv[1], "rb").read().endswith(b"}\\n")
"""
EMPTY = "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))\n"


def missing_in(path: Path) -> list[EventsLost]:
    return [event for event in read_events(path) if isinstance(event, EventsLost)]


def test_everything_is_in_the_log_in_its_order_when_there_is_room_again(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.jsonl"
    run_script(f"{FILL}{EMPTY}log.write(step(3000))\nlog.close()\nassert not log.lost", path)
    events = list(read_events(path))
    assert [type(event) for event in events] == [LogOpened] + [StepDone] * 3001
    assert steps_in(path) == list(range(3001))


def test_the_log_says_what_is_missing_when_more_was_lost_than_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.jsonl"
    small = (
        "import gangline.eventlog.writer\ngangline.eventlog.writer.MAX_PENDING_BYTES = 100_000\n"
    )
    run_script(
        f"{small}{FILL}{EMPTY}log.write(step(3000))\nlog.flush()\nlog.write(step(3001))", path
    )
    (lost,) = missing_in(path)
    steps = steps_in(path)
    kept = lost.first_step
    assert steps == [*range(kept), 3001]
    assert 100 < kept < 3000
    assert (lost.count, lost.last_step) == (3001 - kept, 3000)
    assert lost.reason == "File too large"


@pytest.mark.parametrize(
    "end", ["log.close()", "os.kill(os.getpid(), 9)"], ids=["closed", "killed"]
)
def test_the_log_says_what_is_missing_when_there_is_never_room_again(
    tmp_path: Path, end: str
) -> None:
    path = tmp_path / "worker-0.jsonl"
    run_script(f"{FILL}{end}", path, exit_code=0 if end == "log.close()" else -signal.SIGKILL)
    (lost,) = missing_in(path)
    steps = steps_in(path)
    assert steps == list(range(len(steps)))
    assert len(steps) > 10
    assert len(steps) + lost.count == 3000
    assert (lost.first_step, lost.last_step) == (len(steps), 2999)
    summary = summarize(read_events(path))
    assert summary.num_missing_events == lost.count
    assert f"steps {len(steps)} to 2999 (File too large); the ledger" in "".join(summary.warnings)


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
