# SPDX-License-Identifier: Apache-2.0
"""Where things lie in the memory that members share."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.collectives.protocol import part_bounds
from gangline.collectives.wire.shared_memory.mapping import (
    MAX_DEFAULT_BYTES,
    Layout,
    Mapping,
    make_memory,
)
from gangline.collectives.wire.shared_memory.plans import BLOCK_BYTES, Plans


def mapped(layout: Layout) -> Mapping:
    descriptor = make_memory(layout)
    try:
        return Mapping(descriptor, layout)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("members", [2, 3, 8, 120])
def test_a_default_layout_is_bounded_and_even(members: int) -> None:
    layout = Layout.of(members, None)
    assert layout.segment_bytes % (members * 4096) == 0
    slots_and_results = (2 * members + 2) * layout.segment_bytes
    assert slots_and_results <= MAX_DEFAULT_BYTES + (2 * members + 2) * members * 4096


def test_no_two_places_overlap() -> None:
    layout = Layout.of(3, 4096)
    mapping = mapped(layout)
    places = [mapping.results[0], mapping.results[1]]
    for row in mapping.slots:
        for record in row:
            places += [np.frombuffer(record.frame, np.uint8), record.header, record.data]
    for parcel in mapping.parcels:
        places += [np.frombuffer(parcel.frame, np.uint8), *parcel.halves]
    for counters in (mapping.arrived, mapping.sleeping, mapping.sent, mapping.taken):
        for index in range(len(counters)):
            assert counters[index] == 0
            counters[index] = -1
    for number, place in enumerate(places):
        assert not place.any()
        place[:] = number + 1
    for number, place in enumerate(places):
        assert (place == number + 1).all()
    assert set(mapping.arrived) == set(mapping.taken) == {-1}
    del places, place, row, record, parcel, counters
    mapping.close()


def test_memory_of_the_wrong_size_is_refused() -> None:
    descriptor = make_memory(Layout.of(2, 4096))
    with pytest.raises(ValueError, match="bytes, not"):
        Mapping(descriptor, Layout.of(3, 4096))
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 10)
    os.close(descriptor)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 4), st.integers(0, 3 * BLOCK_BYTES), st.data())
def test_a_plan_covers_every_element_once(members: int, length: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, members - 1))
    mapping = mapped(Layout.of(members, 4096 * members * data.draw(st.integers(1, 200))))
    plans = Plans(mapping, rank=rank)
    array = np.zeros(length, dtype=np.float32)
    bounds = part_bounds(length, members)
    read, own, written = (np.zeros(length, dtype=int) for _ in range(3))
    for even, odd in plans.plan(array).rounds:
        for block, place in odd.reads:
            read[block] += 1
            assert block.stop - block.start == place.size
        for block in even.sums:
            own[block.own] += 1
            assert {term.size for term in block.terms} == {block.result.size}
        for place, block in even.writes:
            written[block] += 1
            assert block.stop - block.start == place.size
    assert (read == 1).all()
    assert (own + written == 1).all()
    assert own.sum() == own[bounds[rank] : bounds[rank + 1]].sum() == np.diff(bounds)[rank]
    assert plans.plan(array) is plans.plan(np.ones(length, dtype=np.float32))
    plans.close()
