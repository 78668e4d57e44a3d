# SPDX-License-Identifier: Apache-2.0
"""Small jobs inside the test process: a job of one, and the exchange against a recorded group."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gangline
from gangline.collectives import SoloGroup
from gangline.worker import api
from gangline.worker.gradients import backward
from gangline.worker.gradients.agreement import WIDTH, Agreed, PassSection, Statement
from gangline.worker.gradients.buffers import Buffers
from gangline.worker.gradients.communicator import Communicator
from gangline.worker.gradients.exchange import Gradients
from gangline.worker.gradients.layout import build_layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FEATURES = 4
LAUNCHERS = ("GANGLINE_LAUNCH", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that nobody launched, in which `init` was called; left as it was found."""
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    random_state = torch.get_rng_state()
    gangline.init()
    yield
    api.shutdown()
    torch.set_rng_state(random_state)


def samples(count: int = 12) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, FEATURES, generator=generator)
    return TensorDataset(x, torch.randn(count, 1, generator=generator))


def parts(count: int = 12, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """A model, its optimizer and a loader."""
    model = nn.Linear(FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, DataLoader(samples(count), batch_size=4, **options)


class RecordedGroup(SoloGroup):
    """The one of two members that we look at; the other one always sends zeros."""

    size = 2

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.arrived = threading.Semaphore(0)
        """Counts the exchanges, for who waits for one."""

    def all_reduce(self, tensor: torch.Tensor, header: Any = None) -> None:
        self.sent.append(Sent(tensor.nbytes, header is not None))
        self.arrived.release()

    def take(self) -> list[Sent]:
        """What was sent since the last call."""
        sent, self.sent = self.sent, []
        return sent


class Sent(tuple[int, bool]):
    """One exchange: its bytes, and whether a header came with it."""

    __slots__ = ()

    def __new__(cls, num_bytes: int, has_header: bool) -> Sent:
        return super().__new__(cls, (num_bytes, has_header))

    @property
    def num_bytes(self) -> int:
        return self[0]

    @property
    def has_header(self) -> bool:
        return self[1]


def _state(made: PassSection) -> Statement:
    return Statement.of([0] * WIDTH)._replace(made=made)


class Exchange:
    """The gradients of models, exchanged with a recorded group at the end of every backward pass."""

    def __init__(self, models: Sequence[nn.Module], *, unit_bytes: int) -> None:
        self.group = RecordedGroup()
        self.layout = build_layout(models, [], unit_bytes=unit_bytes)
        self.communicator = Communicator(self.group)
        self.gradients = Gradients(self.layout, Buffers(models), self.communicator)
        self.agreed: Agreed | None = None

    def begin_backward(self, losses: object) -> None:
        self.gradients.begin()

    def end_backward(self) -> None:
        if self.gradients.finish_local():
            self.agreed = self.gradients.exchange(_state)

    def fail_backward(self) -> None:
        self.gradients.fail()


@contextmanager
def exchanging(*models: nn.Module, unit_bytes: int = 1 << 20) -> Iterator[Exchange]:
    """An exchange that listens to the backward passes of this process."""
    exchange = Exchange(models, unit_bytes=unit_bytes)
    backward.listen(exchange)
    try:
        yield exchange
    finally:
        backward.stop_listening()
        exchange.gradients.close()
        exchange.communicator.close()
