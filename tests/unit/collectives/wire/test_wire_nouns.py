# SPDX-License-Identifier: Apache-2.0
"""Addresses, options and measurements of the wire transport."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import msgspec
import pytest

from gangline.collectives.wire import WireAddress, WireOptions
from gangline.collectives.wire.measuring import Meter
from gangline.collectives.wire.nouns import cache_bytes, host_id
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_an_address_can_be_sent() -> None:
    address = WireAddress(host="10.0.0.1", port=7, host_id="a")
    assert msgspec.json.decode(msgspec.json.encode(address), type=WireAddress) == address
    assert str(address) == "10.0.0.1:7"


def test_one_host_has_one_id() -> None:
    assert host_id() == host_id() != ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout_s": 0.0}, "timeout_s must be above 0, not 0.0"),
        ({"timeout_s": float("nan")}, "timeout_s must be above 0"),
        ({"connections": 0}, "connections must be 1 to 64"),
        ({"segment_bytes": 10}, "segment_bytes must be 1024"),
        ({"server_tls": ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)}, "TLS needs both contexts"),
    ],
)
def test_options_that_cannot_work_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        WireOptions(**options)


def cache(folder: Path, name: str, level: str, size: str) -> None:
    (folder / name).mkdir()
    (folder / name / "level").write_text(level)
    (folder / name / "size").write_text(size)


def test_the_second_level_cache_is_read(tmp_path: Path) -> None:
    cache(tmp_path, "index0", "1\n", "48K\n")
    cache(tmp_path, "index2", "2\n", "1280K\n")
    assert cache_bytes(tmp_path) == 1280 << 10


@pytest.mark.parametrize("size", ["", "x", "12Q", "K"])
def test_the_cache_is_guessed_when_it_cannot_be_read(tmp_path: Path, size: str) -> None:
    cache(tmp_path, "index0", "2", size)
    assert cache_bytes(tmp_path) == 1 << 20
    assert cache_bytes(tmp_path / "nowhere") == 1 << 20


def test_a_meter_keeps_the_shortest_answer_and_a_fading_peak() -> None:
    meter = Meter()
    meter.answered(2e-3)
    meter.answered(1e-3)
    meter.answered(3e-3)
    meter.moved(100, 1.0)
    assert meter.stats(1).bytes_per_s == 0
    meter.moved(1_000_000, 1e-3)
    meter.moved(1_000_000, 1e-1)
    stats = meter.stats(5)
    assert (stats.peer, stats.latency_s, stats.bytes, stats.corrupt) == (5, 1e-3, 2_000_100, 0)
    assert stats.bytes_per_s == pytest.approx(0.95e9)
