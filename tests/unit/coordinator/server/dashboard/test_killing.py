# SPDX-License-Identifier: Apache-2.0
"""The button that kills a worker: of this run, on this machine, and never the last with the state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from serving import KEYS, serving
from test_login import browsing, code_of

from gangline.coordinator.inputs import CheckpointAsked
from gangline.coordinator.server.dashboard import killing
from gangline.coordinator.server.dashboard.board import Dashboard
from gangline.coordinator.server.dashboard.killing import Killer
from gangline.coordinator.server.dashboard.orders import ORDERS, input_of
from gangline.protocol.launch import Launch
from gangline.protocol.live import OrderRequest
from gangline.protocol.status import Status, WorkerStatus
from gangline.spec.errors import UsageError
from gangline.spec.view import View

if TYPE_CHECKING:
    from pathlib import Path


def status(pid: int, *, steps: tuple[int, int] = (3, 3), is_connected: bool = True) -> Status:
    return Status(
        run="r",
        expected_workers=2,
        workers=[
            WorkerStatus(
                worker=worker,
                host="h",
                pid=pid,
                is_connected=is_connected,
                state="training",
                step=step,
            )
            for worker, step in enumerate(steps)
        ],
        view=View(number=0, members=(0, 1), shares=(1, 1), reason=""),
        step=3,
        decisions=[],
    )


def test_a_worker_of_this_run_is_killed(tmp_path: Path) -> None:
    launch = Launch(run="r", run_dir=str(tmp_path), worker=0, workers=2, token_file="token")
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
        env={**os.environ, **launch.to_environment()},
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()  # a process that is only just being made has no environment yet
        process.stdout.close()
        Killer().kill(0, status(process.pid), tmp_path)
        assert process.wait(20) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("worker", "shown", "expected"),
    [
        (7, status(1), "worker 7 is not connected"),
        (0, status(1, is_connected=False), "worker 0 is not connected"),
        (0, status(1, steps=(3, -1)), "the last to have it"),
        (0, status(os.getpid()), "no process of this run"),
    ],
)
def test_nobody_else_is_killed(worker: int, shown: Status, expected: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=expected):
        Killer().kill(worker, shown, tmp_path)


def test_who_was_just_killed_holds_no_state_though_the_status_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(killing, "is_of_run", lambda *_: True)
    monkeypatch.setattr(killing.os, "kill", lambda pid, _: killed.append(pid))
    killer = Killer()
    killer.kill(0, status(7), tmp_path)
    with pytest.raises(UsageError, match="the last to have it"):
        killer.kill(1, status(7), tmp_path)
    with pytest.raises(UsageError, match="worker 0 is not connected"):
        killer.kill(0, status(7), tmp_path)
    killer.kill(1, status(8), tmp_path)  # worker 0 was started again
    assert killed == [7, 8]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (OrderRequest(order="exclude", worker=10**20), "there is no worker 1000"),
        (OrderRequest(order="leave", worker=-2), "there is no worker -2"),
        (OrderRequest(order="replan", value="<b>"), "auto or flat, not '<b>'"),
    ],
)
def test_what_no_page_sends_is_a_bad_request(asked: OrderRequest, expected: str) -> None:
    with browsing() as (server, browser):
        browser.log_in(code_of(server, KEYS.operator))
        answer = browser.post("/dashboard/order", msgspec.json.encode(asked).decode())
    assert answer.status_code == 400
    assert expected in answer.text


def test_nobody_is_killed_where_that_was_not_allowed() -> None:
    with serving() as server:
        board = Dashboard(server.driver, secret=KEYS.operator, handle=lambda given: None)
        with pytest.raises(UsageError, match="--allow-chaos"):
            board._carry_out(OrderRequest(order="kill", worker=0))


def test_every_other_order_is_an_input_of_the_coordinator() -> None:
    for order in ORDERS:
        if order != "kill":
            assert input_of(OrderRequest(order=order, worker=1, value="full")) is not None
    assert isinstance(input_of(OrderRequest(order="checkpoint")), CheckpointAsked)
