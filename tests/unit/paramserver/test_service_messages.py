# SPDX-License-Identifier: Apache-2.0
"""Messages come as they were sent, and what is none is refused."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch

from gangline.paramserver.service.messages import (
    LARGE_BYTES,
    Answer,
    Done,
    Loading,
    Pushing,
    Request,
    Values,
    receive,
    send,
)
from gangline.spec.errors import ExchangeError, UnsupportedError
from gangline.spec.serving import Entry, Part
from wire_members import SHARED as OPTIONS
from wire_members import WAYS, run_members

if TYPE_CHECKING:
    from gangline.collectives.wire import WireGroup, WireOptions

MAGIC = 0x474C7073
ENOUGH = 1 << 30


def pass_one(message: Any, options: WireOptions, max_bytes: int = ENOUGH) -> Any:
    def body(group: WireGroup) -> Any:
        if group.rank == 0:
            send(group, message, ticket=77)
            return None
        return receive(group, Request | Answer, max_bytes=max_bytes)

    return run_members(2, body, options=options)[1]


@WAYS
def test_tensors_of_all_kinds_and_sizes_come_as_they_were(options: WireOptions) -> None:
    kinds = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool)
    given = [torch.arange(6).to(kind).view(2, 3) for kind in kinds]
    given += [torch.zeros(0, 4), torch.tensor(3.5), torch.randn(LARGE_BYTES), torch.randn(7, 5).T]
    message = Values(applied=3, values=given, changed={4: None})
    got, ticket = pass_one(message, options)
    assert ticket == 77
    assert got.applied == 3
    assert got.changed == {4: None}
    for own, other in zip(given, got.values, strict=True):
        assert own.dtype == other.dtype
        assert torch.equal(own, other)


def test_entries_and_nested_state_come_as_they_were() -> None:
    entries = (Entry(4, (Part(0, 1, 0.5), Part(2, 1, 0.5)), 3),)
    push = Pushing(
        serving=1, team=2, clock=3, gradients=[None], options=[{"lr": 0.1}], entries=entries
    )
    assert pass_one(push, OPTIONS)[0] == push
    exported = {"state": [{"step": torch.tensor(2.0), "best": None}], "newest": {3: 4}, "name": "x"}
    got = pass_one(Loading(serving=1, exported=exported), OPTIONS)[0].exported
    assert got["newest"] == {3: 4}
    assert torch.equal(got["state"][0]["step"], torch.tensor(2.0))


def test_what_cannot_be_sent_is_refused() -> None:
    for value in (object(), torch.zeros(1, dtype=torch.complex64)):
        with pytest.raises(UnsupportedError):
            send(None, Loading(serving=0, exported=value), ticket=0)  # type: ignore[arg-type]


def test_a_message_that_is_too_large_is_refused() -> None:
    huge = torch.tensor([MAGIC, 1, 4, 16, 1 << 50])
    assert "larger than" in refused([huge])


@pytest.mark.parametrize(
    "header",
    [[0, 1, 4, 16, 0], [MAGIC, 1, -1, 16, 0], [MAGIC, 1, 17, 16, 0], [MAGIC, 1, 4, 16, -1]],
)
def test_what_is_no_message_is_refused(header: list[int]) -> None:
    assert "not the beginning" in refused([torch.tensor(header)])


@pytest.mark.parametrize(
    "text",
    [
        b"\xc1",
        msgspec.msgpack.encode([[], b"\xc1"]),
        msgspec.msgpack.encode([[[99, [1]]], b""]),
        msgspec.msgpack.encode([[[1, [-4]]], b""]),
        msgspec.msgpack.encode([[[1, [1 << 40]]], b""]),
        msgspec.msgpack.encode([[[1, [100]]], msgspec.msgpack.encode(Done(applied=1))]),
        msgspec.msgpack.encode([[], msgspec.msgpack.encode({"type": "done"})]),
        msgspec.msgpack.encode(
            [
                [],
                msgspec.msgpack.encode(
                    {"type": "load", "serving": 0, "exported": msgspec.msgpack.Ext(1, b"\x09")}
                ),
            ]
        ),
    ],
)
def test_a_message_that_cannot_be_read_is_refused(text: bytes) -> None:
    length = -(-len(text) // 16) * 16
    packed = torch.zeros(length, dtype=torch.uint8)
    packed[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    header = torch.tensor([MAGIC, 1, len(text), length, 0])
    assert "cannot be read" in refused([header, packed])


def refused(sent: list[torch.Tensor]) -> str:
    """Why the other member refuses what was sent by hand."""

    def body(group: WireGroup) -> str:
        if group.rank == 0:
            with contextlib.suppress(ExchangeError):
                for tensor in sent:
                    group.broadcast(tensor, 0)
            return ""
        with pytest.raises(ExchangeError) as caught:
            receive(group, Request | Answer, max_bytes=ENOUGH)
        return str(caught.value)

    return run_members(2, body, options=OPTIONS)[1]
