# SPDX-License-Identifier: Apache-2.0
"""`gangline.paramserv(..., where="job")`: its workers are the processes of a job, and may be lost."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import elastic_paramserv
import pytest
import torch
from elastic_bodies import Setup
from elastic_jobs import run_with

import gangline
from cases import quick_of

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_jobs import Outcome

EPOCHS = 3


def run(run_dir: Path, loop: str, *, mode: str = "bsp", **changes: Any) -> Outcome:
    return run_with(run_dir, Setup(loop=loop, call=mode, **changes), [])


def local(**options: Any) -> Any:
    return elastic_paramserv.regression(None, where="threads", workers=3, **options)


def assert_alike(outcome: Outcome) -> None:
    first, *others = [one["state"] for one in outcome.results.values()]
    for other in others:
        assert first.keys() == other.keys()
        assert all(torch.equal(value, other[name]) for name, value in first.items())
    facts = [one["found_after"] for one in outcome.results.values()]
    assert all(one == facts[0] for one in facts)


@pytest.mark.parametrize("mode", quick_of(["bsp", "asp", "ssp(1)", "backup(1)"], quick=["bsp"]))
def test_all_processes_have_the_same_result(tmp_path: Path, mode: str) -> None:
    outcome = run(tmp_path, "job_plain", mode=mode)
    assert outcome.exit_codes == [0] * 3, outcome.outputs
    assert_alike(outcome)
    facts = outcome.results[0]["found_after"]["first"]
    assert facts["samples"] == EPOCHS * elastic_paramserv.ROWS
    assert facts["workers"] == 3
    assert facts["history"] == [(1, 1.5), (2, 1.5), (3, 1.5)]
    if mode != "bsp":
        return
    state = outcome.results[2]["state"]
    for name, value in elastic_paramserv.described(local()).items():
        assert torch.equal(state[name], value), name
    averaged = local(frequency="batches(2)", average="models")
    for name, value in elastic_paramserv.described(averaged).items():
        assert torch.equal(state[f"2 {name}"], value), name


@pytest.mark.parametrize(
    ("mode", "fault"),
    quick_of(
        [(mode, fault) for mode in ("bsp", "asp", "backup(1)") for fault in ("kill", "hang")],
        quick=[("bsp", "kill")],
    ),
)
def test_rows_of_a_lost_process_are_computed_by_the_others(
    tmp_path: Path, mode: str, fault: str
) -> None:
    outcome = run(tmp_path, "job_trapped", mode=mode, trap=(1, 3, fault))
    killed = -signal.SIGKILL if fault == "kill" else 0
    assert outcome.exit_codes == [0, killed, 0], outcome.outputs
    if fault == "hang":
        assert "has given this one up" in outcome.results[1]["found_after"]["error"]
    for worker in (0, 2):
        result = outcome.results[worker]
        assert torch.equal(
            result["state"]["seen"], torch.full((elastic_paramserv.ROWS,), float(EPOCHS))
        )
        assert list(result["found_after"]["facts"]["lost"]) == [1]


@pytest.mark.slow
def test_without_the_server_the_others_say_from_where_to_go_on(tmp_path: Path) -> None:
    outcome = run(tmp_path, "job_trapped", trap=(0, 12, "kill"), folder=str(tmp_path))
    assert outcome.exit_codes == [-signal.SIGKILL, 0, 0], outcome.outputs
    for worker in (1, 2):
        error = outcome.results[worker]["found_after"]["error"]
        assert error.startswith("LaunchError: the process that has the server (worker 0) is gone")
        assert "with checkpoint= it goes on from the last epoch" in error


def test_what_a_function_raises_on_one_process_is_raised_on_all(tmp_path: Path) -> None:
    outcome = run(tmp_path, "job_trapped", trap=(2, 3, "raise"))
    assert outcome.exit_codes == [0] * 3, outcome.outputs
    for worker in range(3):
        error = outcome.results[worker]["found_after"]["error"]
        assert error.startswith("FunctionError: update failed for worker 2 (epoch 1, batch 3)")
        assert error.endswith("ArithmeticError: of the third batch")


def test_processes_that_call_it_otherwise_are_named(tmp_path: Path) -> None:
    outcome = run(tmp_path, "job_unlike")
    assert outcome.exit_codes == [0] * 3, outcome.outputs
    for worker in range(3):
        error = outcome.results[worker]["found_after"]["error"]
        assert error.startswith(
            "MismatchError: worker 1 calls paramserv with batch_size: 5, and worker 0 with 4"
        )


def test_without_a_job_it_says_what_to_do() -> None:
    gangline.init()
    try:
        with pytest.raises(
            gangline.GanglineError, match=r"start it so; or compute on this machine"
        ):
            elastic_paramserv.regression(None)
    finally:
        gangline.worker.api.shutdown()
