# SPDX-License-Identifier: Apache-2.0
"""A job agrees with the plain script: one worker to the last bit, several to rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from bodies_plain import is_same_to_the_last_bit, run_page

if TYPE_CHECKING:
    from gangline.testing import WorkerPool


@pytest.mark.parametrize(
    ("order", "num_workers"), [("shuffle", 0), ("shuffle", 2), ("generator", 0), ("sampler", 0)]
)
def test_one_worker_is_the_plain_script(
    order: str, num_workers: int, worker_pool: WorkerPool
) -> None:
    assert worker_pool.run(is_same_to_the_last_bit, 1, args=(order, num_workers)) == [True]


def test_several_workers_agree_with_the_plain_script_of_the_page(worker_pool: WorkerPool) -> None:
    differences = worker_pool.run(run_page, 3, shares=(5.0, 2.0, 1.0))
    assert all(0 <= difference < 1e-12 for difference in differences)
