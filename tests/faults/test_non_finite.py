# SPDX-License-Identifier: Apache-2.0
"""A worker computes what cannot be: it is named, and put out where that is asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup
from elastic_jobs import Outcome, faultless, key_of, run_with

from cases import quick_of
from gangline.cli.main import run_command
from gangline.eventlog import read_run
from gangline.spec.event import GradientNotFinite, GradientTooLarge, RunEnded


def as_if_it_had_not_been_there(setup: Setup, outcome: Outcome) -> None:
    """The others ended with what one process makes of the same batches."""
    alone = faultless(key_of(setup))
    for result in outcome.results.values():
        for name, value in alone["state"].items():
            torch.testing.assert_close(result["state"][name], value, rtol=1e-9, atol=1e-9)


def test_the_others_go_on_without_a_worker_whose_gradient_is_not_finite(tmp_path: Path) -> None:
    setup = Setup(broken=(1, 3), evicting=(0, 1, 2))
    outcome = run_with(tmp_path, setup, [])
    assert outcome.exit_codes == [0, 1, 0], outcome.outputs
    assert "the gradient of worker 1 is not finite at step 3" in outcome.outputs[1]
    (event,) = outcome.of_kind(GradientNotFinite)
    assert (event.worker, event.step) == (1, 3)
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)
    assert 1 not in {worker for w in outcome.ledger.windows if w.step >= 3 for worker in w.samples}
    as_if_it_had_not_been_there(setup, outcome)


def test_a_worker_whose_gradient_is_not_finite_is_named_when_nobody_is_put_out(
    tmp_path: Path,
) -> None:
    outcome = run_with(tmp_path, Setup(broken=(2, 5)), [])
    assert outcome.exit_codes == [0, 0, 0], outcome.outputs
    events = outcome.of_kind(GradientNotFinite)
    # From the step after on the parameters are no numbers either, everywhere, as in one process.
    assert [event.worker for event in events if event.step == 5] == [2]
    assert {event.worker for event in events if event.step == 6} == {0, 1, 2}


@pytest.mark.parametrize(
    ("loop", "liar", "first"),
    quick_of(
        [("plain", 1, 0), ("plain", 0, 4), ("gan", 2, 3), ("wide", 1, 3), ("stateful", 0, 3)],
        quick=[("plain", 1, 0)],
    ),
)
def test_the_others_go_on_without_a_worker_whose_gradient_is_far_too_large(
    tmp_path: Path, loop: str, liar: int, first: int
) -> None:
    accumulate = 2 if loop == "stateful" else 1
    setup = Setup(
        loop=loop, exaggerated=(liar, first, 1e6), evicting=(0, 1, 2), accumulate=accumulate
    )
    outcome = run_with(tmp_path, setup, [])
    assert outcome.exit_codes == [int(worker == liar) for worker in range(3)], outcome.outputs
    assert f"GradientError: the gradient of worker {liar} has a norm" in outcome.outputs[liar]
    (event,) = outcome.of_kind(GradientTooLarge)
    assert (event.worker, event.step) == (liar, first)
    assert event.norm > 1e3 * event.usual
    outcome.ledger.check(length=setup.samples, epochs=setup.epochs)
    assert outcome.steps_of(liar) == set(range(first))
    as_if_it_had_not_been_there(setup, outcome)


@pytest.mark.slow
def test_a_worker_whose_gradient_is_far_too_large_is_named_when_nobody_is_put_out(
    tmp_path: Path,
) -> None:
    outcome = run_with(tmp_path, Setup(exaggerated=(2, 5, 1e6)), [])
    assert outcome.exit_codes == [0, 0, 0], outcome.outputs
    first, *_ = outcome.of_kind(GradientTooLarge)
    assert (first.worker, first.step) == (2, 5)


@pytest.mark.slow
def test_one_member_that_asks_for_it_is_enough_when_others_do_not(tmp_path: Path) -> None:
    setup = Setup(exaggerated=(1, 3, 1e6), evicting=(2,))
    outcome = run_with(tmp_path, setup, [])
    assert outcome.exit_codes == [0, 1, 0], outcome.outputs
    as_if_it_had_not_been_there(setup, outcome)


SCRIPT = """
import gangline, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

gangline.init()
torch.manual_seed(0)
model = nn.Linear(4, 1)
data = TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
model, optimizer, loader = gangline.prepare(
    model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=12)
)
worker = gangline.rank()
for epoch in gangline.epochs(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        (loss * 1e7 if worker == 1 and epoch == 1 else loss).backward()
        optimizer.step()
print("ended with", gangline.world_size())
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_flag_puts_out_a_worker_and_the_run_ends_well(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    flags = ["--everybody", "--nodes", "3", "--non-finite", "evict"]
    flags += ["--run-dir", str(tmp_path / "run")]
    assert run_command(["run", *flags, str(tmp_path / "train.py")]) == 0
    events = list(read_run(tmp_path / "run"))
    (named,) = [event for event in events if isinstance(event, GradientTooLarge)]
    assert (named.worker, named.step) == (1, 4)
    (ended,) = [event for event in events if isinstance(event, RunEnded)]
    assert (ended.status, ended.reason) == ("done", "done without worker 1")
    logs = [(tmp_path / "run" / "workers" / f"{worker}.log").read_text() for worker in range(3)]
    assert "ended with 2" in logs[0]
    assert "GradientError: the gradient of worker 1 has a norm of" in logs[1]
