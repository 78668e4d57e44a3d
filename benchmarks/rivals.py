# SPDX-License-Identifier: Apache-2.0
"""What plain DDP over gloo and torchft do when a worker is killed or stopped.

DDP does not survive it: what is measured is when its survivors notice. Torchft goes on in a smaller
quorum: what is measured is when its survivors commit their first step in it, and who crashed instead.
Torchft needs an environment of its own, whose python is given:

    python -m venv torchft-env
    torchft-env/bin/pip install torchft msgspec numpy psutil starlette uvicorn websockets safetensors
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import gangline
from elastic_worker import LIGHTHOUSE_FILE, Part
from teams import end
from tormented_jobs import SCRIPT, paced_speed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

STEPS_BEFORE = 10
START_TIMEOUT_S = 180.0
POLL_S = 0.05


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a rival's survivors after one fault."""

    first_error_s: float | None = None
    """From the signal until the first survivor gave up; None if none did."""
    last_error_s: float | None = None
    num_crashed: int = 0
    recovered_s: float | None = None
    """From the signal until the last survivor's first step without the victim; None: never."""
    errors: list[str] = []


class Rival:
    """The processes of one job of a rival."""

    def __init__(self, part: Part, *, python: str, log: Path) -> None:
        self._part = part
        self._python = python
        self._log = log
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, part: Part) -> subprocess.Popen[bytes]:
        """One more process."""
        source = str(Path(gangline.__file__).parents[1])
        inherited = os.environ.get("PYTHONPATH")
        path = os.pathsep.join([source, inherited] if inherited else [source])
        with self._log.open("ab") as log:
            child = subprocess.Popen(
                [self._python, str(SCRIPT)],
                env={**os.environ, **part.environment(), "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children.append(child)
        return child

    def close(self) -> None:
        """Ends all of them."""
        for child in self._children:
            end(child)

    def start_workers(self) -> list[subprocess.Popen[bytes]]:
        """All workers, and before them what they need to find each other."""
        if self._part.kind == "torchft":
            self.start(msgspec.structs.replace(self._part, kind="lighthouse"))
            self.until((Path(self._part.folder) / LIGHTHOUSE_FILE).exists, "the lighthouse")
        ranks = range(self._part.workers)
        return [self.start(msgspec.structs.replace(self._part, rank=rank)) for rank in ranks]

    def lines(self, rank: int) -> list[dict[str, Any]]:
        """What a worker has written."""
        path = msgspec.structs.replace(self._part, rank=rank).steps_file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def until(
        self, is_done: Callable[[], bool], what: str, *, timeout_s: float = START_TIMEOUT_S
    ) -> None:
        """Waits for something to be true."""
        deadline = time.monotonic() + timeout_s
        while not is_done():
            if time.monotonic() > deadline:
                said = self._log.read_text(encoding="utf-8", errors="replace")[-1000:]
                raise TimeoutError(f"waited {timeout_s:g} s in vain for {what}: {said}")
            time.sleep(POLL_S)

    def trained(self, rank: int) -> int:
        """Steps of a worker with everybody in them."""
        return sum(line.get("members") == self._part.workers for line in self.lines(rank))


@contextlib.contextmanager
def running(part: Part, *, python: str) -> Iterator[tuple[Rival, list[subprocess.Popen[bytes]]]]:
    """A job of a rival that has made some steps."""
    with tempfile.TemporaryDirectory(prefix=f"bench-{part.kind}-") as folder:
        own = msgspec.structs.replace(part, folder=folder)
        rival = Rival(own, python=python, log=Path(folder) / "log")
        try:
            workers = rival.start_workers()
            ranks = range(part.workers)
            rival.until(
                lambda: all(rival.trained(rank) >= STEPS_BEFORE for rank in ranks),
                f"{STEPS_BEFORE} steps of {part.kind}",
            )
            yield rival, workers
        finally:
            rival.close()


def torment(part: Part, *, fault: str, python: str, patience_s: float, seed: int) -> Outcome:
    """One fault, and what the survivors do within the patience."""
    rng = random.Random(seed)
    with running(part, python=python) as (rival, workers):
        victim = rng.randrange(part.workers)
        survivors = [rank for rank in range(part.workers) if rank != victim]
        time.sleep(rng.uniform(0.0, 0.3))
        sent_s = time.time()
        os.kill(workers[victim].pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)

        def is_decided() -> bool:
            return all(_verdict(rival.lines(rank), sent_s, part.workers) for rank in survivors)

        with contextlib.suppress(TimeoutError):
            rival.until(is_decided, "the survivors", timeout_s=patience_s)
        verdicts = [_verdict(rival.lines(rank), sent_s, part.workers) for rank in survivors]
    return _outcome([verdict for verdict in verdicts if verdict is not None], sent_s, survivors)


def _verdict(lines: Sequence[dict[str, Any]], sent_s: float, workers: int) -> dict[str, Any] | None:
    """The line that says how a survivor fared: its error, or its first step without the victim."""
    later = [line for line in lines if line["t"] >= sent_s]
    return next((x for x in later if "error" in x or x["members"] < workers), None)


def _outcome(
    verdicts: Sequence[dict[str, Any]], sent_s: float, survivors: Sequence[int]
) -> Outcome:
    crashed = [one for one in verdicts if "error" in one]
    gone_on = [one["t"] - sent_s for one in verdicts if "error" not in one]
    errors = [one["t"] - sent_s for one in crashed]
    is_whole = len(gone_on) == len(survivors)
    return Outcome(
        first_error_s=min(errors, default=None),
        last_error_s=max(errors, default=None),
        num_crashed=len(crashed),
        recovered_s=max(gone_on) if gone_on and (is_whole or crashed) else None,
        errors=sorted({one["error"][:200] for one in crashed}),
    )


def ddp_part(workers: int, *, timeout_s: float, global_batch: int) -> Part:
    """Plain DDP over gloo."""
    return Part(
        kind="ddp",
        folder="",
        workers=workers,
        speed=paced_speed(workers),
        timeout_s=timeout_s,
        global_batch=global_batch,
    )


def find_torchft(python: str | None) -> str | None:
    """Why torchft cannot take part; None if it can."""
    if python is None:
        return "no environment with torchft was given (--torchft-python)"
    if not Path(python).exists():
        return f"there is no {python}"
    code = "import torchft, msgspec, torch; print(torch.__version__)"
    checked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return checked.stderr.strip().splitlines()[-1] if checked.returncode else None


def this_python() -> str:
    """The python that runs the benchmark."""
    return sys.executable
