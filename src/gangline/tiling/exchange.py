# SPDX-License-Identifier: Apache-2.0
"""What tiles exchange, as steps of autograd: halos, whole tensors, and sums over all tiles.

The gradient of the whole model is that of the sum of all workers' losses. So what a worker was given
by another one sends its gradient back, to be added there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gangline.tiling.geometry import Box, inside, lengths, overlap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gangline.collectives import Header


class Peers(Protocol):
    """What tiles need of a group: every `gangline.collectives.Group` has it."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, tensor: Tensor, header: Header | None = None) -> None: ...

    def broadcast(self, tensor: Tensor, root: int) -> None: ...

    def send(self, tensor: Tensor, to: int) -> None: ...

    def receive(self, tensor: Tensor, source: int) -> None: ...


class Moves(NamedTuple):
    """From what each worker owns of a tensor to what each one needs of it."""

    owned: Sequence[Box]
    held: Sequence[Box]

    @property
    def is_none(self) -> bool:
        """Whether everybody needs its own part alone, and nothing else."""
        return list(self.owned) == list(self.held)

    def turned(self) -> Moves:
        """The way back, of the gradients."""
        return Moves(self.held, self.owned)


def fetch(tile: Tensor, moves: Moves, peers: Peers) -> Tensor:
    """What this worker needs of a tensor of which each worker has its tile."""
    if moves.is_none:
        return tile
    fetched: Tensor = _Fetch.apply(tile, moves, peers)  # type: ignore[no-untyped-call]
    return fetched


def share(tile: Tensor, moves: Moves, peers: Peers) -> Tensor:
    """The whole tensor on every worker, where all go on alike: the gradient counts once."""
    shared: Tensor = _Share.apply(tile, moves, peers)  # type: ignore[no-untyped-call]
    return shared


def add_up(tensor: Tensor, peers: Peers) -> Tensor:
    """The sum over all workers; so is its gradient."""
    added: Tensor = _AddUp.apply(tensor, peers)  # type: ignore[no-untyped-call]
    return added


class _Fetch(Function):
    @staticmethod
    def forward(ctx: Any, tile: Tensor, moves: Moves, peers: Peers) -> Tensor:
        ctx.moves, ctx.peers = moves, peers
        return _move(tile, moves, peers)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _move(gradient, ctx.moves.turned(), ctx.peers), None, None


class _Share(Function):
    @staticmethod
    def forward(ctx: Any, tile: Tensor, moves: Moves, peers: Peers) -> Tensor:
        ctx.own = inside(moves.owned[peers.rank], moves.held[peers.rank])
        return _move(tile, moves, peers)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.own], None, None


class _AddUp(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, peers: Peers) -> Tensor:
        ctx.peers = peers
        return _added(tensor, peers)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _added(gradient, ctx.peers), None


def _added(tensor: Tensor, peers: Peers) -> Tensor:
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    peers.all_reduce(total)
    return total


def _move(source: Tensor, moves: Moves, peers: Peers) -> Tensor:
    """Sends what others need of `source`, and adds what comes at its place in the result."""
    have, want = moves.owned[peers.rank], moves.held[peers.rank]
    result = source.new_zeros(lengths(want))
    kept = overlap(have, want)
    if kept is not None:
        result[inside(kept, want)] = source[inside(kept, have)]
    for peer in _in_turn(peers.rank, peers.size):
        out, come = overlap(have, moves.held[peer]), overlap(moves.owned[peer], want)
        for is_sending in (peers.rank < peer, peers.rank > peer):  # the lower rank sends first
            if is_sending and out is not None:
                peers.send(source[inside(out, have)].contiguous(), peer)
            if not is_sending and come is not None:
                part = source.new_empty(lengths(come))
                peers.receive(part, peer)
                result[inside(come, want)] += part
    return result


def _in_turn(rank: int, size: int) -> Iterator[int]:
    """All others, so that in each turn those who meet are pairs: nobody waits in a circle."""
    for turn in range(size):
        peer = (turn - rank) % size
        if peer != rank:
            yield peer
