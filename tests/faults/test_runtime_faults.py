# SPDX-License-Identifier: Apache-2.0
"""A worker that dies or raises: the others learn it at once, and nobody hangs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gangline.testing import WorkerError

sys.path.append(str(Path(__file__).parents[1] / "multiprocess"))

from bodies_runtime import die_in_backward, raise_in_the_loop

if TYPE_CHECKING:
    from gangline.testing import WorkerPool


def test_the_others_get_an_error_when_a_worker_is_killed_under_gloo(
    worker_pool: WorkerPool,
) -> None:
    with pytest.raises(WorkerError) as caught:
        worker_pool.run(die_in_backward, 3, args=(1,), transport="gloo")
    failures = caught.value.failures
    assert sorted(failures) == [0, 1, 2], "everybody ended, nobody hung"
    assert "SIGKILL" in failures.pop(1)
    for failure in failures.values():
        assert "ExchangeError" in failure
        assert "in die_in_backward" in failure, "the traceback leads into the user's loop"


@pytest.mark.slow
def test_the_others_go_on_when_a_worker_is_killed(worker_pool: WorkerPool) -> None:
    with pytest.raises(WorkerError) as caught:
        worker_pool.run(die_in_backward, 3, args=(1,))
    assert list(caught.value.failures) == [1], "nobody but the victim ended badly"


def test_an_exception_of_the_users_code_keeps_its_own_traceback(worker_pool: WorkerPool) -> None:
    with pytest.raises(WorkerError) as caught:
        worker_pool.run(raise_in_the_loop, 2)
    failures = caught.value.failures
    assert list(failures) == [1], "the other worker went on alone"
    own = failures[1]
    assert own.rstrip().endswith("KeyError: 'no such label for 2 tensors'")
    assert "in users_own_function" in own
    assert "gangline/worker" not in own.split("in users_own_function")[1]
