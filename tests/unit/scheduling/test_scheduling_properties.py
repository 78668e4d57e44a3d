# SPDX-License-Identifier: Apache-2.0
"""Whatever the scheme, the loop and the order in which workers ask: each item once, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.scheduling import (
    Choice,
    Layout,
    Partitioner,
    Speeds,
    Timing,
    WorkQueues,
    parse_scheme,
)
from gangline.scheduling.schemes.named import DAPHNE, PLAIN, SCHEMES
from gangline.scheduling.selection import Selector
from gangline.scheduling.victims import VICTIMS

if TYPE_CHECKING:
    from gangline.scheduling.chunks import Chunk

NAMES = [*SCHEMES, *(f"daphne:{name}" for name in DAPHNE)]
TIMINGS = st.none() | st.builds(
    Timing,
    mean_s=st.floats(1e-6, 10),
    sigma_s=st.just(0.0) | st.floats(1e-9, 100),
    overhead_s=st.just(0.0) | st.floats(1e-9, 10),
)
SECONDS = st.just(0.0) | st.floats(0, 100)


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    total=st.integers(0, 2000),
    workers=st.integers(1, 17),
    grain=st.integers(1, 40) | st.just(5000),
    timing=TIMINGS,
    data=st.data(),
)
def test_a_scheme_cuts_every_loop_into_whole_chunks(name, total, workers, grain, timing, data):
    seconds = data.draw(st.lists(SECONDS, min_size=5, max_size=5))
    order = data.draw(st.lists(st.integers(0, workers - 1), min_size=1, max_size=7))
    scheme = parse_scheme(name).make(total, workers, grain=grain, timing=timing, speeds=Speeds())
    partitioner, chunks = Partitioner(total, scheme), []
    while (chunk := partitioner.take(order[len(chunks) % len(order)])) is not None:
        worker = order[len(chunks) % len(order)]
        took_s = seconds[len(chunks) % 5] * chunk.size
        partitioner.finished(worker, chunk, took_s, overhead_s=seconds[0])
        chunks.append(chunk)
    edges = [0, *(chunk.stop for chunk in chunks)]
    assert [chunk.start for chunk in chunks] == edges[:-1]
    assert edges[-1] == total
    assert all(chunk.size >= grain for chunk in chunks[:-1])
    assert all(chunk.size >= 1 for chunk in chunks)
    assert scheme.next_size(0, 0) == 0


@st.composite
def choices(draw):
    is_dealt = draw(st.booleans())
    return Choice.parse(
        draw(st.sampled_from(list(PLAIN) if is_dealt else NAMES)),
        grain=draw(st.integers(1, 9)),
        layout=draw(st.sampled_from(list(Layout))),
        victims=draw(st.sampled_from(list(VICTIMS))),
        pre_partition=not is_dealt,
    )


def drain(queues, workers: int, data, *, total: int) -> list[Chunk]:
    """Workers ask in any order, finish in any order, and now and then lose what they took."""
    held: list[tuple[int, Chunk]] = []
    done: list[Chunk] = []
    lost, seen = 3, 0
    order = data.draw(st.lists(st.integers(0, workers - 1), min_size=1, max_size=9))
    what = data.draw(st.lists(st.sampled_from(["take", "take", "done", "lose"]), min_size=1))
    while queues.remaining or held:
        worker, act = order[seen % len(order)], what[seen % len(what)]
        seen += 1
        if act == "take" or not held:
            left = queues.remaining
            chunk = queues.take(worker)
            assert (chunk is None) == (left == 0), "nobody waits while there is something to do"
            if chunk is not None:
                held.append((worker, chunk))
            if chunk is not None or held:
                act = "done" if chunk is None or seen % 3 else "keep"
        if act == "lose" and lost:
            lost -= 1
            queues.put_back(held.pop(0)[1])
        elif act in ("done", "lose") and held:
            who, chunk = held.pop()
            queues.finished(who, chunk, 0.01 * chunk.size, overhead_s=0.001)
            done.append(chunk)
    return done


def assert_each_once(done: list[Chunk], total: int) -> None:
    items = sorted(item for chunk in done for item in range(chunk.start, chunk.stop))
    assert items == list(range(total))


@settings(max_examples=60, deadline=None)
@given(
    choice=choices(),
    total=st.integers(0, 300),
    groups=st.lists(st.integers(0, 3), min_size=1, max_size=7),
    data=st.data(),
)
def test_queues_hand_out_every_item_once_whoever_asks(choice, total, groups, data):
    queues = WorkQueues(choice, total=total, workers=len(groups), groups=groups)
    done = drain(queues, len(groups), data, total=total)
    assert_each_once(done, total)
    assert all(queues.take(worker) is None for worker in range(len(groups)))


@settings(max_examples=25, deadline=None)
@given(
    totals=st.lists(st.integers(0, 300), min_size=1, max_size=5),
    groups=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    method=st.sampled_from(["expert", "sarsa"]),
    data=st.data(),
)
def test_automated_queues_hand_out_every_item_once(totals, groups, method, data):
    selector = Selector(workers=len(groups), groups=groups, method=method)
    for total in totals:
        queues = selector.begin(total)
        done = drain(queues, len(groups), data, total=total)
        assert_each_once(done, total)
        selector.end(queues)
        assert all(advice.reason for advice in selector.decided())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("total", "workers", "grain"), [(0, 1, 1), (1, 1, 1), (1, 8, 1), (7, 8, 1), (5, 2, 100)]
)
def test_the_smallest_loops_are_cut(name, total, workers, grain):
    scheme = parse_scheme(name).make(total, workers, grain=grain)
    partitioner, sizes = Partitioner(total, scheme), []
    while (chunk := partitioner.take(0)) is not None:
        sizes.append(chunk.size)
    assert sum(sizes) == total
