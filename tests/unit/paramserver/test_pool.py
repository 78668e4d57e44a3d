# SPDX-License-Identifier: Apache-2.0
"""Memory that is used again is nobody's at that time."""

from __future__ import annotations

from gangline.paramserver.service.pool import Pool


def test_what_is_needed_is_not_given_again() -> None:
    pool = Pool(1000)
    first, second = pool.take(100), pool.take(100)
    pool.reclaim(but=[first.view(10, 10)])
    third, fourth = pool.take(100), pool.take(100)
    assert third.data_ptr() == second.data_ptr()
    assert fourth.data_ptr() not in (first.data_ptr(), second.data_ptr())
    pool.reclaim(but=[])
    again = {pool.take(100).data_ptr() for _ in range(3)}
    assert again == {first.data_ptr(), second.data_ptr(), fourth.data_ptr()}


def test_no_more_is_kept_than_may_be() -> None:
    pool = Pool(150)
    for size in (100, 120):
        pool.take(size)
        pool.reclaim(but=[])
    kept = [raw for free in pool._free.values() for raw in free]
    assert [raw.numel() for raw in kept] == [120]
