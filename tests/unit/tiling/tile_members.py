# SPDX-License-Identifier: Apache-2.0
"""Workers with tiles as threads of one process: a group over queues, and a run on all of them."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gangline.tiling.api import tile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LIMIT_S = 30.0


class Board:
    """What all members of a group share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=LIMIT_S)
        self.shown: list[Any] = [None] * size
        self.ways: dict[tuple[int, int], SimpleQueue[Tensor]] = {
            (a, b): SimpleQueue() for a in range(size) for b in range(size)
        }


class ThreadPeers:
    """One member; it counts what it sends."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self.rank, self.size = board, rank, board.size
        self.sent = 0

    def all_reduce(self, tensor: Tensor, header: object = None) -> None:
        tensor.copy_(torch.stack(self._show(tensor.clone())).sum(0))

    def broadcast(self, tensor: Tensor, root: int) -> None:
        tensor.copy_(self._show(tensor.clone())[root])

    def send(self, tensor: Tensor, to: int) -> None:
        self.sent += tensor.numel()
        self._board.ways[self.rank, to].put(tensor.clone())

    def receive(self, tensor: Tensor, source: int) -> None:
        come = self._board.ways[source, self.rank].get(timeout=LIMIT_S)
        assert come.shape == tensor.shape
        tensor.copy_(come)

    def meet(self) -> None:
        self._board.barrier.wait()

    def _show(self, value: Tensor) -> list[Tensor]:
        board = self._board
        board.shown[self.rank] = value
        board.barrier.wait()
        shown = list(board.shown)
        board.barrier.wait()
        return shown


def on_all(size: int, work: Callable[[ThreadPeers], Any]) -> list[Any]:
    """The work of each member on a thread of its own; their results in rank order."""
    board = Board(size)

    def guarded(rank: int) -> Any:
        try:
            return work(ThreadPeers(board, rank))
        except BaseException:
            board.barrier.abort()
            raise

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiles are small, and each member is a thread already
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(guarded, rank) for rank in range(size)]
        wait(futures)
        torch.set_num_threads(threads)
        errors = [error for future in futures if (error := future.exception()) is not None]
        real = [one for one in errors if not isinstance(one, threading.BrokenBarrierError)]
        if errors:
            raise (real or errors)[0]
        return [future.result() for future in futures]


def assert_equal_to_uncut(
    model: nn.Module,
    shape: Sequence[int],
    dims: Any,
    size: int,
    *,
    halo: str = "auto",
    output: str = "whole",
) -> None:
    """Output, gradients of the input and the parameters, and buffers are the uncut model's."""
    model = model.double()
    torch.manual_seed(len(shape) + size)
    whole = torch.randn(*shape, dtype=torch.float64)
    uncut = copy.deepcopy(model)
    given = whole.clone().requires_grad_()
    expected = uncut(given)
    factors = torch.randn_like(expected)
    (expected * factors).sum().backward()

    def train(peers: ThreadPeers) -> dict[str, Any]:
        own = copy.deepcopy(model)
        tiled = tile(own, dims=dims, input_shape=shape, output=output, halo=halo, group=peers)
        peers.meet()  # nobody computes while another one is still tracing
        tile_of = tiled.cut(whole).requires_grad_()
        result = tiled(tile_of)
        if output == "tile":
            (result * tiled.cut_output(factors)).sum().backward()
        else:
            (result * factors).sum().backward()
        tiled.sum_gradients()
        assert tile_of.grad is not None
        return {"tiled": tiled, "own": own, "result": result.detach(), "input": tile_of.grad}

    for found in on_all(size, train):
        tiled = found["tiled"]
        wanted = expected if output == "whole" else tiled.cut_output(expected)
        torch.testing.assert_close(found["result"], wanted.detach(), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found["input"], tiled.cut(given.grad), rtol=1e-8, atol=1e-9)
        for (name, mine), theirs in zip(
            found["own"].named_parameters(), uncut.parameters(), strict=True
        ):
            message = f"gradient of {name}"
            close = torch.allclose(mine.grad, theirs.grad, rtol=1e-8, atol=1e-9)
            assert close, message
        for mine, theirs in zip(found["own"].buffers(), uncut.buffers(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)
