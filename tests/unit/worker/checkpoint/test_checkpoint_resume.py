# SPDX-License-Identifier: Apache-2.0
"""A job of one that is interrupted and resumed ends as if nothing had happened."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from checkpoint_jobs import Net, Outcome, Run, checkpoints, train
from runtime_jobs import LAUNCHERS
from safetensors.torch import load_file

from gangline.spec.errors import LogError, MismatchError, UsageError
from gangline.worker import api

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STEPS_PER_EPOCH = 4  # 23 samples in batches of 6


@pytest.fixture(autouse=True)
def nobody_launched_us(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    before = torch.get_rng_state()
    yield
    api.shutdown()
    torch.set_rng_state(before)


def assert_same_end(one: Outcome, other: Outcome) -> None:
    for name, value in one.state.items():
        torch.testing.assert_close(value, other.state[name], rtol=0, atol=1e-9)
    assert one.rate == other.rate
    assert one.average == other.average


@pytest.mark.parametrize(
    "order",
    [
        "sequential",
        "shuffled",
        "drawn",
        "batched",
        "shuffled by a generator",
        "drawn by a generator",
    ],
)
@pytest.mark.parametrize("stop_after", [3, 4, 6])  # in mid-epoch, at its end, in the next one
def test_a_resumed_run_equals_an_uninterrupted_one(
    order: str, stop_after: int, tmp_path: Path
) -> None:
    whole = train(Run(folder=None, order=order, dropout=0.3))
    run = Run(folder=tmp_path / "kept", order=order, dropout=0.3, every=1)
    first = train(replace(run, stop_after=stop_after))
    second = train(replace(run, resume=True))
    assert_same_end(second, whole)
    assert first.used + second.used == whole.used, "each sample once, in the same order"


def test_states_that_are_carried_are_part_of_a_checkpoint(tmp_path: Path) -> None:
    whole = train(Run(folder=None, carries=True))
    assert whole.state["kept.values"].all()
    run = Run(folder=tmp_path / "kept", carries=True, every=1)
    train(replace(run, stop_after=6))
    assert_same_end(train(replace(run, resume=True)), whole)


@pytest.mark.parametrize("every", [2, 3])
def test_steps_after_the_last_checkpoint_are_done_again(every: int, tmp_path: Path) -> None:
    whole = train(Run(folder=None))
    run = Run(folder=tmp_path / "kept", every=every)
    first = train(replace(run, stop_after=5))
    second = train(replace(run, resume=True))
    assert_same_end(second, whole)
    kept = 5 // every * every
    assert first.used[:kept] + second.used == whole.used


def test_a_loop_over_a_plain_range_skips_what_is_done(tmp_path: Path) -> None:
    whole = train(Run(folder=None))
    run = Run(folder=tmp_path, every=1)
    train(replace(run, stop_after=STEPS_PER_EPOCH + 2))
    second = train(replace(run, resume=True, plain_range=True))
    assert_same_end(second, whole)


def test_loader_processes_change_nothing(tmp_path: Path) -> None:
    whole = train(Run(folder=None))
    run = Run(folder=tmp_path, every=1, num_workers=2)
    train(replace(run, stop_after=5))
    assert_same_end(train(replace(run, resume=True)), whole)


def test_accumulation_windows_are_kept_whole(tmp_path: Path) -> None:
    def run(**changes: Any) -> Outcome:
        return train(Run(folder=tmp_path, every=1, accumulate=2, **changes))

    whole = train(Run(folder=None, accumulate=2))
    run(stop_after=7)
    assert_same_end(run(resume=True), whole)


def test_a_run_can_be_resumed_twice(tmp_path: Path) -> None:
    whole = train(Run(folder=None))
    run = Run(folder=tmp_path, every=1)
    train(replace(run, stop_after=3))
    train(replace(run, stop_after=4, resume=True))
    assert_same_end(train(replace(run, resume=True)), whole)


def test_a_finished_run_has_nothing_left_to_do_when_it_is_resumed(tmp_path: Path) -> None:
    whole = train(Run(folder=tmp_path, every=1))
    again = train(Run(folder=tmp_path, every=1, resume=True))
    assert again.used == []
    assert_same_end(again, whole)


def test_training_starts_anew_when_there_is_nothing_to_resume_from(tmp_path: Path) -> None:
    run = Run(folder=tmp_path / "none", resume=True)
    assert len(train(run).used) == 3 * STEPS_PER_EPOCH


def test_the_newest_are_kept_and_named(tmp_path: Path) -> None:
    train(Run(folder=tmp_path, every=2, keep=2))
    names = checkpoints(tmp_path)
    assert names == ["step-000000010", "step-000000012"]
    assert (tmp_path / "latest").read_text().strip() == names[-1]
    assert {path.name for path in tmp_path.iterdir()} == {*names, "latest"}


def test_the_model_file_can_be_loaded_alone(tmp_path: Path) -> None:
    outcome = train(Run(folder=tmp_path, every=3 * STEPS_PER_EPOCH))
    (name,) = checkpoints(tmp_path)
    model = Net(Run(folder=None))
    model.load_state_dict(load_file(tmp_path / name / "model.safetensors"))
    for key, value in model.state_dict().items():
        assert torch.equal(value, outcome.state[key])


# --- what is refused ---------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path) -> Run:
    run = Run(folder=tmp_path / "kept", every=1)
    train(replace(run, stop_after=3))
    return run


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 7}, r"in parameters: number \d is .* To do: build the same model"),
        ({"samples": 24}, "in data set length: 24 instead of 23. To do: give the same data set"),
        ({"batch": 5}, "in global batch: 5 instead of 6. To do: call prepare"),
        ({"accumulate": 2}, "in accumulate: 2 instead of 1"),
        ({"order": "sequential"}, "in order: 'sequential' instead of 'shuffled'"),
    ],
)
def test_another_job_is_refused_and_the_difference_named(
    changes: dict[str, Any], message: str, kept: Run
) -> None:
    with pytest.raises(MismatchError, match=message) as caught:
        train(replace(kept, resume=True, **changes))
    assert "step-" in str(caught.value)


def test_a_run_may_be_resumed_with_synchronised_batch_statistics(kept: Run) -> None:
    assert_same_end(train(replace(kept, resume=True, sync_batchnorm=True)), train(Run(folder=None)))


def test_a_folder_in_use_is_refused_when_the_run_does_not_resume(kept: Run) -> None:
    with pytest.raises(UsageError, match=r"already holds checkpoints, .*--resume.*resume=True"):
        train(kept)


def test_resuming_without_a_folder_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no checkpoint folder to resume from: .*checkpoint="):
        train(Run(folder=None, resume=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"every": 0}, "every is a number of steps"),
        ({"keep": 0}, "keep is a number of checkpoints"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        train(replace(Run(folder=tmp_path), **changes))


def test_nothing_starts_from_the_beginning_when_all_checkpoints_are_damaged(kept: Run) -> None:
    assert kept.folder is not None
    for name in checkpoints(kept.folder):
        (kept.folder / name / "state.json").unlink()
    with pytest.raises(LogError, match=r"none of the checkpoints .*state\.json cannot be read"):
        train(replace(kept, resume=True))
