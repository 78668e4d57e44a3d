# SPDX-License-Identifier: Apache-2.0
"""A machine that is about to end: who says so, and what its workers are told then."""

from __future__ import annotations

import signal
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gangline.engines.ending import notice as notice_module
from gangline.engines.ending.departing import Departing
from gangline.engines.ending.notice import NoticeWatch, look
from gangline.engines.supervision import StopRequest
from gangline.spec.config import SurvivalConfig
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_says_so_when_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "preempt"
    assert look(f"file:{path}") == ""
    path.touch()
    assert look(f"file:{path}") == f"{path} is there"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("true", "`true` says so"),
        ("false", ""),
        ("echo TRUE", "`echo TRUE` says so: TRUE"),
        ("echo FALSE", ""),
        ("echo NONE", ""),
        ("sh -c 'echo soon; exit 1'", ""),
        ("no-such-command-anywhere", ""),
        ("sleep 9", ""),
    ],
)
def test_a_command_says_so_by_its_exit_code_unless_it_prints_no(
    monkeypatch: pytest.MonkeyPatch, command: str, told: str
) -> None:
    monkeypatch.setattr(notice_module, "_COMMAND_S", 0.3)
    assert look(f"command:{command}") == told


def test_somebody_looks_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice_module, "POLL_S", 0.01)
    path = tmp_path / "preempt"
    watch = NoticeWatch(("sigterm", f"file:{path}"))
    assert watch.found == ""
    path.touch()
    deadline = time.monotonic() + 10
    while not watch.found and time.monotonic() < deadline:
        time.sleep(0.01)
    assert watch.found == f"{path} is there"
    watch.close()


@pytest.mark.parametrize("text", ["", "sigint", "file:", "command: ", "/run/preempt", "command:'x"])
def test_what_is_no_notice_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"survival\.notices .* is no"):
        SurvivalConfig(notices=(text,))


@pytest.mark.parametrize("deadline_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_deadline_is_one(deadline_s: float) -> None:
    with pytest.raises(UsageError, match=r"survival\.notice_s must be 1 to 86400 seconds"):
        SurvivalConfig(notice_s=deadline_s)


class Witness:
    """Stands for the engine, the job beyond it and the watcher."""

    def __init__(self, *, can_leave: bool = True) -> None:
        self.can_leave = can_leave
        self.calls: list[str] = []

    def depart(self) -> None:
        self.calls.append("depart")

    def ask_to_end(self) -> None:
        self.calls.append("ask_to_end")

    def note(self, what: str, reason: str, **numbers: float) -> None:
        self.calls.append(reason)


def departing(witness: Any, request: StopRequest, **options: Any) -> Departing:
    survival = SurvivalConfig(notices=("sigterm",), **options)
    return Departing(survival, witness, watcher=witness, beyond=witness, request=request)


def test_the_first_sigterm_is_a_notice_and_the_second_ends_the_job() -> None:
    request, witness = StopRequest(), Witness()
    leaving = departing(witness, request)
    leaving.look()
    assert (leaving.reason, witness.calls) == ("", [])
    request.receive(signal.SIGTERM, None)
    assert request.number is None
    leaving.look()
    leaving.look()
    told = "this machine ends in 30 s (the launcher got SIGTERM): its workers leave the job"
    assert witness.calls == [told, "depart", "ask_to_end"]
    assert not leaving.is_over
    request.receive(signal.SIGTERM, None)
    assert request.number == signal.SIGTERM


def test_sigint_is_no_notice() -> None:
    request = StopRequest()
    departing(Witness(), request)
    request.receive(signal.SIGINT, None)
    assert request.number == signal.SIGINT


def test_the_workers_have_until_shortly_before_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("gangline.engines.ending.departing.time", clock)
    request = StopRequest()
    leaving = departing(Witness(), request, notice_s=20.0)
    request.receive(signal.SIGTERM, None)
    leaving.look()
    now[0] += 17.9
    assert not leaving.is_over
    now[0] += 0.2
    assert leaving.is_over


def test_workers_that_cannot_leave_train_on_until_they_are_ended() -> None:
    request, witness = StopRequest(), Witness(can_leave=False)
    leaving = departing(witness, request)
    request.receive(signal.SIGTERM, None)
    leaving.look()
    assert len(witness.calls) == 1
