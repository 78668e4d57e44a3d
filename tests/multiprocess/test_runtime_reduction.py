# SPDX-License-Identifier: Apache-2.0
"""A loss that is not reduced as it was said is noticed by a running job, once, by the main worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from bodies_reduction import train_with_losses

if TYPE_CHECKING:
    from gangline.testing import WorkerPool

SHARES = (10.0, 4.0, 2.0)


@pytest.mark.parametrize(
    ("said", "true", "words"),
    [
        ("mean", "sum", 'give prepare(reduction="sum"), or make it a mean'),
        ("sum", "mean", "leave reduction= out"),
    ],
)
def test_a_wrong_reduction_is_warned_of(
    said: str, true: str, words: str, worker_pool: WorkerPool
) -> None:
    main, *others = worker_pool.run(train_with_losses, 3, args=(said, true, SHARES))
    ((message, file),) = main
    assert words in message
    assert file == "bodies_reduction.py", "it points to the user's backward()"
    assert others == [[], []]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_right_reduction_is_not(reduction: str, worker_pool: WorkerPool) -> None:
    assert worker_pool.run(train_with_losses, 3, args=(reduction, reduction, SHARES)) == [[]] * 3
