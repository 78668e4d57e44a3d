# SPDX-License-Identifier: Apache-2.0
"""Members of a tree that die, leave or are broken off: everybody learns of it, at every level."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch

from forking import PROCESSES
from gangline.collectives import wire
from gangline.collectives.hierarchy import connect_tree
from gangline.spec.errors import ExchangeAborted, ExchangeError
from tree_members import WireConnector, join_tree, ring, server, tree_members
from wire_members import (
    KEY,
    PROMPT_S,
    SHARED,
    WAYS,
    in_threads,
    listeners,
    nothing_left_behind,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from gangline.collectives import Group, GroupKey
    from gangline.collectives.hierarchy import TreeGroup
    from gangline.collectives.wire import WireAddress, WireOptions
    from gangline.spec.exchange.structure import Structure

LARGE = 500_000
SEGMENT_BYTES = 1 << 18
LAST = 5
RINGS = ring(ring(0, 1), ring(2, 3), ring(4, LAST))
VICTIMS = pytest.mark.parametrize(
    "tree",
    [
        pytest.param(RINGS, id="a member dies"),
        pytest.param(ring(ring(0, 1), ring(2, 3), ring(LAST, 4)), id="a leader dies"),
        pytest.param(server(server(LAST, 1, 0), server(2, 3, 4)), id="the top server dies"),
        pytest.param(ring(server(0, 1), ring(ring(2, 3), ring(4, LAST), leader=2)), id="deep down"),
    ],
)


def _victim(rank: int, pipe: Connection, tree: Structure, options: WireOptions) -> None:
    """A member that exchanges until it is killed."""
    with wire.listen() as listener:
        pipe.send(listener.address)
        addresses = pipe.recv()
        group = join_tree(
            tree, rank, listener, addresses=addresses, options=options, segment_bytes=SEGMENT_BYTES
        )
        for number in range(10**6):
            group.all_reduce(torch.ones(LARGE))
            if number == 2:
                pipe.send("exchanging")


@contextlib.contextmanager
def tree_with_victim(
    tree: Structure, options: WireOptions
) -> Iterator[tuple[list[TreeGroup], BaseProcess, Connection]]:
    """Members 0 … 4 here, and the last one in a process of its own."""
    ours, theirs = PROCESSES.Pipe()
    process = PROCESSES.Process(target=_victim, args=(LAST, theirs, tree, options), daemon=True)
    process.start()
    try:
        with listeners(LAST) as made:
            addresses = [*(listener.address for listener in made), ours.recv()]
            ours.send(addresses)
            groups = in_threads(
                LAST,
                lambda rank: join_tree(
                    tree,
                    rank,
                    made[rank],
                    addresses=addresses,
                    options=options,
                    segment_bytes=SEGMENT_BYTES,
                ),
            )
            yield groups, process, ours
            for group in groups:
                group.close()
    finally:
        process.kill()
        process.join()
        ours.close()
        theirs.close()


@WAYS
@VICTIMS
def test_everybody_learns_at_once_when_somebody_is_killed(
    tree: Structure, options: WireOptions
) -> None:
    with tree_with_victim(tree, options) as (groups, process, pipe):

        def endless(rank: int) -> float:
            with pytest.raises(ExchangeError):
                all(groups[rank].all_reduce(torch.ones(LARGE)) is None for _ in range(10**6))
            return time.monotonic()

        with ThreadPoolExecutor(LAST) as pool:
            waiting = [pool.submit(endless, rank) for rank in range(LAST)]
            assert pipe.recv() == "exchanging"
            killed = time.monotonic()
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            learnt = [future.result() for future in waiting]
        assert max(learnt) - killed < PROMPT_S


@WAYS
@pytest.mark.parametrize("leaver", [0, 1, 2, 5])
def test_everybody_learns_it_and_nothing_is_left_when_a_member_leaves(
    leaver: int, options: WireOptions
) -> None:
    tree = ring(server(0, 1), ring(ring(2, 3), ring(4, 5)))
    with tree_members(tree, options=options) as groups:  # what is loaded once
        in_threads(6, lambda rank: groups[rank].all_reduce(torch.ones(10)))
    with nothing_left_behind(), tree_members(tree, options=options) as groups:

        def body(rank: int) -> None:
            groups[rank].all_reduce(torch.ones(20_000))
            if rank == leaver:
                groups[rank].close()
                return
            with pytest.raises(ExchangeError):
                groups[rank].all_reduce(torch.ones(20_000))

        in_threads(6, body)


@WAYS
@pytest.mark.parametrize("length", [10, LARGE], ids=["one piece", "many pieces"])
@pytest.mark.parametrize("aborter", [0, 1, 4])
def test_an_abort_takes_effect_at_once_and_all_learn_of_it_when_the_last_member_comes(
    aborter: int, length: int, options: WireOptions
) -> None:
    with tree_members(RINGS, options=options, segment_bytes=SEGMENT_BYTES) as groups:
        started = threading.Barrier(LAST + 1)

        def body(rank: int) -> BaseException:
            if rank != LAST:
                started.wait()
            with pytest.raises(ExchangeError) as caught:
                groups[rank].all_reduce(torch.ones(length))
            return caught.value

        with ThreadPoolExecutor(LAST + 1) as pool:
            waiting = [pool.submit(body, rank) for rank in range(LAST)]
            started.wait()
            groups[aborter].abort()
            since = time.monotonic()
            assert isinstance(waiting[aborter].result(), ExchangeAborted)
            waiting.append(pool.submit(body, LAST))
            errors = [future.result() for future in waiting]
        assert time.monotonic() - since < PROMPT_S
        others = {*range(LAST + 1)} - {aborter}
        assert not any(isinstance(errors[rank], ExchangeAborted) for rank in others)


def test_an_abort_takes_effect_when_two_members_are_about_to_meet() -> None:
    with tree_members(RINGS) as groups, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(groups[1].send, torch.ones(3), 3)
        while not groups[1]._pairs._connecting:
            time.sleep(0.001)
        groups[1].abort()
        with pytest.raises(ExchangeAborted):
            sending.result(PROMPT_S)
        with pytest.raises(ExchangeError, match="cannot be used any more"):
            groups[1].all_reduce(torch.ones(3))


class Impatient(WireConnector):
    """A transport that gives up on the higher level."""

    def connect(self, key: GroupKey, *, rank: int, addresses: Sequence[WireAddress]) -> Group:
        if key.level == "top":
            raise ExchangeError("nobody there")
        return super().connect(key, rank=rank, addresses=addresses)


def test_own_groups_are_closed_when_a_higher_level_cannot_be_made() -> None:
    with nothing_left_behind(), listeners(3) as made:
        addresses = [listener.address for listener in made]

        def connect(rank: int) -> TreeGroup:
            return connect_tree(
                KEY,
                structure=ring(ring(0, 1), ring(2)),
                rank=rank,
                addresses=addresses,
                connector=Impatient(made[rank], SHARED),
            )

        def body(rank: int) -> None:
            if rank == 1:
                with contextlib.closing(connect(rank)) as group, pytest.raises(ExchangeError):
                    group.all_reduce(torch.ones(3))
            else:
                with pytest.raises(ExchangeError, match="nobody there"):
                    connect(rank)

        in_threads(3, body)
