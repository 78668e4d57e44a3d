# SPDX-License-Identifier: Apache-2.0
"""A probe of the links before the first exchange: right enough, short, and the same for all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from gangline.spec.config import ExchangeConfig, ManagerConfig, RunConfig
from gangline.spec.sync import parse_sync
from gangline.worker.prepare import preparation
from gangline.worker.prepare.weighing import MOST_S, expect_exchange_s
from gangline.worker.samples.handout import Handout
from gangline.worker.telling.stepclock import StepTimes
from gangline.worker.telling.weighing import NUM_WEIGHED, Weighing
from memory_members import MemoryGroup, run_in_memory

if TYPE_CHECKING:
    from gangline.collectives import Header
    from gangline.protocol.messages import Weighed

GRADIENT = 100 << 20


class SlowGroup:
    """A member of a group whose exchanges take virtual time; the other one's take longer."""

    transport, size = "wire (TCP)", 2

    def __init__(self, *, bytes_per_s: float, latency_s: float, others: float = 1.0) -> None:
        self._cost = (latency_s, 1 / bytes_per_s)
        self._others = others
        self.now_s = 0.0
        self.sizes: list[int] = []

    def all_reduce(self, tensor: torch.Tensor, header: Header | None = None) -> None:
        self.now_s += self._cost[0] + self._cost[1] * tensor.nbytes
        self.sizes.append(tensor.nbytes)
        if header is not None:
            header[:] = (header * self._others).astype(header.dtype)


@pytest.mark.parametrize("latency_s", [1e-4, 0.02])
@pytest.mark.parametrize("bytes_per_s", [1e5, 1e7, 1e9])
def test_what_an_exchange_takes_is_found_in_a_second(bytes_per_s: float, latency_s: float) -> None:
    group: Any = SlowGroup(bytes_per_s=bytes_per_s, latency_s=latency_s)
    found_s = expect_exchange_s(group, GRADIENT, now=lambda: group.now_s)
    assert found_s == pytest.approx(GRADIENT / bytes_per_s + latency_s, rel=0.15)
    assert group.now_s <= MOST_S


def test_a_fast_link_is_not_probed_with_more_than_is_exchanged() -> None:
    group: Any = SlowGroup(bytes_per_s=1e12, latency_s=0.0)
    expect_exchange_s(group, 1 << 20, now=lambda: group.now_s)
    assert max(group.sizes) == 1 << 20


def test_the_slowest_member_says_how_long_it_takes() -> None:
    group: Any = SlowGroup(bytes_per_s=1e7, latency_s=0.0, others=2.0)
    assert expect_exchange_s(group, GRADIENT, now=lambda: group.now_s) > 1.9 * GRADIENT / 1e7


def test_all_members_come_to_the_same() -> None:
    def body(group: MemoryGroup) -> float:
        return expect_exchange_s(group, 4 << 20)  # type: ignore[arg-type]

    first, *others = run_in_memory(3, body)
    assert first > 0
    assert others == [first] * 2


@pytest.mark.parametrize(
    ("change", "is_probed"),
    [
        ({}, True),
        ({"transport": "wire (shared memory)"}, False),
        ({"size": 1}, False),
        ({"everybody": True}, False),
        ({"allocation": "equal"}, False),
        ({"sync": "flexible"}, False),
        ({"sync": "auto"}, True),
        ({"compress": ("top=8-bit",)}, False),
        ({"width": 100}, False),
    ],
)
def test_links_are_probed_only_where_somebody_may_be_left_out(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], is_probed: bool
) -> None:
    monkeypatch.setattr(preparation, "expect_exchange_s", lambda group, num_bytes: 3.0)
    config = RunConfig(
        exchange=ExchangeConfig(compress=change.get("compress", ())),
        manager=ManagerConfig(everybody=change.get("everybody", False)),
    )
    width = change.get("width", 600)
    prepared = SimpleNamespace(
        models=[nn.Linear(width, width)], sync=parse_sync(change.get("sync", "full"))
    )
    request: Any = SimpleNamespace(
        prepared=prepared, allocation=change.get("allocation", "balanced")
    )
    session: Any = SimpleNamespace(place=SimpleNamespace(config=config))
    group: Any = SimpleNamespace(
        size=change.get("size", 2), transport=change.get("transport", "wire (TCP)")
    )
    assert preparation._probe_links(group, session, request) == (3.0 if is_probed else 0.0)


def test_only_the_first_steps_are_told_before_they_are_exchanged() -> None:
    sent: list[Weighed] = []
    session: Any = SimpleNamespace(exchange_s=2.5, client=SimpleNamespace(send=sent.append))
    weighing = Weighing(session)
    for step in range(5):
        handout = Handout(0, step, 0, 0, 1, start=0, stop=4, window_stop=8, share=4, total=8)
        weighing.tell(handout, StepTimes(compute_s=0.5))
    assert [one.expected.step for one in sent] == list(range(NUM_WEIGHED))
    assert sent[0].expected.samples == 4
    assert (sent[0].expected.compute_s, sent[0].expected.exchange_s) == (0.5, 2.5)
    sent.clear()
    session.exchange_s = 0.0
    Weighing(session).tell(handout, StepTimes(compute_s=0.5))
    assert sent == [], "nobody has probed the links"
