# SPDX-License-Identifier: Apache-2.0
"""Exchanges of the wire transport, over shared memory and over TCP, against plain sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from forking import PROCESSES
from gangline.collectives import gather_bytes, wire
from gangline.collectives.protocol import part_bounds
from gangline.collectives.wire import WireGroup, WireOptions
from gangline.collectives.wire.tcp.ring import PAIR_BYTES
from gangline.spec.errors import ExchangeError, UsageError
from wire_members import (
    CARRIED,
    KEY,
    SHARED,
    SUMMED,
    TCP,
    TIMEOUT_S,
    TOKEN,
    in_threads,
    join,
    listeners,
    members,
    nothing_left_behind,
    run_members,
    total,
    values,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SMALL = WireOptions(timeout_s=TIMEOUT_S, segment_bytes=4096)
LANES = WireOptions(timeout_s=TIMEOUT_S, shared_memory=False, connections=3, segment_bytes=4096)
CHECKED = WireOptions(timeout_s=TIMEOUT_S, shared_memory=False, checksum=True, segment_bytes=4096)
WAYS = pytest.mark.parametrize(
    "options",
    [
        pytest.param(SHARED, id="shared"),
        pytest.param(SMALL, id="shared in small segments"),
        pytest.param(TCP, id="tcp"),
        pytest.param(LANES, id="tcp over three connections"),
        pytest.param(CHECKED, id="tcp with checksums"),
    ],
)
LENGTHS = (0, 1, 3, 1000, 50_001)


@WAYS
@pytest.mark.parametrize("size", [2, 3])
def test_all_reduce_sums_and_takes_the_largest_header(options: WireOptions, size: int) -> None:
    def body(group: WireGroup) -> None:
        for dtype in SUMMED:
            for length in LENGTHS:
                tensor = values(length, group.rank, dtype)
                header = np.array([group.rank, -group.rank, 5], dtype=np.int64)
                group.all_reduce(tensor, header)
                assert torch.equal(tensor, total(length, size, dtype)), (dtype, length)
                assert header.tolist() == [size - 1, 0, 5]

    run_members(size, body, options=options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_members_sum_alike_whether_each_sums_everything_or_half(dtype: torch.dtype) -> None:
    longest = PAIR_BYTES // 2 // dtype.itemsize

    def body(group: WireGroup) -> None:
        for length in (longest, longest + 1):
            tensor = values(length, group.rank, dtype)
            header = np.array([group.rank], dtype=np.int64)
            group.all_reduce(tensor, header)
            assert torch.equal(tensor, total(length, 2, dtype)), length
            assert header.tolist() == [1]

    run_members(2, body, options=TCP)


@WAYS
def test_all_reduce_is_bit_equal_on_all_members(options: WireOptions) -> None:
    def body(group: WireGroup) -> list[bytes]:
        rng = torch.Generator().manual_seed(group.rank)
        results = []
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            for length in LENGTHS:
                tensor = torch.randn(length, generator=rng).to(dtype)
                group.all_reduce(tensor)
                results.append(tensor.view(torch.uint8).numpy().tobytes())
        return results

    first, *others = run_members(4, body, options=options)
    assert all(other == first for other in others)


@WAYS
def test_half_precision_is_rounded_once_when_many_are_summed(options: WireOptions) -> None:
    # 256 + 1 + 1 + 1 in bfloat16: rounding after every addition would lose each single 1.
    def body(group: WireGroup) -> torch.Tensor:
        first = 256.0 if group.rank == 0 else 1.0
        tensor = torch.full((50_000,), first, dtype=torch.bfloat16)
        group.all_reduce(tensor)
        return tensor

    expected = torch.full((50_000,), 259.0).to(torch.bfloat16)
    assert all(torch.equal(result, expected) for result in run_members(4, body, options=options))


@WAYS
def test_the_other_collectives_agree_with_their_definitions(options: WireOptions) -> None:
    size = 3

    def body(group: WireGroup) -> None:
        for length in LENGTHS:
            bounds = part_bounds(length, size)
            part = group.reduce_scatter(values(length, group.rank))
            low, high = bounds[group.rank], bounds[group.rank + 1]
            assert torch.equal(part, total(length, size)[low:high])
            half = group.reduce_scatter(values(length, group.rank, torch.bfloat16))
            assert torch.equal(half, total(length, size, torch.bfloat16)[low:high])
            rows = group.all_gather(values(length, group.rank))
            assert all(torch.equal(row, values(length, rank)) for rank, row in enumerate(rows))
            for root in range(size):
                tensor = values(length, group.rank)
                group.broadcast(tensor, root)
                assert torch.equal(tensor, values(length, root))

    run_members(size, body, options=options)


@WAYS
def test_every_type_can_be_gathered_and_broadcast(options: WireOptions) -> None:
    def body(group: WireGroup) -> None:
        for dtype in CARRIED:
            rows = group.all_gather(values(500, group.rank, dtype))
            assert [row.dtype for row in rows] == [dtype, dtype]
            assert torch.equal(rows[1], values(500, 1, dtype))
            tensor = values(500, group.rank, dtype)
            group.broadcast(tensor, 1)
            assert torch.equal(tensor, values(500, 1, dtype))

    run_members(2, body, options=options)


@WAYS
def test_tensors_go_from_any_member_to_any_other(options: WireOptions) -> None:
    size = 3

    def body(group: WireGroup) -> None:
        for length in LENGTHS:
            for source in range(size):
                for to in range(size):
                    if source == to:
                        continue
                    if group.rank == source:
                        group.send(values(length, source), to)
                    elif group.rank == to:
                        tensor = torch.empty(length)
                        group.receive(tensor, source)
                        assert torch.equal(tensor, values(length, source))

    run_members(size, body, options=options)


@WAYS
def test_small_sends_do_not_wait_for_the_receiver_when_both_send_first(
    options: WireOptions,
) -> None:
    def body(group: WireGroup) -> None:
        other = 1 - group.rank
        tensor = torch.empty(100)
        group.send(values(100, group.rank), other)
        group.receive(tensor, other)
        assert torch.equal(tensor, values(100, other))

    run_members(2, body, options=options)


@WAYS
def test_shapes_and_strides_are_kept_when_a_tensor_is_not_contiguous(options: WireOptions) -> None:
    def body(group: WireGroup) -> None:
        tensor = values(24 * 24, group.rank).reshape(24, 24).t()
        expected = total(24 * 24, 2).reshape(24, 24).t()
        group.all_reduce(tensor)
        assert torch.equal(tensor, expected)
        assert not tensor.is_contiguous()
        every_other = torch.zeros(10)[::2]
        group.broadcast(every_other if group.rank else torch.ones(5), 0)
        assert group.rank == 0 or torch.equal(every_other, torch.ones(5))
        scalar = torch.tensor(2.0, requires_grad=True)
        group.all_reduce(scalar)
        assert scalar.item() == 4.0
        assert [row.shape for row in group.all_gather(torch.ones(2, 3))] == [(2, 3), (2, 3)]

    run_members(2, body, options=options)


def test_payloads_of_any_length_are_gathered() -> None:
    payloads = run_members(3, lambda group: gather_bytes(group, b"x" * group.rank))
    assert payloads == [[b"", b"x", b"xx"]] * 3


@pytest.mark.parametrize(("options", "name"), [(SHARED, "shared memory"), (TCP, "TCP")])
def test_hops_are_measured_when_tensors_were_exchanged(options: WireOptions, name: str) -> None:
    with members(3, options=options) as groups:
        in_threads(3, lambda rank: groups[rank].all_reduce(torch.ones(200_000)))
        for group in groups:
            assert group.transport == f"wire ({name})"
            hops = group.hops()
            assert {hop.peer for hop in hops} == {0, 1, 2} - {group.rank}
            for hop in hops:
                assert hop.latency_s > 0
                assert hop.bytes_per_s > 0
                assert hop.bytes > 200_000
                assert hop.corrupt == 0


@pytest.mark.parametrize("options", [SHARED, TCP], ids=["shared", "tcp"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: g.all_reduce(torch.ones(5 + g.rank)), "length 5 here, 6 there"),
        (
            lambda g: g.all_reduce(torch.ones(5, dtype=[torch.float32, torch.int64][g.rank])),
            "dtype float32 here, int64 there",
        ),
        (
            lambda g: [g.all_reduce, g.reduce_scatter][g.rank](torch.ones(5)),
            "kind all_reduce here, reduce_scatter there",
        ),
        (lambda g: g.broadcast(torch.ones(5), g.rank), "root 0 here, 1 there"),
        (
            lambda g: g.all_reduce(torch.ones(5), np.zeros(2 + g.rank, dtype=np.int64)),
            "header_words 2 here, 3 there",
        ),
        (
            lambda g: g.receive(torch.ones(3), 1) if g.rank == 0 else g.send(torch.ones(2), 0),
            "length 3 here, 2 there",
        ),
    ],
)
def test_differences_are_named_when_members_call_differently(
    options: WireOptions, call: object, message: str
) -> None:
    with members(2, options=options) as groups:

        def attempt(rank: int) -> str:
            try:
                call(groups[rank])
            except ExchangeError as error:
                return str(error)
            return ""

        said = in_threads(2, attempt)
    assert message in said[0]
    assert "same calls in the same order" in said[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: g.all_reduce(torch.ones(3, dtype=torch.uint8)), "cannot sum torch.uint8"),
        (lambda g: g.broadcast(torch.ones(3, dtype=torch.complex64), 0), "cannot carry"),
        (lambda g: g.all_reduce(torch.eye(3).to_sparse()), "dense tensors only"),
        (lambda g: g.broadcast(torch.ones(3), 2), "root 2: the members are 0 to 1"),
        (lambda g: g.send(torch.ones(3), g.rank), "the other members"),
        (lambda g: g.receive(torch.ones(3), 7), "member 7"),
        (lambda g: g.all_reduce(torch.ones(3), np.zeros(3)), "row of int64"),
        (lambda g: g.all_reduce(torch.ones(3), np.zeros(9000, dtype=np.int64)), "at most 8192"),
    ],
)
def test_the_group_stays_usable_when_a_call_is_refused(call: object, message: str) -> None:
    with members(2) as groups:
        with pytest.raises(UsageError, match=message):
            call(groups[0])
        tensors = [torch.ones(3), torch.ones(3)]
        in_threads(2, lambda rank: groups[rank].all_reduce(tensors[rank]))
        assert tensors[0].tolist() == [2.0, 2.0, 2.0]


def test_groups_work_side_by_side_on_one_listener() -> None:
    keys = [KEY, KEY._replace(view=2), KEY._replace(level="leaders"), KEY._replace(attempt=1)]
    options = [SHARED, TCP, SHARED, LANES]
    with listeners(2) as made:

        def body(rank: int) -> None:
            pairs = zip(keys, options, strict=True)
            groups = [join(rank, made, options=chosen, key=key) for key, chosen in pairs]
            for index, group in enumerate(groups):
                tensor = torch.full((10,), float(index))
                group.all_reduce(tensor)
                assert tensor[0] == 2 * index
            for group in groups:
                group.close()

        in_threads(2, body)


@pytest.mark.parametrize("options", [SHARED, TCP], ids=["shared", "tcp"])
def test_nothing_is_left_when_groups_are_closed(options: WireOptions) -> None:
    with nothing_left_behind():
        run_members(3, lambda g: g.all_reduce(torch.ones(100_000)), options=options)


def test_closing_twice_and_using_afterwards_is_safe() -> None:
    with members(2) as groups:
        groups[0].close()
        groups[0].close()
        groups[0].abort()
        with pytest.raises(ExchangeError, match="cannot be used any more: it is closed"):
            groups[0].all_reduce(torch.ones(1))
        assert groups[0].hops() == []


def _process(rank: int, pipe: Connection) -> None:
    with wire.listen() as listener:
        pipe.send(listener.address)
        addresses = pipe.recv()
        for view, options in enumerate((SHARED, TCP)):
            group = wire.connect(
                KEY._replace(view=view),
                rank=rank,
                addresses=addresses,
                listener=listener,
                token=TOKEN,
                options=options,
            )
            for length in LENGTHS:
                tensor = values(length, rank)
                group.all_reduce(tensor)
                assert torch.equal(tensor, total(length, 2))
            pipe.send(group.transport)
            group.close()


def test_processes_exchange() -> None:
    pipes = [PROCESSES.Pipe() for _ in range(2)]
    processes = [
        PROCESSES.Process(target=_process, args=(rank, pipes[rank][1]), daemon=True)
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    addresses = [ours.recv() for ours, _ in pipes]
    for ours, _ in pipes:
        ours.send(addresses)
    for transport in ("wire (shared memory)", "wire (TCP)"):
        assert [ours.recv() for ours, _ in pipes] == [transport] * 2
    for process in processes:
        process.join(TIMEOUT_S)
        assert process.exitcode == 0
