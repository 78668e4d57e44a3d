# SPDX-License-Identifier: Apache-2.0
"""Ordinary kinds of loops, trained by parameter servers: windows, scaled losses, running statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from elastic_bodies import Setup
from elastic_jobs import run_with
from test_served import assert_sound
from test_served_exact import MAKERS, OPTIMIZERS, SETUP, Replay

from cases import quick_of
from gangline.spec.event import EpochDone, GradientNotFinite, UpdateApplied
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_jobs import Outcome

TOLERANCE = 1e-6
MODES = ["bsp(servers=2)", "bsp(pull=forward)", "asp(ahead=1)", "asp(rows=ondemand)"]
MAKERS |= dict.fromkeys(("served_scaled", "served_fused"), MAKERS["served_sgd"])


def assert_replayed(outcome: Outcome, loop: str, mode: str) -> None:
    """One process makes the same of the same updates."""
    service = parse_sync(mode).service
    assert service is not None
    replay = Replay(outcome, loop, service)
    replay.run(sorted(outcome.of_kind(UpdateApplied), key=lambda one: one.number))
    state = outcome.results[0]["state"]
    for name, expected in replay.model.named_parameters():
        torch.testing.assert_close(
            state[f"0.{name}"], expected.data, rtol=TOLERANCE, atol=TOLERANCE
        )


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("loop", sorted(OPTIMIZERS))
def test_a_window_of_several_passes_is_one_push(tmp_path: Path, loop: str) -> None:
    setup = replace(SETUP, loop=loop, accumulate=3)
    outcome = run_with(tmp_path, setup, [], workers=2, sync=parse_sync("bsp"))
    assert_sound(outcome, setup)
    assert_replayed(outcome, loop, "bsp")


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("loop", "mode"), [("served_scaled", "bsp"), ("served_fused", "asp"), ("served_fused", "bsp")]
)
def test_gradients_are_unscaled_before_they_are_pushed(
    tmp_path: Path, loop: str, mode: str
) -> None:
    setup = replace(SETUP, loop=loop)
    outcome = run_with(tmp_path, setup, [], workers=2, sync=parse_sync(mode))
    assert_sound(outcome, setup)
    assert {one["found_after"]["scale"] for one in outcome.results.values()} == {1024.0}
    assert_replayed(outcome, loop, mode)


@pytest.mark.parametrize(
    ("loop", "mode"),
    [
        ("served_overflow", "asp"),
        ("served_overflow", "asp(ahead=1)"),
        ("served_fused_overflow", "asp(servers=2)"),
        ("served_all_overflow", "asp"),
    ],
)
def test_what_a_skipped_step_has_used_weighs_nothing(tmp_path: Path, loop: str, mode: str) -> None:
    setup = replace(SETUP, loop=loop)
    outcome = run_with(tmp_path, setup, [], workers=2, sync=parse_sync(mode))
    assert_sound(outcome, setup)
    skipped = sum(one["found_after"]["skipped"] for one in outcome.results.values())
    assert skipped
    weights = [w for one in outcome.of_kind(UpdateApplied) for w in one.weights]
    weighed = setup.epochs * setup.samples - skipped
    assert sum(weights) * setup.batch == pytest.approx(weighed)


@pytest.mark.parametrize("loop", ["served_overflow", "served_all_overflow"])
def test_rounds_go_on_without_who_skips_a_step(tmp_path: Path, loop: str) -> None:
    setup = replace(SETUP, loop=loop)
    outcome = run_with(tmp_path, setup, [], workers=2, sync=parse_sync("bsp"))
    assert_sound(outcome, setup)
    assert sum(one["found_after"]["skipped"] for one in outcome.results.values())


@pytest.mark.parametrize("mode", ["bsp", "asp", "ssp(1)", "backup(1)"])
def test_all_end_with_the_same_running_statistics(tmp_path: Path, mode: str) -> None:
    setup = Setup(loop="served_normalised", samples=120, batch=24, epochs=2)
    outcome = run_with(tmp_path, setup, [], workers=2, sync=parse_sync(mode))
    assert_sound(outcome, setup)
    state = outcome.results[0]["state"]
    (mean,) = [value for name, value in state.items() if name.endswith("running_mean")]
    assert mean.abs().max() > 0


@pytest.mark.parametrize("mode", quick_of(MODES, quick=MODES[:2]))
def test_what_a_loop_does_to_parameters_after_the_step_is_refused(
    tmp_path: Path, mode: str
) -> None:
    setup = replace(SETUP, loop="served_clamped")
    outcome = run_with(tmp_path, setup, [], workers=2, sync=parse_sync(mode))
    assert 0 not in outcome.exit_codes
    assert "something beside step() has changed 2.weight" in "".join(outcome.outputs.values())


def test_other_weights_may_be_looked_at_between_epochs_but_not_kept(tmp_path: Path) -> None:
    setup = replace(SETUP, loop="served_reset", epochs=3)
    outcome = run_with(tmp_path, setup, [], workers=2, sync=parse_sync("bsp(servers=2)"))
    assert 0 not in outcome.exit_codes
    for said in outcome.outputs.values():
        assert "epoch 1 is over" in said
        assert "epoch 2 is over" not in said
        assert "something beside step() has changed 0.weight" in said


@pytest.mark.parametrize("mode", quick_of(MODES[:3], quick=MODES[2:3]))
def test_who_pushes_what_is_not_finite_is_named_with_the_step(tmp_path: Path, mode: str) -> None:
    setup = replace(SETUP, loop="served_not_finite")
    outcome = run_with(tmp_path, setup, [], workers=2, sync=parse_sync(mode))
    assert outcome.exit_codes[0] == 0
    assert outcome.exit_codes[1] != 0
    (event,) = outcome.of_kind(GradientNotFinite)
    assert event.worker == 1
    assert f"worker 1, epoch 1, step {event.step}: shard" in outcome.outputs[1]
    assert "push for 2.weight has values that are not finite" in outcome.outputs[1]
    (done,) = [one for one in outcome.of_kind(EpochDone) if (one.worker, one.epoch) == (1, 0)]
    assert event.step == done.step
