# SPDX-License-Identifier: Apache-2.0
"""Members of wire groups for tests: each in a thread of its own, with its own listener."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import pytest
import torch

from gangline.collectives import GroupKey, wire
from gangline.collectives.wire import Listener, WireAddress, WireGroup, WireOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKEN = b"a token of the run, for the tests"
KEY = GroupKey("run", 1, 0)
TIMEOUT_S = 10.0
SHARED = WireOptions(timeout_s=TIMEOUT_S)
TCP = WireOptions(timeout_s=TIMEOUT_S, shared_memory=False)
WAYS = pytest.mark.parametrize("options", [SHARED, TCP], ids=["shared", "tcp"])
PROMPT_S = TIMEOUT_S / 2
"""Far above what it takes, far below the time-out of an operation."""
SUMMED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)
CARRIED = (*SUMMED, torch.uint8, torch.int8, torch.int16, torch.bool)

T = TypeVar("T")


def values(length: int, rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, whose sums are exact in every type."""
    return ((torch.arange(length) * 7 + rank * 3) % 11).to(dtype)


def total(length: int, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The sum of all members' values."""
    return sum(values(length, rank, torch.float64) for rank in range(size)).to(dtype)


@contextlib.contextmanager
def listeners(count: int) -> Iterator[list[Listener]]:
    """As many listeners; closed at the end."""
    made = [wire.listen() for _ in range(count)]
    try:
        yield made
    finally:
        for listener in made:
            listener.close()


def join(
    rank: int,
    made: list[Listener],
    *,
    options: WireOptions = SHARED,
    key: GroupKey = KEY,
    addresses: list[WireAddress] | None = None,
    token: bytes = TOKEN,
    timeout_s: float = TIMEOUT_S,
) -> WireGroup:
    """Connects one member."""
    return wire.connect(
        key,
        rank=rank,
        addresses=addresses or [listener.address for listener in made],
        listener=made[rank],
        token=token,
        timeout_s=timeout_s,
        options=options,
    )


def in_threads(count: int, body: Callable[[int], T]) -> list[T]:
    """Runs the body for each rank at the same time; the first failure is raised."""
    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(body, rank) for rank in range(count)]]


def run_members(
    count: int, body: Callable[[WireGroup], T], *, options: WireOptions = SHARED
) -> list[T]:
    """Runs the body on every member of one group, and closes the groups."""
    with listeners(count) as made:

        def member(rank: int) -> T:
            with contextlib.closing(join(rank, made, options=options)) as group:
                return body(group)

        return in_threads(count, member)


@contextlib.contextmanager
def members(count: int, *, options: WireOptions = SHARED) -> Iterator[list[WireGroup]]:
    """The members of one group, to be driven by the test itself."""
    with listeners(count) as made:
        groups = in_threads(count, lambda rank: join(rank, made, options=options))
        try:
            yield groups
        finally:
            for group in groups:
                group.close()


@contextlib.contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Fails where threads or descriptors are left over."""
    before = set(os.listdir("/proc/self/fd")), set(threading.enumerate())
    yield
    # The descriptor that lists the folder is gone again, too.
    after = set(os.listdir("/proc/self/fd")), set(threading.enumerate())
    # What was there before may have ended by now: that is none of this one's.
    left = [now - then for now, then in zip(after, before, strict=True)]
    assert not any(left), f"left behind: {left}"
