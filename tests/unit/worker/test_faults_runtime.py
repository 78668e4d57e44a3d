# SPDX-License-Identifier: Apache-2.0
"""What carries faults out: when they happen, and that each happens once."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gangline.spec.event import FaultFired
from gangline.spec.faults import Fault
from gangline.worker.faults import Faults

if TYPE_CHECKING:
    import pytest


class Line:
    """A line to the coordinator that only notes what is done to it."""

    def __init__(self) -> None:
        self.cuts: list[float] = []
        self.was_cut = threading.Event()

    def cut(self, for_s: float) -> None:
        self.cuts.append(for_s)
        self.was_cut.set()


class Noted(Faults):
    """Faults with a record of what fired and a line to cut."""

    def __init__(self, *faults: Fault) -> None:
        self.events: list[Any] = []
        self.line = Line()
        super().__init__(faults, record=self.events.append, line=self.line)

    @property
    def fired(self) -> list[tuple[int, str, str]]:
        assert all(isinstance(event, FaultFired) for event in self.events)
        return [(event.step, event.fault, event.where) for event in self.events]


def cut(step: int, where: str) -> Fault:
    return Fault(worker=0, kind="cut", step=step, where=where, for_s=1.0)


def test_nothing_happens_without_a_plan() -> None:
    faults = Noted()
    faults.watch([nn.Linear(2, 2)])
    faults.reach("forward", 0)
    faults.begin()
    faults.drag()
    faults.close()
    assert faults.fired == []


def test_a_fault_waits_for_its_place_and_its_step() -> None:
    faults = Noted(cut(2, "exchange"))
    for step in range(4):
        for place in ("forward", "exchange", "between"):
            faults.reach(place, step)
    assert faults.fired == [(2, "cut", "exchange")]
    assert faults.line.cuts == [1.0]


def test_a_fault_happens_at_the_next_step_where_its_own_was_skipped() -> None:
    faults = Noted(cut(2, "exchange"))
    faults.reach("exchange", 1)
    faults.reach("exchange", 7)
    assert faults.fired == [(7, "cut", "exchange")]


def test_a_step_that_is_done_again_meets_its_fault_once() -> None:
    faults = Noted(cut(2, "forward"))
    faults.reach("forward", 2)
    faults.reach("forward", 2)
    assert len(faults.fired) == 1


def test_a_fault_in_the_backward_pass_happens_in_its_middle() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    faults = Noted(cut(3, "backward"))
    faults.watch([model])
    for step in (2, 3, 4):
        faults.reach("forward", step)
        model(torch.ones(1, 2)).sum().backward()
    assert faults.fired == [(3, "cut", "backward")]
    faults.close()
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def test_a_fault_at_a_time_needs_no_place() -> None:
    faults = Noted(Fault(worker=0, kind="cut", at_s=0.01, for_s=2.0))
    faults.reach("forward", 5)
    assert faults.line.was_cut.wait(20)
    faults.close()
    assert [(fault, where) for _, fault, where in faults.fired] == [("cut", "any")]


def test_nothing_happens_after_the_end() -> None:
    faults = Noted(cut(0, "end"), Fault(worker=0, kind="cut", at_s=1000.0, for_s=1.0))
    faults.close()
    faults.reach("end", 9)
    assert faults.fired == []


def test_a_slow_worker_sleeps_in_proportion_for_as_many_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, slept = [100.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", slept.append)
    faults = Noted(Fault(worker=0, kind="slow", step=2, to=0.25, for_steps=2))
    for step in range(5):
        faults.reach("forward", step)
        faults.begin()
        clock[0] += 1.0
        faults.drag()
    assert faults.fired == [(2, "slow", "forward")]
    assert slept == [3.0, 3.0], "a quarter of the speed is four times the time"


def test_a_kill_is_in_the_log_before_it_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Noted(Fault(worker=0, kind="kill", step=0))
    killed: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, sig: killed.append((pid, sig, len(faults.events))))
    faults.reach("forward", 0)
    assert killed == [(os.getpid(), signal.SIGKILL, 1)]


def test_a_hang_stops_the_process_and_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a process of its own, which is tried on a bystander here: this one must go on."""
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: commands.append(command))
    faults = Noted(Fault(worker=0, kind="hang", step=0, for_s=0.01))
    faults.reach("forward", 0)
    (command,) = commands
    monkeypatch.undo()
    parent = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    bystander = subprocess.Popen([command[0], "-c", parent, *command])
    _, status = os.waitpid(bystander.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "it was stopped"
    _, status = os.waitpid(bystander.pid, 0)
    bystander.returncode = os.waitstatus_to_exitcode(status)
    assert bystander.returncode == 0, "it went on to its end"
