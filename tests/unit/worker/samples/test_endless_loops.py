# SPDX-License-Identifier: Apache-2.0
"""A worker that has left, whose loop fetches ahead from an endless generator."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from gangline.worker.samples.handout import Handout
from gangline.worker.samples.loader import _EMPTY_ITERATIONS, _MAX_FILLED, ShareLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCHES = ["first", "last"]


def handout(step: int) -> Handout:
    return Handout(0, step, 0, 0, 1, step, step + 1, step + 1, 1, 1)


class Left:
    """One epoch is handed out; then the worker has left."""

    generator = None
    is_past = False

    def __init__(self, *, is_ahead: bool) -> None:
        self.is_out = False
        self.has_uncomputed = False
        self.filled: list[tuple[Handout, Any]] = []
        self.drawn = deque(handout(step) for step in range(len(BATCHES)))
        self._is_ahead = is_ahead

    def __iter__(self) -> Iterator[str]:
        return iter(BATCHES)

    def begin_epoch(self) -> bool:
        return not self.is_out

    def hand_out(self, *given: Any) -> None:
        pass

    def finish_batch(self) -> bool:
        return True

    def end_epoch(self) -> bool:
        self.is_out, self.has_uncomputed = True, self._is_ahead
        return True

    def fill(self, handout: Handout, batch: Any) -> None:
        self.filled.append((handout, batch))


def endless(loader: ShareLoader) -> Iterator[Any]:
    while True:
        yield from loader


@pytest.mark.parametrize(
    ("is_ahead", "num_filled"), [(True, _EMPTY_ITERATIONS + _MAX_FILLED), (False, _MAX_FILLED)]
)
def test_the_last_batch_is_given_again_as_one_that_counts_nothing_and_then_the_script_ends(
    is_ahead: bool, num_filled: int, capsys: pytest.CaptureFixture[str]
) -> None:
    left: Any = Left(is_ahead=is_ahead)
    batches = endless(ShareLoader(left, left, left, reduction="mean", weight=None))
    given: list[Any] = []
    with pytest.raises(SystemExit) as ended:
        given.extend(batches)
    assert ended.value.code == 0
    assert left.filled == [(handout(1), "last")] * num_filled
    assert "its script ends here. Loop over gangline.epochs(…)" in capsys.readouterr().err


def test_a_loop_over_epochs_gets_nothing_more() -> None:
    left: Any = Left(is_ahead=False)
    loader = ShareLoader(left, left, left, reduction="mean", weight=None)
    given = [list(loader) for _ in range(100)]
    assert given == [BATCHES, *[[]] * 99]
