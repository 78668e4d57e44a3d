# SPDX-License-Identifier: Apache-2.0
"""A stage is killed, or stops: the model is cut anew over who is left, and nothing is lost."""

from __future__ import annotations

import signal
from itertools import product
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from elastic_bodies import Setup
from elastic_jobs import hang, judge, kill, run_with

from cases import quick_of

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_jobs import Outcome

    from gangline.spec.faults import Fault

STEPS = 6
PLACES = ("forward", "backward", "exchange", "part", "call", "update", "between")
"""`part`: its gradients are summed. `call`: all have come so far, it has not made the step."""
KILLS = [*product(PLACES, [0, 1, 2], [0, 1, STEPS - 1])]
QUICK = [("backward", 1, 1), ("call", 2, 1)]


def setup_of(**options: Any) -> Setup:
    text = msgspec.json.encode(options).decode()
    return Setup(loop="pipelined", samples=22, batch=8, epochs=2, call=text, timeout_s=20.0)


def run(folder: Path, faults: list[Fault], workers: int = 3, **options: Any) -> Outcome:
    setup = setup_of(**options)
    outcome = run_with(folder, setup, faults, workers=workers)
    judge(outcome, setup, faults)
    for result in outcome.results.values():
        assert len(result["means"]) == STEPS  # each step was shown once
    return outcome


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("where", "worker", "step"), quick_of(KILLS, quick=QUICK))
def test_a_stage_that_is_killed_is_replaced_by_a_new_cut(
    where: str, worker: int, step: int, tmp_path: Path
) -> None:
    outcome = run(tmp_path, [kill(worker, step, where)], stages=3, micro_batches=4)
    gone = f"w{worker}"
    for result in outcome.results.values():
        stages = result["found_after"]["stages"]
        assert gone not in str(stages) or (where, step) == ("between", STEPS - 1)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("where", "worker"), quick_of([*product(PLACES, [0, 1, 2, 3])], quick=[("exchange", 3)])
)
def test_pipelines_side_by_side_need_no_copies(where: str, worker: int, tmp_path: Path) -> None:
    run(tmp_path, [kill(worker, 2, where)], workers=4, stages=2, micro_batches=2)


@pytest.mark.usefixtures("double")
@pytest.mark.slow
@pytest.mark.parametrize(("where", "worker"), [*product(PLACES, [0, 1])])
def test_updates_that_a_lost_stage_has_begun_are_taken_back(
    where: str, worker: int, tmp_path: Path
) -> None:
    """Two are left of three, and then one: the cut is another one, so the result is, too."""
    setup = setup_of(stages=3, micro_batches=4, schedule="pipedream")
    faults = [kill(worker, 2, where)]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults, is_exact=False)


@pytest.mark.usefixtures("double")
@pytest.mark.slow
@pytest.mark.parametrize("second", ["forward", "update"])
def test_one_after_the_other_is_killed(second: str, tmp_path: Path) -> None:
    run(tmp_path, [kill(0, 1, "backward"), kill(1, 3, second)], stages=3, micro_batches=4)


@pytest.mark.usefixtures("double")
@pytest.mark.slow
@pytest.mark.parametrize("second", [1, 2])
def test_of_two_that_are_lost_at_once_the_second_may_have_had_the_only_copy(
    second: int, tmp_path: Path
) -> None:
    """Who keeps whose copy follows from the cut: the job goes on, or says what is lost."""
    setup = setup_of(stages=3, micro_batches=4)
    faults = [kill(0, 1, "backward"), kill(second, 1, "regroup")]
    outcome = run_with(tmp_path, setup, faults)
    left = 3 - second
    if outcome.exit_codes[left] == 0:
        judge(outcome, setup, faults)
    else:
        assert "are lost: only workers that are gone had them" in outcome.outputs[left]


@pytest.mark.usefixtures("double")
def test_layers_that_nobody_else_has_are_named_when_they_are_lost(tmp_path: Path) -> None:
    faults = [kill(1, 1, "forward")]
    setup = setup_of(stages=3, micro_batches=4, copies=False)
    outcome = run_with(tmp_path, setup, faults)
    assert outcome.exit_codes == [1, -signal.SIGKILL, 1], outcome.outputs
    for worker in (0, 2):
        assert "are lost: only workers that are gone had them" in outcome.outputs[worker]


@pytest.mark.usefixtures("double")
@pytest.mark.slow
@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_stage_that_stops_is_done_without(worker: int, tmp_path: Path) -> None:
    setup = setup_of(stages=3, micro_batches=4)
    outcome = run_with(tmp_path, setup, [hang(worker, 2, "forward", 15.0)])
    well = sorted({0, 1, 2} - {worker})
    assert [outcome.exit_codes[one] for one in well] == [0, 0], outcome.outputs
    assert "LeftBehindError" in outcome.outputs[worker]
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)
