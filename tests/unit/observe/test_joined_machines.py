# SPDX-License-Identifier: Apache-2.0
"""What launchers of machines that joined say does not stand for the run."""

from __future__ import annotations

from synthetic_run import step_done

from gangline.observe import summarize
from gangline.spec.event import (
    AnyEvent,
    LogOpened,
    RunEnded,
    RunStarted,
    ViewAdopted,
    WorkerEnded,
    WorkerReady,
)


def started(*, is_joining: bool) -> RunStarted:
    return RunStarted(
        t=1.0,
        command=["train.py"],
        workers=1,
        nodes=["join" if is_joining else "n0"],
        speeds=[1.0],
        scale=1.0,
        is_joining=is_joining,
    )


def ended(status: str, *, is_joining: bool) -> RunEnded:
    return RunEnded(t=9.0, status=status, reason="", wall_s=3.0, is_joining=is_joining)


OWN: list[AnyEvent] = [started(is_joining=False)]
JOINED: list[AnyEvent] = [started(is_joining=True), ended("failed", is_joining=True)]


def test_the_run_is_what_its_own_launcher_says() -> None:
    done = ended("done", is_joining=False)
    assert summarize([*OWN, *JOINED, done]).status == "done"
    assert summarize([*OWN, done, *JOINED]).status == "done"
    assert summarize([*OWN, *JOINED]).status == "unknown", "it goes on"


def test_a_run_of_machines_that_joined_is_over_when_all_of_them_are() -> None:
    assert summarize([*JOINED]).status == "failed"
    assert summarize([*JOINED, started(is_joining=True)]).status == "unknown"
    assert summarize([*JOINED]).wall_s == 8.0, "not that of one machine alone"


def test_workers_of_other_machines_have_their_names() -> None:
    opened = LogOpened(t=2.0, schema=1, run="r", source="worker 5", host="laptop", pid=1)
    ready = WorkerReady(
        t=2.0, worker=5, device="cpu", threads=1, torch="2", parameters=1, transport="wire"
    )
    failed = WorkerEnded(
        t=3.0, worker=5, exit_code=1, signal=None, reason="ValueError", output="Trace…"
    )
    found = summarize([*OWN, *JOINED, opened, ready, failed])
    assert [(one.worker, one.node) for one in found.workers] == [(0, "n0"), (5, "laptop")]
    assert found.workers[1].exit == "exit code 1: ValueError\nTrace…"


def test_the_folder_of_a_machine_lacks_nothing_when_it_has_its_own_workers() -> None:
    view = ViewAdopted(t=2.0, view=0, step=0, members=[0, 5], shares=[4, 4], reason="")
    step = step_done(worker=5, step=0, view=0)
    own = [*JOINED, view, step]
    assert summarize(own).warnings == []
    opened = LogOpened(t=0.0, schema=1, run="r", source="coordinator", host="here", pid=1)
    (warning,) = summarize([opened, *own]).warnings
    assert "lacks a worker's part (missing: worker 0)" in warning
