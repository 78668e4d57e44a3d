# SPDX-License-Identifier: Apache-2.0
"""Trees of groups for tests: random structures, and members that are connected by them."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, TypeVar

from hypothesis import strategies as st

from gangline.collectives import wire
from gangline.collectives.hierarchy import TreeGroup, connect_tree
from gangline.spec.exchange.structure import CARRIED_OUT, RING, SERVER, Structure
from wire_members import KEY, SHARED, TIMEOUT_S, TOKEN, in_threads, listeners

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gangline.collectives import Group, GroupKey
    from gangline.collectives.wire import Listener, WireAddress, WireOptions

T = TypeVar("T")


def ring(*parts: int | Structure, leader: int | None = None) -> Structure:
    return _group(RING, parts, leader)


def server(*parts: int | Structure, leader: int | None = None) -> Structure:
    return _group(SERVER, parts, leader)


def _group(topology: str, parts: Sequence[int | Structure], leader: int | None) -> Structure:
    members = tuple(part for part in parts if isinstance(part, int))
    groups = tuple(part for part in parts if isinstance(part, Structure))
    speakers = members or tuple(group.leader for group in groups)
    chosen = speakers[0] if leader is None else leader
    return Structure(topology=topology, leader=chosen, members=members, groups=groups)


@st.composite
def structures(draw: st.DrawFn, *, min_workers: int = 1, max_workers: int = 7) -> Structure:
    """A random tree over workers 0 … n - 1, in any order."""
    count = draw(st.integers(min_workers, max_workers))
    return _drawn(draw, draw(st.permutations(range(count))), depth=3)


def _drawn(draw: st.DrawFn, workers: Sequence[int], *, depth: int) -> Structure:
    topology = draw(st.sampled_from(CARRIED_OUT))
    num_groups = draw(st.integers(1, min(3, len(workers)))) if depth else 1
    if num_groups == 1 and not (depth and draw(st.integers(0, 5)) == 0):
        return _group(topology, workers, draw(st.sampled_from(workers)))
    cuts = sorted(
        draw(
            st.sets(
                st.integers(1, max(1, len(workers) - 1)),
                min_size=num_groups - 1,
                max_size=num_groups - 1,
            )
        )
    )
    edges = [0, *cuts, len(workers)]
    groups = [
        _drawn(draw, workers[low:high], depth=depth - 1) for low, high in itertools.pairwise(edges)
    ]
    leader = draw(st.sampled_from([group.leader for group in groups]))
    return _group(topology, groups, leader)


class WireConnector:
    """Makes plain wire groups at one listener."""

    def __init__(self, listener: Listener, options: WireOptions) -> None:
        self._listener, self._options = listener, options

    def connect(self, key: GroupKey, *, rank: int, addresses: Sequence[WireAddress]) -> Group:
        return wire.connect(
            key,
            rank=rank,
            addresses=list(addresses),
            listener=self._listener,
            token=TOKEN,
            timeout_s=TIMEOUT_S,
            options=self._options,
        )

    def cancel(self, key: GroupKey) -> None:
        self._listener.cancel(key)


def join_tree(
    structure: Structure,
    rank: int,
    listener: Listener,
    *,
    addresses: Sequence[WireAddress],
    options: WireOptions = SHARED,
    segment_bytes: int = 4096,
) -> TreeGroup:
    """Connects one member; pieces are small, so that several are under way."""
    return connect_tree(
        KEY,
        structure=structure,
        rank=rank,
        addresses=addresses,
        connector=WireConnector(listener, options),
        segment_bytes=segment_bytes,
    )


@contextlib.contextmanager
def tree_members(
    structure: Structure, *, options: WireOptions = SHARED, segment_bytes: int = 4096
) -> Iterator[list[TreeGroup]]:
    """The members of one tree, to be driven by the test itself."""
    count = len(structure.workers)
    with listeners(count) as made:
        addresses = [listener.address for listener in made]
        groups = in_threads(
            count,
            lambda rank: join_tree(
                structure,
                rank,
                made[rank],
                addresses=addresses,
                options=options,
                segment_bytes=segment_bytes,
            ),
        )
        try:
            yield groups
        finally:
            for group in groups:
                group.close()


def run_tree(
    structure: Structure,
    body: Callable[[TreeGroup], T],
    *,
    options: WireOptions = SHARED,
    segment_bytes: int = 4096,
) -> list[T]:
    """Runs the body on every member of a tree at the same time."""
    with tree_members(structure, options=options, segment_bytes=segment_bytes) as groups:
        return in_threads(len(groups), lambda rank: body(groups[rank]))
