# SPDX-License-Identifier: Apache-2.0
"""A GPU that is made up: memory of this machine, and a queue that is as far as a test says."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from gangline.worker.gradients import streams

COMPUTE_MS = 20.0
"""Between any two marks."""


class MadeUpDevice:
    """Every mark comes some time after the one before; the device passes them when it is told to."""

    def __init__(self) -> None:
        self.num_waits = 0
        self.num_marks = 0
        self.num_passed = 0

    def catch_up(self) -> None:
        self.num_passed = self.num_marks


class MadeUpMark:
    def __init__(self, device: MadeUpDevice) -> None:
        self._device = device
        self.number = 0

    def record(self, stream: object = None) -> None:
        self._device.num_marks += 1
        self.number = self._device.num_marks

    def query(self) -> bool:
        return self._device.num_passed >= self.number

    def synchronize(self) -> None:
        self._device.num_waits += not self.query()
        self._device.num_passed = max(self._device.num_passed, self.number)

    def elapsed_time(self, end: MadeUpMark) -> float:
        assert end.query(), "torch refuses to say it before"
        return COMPUTE_MS


class MadeUpStream:
    def __init__(self, device: MadeUpDevice) -> None:
        self._device = device

    def wait_event(self, mark: MadeUpMark) -> None: ...

    def wait_stream(self, stream: MadeUpStream) -> None: ...

    def synchronize(self) -> None:
        self._device.num_waits += 1
        self._device.catch_up()


@pytest.fixture
def made_up_device(monkeypatch: pytest.MonkeyPatch) -> MadeUpDevice:
    """This machine's memory is that of a GPU."""
    made_up = MadeUpDevice()
    stream = MadeUpStream(made_up)
    monkeypatch.setattr(streams, "_QUEUED", frozenset({"cpu"}))
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: MadeUpMark(made_up))
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    return made_up
