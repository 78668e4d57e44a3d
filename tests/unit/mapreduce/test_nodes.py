# SPDX-License-Identifier: Apache-2.0
"""The parts of a loop over the nodes of a job: names, who does what, results as bytes."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gangline
from gangline.mapreduce.nodes.handout import Handout, missing_ranges
from gangline.mapreduce.nodes.listing import Listing, chosen
from gangline.mapreduce.nodes.naming import name_everywhere
from gangline.mapreduce.nodes.sending import pack_result, unpack_result
from gangline.scheduling import Choice
from gangline.spec.errors import FunctionError, UsageError
from gangline.spec.exchange.address import WireAddress

ranges = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)).map(lambda r: (r[0], sum(r))))


def listing(worker: int, done: list[tuple[int, int]]) -> Listing:
    return Listing(worker=worker, address=WireAddress(host="h", port=1), nonce="", done=done)


def rows_of(some) -> list[int]:
    return [row for start, stop in some for row in range(start, stop)]


@given(ranges)
def test_what_is_missing_is_what_nobody_has(done) -> None:
    missing = missing_ranges(60, done)
    assert rows_of(missing) == sorted(set(range(60)) - set(rows_of(done)))


@given(st.lists(ranges, max_size=4))
def test_of_results_that_overlap_all_take_the_same_ones(lists) -> None:
    cover = chosen([listing(place, done) for place, done in enumerate(lists)])
    rows = rows_of(cover)
    assert len(rows) == len(set(rows))
    assert rows == sorted(rows)
    for taken, place in cover.items():
        assert taken in lists[place]
    for place, done in enumerate(lists):  # what was left out overlaps what was taken before
        for start, stop in done:
            earlier = [one for one in cover if cover[one] <= place]
            assert any(start < end and begin < stop for begin, end in earlier)


@given(
    ranges=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=5),
    scheme=st.sampled_from(["STATIC", "SS", "GSS", "FAC2", "AWF-C"]),
    lost=st.sets(st.integers(1, 2)),
    asked=st.lists(st.integers(0, 2), max_size=60),
)
def test_every_row_is_done_by_a_node_that_stays(ranges, scheme, lost, asked) -> None:
    wanted, at = [], 0
    for gap, size in ranges:
        wanted.append((at + gap, at + gap + size))
        at += gap + size
    handout = Handout(wanted, Choice.parse(scheme), nodes=3)
    done: dict[int, list[tuple[int, int]]] = {node: [] for node in range(3)}
    for node in asked:
        rows = handout.next(node)
        if rows is not None:
            done[node].append(rows)
    for node in lost:
        handout.lose(node)
        done[node] = []
    while not handout.is_over:
        for node in {0, 1, 2} - lost:
            rows = handout.next(node)
            if rows is not None:
                done[node].append(rows)
    assert sorted(rows_of(rows for some in done.values() for rows in some)) == rows_of(wanted)


def test_what_was_under_way_may_come_back() -> None:
    handout = Handout([(5, 9)], Choice.parse("STATIC"), nodes=2)
    assert handout.next(1) == (5, 7)
    assert handout.next(0) == (7, 9)
    assert handout.next(0) is None
    assert not handout.is_over
    handout.lose(1)
    assert handout.next(0) == (5, 7)
    assert handout.next(0) is None
    assert handout.is_over


def test_nothing_is_handed_out_after_a_stop() -> None:
    handout = Handout([(0, 100)], Choice.parse("SS"), nodes=2)
    assert handout.next(1) == (0, 1)
    handout.stop()
    assert handout.next(0) is None
    assert not handout.is_over, "somebody is still at it"
    assert handout.next(1) is None
    assert handout.is_over


def test_a_function_is_named_by_its_source() -> None:
    one, other = name_everywhere(rows_of), name_everywhere(listing)
    assert one.split("#")[0] == f"{__name__}.rows_of"
    assert one.split("#")[1] != other.split("#")[1]
    assert name_everywhere(len).startswith("builtins.len#")


@pytest.mark.parametrize("function", [lambda rows: rows, functools.partial(rows_of, ())])
def test_what_other_nodes_cannot_find_is_refused(function) -> None:
    with pytest.raises(UsageError, match="define it with `def` at the top level"):
        name_everywhere(function)


@pytest.mark.parametrize(
    "value",
    [
        3,
        2.5,
        "text",
        None,
        [1, (2.0, "x")],
        {"a": [None], 2: "b"},
        ("numpy array", 3),
        np.float32(1.5),
        np.arange(6.0).reshape(2, 3)[:, ::2],
        np.array([True, False]),
        np.zeros((0, 3), dtype=np.int16),
    ],
)
def test_results_come_as_they_were(value) -> None:
    found = unpack_result(pack_result(value, rows="row 1"))
    assert type(found) is type(value)
    np.testing.assert_equal(found, value)
    assert getattr(found, "dtype", None) == getattr(value, "dtype", None)


def test_tensors_come_as_tensors() -> None:
    value = {"x": torch.arange(4, dtype=torch.bfloat16), "y": [np.ones(2)]}
    found = unpack_result(pack_result(value, rows="row 1"))
    assert torch.equal(found["x"], value["x"])
    assert isinstance(found["y"][0], np.ndarray)


@pytest.mark.parametrize("value", [object(), np.array(["a"]), {1, 2}, lambda: 1])
def test_what_cannot_be_sent_is_told_with_its_rows(value) -> None:
    with pytest.raises(FunctionError, match="the result of rows 3 to 5 cannot be sent"):
        pack_result(value, rows="rows 3 to 5")


def test_a_job_must_be_set_up_first() -> None:
    with pytest.raises(UsageError, match=r"call gangline.init\(\) first"):
        gangline.map(rows_of, [(0, 1)], where="job")
