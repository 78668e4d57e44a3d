# SPDX-License-Identifier: Apache-2.0
"""A group of one: every exchange is already done. It spares the callers an "if distributed"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.spec.errors import ExchangeAborted, UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from gangline.collectives.protocol import Header
    from gangline.spec.exchange.hop import HopStats


class SoloGroup:
    """The only member of its group."""

    rank: int = 0
    size: int = 1
    transport: str = "none"
    _is_aborted = False

    def all_reduce(self, tensor: Tensor, header: Header | None = None) -> None:
        """The sum over one member is what is there."""
        self._check()

    def reduce_scatter(self, tensor: Tensor) -> Tensor:
        self._check()
        return tensor.flatten()

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        self._check()
        return [tensor.clone()]

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """The root's tensor is what is there."""
        self._check()

    def send(self, tensor: Tensor, to: int) -> None:
        raise ValueError("a group of one has nobody to send to")

    def receive(self, tensor: Tensor, source: int) -> None:
        raise ValueError("a group of one has nobody to receive from")

    def hops(self) -> list[HopStats]:
        return []

    def abort(self) -> None:
        """Nothing is ever under way; but who is alone may be the one that others went on without."""
        self._is_aborted = True

    def close(self) -> None:
        """Nothing is held."""

    def _check(self) -> None:
        if self._is_aborted:
            raise ExchangeAborted("this group of one was given up")


class OutsiderGroup(SoloGroup):
    """Stands for the group of a running job until this worker is taken in."""

    def __init__(self, *, rank: int) -> None:
        self.rank = rank
        self.size = rank + 1
        self.transport = "none yet"

    def all_reduce(self, tensor: Tensor, header: Header | None = None) -> None:
        raise UsageError(
            "this worker joins a running job, and is alone until prepare(): call gangline.mean() "
            "and the like after prepare()"
        )
