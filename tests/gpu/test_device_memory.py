# SPDX-License-Identifier: Apache-2.0
"""Processes that sum over the memory of one GPU; some of them die, stop or starve."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gangline.collectives import GroupKey, wire
from gangline.collectives.wire import WireOptions
from gangline.spec.errors import ExchangeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TOKEN = b"a token of the run, for the tests"
LENGTH = 25 << 20
"""100 MB: several halves of a window, so that most of the time somebody reads somebody's memory."""
TIMEOUT_S = 3.0
ASK_S = 60.0
OVER_DEVICE = "wire (device memory)"


def _member(pipe: Connection) -> None:
    """Sums in group after group, until each of them fails, or as often as it is told."""
    torch.zeros(1, device="cuda")  # the first call takes seconds, for which nobody shall wait below
    with wire.listen() as listener:
        pipe.send(listener.address)
        while (order := pipe.recv()) is not None:
            key, rank, addresses, rounds = order
            group = wire.connect(
                key,
                rank=rank,
                addresses=addresses,
                listener=listener,
                token=TOKEN,
                options=WireOptions(timeout_s=TIMEOUT_S),
            )
            with contextlib.closing(group):
                pipe.send(_sum(group, rounds, pipe))


def _sum(group: Any, rounds: int | None, pipe: Connection) -> tuple[str, str]:
    """How it ended, and by which way it went; for ever where no number of rounds is given."""
    size = group.size
    number = 0
    while number != rounds:
        # Different in every round and group: what was read too early or too late shows.
        seed = number % 100 + group.key.attempt * 100
        tensor = torch.full((LENGTH,), float(seed + group.rank), device="cuda")
        expected = size * seed + size * (size - 1) / 2
        try:
            group.all_reduce(tensor)
        except ExchangeError as error:
            return str(error), group.transport
        if not bool((tensor == expected).all()):
            return f"a wrong sum: {tensor.unique().tolist()}", group.transport
        number += 1
        if number == 3 and rounds is None:
            pipe.send("under way")
    return "right", group.transport


class Members:
    """Processes, and what they are told."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(count)]
        self.pipes = [ours for ours, _ in pairs]
        self.processes = [
            context.Process(target=_member, args=(theirs,), daemon=True) for _, theirs in pairs
        ]
        for process in self.processes:
            process.start()
        self._addresses = [self.hear(rank) for rank in range(count)]

    def begin(self, ranks: list[int], *, attempt: int, rounds: int | None) -> None:
        addresses = [self._addresses[rank] for rank in ranks]
        for place, rank in enumerate(ranks):
            self.pipes[rank].send((GroupKey("run", 1, attempt), place, addresses, rounds))

    def hear(self, rank: int) -> Any:
        if not self.pipes[rank].poll(ASK_S):
            raise AssertionError(f"member {rank} said nothing in {ASK_S:g} s")
        return self.pipes[rank].recv()

    def strike(self, rank: int, sent: signal.Signals) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, sent)


@pytest.fixture
def three() -> Iterator[Members]:
    made = Members(3)
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.join()


def test_sums_go_over_the_gpu_s_memory(three: Members) -> None:
    three.begin([0, 1, 2], attempt=0, rounds=5)
    for rank in range(3):
        assert three.hear(rank) == ("right", OVER_DEVICE)


def test_windows_serve_one_group_after_the_other(three: Members) -> None:
    for attempt in range(5):
        ranks = [0, 1, 2] if attempt % 2 else [2, 0]
        three.begin(ranks, attempt=attempt, rounds=2)
        for rank in ranks:
            assert three.hear(rank) == ("right", OVER_DEVICE)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("moment", range(3))
def test_the_others_go_on_when_the_owner_of_a_window_is_lost(
    three: Members, sent: signal.Signals, moment: int
) -> None:
    three.begin([0, 1, 2], attempt=0, rounds=None)
    for rank in range(3):
        assert three.hear(rank) == "under way"
    time.sleep(0.001 * moment)
    three.strike(1, sent)
    for rank in (0, 2):
        message, _ = three.hear(rank)
        # Who is told by a survivor that it gave up names that one.
        expected = "is gone" if sent is signal.SIGKILL else "no answer|is gone|ran out|waited"
        assert any(part in message for part in expected.split("|")), message
    three.begin([0, 2], attempt=1, rounds=5)
    for rank in (0, 2):
        assert three.hear(rank) == ("right", OVER_DEVICE)


def test_sums_are_right_when_the_gpu_is_busy_with_something_else(three: Members) -> None:
    torch.cuda._sleep(2_000_000_000)  # about a second; the others' kernels wait, or take turns
    three.begin([0, 1, 2], attempt=0, rounds=5)
    torch.cuda._sleep(2_000_000_000)
    for rank in range(3):
        assert three.hear(rank) == ("right", OVER_DEVICE)
    torch.cuda.synchronize()
