# SPDX-License-Identifier: Apache-2.0
"""Exchanges over trees of groups: the same as over one flat group, and bit-equal on all members."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forking import PROCESSES
from gangline.collectives import gather_bytes, wire
from gangline.collectives.protocol import part_bounds
from gangline.spec.errors import ExchangeError, UsageError
from tree_members import join_tree, ring, run_tree, server, structures, tree_members
from wire_members import (
    CARRIED,
    SHARED,
    SUMMED,
    TCP,
    WAYS,
    in_threads,
    nothing_left_behind,
    run_members,
    total,
    values,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from gangline.collectives import Group
    from gangline.collectives.hierarchy import TreeGroup
    from gangline.collectives.wire import WireOptions
    from gangline.spec.exchange.structure import Structure

TREES = (
    ring(0, 1, 2),
    server(2, 0, 1, leader=1),
    ring(ring(0, 1), ring(2, 3)),
    server(ring(0, 1, leader=1), server(2, 3, 4), leader=2),
    ring(ring(4), server(3, 1, 0), ring(ring(2), server(5, 6))),
    ring(server(ring(0, 3), ring(2, 1, leader=1), leader=1), ring(4, 5)),
    ring(ring(ring(0), ring(1, 2))),
)
LENGTHS = (0, 1, 3, 1000, 20_001)


@WAYS
@pytest.mark.parametrize("tree", TREES, ids=str)
def test_all_reduce_sums_and_takes_the_largest_header(
    tree: Structure, options: WireOptions
) -> None:
    size = len(tree.workers)

    def body(group: TreeGroup) -> None:
        for dtype in SUMMED:
            for length in LENGTHS:
                tensor = values(length, group.rank, dtype)
                header = np.array([group.rank, -group.rank, 5], dtype=np.int64)
                group.all_reduce(tensor, header)
                assert torch.equal(tensor, total(length, size, dtype)), (dtype, length)
                assert header.tolist() == [size - 1, 0, 5]

    run_tree(tree, body, options=options)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    tree=structures(),
    length=st.one_of(st.integers(0, 5000), st.integers(0, 700_000)),
    dtype=st.sampled_from(SUMMED),
    segment_bytes=st.sampled_from([4096, 1 << 20]),
    options=st.sampled_from([SHARED, TCP]),
    seed=st.integers(0, 2**31),
)
def test_any_tree_gives_the_sum_to_everybody_bit_by_bit(
    *,
    tree: Structure,
    length: int,
    dtype: torch.dtype,
    segment_bytes: int,
    options: WireOptions,
    seed: int,
) -> None:
    size = len(tree.workers)
    # As many pieces as a run would have, not thousands.
    segment_bytes = max(segment_bytes, length * 8 // 50)

    def share_of(rank: int) -> torch.Tensor:
        rng = torch.Generator().manual_seed(seed + rank)
        if not dtype.is_floating_point:
            return torch.randint(-1000, 1000, (length,), generator=rng, dtype=dtype)
        # Shares are unlike: some members weigh a thousand times as much as others.
        weight = 10.0 ** float(torch.randint(-2, 2, (), generator=rng))
        return (torch.randn(length, generator=rng) * weight).to(dtype)

    def body(group: TreeGroup) -> tuple[bytes, list[int]]:
        tensor = share_of(group.rank)
        header = np.array([group.rank * 3, -group.rank], dtype=np.int64)
        group.all_reduce(tensor, header)
        return tensor.view(torch.uint8).numpy().tobytes(), header.tolist()

    first, *others = run_tree(tree, body, options=options, segment_bytes=segment_bytes)
    assert all(other == first for other in others)
    assert first[1] == [3 * (size - 1), 0]
    result = torch.frombuffer(bytearray(first[0]), dtype=dtype) if length else torch.empty(0)
    expected = torch.stack([share_of(rank).double() for rank in range(size)]).sum(0)
    scale = torch.stack([share_of(rank).double().abs() for rank in range(size)]).sum(0)
    tolerance = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    error = (result.double() - expected).abs()
    assert bool((error <= size * 1.2e-7 * scale + tolerance * expected.abs()).all())


@WAYS
def test_a_tree_agrees_with_the_flat_group(options: WireOptions) -> None:
    def body(group: Group) -> torch.Tensor:
        tensor = torch.randn(50_000, generator=torch.Generator().manual_seed(group.rank))
        group.all_reduce(tensor)
        return tensor

    flat = run_members(7, body, options=options)[0]
    result = run_tree(TREES[4], body, options=options, segment_bytes=1 << 16)[0]
    torch.testing.assert_close(result, flat)


def test_half_precision_is_rounded_once_when_it_passes_several_levels() -> None:
    # 256 + 1 + 1 + 1 in bfloat16: rounding at every level would lose single ones.
    def body(group: TreeGroup) -> torch.Tensor:
        first = 256.0 if group.rank == 0 else 1.0
        tensor = torch.full((5_000,), first, dtype=torch.bfloat16)
        group.all_reduce(tensor)
        return tensor

    expected = torch.full((5_000,), 259.0).to(torch.bfloat16)
    for tree in (ring(ring(0, 1), ring(2, 3)), server(server(0, 1), server(2, 3))):
        assert all(torch.equal(result, expected) for result in run_tree(tree, body))


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_the_other_collectives_agree_with_their_definitions(tree: Structure) -> None:
    size = len(tree.workers)

    def body(group: TreeGroup) -> None:
        for length in LENGTHS:
            bounds = part_bounds(length, size)
            part = group.reduce_scatter(values(length, group.rank))
            low, high = bounds[group.rank], bounds[group.rank + 1]
            assert torch.equal(part, total(length, size)[low:high])
            rows = group.all_gather(values(length, group.rank))
            assert all(torch.equal(row, values(length, rank)) for rank, row in enumerate(rows))
            for root in range(size):
                tensor = values(length, group.rank)
                group.broadcast(tensor, root)
                assert torch.equal(tensor, values(length, root)), (length, root)
        payloads = gather_bytes(group, b"x" * group.rank)
        assert payloads == [b"x" * rank for rank in range(size)]

    run_tree(tree, body)


def test_every_type_and_shape_can_be_gathered_and_broadcast() -> None:
    def body(group: TreeGroup) -> None:
        for dtype in CARRIED:
            mine = values(24, group.rank, dtype).view(2, 3, 4).transpose(0, 2)
            rows = group.all_gather(mine)
            assert [row.dtype for row in rows] == [dtype] * 5
            assert torch.equal(rows[1], values(24, 1, dtype).view(2, 3, 4).transpose(0, 2))
            group.broadcast(mine, 4)
            assert torch.equal(mine, rows[4])
        scalar = torch.tensor(float(group.rank), requires_grad=True)
        group.all_reduce(scalar)
        assert float(scalar.detach()) == 10.0

    run_tree(TREES[3], body)


@pytest.mark.parametrize("tree", TREES[3:5], ids=str)
def test_any_two_members_can_send_to_each_other(tree: Structure) -> None:
    size = len(tree.workers)

    def body(group: TreeGroup) -> None:
        for source in range(size):
            for to in range(size):
                if source == to or group.rank not in (source, to):
                    continue
                if group.rank == source:
                    group.send(values(3000, source), to)
                else:
                    tensor = torch.empty(3000)
                    group.receive(tensor, source)
                    assert torch.equal(tensor, values(3000, source))
        group.all_reduce(torch.ones(3))

    run_tree(tree, body)


def test_hops_are_told_by_rank_in_the_tree() -> None:
    with tree_members(ring(ring(3, 2), ring(1, 0))) as groups:
        in_threads(4, lambda rank: groups[rank].all_reduce(torch.ones(10_000)))
        assert [hop.peer for hop in groups[2].hops()] == [3]
        assert sorted(hop.peer for hop in groups[3].hops()) == [1, 2]
        assert all(hop.bytes > 0 for hop in groups[3].hops())


def test_what_cannot_be_carried_is_refused_and_breaks_nothing() -> None:
    with tree_members(ring(ring(0, 1), ring(2, 3))) as groups:
        with pytest.raises(UsageError, match=r"cannot sum torch\.uint8"):
            groups[0].all_reduce(torch.ones(3, dtype=torch.uint8))
        with pytest.raises(UsageError, match="contiguous row of int64"):
            groups[0].all_reduce(torch.ones(3), np.zeros(3))  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="root 4: the members are 0 to 3"):
            groups[0].broadcast(torch.ones(3), 4)
        with pytest.raises(UsageError, match="member 0: the other members"):
            groups[0].send(torch.ones(3), 0)
        in_threads(4, lambda rank: groups[rank].all_reduce(torch.ones(3)))


def test_a_structure_for_others_is_refused_when_the_members_connect() -> None:
    with wire.listen() as listener, pytest.raises(UsageError, match=r"ranks 0 to 1, not \[0, 2\]"):
        join_tree(ring(0, 2), 0, listener, addresses=[listener.address] * 2)


def test_everybody_learns_it_when_branches_call_different_things() -> None:
    with tree_members(ring(ring(0, 1), ring(2, 3), ring(4, 5))) as groups:

        def body(rank: int) -> str:
            with pytest.raises(ExchangeError) as caught:
                groups[rank].all_reduce(torch.ones(100 if rank < 2 else 200))
            return str(caught.value)

        errors = in_threads(6, body)
        assert any("do not make the same call: length" in error for error in errors)
        assert any("(group top: members 0, 1, … are ranks 0, 2, 4)" in error for error in errors)
        with pytest.raises(ExchangeError, match="cannot be used any more"):
            groups[5].all_reduce(torch.ones(3))


def test_nothing_is_left_behind_when_a_tree_is_closed() -> None:
    run_tree(TREES[5], lambda group: group.all_reduce(torch.ones(10)))  # what is loaded once
    with nothing_left_behind():

        def body(group: TreeGroup) -> None:
            group.all_reduce(torch.ones(50_000))
            if group.rank in (0, 5):
                peer = 5 - group.rank
                first, second = (group.send, group.receive)[:: 1 if group.rank else -1]
                first(torch.ones(2), peer)
                second(torch.ones(2), peer)

        run_tree(TREES[5], body)
        run_tree(TREES[5], body, options=TCP)


def _member(rank: int, pipe: Connection, tree: Structure) -> None:
    with wire.listen() as listener:
        pipe.send(listener.address)
        group = join_tree(tree, rank, listener, addresses=pipe.recv(), segment_bytes=1 << 18)
        with contextlib.closing(group):
            tensor = torch.randn(1_000_000, generator=torch.Generator().manual_seed(rank))
            group.all_reduce(tensor)
            pipe.send(tensor.view(torch.uint8).numpy().tobytes())
            pipe.recv()


def test_processes_form_a_tree() -> None:
    tree = server(ring(0, 1), ring(2, 3))
    pipes, processes = [], []
    for rank in range(4):
        ours, theirs = PROCESSES.Pipe()
        process = PROCESSES.Process(target=_member, args=(rank, theirs, tree), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        addresses = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send(addresses)
        first, *others = [pipe.recv() for pipe in pipes]
        assert all(other == first for other in others)
        for pipe in pipes:
            pipe.send("done")
    finally:
        for process, pipe in zip(processes, pipes, strict=True):
            process.join(10)
            process.kill()
            process.join()
            pipe.close()
