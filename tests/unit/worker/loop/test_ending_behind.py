# SPDX-License-Identifier: Apache-2.0
"""A script ends in an epoch that the others have left behind: is that an end like any other?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import gangline
from gangline.spec.errors import LeftBehindError
from gangline.spec.position import NO_EPOCH
from gangline.worker import api
from gangline.worker.loop.progress import Progress
from gangline.worker.loop.training import Training


def training(*, loop_epoch: int, epoch: int, is_past: bool = True, is_wanted: bool = False) -> Any:
    """A worker whose loop is about to ask for `loop_epoch`, while the job is in `epoch`."""
    found = Training.__new__(Training)
    found.progress = Progress(is_past=is_past, loop_epoch=loop_epoch)
    found.progress.move(epoch=epoch, start=8)
    departure = SimpleNamespace(is_wanted=is_wanted, has_left=is_wanted)
    membership = SimpleNamespace(find_loss=lambda: None)
    found.gear = SimpleNamespace(departure=departure, membership=membership)  # type: ignore[assignment]
    return found


def test_to_leave_the_loop_where_the_others_went_on_is_an_error() -> None:
    loss = training(loop_epoch=2, epoch=7).find_loss()
    assert isinstance(loss, LeftBehindError)
    assert "in epoch 7, and its loop was left after epoch 1, where they went on" in str(loss)


@pytest.mark.parametrize(
    "late",
    [
        training(loop_epoch=8, epoch=7, is_past=False),
        training(loop_epoch=2, epoch=NO_EPOCH),
        training(loop_epoch=2, epoch=7, is_wanted=True),
    ],
    ids=["in time", "the job is over", "asked to leave"],
)
def test_other_ends_are_none(late: Any) -> None:
    assert not late.is_ended_behind


def test_a_loop_that_went_through_all_its_epochs_was_not_left() -> None:
    late = training(loop_epoch=2, epoch=7)
    late.progress.is_through = True
    assert not late.is_ended_behind
    late.skip_to_epoch(5)
    assert late.is_ended_behind, "another loop has begun"


@pytest.mark.parametrize("loop", [gangline.epochs, gangline.steps])
def test_a_loop_that_counts_by_gangline_says_when_it_has_come_to_its_end(
    loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = training(loop_epoch=2, epoch=7)
    late.session = SimpleNamespace(record=lambda event: None, place=SimpleNamespace(worker=0))
    late.epochs = SimpleNamespace(settle=lambda: None, take_rest=lambda: False)
    late.gear.batches = SimpleNamespace(present=None)
    monkeypatch.setattr(api._job, "training", late)
    late.progress.move(step=7)
    for _ in loop(8):
        assert late.is_ended_behind, "it would be left here"
        late.progress.move(epoch=8, step=8)
    assert not late.is_ended_behind
