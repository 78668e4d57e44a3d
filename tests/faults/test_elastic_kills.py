# SPDX-License-Identifier: Apache-2.0
"""A worker is killed, anywhere: the others go on as if it had never been there, and lose nothing."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent))

from elastic_bodies import Setup, several_units
from elastic_jobs import judge, kill, regroups, run_with

from cases import quick_of
from gangline.spec.event import EpochDone, FaultFired, ViewAdopted
from gangline.worker.gradients.layout import build_layout

RECOVERY_S = 10.0
"""A recovery takes hundredths of a second; here up to a dozen processes share two cores."""


PLACES = ["data", "forward", "backward", "exchange", "update", "between"]


@pytest.mark.parametrize("place", quick_of(PLACES, quick=["forward", "exchange"]))
def test_the_others_go_on_when_a_worker_is_killed_in_a_step(tmp_path: Path, place: str) -> None:
    setup, faults = Setup(), [kill(1, 3, place)]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    assert {event.worker for event in regroups(outcome)} == {0, 2}
    assert all(event.took_s < RECOVERY_S for event in regroups(outcome))


@pytest.mark.parametrize("place", quick_of(["forward", "exchange", "between"], quick=["forward"]))
def test_the_others_go_on_when_rank_0_is_killed(tmp_path: Path, place: str) -> None:
    setup, faults = Setup(), [kill(0, 4, place)]
    judge(run_with(tmp_path, setup, faults), setup, faults)


def test_the_others_go_on_when_a_worker_is_killed_in_its_first_step(tmp_path: Path) -> None:
    setup, faults = Setup(), [kill(2, 0, "forward")]
    judge(run_with(tmp_path, setup, faults), setup, faults)


def test_the_others_go_on_when_a_worker_is_killed_in_validation(tmp_path: Path) -> None:
    setup, faults = Setup(validate=True), [kill(1, 6, "call")]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    means = [result["means"] for result in outcome.results.values()]
    assert means[0] == means[1], "the survivors have the same results"
    assert len(means[0]) == setup.epochs


@pytest.mark.parametrize("loop", quick_of(["metered", "gan"], quick=["gan"]))
def test_no_sample_is_lost_when_a_worker_is_killed_in_a_mean_amid_a_step(
    tmp_path: Path, loop: str
) -> None:
    setup, faults = Setup(loop=loop, validate=True), [kill(1, 4, "call")]
    judge(run_with(tmp_path, setup, faults), setup, faults)


@pytest.mark.parametrize(("victim", "step"), [(1, 3), (0, 7)], ids=["an epoch", "the job"])
def test_the_others_go_on_when_a_worker_is_killed_at_the_end_of(
    tmp_path: Path, victim: int, step: int
) -> None:
    setup, faults = Setup(), [kill(victim, step, "end")]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    (fired,) = outcome.of_kind(FaultFired)
    assert fired.step == (6 if step < 6 else 12)
    ended = {(event.worker, event.epoch) for event in outcome.of_kind(EpochDone)}
    assert {(w, e) for w in outcome.results for e in (0, 1)} <= ended


def test_the_last_step_is_done_again_when_a_worker_is_killed_in_it(tmp_path: Path) -> None:
    setup, faults = Setup(), [kill(0, 11, "exchange")]
    judge(run_with(tmp_path, setup, faults), setup, faults)


def test_the_rest_goes_on_when_two_are_killed_at_the_same_instant(tmp_path: Path) -> None:
    setup = Setup()
    faults = [kill(0, 4, "exchange"), kill(2, 4, "exchange")]
    outcome = run_with(tmp_path, setup, faults, workers=4)
    judge(outcome, setup, faults)
    assert set(outcome.results) == {1, 3}


def test_one_goes_on_alone_when_all_others_are_killed(tmp_path: Path) -> None:
    setup = Setup()
    faults = [kill(0, 4, "exchange"), kill(2, 4, "forward"), kill(3, 4, "backward")]
    outcome = run_with(tmp_path, setup, faults, workers=4)
    judge(outcome, setup, faults)
    assert set(outcome.results) == {1}


def test_the_rest_goes_on_when_one_is_killed_while_the_group_is_made_anew(tmp_path: Path) -> None:
    setup = Setup()
    faults = [kill(1, 3, "exchange"), kill(2, 3, "regroup")]
    outcome = run_with(tmp_path, setup, faults, workers=4)
    judge(outcome, setup, faults)
    assert all(event.took_s < RECOVERY_S for event in regroups(outcome))


@pytest.mark.parametrize("place", quick_of(["forward", "exchange"], quick=["exchange"]))
def test_the_others_go_on_when_shares_are_being_cut_anew(tmp_path: Path, place: str) -> None:
    """The balanced allocation moves samples away from a slow worker, before and after the kill."""
    setup = Setup(allocation="balanced", samples=240, batch=12, slow_worker=2)
    faults = [kill(1, 25, place)]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    adopted = [tuple(event.shares) for event in outcome.of_kind(ViewAdopted)]
    assert any(len(shares) == 3 and shares[2] < 4 for shares in adopted), "before the kill"
    assert any(len(shares) == 2 and shares[1] < 6 for shares in adopted), "after it"


@pytest.mark.parametrize("place", quick_of(["exchange", "data"], quick=["exchange"]))
def test_the_others_go_on_when_batches_were_loaded_ahead(tmp_path: Path, place: str) -> None:
    setup, faults = Setup(num_workers=2), [kill(1, 4, place)]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults)
    assert all(event.took_s < 4 for event in regroups(outcome)), (
        "its loader's processes hid its end"
    )


@pytest.mark.parametrize("place", quick_of(["forward", "exchange"], quick=["exchange"]))
def test_the_window_is_accumulated_anew_when_a_worker_is_killed_in_it(
    tmp_path: Path, place: str
) -> None:
    setup, faults = Setup(loop="stateful", accumulate=2), [kill(1, 4, place)]
    judge(run_with(tmp_path, setup, faults), setup, faults)


@pytest.mark.parametrize(
    "place", quick_of(["forward", "backward", "exchange", "update"], quick=["update"])
)
def test_scalers_schedulers_and_buffers_know_nothing_of_a_kill(tmp_path: Path, place: str) -> None:
    setup, faults = Setup(loop="stateful"), [kill(0, 5, place)]
    judge(run_with(tmp_path, setup, faults), setup, faults)


def test_batch_statistics_stay_equal_when_a_worker_is_killed(tmp_path: Path) -> None:
    setup, faults = Setup(loop="normalised"), [kill(0, 4, "exchange")]
    outcome = run_with(tmp_path, setup, faults)
    judge(outcome, setup, faults, is_exact=False)
    for result in outcome.results.values():
        assert result["state"]["0.1.num_batches_tracked"] == setup.steps, "failed attempts count"


@pytest.mark.parametrize("place", quick_of(["update", "backward", "exchange"], quick=["update"]))
def test_a_gan_goes_on_when_a_worker_is_killed_between_its_exchanges(
    tmp_path: Path, place: str
) -> None:
    setup, faults = Setup(loop="gan"), [kill(1, 4, place)]
    judge(run_with(tmp_path, setup, faults), setup, faults)


@pytest.mark.parametrize(
    ("victim", "transport"),
    quick_of(product([0, 1], ["wire", "wire-tcp"]), quick=[(0, "wire-tcp"), (1, "wire")]),
)
def test_the_others_go_on_when_a_worker_is_killed_while_its_first_unit_travels(
    tmp_path: Path, transport: str, victim: int
) -> None:
    """In the middle of the backward pass: later layers are on their way, earlier ones never come."""
    model = several_units().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert len(build_layout([model], [optimizer]).units) >= 3
    setup, faults = Setup(loop="wide", samples=24), [kill(victim, 3, "backward")]
    judge(run_with(tmp_path, setup, faults, transport=transport), setup, faults)


def test_the_others_go_on_when_a_worker_of_a_tcp_ring_is_killed(tmp_path: Path) -> None:
    setup, faults = Setup(), [kill(1, 3, "exchange")]
    judge(run_with(tmp_path, setup, faults, transport="wire-tcp"), setup, faults)


@pytest.mark.parametrize(
    ("place", "loop"),
    quick_of(
        product(PLACES, ["fetches_ahead", "fetches_between"]),
        quick=[("exchange", "fetches_ahead"), ("backward", "fetches_between")],
    ),
)
def test_the_others_go_on_when_their_loops_have_fetched_ahead(
    tmp_path: Path, place: str, loop: str
) -> None:
    setup, faults = Setup(loop=loop), [kill(1, 3, place)]
    judge(run_with(tmp_path, setup, faults), setup, faults)


@pytest.mark.parametrize(
    ("loop", "step", "place"),
    quick_of(
        product(
            ["fetches_ahead", "fetches_between"], [5, 6, 11], ["forward", "exchange", "update"]
        ),
        quick=[
            ("fetches_ahead", 5, "update"),
            ("fetches_ahead", 11, "forward"),
            ("fetches_between", 6, "exchange"),
        ],
    ),
)
def test_nothing_is_lost_when_loops_that_fetch_ahead_are_at_the_end_of_an_epoch(
    tmp_path: Path, loop: str, step: int, place: str
) -> None:
    setup = Setup(loop=loop, validate=loop == "fetches_ahead")
    faults = [kill(0, step, place)]
    judge(run_with(tmp_path, setup, faults), setup, faults)


def test_a_window_that_was_fetched_ahead_is_accumulated_anew(tmp_path: Path) -> None:
    setup, faults = Setup(loop="fetches_ahead", accumulate=2), [kill(1, 4, "exchange")]
    judge(run_with(tmp_path, setup, faults), setup, faults)


@pytest.mark.parametrize("place", quick_of(["forward", "call", "backward"], quick=["call"]))
def test_a_batch_is_done_again_when_a_worker_is_lost_before_its_backward_pass(
    tmp_path: Path, place: str
) -> None:
    """The others lose it in a call between forward and backward: the batch was cut for it, too."""
    setup, faults = Setup(loop="metered"), [kill(1, 3, place)]
    judge(run_with(tmp_path, setup, faults), setup, faults)
