# SPDX-License-Identifier: Apache-2.0
"""Which input a part of the output needs, against the uncut layer's indices, one by one."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gangline.spec.errors import UsageError
from gangline.tiling.geometry import Window, cut, hull, overlap, volume, whole
from gangline.tiling.grid import Grid

WINDOWS = st.builds(
    Window,
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(1, 3),
)
WEIGHTS = st.lists(st.floats(0.1, 10), min_size=1, max_size=5)


def seen(window: Window, place: int, length: int) -> set[int]:
    """The input places that one output place is computed from."""
    first = place * window.stride - window.before
    looked = (first + window.dilation * tap for tap in range(window.kernel))
    return {at for at in looked if 0 <= at < length}


@given(WINDOWS, st.integers(1, 30), WEIGHTS)
def test_a_tile_needs_the_range_around_all_that_it_sees(
    window: Window, length: int, weights: list[float]
) -> None:
    places = window.places(length)
    assume(places > 0)
    for tile in cut(places, weights):
        sees = set().union(*(seen(window, place, length) for place in range(*tile)))
        start, stop = window.needs(tile, length)
        assert sees <= set(range(start, stop))
        if tile[0] < tile[1]:
            before, after = window.padding(tile, length)
            padded = Window(window.kernel, window.stride, 0, 0, window.dilation)
            assert padded.places(before + stop - start + after) == tile[1] - tile[0]
            assert before == 0 or start == 0
            assert after == 0 or stop == length


@given(WINDOWS, WINDOWS, st.integers(1, 40), WEIGHTS)
def test_layers_compose(first: Window, second: Window, length: int, weights: list[float]) -> None:
    middle = first.places(length)
    assume(middle > 0)
    places = second.places(middle)
    assume(places > 0)
    for tile in cut(places, weights):
        start, stop = first.needs(second.needs(tile, middle), length)
        inner = set().union(*(seen(second, place, middle) for place in range(*tile)))
        outer = set().union(*(seen(first, place, length) for place in inner))
        assert outer <= set(range(start, stop))


@given(st.integers(0, 50), WEIGHTS)
def test_a_cut_leaves_nothing_out_and_nothing_twice(length: int, weights: list[float]) -> None:
    assert [i for tile in cut(length, weights) for i in range(*tile)] == list(range(length))


@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.data())
def test_the_tiles_of_a_grid_are_the_tensor(shape: list[int], data: st.DataObject) -> None:
    dims = data.draw(
        st.dictionaries(
            st.integers(0, len(shape) - 1),
            st.lists(st.floats(0.5, 4), min_size=1, max_size=3),
            min_size=1,
        )
    )
    size = 1
    for weights in dims.values():
        size *= len(weights)
    boxes = Grid(dims, size).boxes(tuple(shape))
    assert len(boxes) == size
    assert sum(map(volume, boxes)) == volume(whole(shape))
    for index, box in enumerate(boxes):
        assert all(overlap(box, other) is None for other in boxes[:index])
    assert hull(boxes) == whole(shape)


@pytest.mark.parametrize(
    ("dims", "told"),
    [
        ({2: 3}, "makes 3 tiles, and there are 2 workers"),
        ({2: [1, 0]}, "weights above 0"),
        ({-1: 2}, "a dimension is 0, 1, 2"),
        ({2: []}, "a tile or more"),
    ],
)
def test_wrong_dims_are_refused(dims: dict[int, list[float]], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Grid(dims, 2)
    with pytest.raises(UsageError, match="names dimension 4"):
        Grid({4: 2}, 2).check((1, 2, 3, 4))
