# SPDX-License-Identifier: Apache-2.0
"""A team's own order: its leases one after the other, and where they are in the epoch's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gangline.spec.leases import Lease, TeamOrder

leases = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 9)).map(lambda at: Lease(at[0], at[0] + at[1])),
    max_size=8,
)


def test_a_part_may_lie_in_several_leases() -> None:
    order = TeamOrder([Lease(10, 14), Lease(30, 32), Lease(0, 5)])
    assert (len(order), order.given) == (3, 11)
    assert order.locate(3, 8) == [Lease(13, 14), Lease(30, 32), Lease(0, 2)]
    assert order.locate(4, 6) == [Lease(30, 32)]
    assert order.locate(9, 20) == [Lease(3, 5)], "no more than the team has"
    assert order.locate(11, 20) == []


@given(given_leases=leases, start=st.integers(0, 80), stop=st.integers(0, 80))
def test_a_part_is_the_slice_of_all_its_samples(
    given_leases: list[Lease], start: int, stop: int
) -> None:
    order = TeamOrder(given_leases)
    samples = [sample for low, high in given_leases for sample in range(low, high)]
    found = order.locate(start, stop)
    assert [sample for low, high in found for sample in range(low, high)] == samples[start:stop]
    assert all(low < high for low, high in found)
