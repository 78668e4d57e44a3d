# SPDX-License-Identifier: Apache-2.0
"""A worker is killed, or stops, in a call that all make together: the others go on with who is left."""

from __future__ import annotations

import signal
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import hang, judge, kill, run_with

from cases import quick_of

HANG_S = 2.8
"""Longer than the coordinator's patience."""
CALLS = ["sum", "gather", "any", "barrier", "main_first", "save"]
KILLED = {("sum", 1), ("gather", 0), ("main_first", 0), ("save", 1)}
EPOCHS = 3


def expected(call: str, members: tuple[int, ...]) -> Any:
    """What a call brings to each member, where that is one value."""
    return {
        "sum": len(members),
        "gather": [torch.full((worker,), worker) for worker in members],
        "any": 2 in members,
        "barrier": None,
        "main_first": f"by worker {members[0]}",
    }[call]


def assert_called(found: list[Any], call: str, *, members: list[tuple[int, ...]]) -> None:
    if call == "save":
        assert all({*one} == {"0.weight", "0.bias", "2.weight", "2.bias"} for one in found)
        return
    for value, present in zip(found, members, strict=True):
        wanted = expected(call, present)
        if call == "gather":
            # The order of ranks is another one after somebody came back.
            assert sorted(one.tolist() for one in value) == [one.tolist() for one in wanted]
        else:
            assert value == wanted


@pytest.mark.parametrize(("call", "victim"), quick_of(product(CALLS, [0, 1]), quick=KILLED))
def test_the_others_go_on_when_a_worker_is_killed_in(
    call: str, victim: int, tmp_path: Path
) -> None:
    setup = Setup(loop="calling", call=call, epochs=EPOCHS, folder=str(tmp_path))
    faults = [kill(victim, 6, "call")]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    left = tuple(worker for worker in range(3) if worker != victim)
    for worker in left:
        # The end of the epoch is such a place, too: it was killed there.
        assert_called(outcome.results[worker]["means"], call, members=[left] * EPOCHS)


@pytest.mark.parametrize("call", quick_of(CALLS, quick=["gather"]))
def test_the_others_go_on_when_a_worker_stops_in(call: str, tmp_path: Path) -> None:
    setup = Setup(
        loop="calling",
        call=call,
        epochs=EPOCHS,
        folder=str(tmp_path),
        wait={7: "worker 1 joined"},
        think_s=0.03,  # the new view is on its way while the others finish the epoch
    )
    faults = [hang(1, 6, "call", HANG_S)]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    for worker in (0, 2):
        found = outcome.results[worker]["means"]
        assert len(found) == EPOCHS
        # It is back in the second epoch, or at its end.
        assert_called([found[0], found[-1]], call, members=[(0, 2), (0, 1, 2)])
    assert len(outcome.results[1]["means"]) == EPOCHS


def test_another_worker_goes_first_when_the_main_one_is_killed_at_it(tmp_path: Path) -> None:
    setup = Setup(loop="calling", call="killed in main_first", epochs=EPOCHS, folder=str(tmp_path))
    outcome = run_with(tmp_path, setup, [])
    assert outcome.exit_codes == [-signal.SIGKILL, 0, 0], outcome.outputs
    for worker in (1, 2):
        assert outcome.results[worker]["means"] == ["by worker 1"] * EPOCHS


def test_the_others_begin_when_the_main_worker_is_killed_before_prepare(tmp_path: Path) -> None:
    setup = Setup(loop="fetching", folder=str(tmp_path))
    outcome = run_with(tmp_path, setup, [])
    assert outcome.exit_codes == [-signal.SIGKILL, 0, 0], outcome.outputs
    assert [outcome.results[worker]["means"] for worker in (1, 2)] == [["by worker 0"]] * 2
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)
