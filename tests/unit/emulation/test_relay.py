# SPDX-License-Identifier: Apache-2.0
"""The relay's switchboard: where frames go, and when."""

from __future__ import annotations

import pytest

from gangline.emulation.islands import mac_of, plan_network
from gangline.emulation.relay import Pipe, Switchboard
from gangline.spec.cluster import Cluster, NetworkLink, Node

CLUSTER = Cluster(
    nodes=(
        Node(name="a", place="x"),
        Node(name="b", place="x"),
        Node(name="c", place="y"),
        Node(name="d", place="z"),
    ),
    links=(
        NetworkLink(between=("x", "y"), bytes_per_s=1000.0, delay_s=0.5),
        NetworkLink(between=("x", "z"), delay_s=2.0),
    ),
)
EVERYBODY = b"\xff" * 6


@pytest.fixture
def board() -> Switchboard:
    pipes = {
        (number, direction): Pipe(link.bytes_per_s)
        for number, link in enumerate(CLUSTER.links)
        for direction in (0, 1)
    }
    return Switchboard(plan_network(CLUSTER), pipes)


def frame(source: int, target: int | None, num_bytes: int = 100) -> bytes:
    head = (EVERYBODY if target is None else mac_of(target)) + mac_of(source)
    return head.ljust(num_bytes, b"\0")


def arrivals(board: Switchboard) -> list[tuple[float, int]]:
    """When frames arrive, and on which island."""
    found = []
    while (due_s := board.next_s) is not None:
        found += [(pytest.approx(due_s), island) for island, _ in board.due(due_s)]
    return found


def test_a_frame_takes_its_bytes_over_the_bandwidth_and_the_delay(board: Switchboard) -> None:
    board.take(frame(0, 2), island=0, now_s=10.0)
    assert board.next_s == pytest.approx(10.0 + 0.1 + 0.5)
    assert list(board.due(10.5)) == []
    assert list(board.due(10.61)) == [(1, frame(0, 2))]


def test_all_that_cross_a_link_share_it_each_way_for_itself(board: Switchboard) -> None:
    board.take(frame(0, 2), island=0, now_s=0.0)
    board.take(frame(1, 2), island=0, now_s=0.0)
    board.take(frame(2, 0), island=1, now_s=0.0)
    board.take(frame(0, 3), island=0, now_s=0.0)
    assert arrivals(board) == [(0.6, 1), (0.6, 0), (0.7, 1), (2.0, 2)]


def test_an_idle_link_saves_nothing_up(board: Switchboard) -> None:
    board.take(frame(0, 2), island=0, now_s=0.0)
    board.take(frame(0, 2), island=0, now_s=5.0)
    assert arrivals(board) == [(0.6, 1), (5.6, 1)]


def test_what_is_for_everybody_goes_at_once_to_all_other_islands(board: Switchboard) -> None:
    board.take(frame(0, None), island=0, now_s=1.0)
    assert arrivals(board) == [(1.0, 1), (1.0, 2)]


def test_a_frame_to_the_same_island_is_none_of_our_business(board: Switchboard) -> None:
    board.take(frame(0, 1), island=0, now_s=0.0)
    assert board.next_s is None


def test_frames_are_dropped_that_would_wait_for_too_long(board: Switchboard) -> None:
    for _ in range(300):
        board.take(frame(0, 2), island=0, now_s=0.0)
    assert 200 <= len(arrivals(board)) <= 202
