# SPDX-License-Identifier: Apache-2.0
"""Worker processes that are used again: a start costs seconds, a task on a warm one nothing."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import time
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.engines.job import Job
from gangline.engines.local import LocalEngine, WorkerCommand
from gangline.spec.cluster import Cluster
from gangline.spec.config import FLAT, BatchConfig, ExchangeConfig, ManagerConfig, RunConfig
from gangline.spec.errors import UsageError
from gangline.testing.coordination import coordinator_thread
from gangline.testing.task import Answer, Task, task_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from gangline.spec.exchange.structure import Structure

_ENTRY = Path(__file__).with_name("entry.py")
_ECHO_S = 3.0
"""After one worker failed, how long the others may take to notice before they are ended."""


class WorkerError(AssertionError):
    """A worker failed or did not answer in time; the message has every worker's output."""

    def __init__(self, headline: str, outputs: Sequence[str], failures: Mapping[int, str]) -> None:
        self.outputs = list(outputs)
        self.failures = dict(failures)
        parts = [headline]
        for worker, output in enumerate(outputs):
            parts.append(f"--- worker {worker} ---\n{output.rstrip() or '(no output)'}")
        super().__init__("\n".join(parts))


class _Member:
    """One process of a pool, with this side of its pipe."""

    def __init__(self, worker: int, folder: Path, environment: Mapping[str, str]) -> None:
        self.connection, theirs = Pipe()
        self.log = folder / f"{worker}.log"
        self._read_from = 0
        command = WorkerCommand(
            worker=worker,
            arguments=(str(_ENTRY), str(theirs.fileno())),
            environment=environment,
            log=self.log,
            pass_fds=(theirs.fileno(),),
        )
        self.engine = LocalEngine([command], grace_s=0.2)
        with theirs:
            self.engine.start()

    def send(self, task: Task) -> None:
        self._read_from = self.log.stat().st_size
        self.connection.send_bytes(msgspec.msgpack.encode(task))

    def receive(self) -> Answer:
        try:
            return msgspec.msgpack.decode(self.connection.recv_bytes(), type=Answer)
        except (EOFError, ConnectionResetError):
            self.engine.wait(1.0)
            reason = self.engine.results[0].reason if self.engine.results else "closed its pipe"
            return Answer(traceback=f"the process ended during the task: {reason}")

    def output(self) -> str:
        """What the process has written since its task was sent."""
        with self.log.open("rb") as file:
            file.seek(self._read_from)
            return file.read().decode(errors="replace")

    @property
    def is_alive(self) -> bool:
        self.engine.poll()
        return bool(self.engine.running)

    def close(self) -> None:
        self.connection.close()
        self.engine.stop()


class WorkerPool:
    """Processes that run functions as the workers of a job, one job after the other.

    They are started when they are first needed. Each job has fresh runtime state, and a run folder
    of its own (`run_dir`) that is kept until the next job.
    """

    def __init__(self, *, env: Mapping[str, str] | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gangline-pool-"))
        self._env = dict(env or {})
        self._members: list[_Member] = []
        self._num_jobs = 0

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def run_dir(self) -> Path:
        """The run folder of the last job."""
        return self._folder / f"run-{self._num_jobs}"

    def run(
        self,
        function: Callable[..., Any],
        num_workers: int,
        *,
        args: Sequence[Any] = (),
        deadline_s: float = 50,
        speeds: Sequence[float] | None = None,
        shares: Sequence[float] | None = None,
        transport: str | None = None,
        structure: Structure | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """What `function(*args)` returned in each worker, in rank order."""
        deadline = time.monotonic() + deadline_s
        if speeds is not None and len(speeds) != num_workers:
            raise UsageError(f"{len(speeds)} speeds for {num_workers} workers; give one per worker")
        self._next_run_dir()
        job = Job(
            config=RunConfig(
                run="test",
                cluster=Cluster.of_speeds(speeds or [1.0] * num_workers),
                batch=BatchConfig(shares=None if shares is None else tuple(shares)),
                exchange=ExchangeConfig(transport=transport, structure=structure or FLAT),
                manager=ManagerConfig(everybody=True),
            ),
            run_dir=self.run_dir,
            script=_ENTRY,
        )
        tasks = [
            task_of(function, args, {**(env or {}), **launch.to_environment()})
            for launch in job.launches()
        ]
        members = self._take_members(num_workers)
        with coordinator_thread(job):
            for member, task in zip(members, tasks, strict=True):
                member.send(task)
            answers = _collect(members, deadline)
        return self._values(members, answers, f"{function.__qualname__}, {deadline_s:g} s")

    def close(self) -> None:
        """Ends all processes and removes their files."""
        self._drop_members()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _next_run_dir(self) -> None:
        shutil.rmtree(self.run_dir, ignore_errors=True)
        self._num_jobs += 1
        self.run_dir.mkdir()

    def _take_members(self, count: int) -> list[_Member]:
        if not all(member.is_alive for member in self._members):
            self._drop_members()
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        for worker in range(len(self._members), count):
            environment = {**os.environ, **threads, **self._env}
            self._members.append(_Member(worker, self._folder, environment))
        return self._members[:count]

    def _drop_members(self) -> None:
        for member in self._members:
            member.close()
        self._members.clear()

    def _values(self, members: list[_Member], answers: dict[int, Answer], what: str) -> list[Any]:
        failures = {
            worker: answer.traceback
            for worker, answer in answers.items()
            if answer.traceback is not None
        }
        missing = [worker for worker in range(len(members)) if worker not in answers]
        if not failures and not missing:
            return [pickle.loads(answers[worker].value or b"") for worker in range(len(members))]
        outputs = [
            member.output() + (failures.get(worker, "") if not member.is_alive else "")
            for worker, member in enumerate(members)
        ]
        if missing:
            self._drop_members()
        raise WorkerError(_headline(what, failures, missing), outputs, failures)


def _headline(what: str, failures: Mapping[int, str], missing: Sequence[int]) -> str:
    parts = []
    if failures:
        parts.append(f"failed in worker {', '.join(map(str, failures))}")
    if missing:
        parts.append(f"no answer in time from worker {', '.join(map(str, missing))}")
    return f"{what}: {'; '.join(parts)}"


def _collect(members: Sequence[_Member], deadline: float) -> dict[int, Answer]:
    """The answers by worker, as many as came before the deadline, or soon after a failure."""
    waiting: dict[Any, int] = {member.connection: i for i, member in enumerate(members)}
    answers: dict[int, Answer] = {}
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        for connection in wait(list(waiting), timeout=left_s):
            worker = waiting.pop(connection)
            answers[worker] = members[worker].receive()
            if answers[worker].traceback is not None:
                deadline = min(deadline, time.monotonic() + _ECHO_S)
    return answers
