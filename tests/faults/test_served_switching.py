# SPDX-License-Identifier: Apache-2.0
"""A running job is switched to parameter servers, from one kind to another, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from live_jobs import LiveJob, report
from test_served_live import assert_sound
from test_switching import SETUP, asked, switch, teams_of

from cases import quick_of
from gangline.cli.main import run_command
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path

ROUTES = {
    "there and back": ("asp", "full"),
    "all": ("asp", "ssp(2)", "flexible", "bsp", "full"),
    "servers": ("ssp(1, servers=2)", "asp(update=worker)", "full"),
}


@pytest.mark.parametrize(
    ("route", "loop"),
    quick_of(
        [(route, loop) for route in ROUTES for loop in ("plain", "served_adam")],
        quick=[("there and back", "served_adam")],
    ),
)
def test_a_job_is_switched_to_servers_and_back(tmp_path: Path, route: str, loop: str) -> None:
    modes = ROUTES[route]
    waits: dict[int, str] = {}
    steps = [4 + 16 * number for number in range(len(modes))]
    for step, mode in zip(steps, modes, strict=True):
        # Numbers of steps are left out when teams meet: one of these will do.
        waits |= dict.fromkeys(range(step + 3, step + 11), asked(mode))
    setup = replace(SETUP, epochs=2 + len(modes), wait=waits, loop=loop)
    with LiveJob(tmp_path, setup, workers=3) as job:
        for step, mode in zip(steps, modes, strict=True):
            job.await_reported(step)
            switch(job, mode)
        outcome = job.finish()
    assert outcome.exit_codes == [0] * 3, report(outcome)
    assert teams_of(outcome)[-1] == (0, 1, 2)
    assert_sound(outcome, setup, finishers=(0, 1, 2))
    states = [outcome.results[worker]["state"] for worker in range(3)]
    assert any(name.startswith("opt0.0.") for name in states[0])
    for other in states[1:]:  # in step again, all have the optimizer's state
        assert all(torch.equal(value, other[name]) for name, value in states[0].items())
    if loop == "served_adam":
        assert float(states[0]["opt0.0.step"]) > setup.steps / 2, "the servers' steps are in it"


def test_more_servers_than_workers_are_refused_while_the_job_goes_on(tmp_path: Path) -> None:
    setup = replace(SETUP, epochs=1, wait={6: "test: go"})
    with LiveJob(tmp_path, setup, workers=2, sync=parse_sync("asp")) as job:
        job.await_reported(2)
        assert run_command(["set", str(tmp_path), "sync", "asp(servers=9)"]) == 1
        job.say("test: go")
        outcome = job.finish()
    assert outcome.exit_codes == [0, 0], report(outcome)
