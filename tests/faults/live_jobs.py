# SPDX-License-Identifier: Apache-2.0
"""A job of real processes that workers join and leave, and whose coordinator can be killed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from elastic_jobs import DEADLINE_S, Outcome, _work, assert_replays, faultless, key_of
from networks import COORDINATOR, enter_namespace

from forking import PROCESSES
from gangline.coordinator.server import Post
from gangline.coordinator.server.process import serve
from gangline.engines.job import Job
from gangline.eventlog import EventWriter, log_path, read_run
from gangline.files.announcement import Announcement, read_announcement
from gangline.files.tokens import OPERATOR_TOKEN, write_token
from gangline.launch.joining.contact import RunContact
from gangline.observe.ledger import read_ledger
from gangline.protocol.status import Status
from gangline.spec.cluster import Cluster
from gangline.spec.config import (
    DEFAULT_MAX_AWAY_S,
    FLAT,
    ExchangeConfig,
    ManagerConfig,
    RunConfig,
    SurvivalConfig,
)
from gangline.spec.errors import LaunchError, UsageError
from gangline.spec.event import Decision, StepDone
from gangline.spec.sync import IN_STEP, Sync

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from elastic_bodies import Setup
    from networks import Network

    from gangline.spec.exchange.structure import Structure

TOLERANCE = 1e-9


def until(condition: Callable[[], Any], what: str) -> Any:
    """Waits for something to be true; its value."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for {what}")


def coordinate(config: RunConfig, run_dir: Path, reserved: int, namespace: str | None) -> None:
    """A coordinator process: what `gangline up` does, without the seconds that python needs."""
    if namespace is not None:
        enter_namespace(namespace)
    host = "127.0.0.1" if namespace is None else COORDINATOR
    serve(Post(config=config, reserved=reserved, host=host), run_dir)


class LiveJob:
    """The processes of a job; as a context manager it leaves none behind."""

    def __init__(
        self,
        folder: Path,
        setup: Setup,
        *,
        workers: int = 2,
        is_joined: bool = False,
        network: Network | None = None,
        sync: Sync = IN_STEP,
        structure: Structure | None = None,
        max_away_s: float = DEFAULT_MAX_AWAY_S,
        everybody: bool = True,
    ) -> None:
        """Its founders bring their numbers, as those of `gangline run`, or come by joining.

        With a network, each process is in a namespace of its own, and they exchange by TCP.
        """
        self.is_joined = is_joined
        self.network = network
        self.folder = folder
        self.setup = setup
        self.job = Job(
            config=RunConfig(
                run="live",
                cluster=Cluster.of_speeds((1.0,) * workers),
                exchange=ExchangeConfig(
                    transport=None if network is None else "wire-tcp",
                    sync=str(sync),
                    structure=structure or FLAT,
                ),
                survival=SurvivalConfig(max_away_s=max_away_s),
                manager=ManagerConfig(everybody=everybody),
            ),
            run_dir=folder,
            script=folder / "none.py",
        )
        self.token = write_token(self.job.token_file)
        self.coordinator: Any = None
        self.processes: list[Any] = []
        """In the order in which they were started."""

    def __enter__(self) -> LiveJob:
        self.start_coordinator()
        for launch in self.job.launches():
            if self.is_joined:
                self.join()
            else:
                self._start(launch, self.setup)
        return self

    def __exit__(self, *exception: object) -> None:
        for process in [*self.processes, self.coordinator]:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()

    def start_coordinator(self) -> None:
        reserved = 0 if self.is_joined else len(self.job.speeds)
        namespace = None if self.network is None else self.network.coordinator
        self.coordinator = PROCESSES.Process(
            target=coordinate,
            args=(self.job.config, self.folder, reserved, namespace),
        )
        self.coordinator.start()

    def kill_coordinator(self) -> None:
        self.coordinator.kill()
        self.coordinator.join()
        self.coordinator.close()

    def restart_coordinator(self) -> None:
        old = read_announcement(self.folder).pid
        self.start_coordinator()
        until(lambda: read_announcement(self.folder).pid != old, "the new coordinator")

    def join(self, setup: Setup | None = None) -> Any:
        """One more worker, as `gangline join` starts it but for its folder."""
        until(lambda: Announcement.path_in(self.folder).exists(), "the coordinator")
        (launch, *_) = self.job.launches()
        url = read_announcement(self.folder).url
        joining = msgspec.structs.replace(
            launch, worker=-1, workers=0, coordinator=url, announced_in=str(self.folder)
        )
        return self._start(joining, setup or self.setup)

    def _start(self, launch: Any, setup: Setup) -> Any:
        place = len(self.processes)
        namespace = None if self.network is None else self.network.workers[place]
        arguments = (launch.to_environment(), setup, str(self.folder), place, namespace)
        process = PROCESSES.Process(target=_work, args=arguments, name=f"process {place}")
        process.start()
        self.processes.append(process)
        return process

    # --- what is seen from outside -------------------------------------------------------------

    def events(self) -> list[Any]:
        has_logs = any((self.folder / "events").glob("*.jsonl"))
        return list(read_run(self.folder, notes=[])) if has_logs else []

    def say(self, text: str) -> None:
        """Writes a decision of the test's own into the log, for the loops that wait for it."""
        with EventWriter(log_path(self.folder, "test"), run="live", source="test") as events:
            events.write(Decision(t=time.time(), what="test", reason=text, numbers={}))

    def await_step(self, step: int) -> None:
        """Waits until a worker has reported a step."""

        def has_come() -> bool:
            return any(isinstance(e, StepDone) and e.step >= step for e in self.events())

        until(has_come, f"step {step}")

    def await_reported(self, step: int) -> None:
        """Waits until the coordinator knows of a step, which may not be in the logs yet."""

        def has_come() -> bool:
            try:
                contact = RunContact(self.folder, token_file=self.folder / OPERATOR_TOKEN)
                status = msgspec.json.decode(contact.ask("/api/status"), type=Status)
            except (LaunchError, UsageError):
                return False  # it is only just being started
            return status.step >= step

        until(has_come, f"step {step}")

    def await_decision(self, text: str) -> Decision:
        """Waits until somebody decided something for this reason."""

        def find() -> Decision | None:
            decisions = [e for e in self.events() if isinstance(e, Decision)]
            return next((one for one in decisions if text in one.reason), None)

        found: Decision = until(find, f"a decision with {text!r}")
        return found

    def finish(self) -> Outcome:
        """Waits for all workers to end."""
        deadline = time.monotonic() + DEADLINE_S
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        numbers = range(len(self.processes))
        events = self.events()
        results = [self.folder / f"{number}.pt" for number in numbers]
        outputs = [self.folder / f"{number}.out" for number in numbers]
        return Outcome(
            exit_codes=[process.exitcode for process in self.processes],
            results={n: torch.load(path) for n, path in enumerate(results) if path.exists()},
            outputs={n: path.read_text() for n, path in enumerate(outputs) if path.exists()},
            events=events,
            ledger=read_ledger(events),
            folder=self.folder,
        )


def assert_nothing_lost(outcome: Outcome, setup: Setup, *, finishers: list[int]) -> None:
    """Every sample once, the finishers bit-equal, and the result that of one process alone."""
    assert_replays(outcome.folder)
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)
    assert len(outcome.ledger.windows) == setup.steps
    expected = faultless(key_of(setup))["state"]
    first = outcome.results[finishers[0]]["state"]
    for process in finishers:
        for name, value in outcome.results[process]["state"].items():
            assert torch.equal(value, first[name]), f"process {process} differs in {name}"
    for name, value in expected.items():
        torch.testing.assert_close(first[name], value, rtol=TOLERANCE, atol=TOLERANCE)


def report(outcome: Outcome) -> str:
    parts = [f"exit codes {outcome.exit_codes}"]
    parts += [f"--- process {number} ---\n{text}" for number, text in outcome.outputs.items()]
    parts += [repr(event) for event in outcome.events[-12:]]
    return "\n".join(parts)
