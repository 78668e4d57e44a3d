# SPDX-License-Identifier: Apache-2.0
"""A worker is killed, or stops, in a loop over rows that all make together: the others do its rows."""

from __future__ import annotations

import signal
import sys
from itertools import product
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import run_with

from cases import quick_of

EPOCHS = 2
SQUARES = [row * row for row in range(60)]
KILLS = list(product(["calling", "mapping"], [0, 1], ["wire", "wire-tcp"]))


@pytest.mark.parametrize(
    ("loop", "victim", "transport"), quick_of(KILLS, quick=[("calling", 0, "wire")])
)
def test_the_rows_of_a_worker_that_is_killed_are_done_by_others(
    loop: str, victim: int, transport: str, tmp_path: Path
) -> None:
    """Worker 0 is the one that hands out the rows."""
    setup = Setup(loop=loop, call=f"map with killed {victim}", epochs=EPOCHS, folder=str(tmp_path))
    outcome = run_with(tmp_path, setup, [], transport=transport)
    expected = [-signal.SIGKILL if worker == victim else 0 for worker in range(3)]
    assert outcome.exit_codes == expected, outcome.outputs
    for worker in {0, 1, 2} - {victim}:
        found = outcome.results[worker]["means"]
        assert found == [SQUARES] * (EPOCHS if loop == "calling" else 1)
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_the_rows_of_a_worker_that_stops_are_done_by_others(victim: int, tmp_path: Path) -> None:
    setup = Setup(
        loop="calling", call=f"map with stopped {victim}", epochs=EPOCHS, folder=str(tmp_path)
    )
    outcome = run_with(tmp_path, setup, [])
    assert outcome.exit_codes == [0, 0, 0], outcome.outputs
    for worker in range(3):
        assert outcome.results[worker]["means"] == [SQUARES] * EPOCHS
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)


@pytest.mark.parametrize("victim", quick_of([0, 1], quick=[0]))
def test_what_a_lost_worker_had_evaluated_is_evaluated_again(victim: int, tmp_path: Path) -> None:
    """Worker 0 hands out the batches, and each worker is killed after some of its own."""
    setup = Setup(
        loop="calling", call=f"evaluate with killed {victim}", epochs=EPOCHS, folder=str(tmp_path)
    )
    outcome = run_with(tmp_path, setup, [])
    for worker in {0, 1, 2} - {victim}:
        assert outcome.results[worker]["means"] == [60] * EPOCHS, outcome.outputs
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)
