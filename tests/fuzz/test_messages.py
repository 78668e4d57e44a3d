# SPDX-License-Identifier: Apache-2.0
"""Whatever a worker sends, the hub refuses it by name or goes on with the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.coordinator import Federation, Hub
from gangline.coordinator.sanity import check_message
from gangline.coordinator.settings import Settings
from gangline.eventlog import NullWriter
from gangline.protocol import messages
from gangline.protocol.messages import (
    PROTOCOL_VERSION,
    Failed,
    Goodbye,
    Hello,
    LeaseAsked,
    Leaving,
    Measured,
    Metrics,
    Ping,
    Reached,
    Ready,
    RoundDone,
    RoundFailed,
    Told,
    decode_from_worker,
    encode,
)
from gangline.spec.errors import UsageError
from gangline.spec.exchange.address import WireAddress
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from collections.abc import Sequence

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(), max_size=4),
)
SOUND = [
    Ready(global_batch=8, minimum=1, allocation="balanced", shares=None, max_samples=None, seed=0),
    Measured(step=0, view=0, samples=4, compute_s=0.1),
    Metrics(operations_per_s=1.0, memory_bytes=1.0, latency_s=0.1),
    Ping(sent_s=1.0),
    Failed(group=0, step=0, error="broken"),
    Leaving(),
]
LENGTH = 64
OF_TEAMS = [
    Measured(step=1, view=0, samples=4, compute_s=0.1),
    LeaseAsked(epoch=0, number=0, length=LENGTH),
    LeaseAsked(epoch=0, number=1, length=LENGTH),
    LeaseAsked(epoch=1, number=0, length=LENGTH),
    Reached(epoch=0, offset=8, step=2, is_end=False),
    Reached(epoch=0, offset=8, step=2, is_end=True),
    RoundDone(number=0, epoch=0, offset=8, busy_s=0.1, exchange_s=0.1, drift=0.5, sent_bytes=1),
    RoundDone(number=1, epoch=0, offset=16, busy_s=0.1, exchange_s=0.1, drift=0.5, sent_bytes=1),
    RoundFailed(number=0, error="broken"),
    Told(epoch=0, call=0, values=(1.0, 2.0)),
    Failed(group=0, step=0, error="broken"),
    Leaving(),
    Goodbye(reason="done"),
]


def _hello(worker: int) -> Hello:
    return Hello(
        protocol=PROTOCOL_VERSION,
        run="fuzz",
        worker=worker,
        host="here",
        pid=worker + 1,
        address=WireAddress(host="127.0.0.1", port=1),
    )


@st.composite
def bent(draw: st.DrawFn, sound: Sequence[Any] = (*SOUND, *OF_TEAMS)) -> bytes:
    """A sound message of which one field says something else, or which has a byte flipped."""
    message = draw(st.sampled_from([*sound, _hello(1)]))
    fields: dict[str, Any] = msgspec.msgpack.decode(encode(message))
    name = draw(st.sampled_from(sorted(fields)))
    if draw(st.booleans()):
        fields[name] = draw(VALUES)
        return msgspec.msgpack.encode(fields)
    payload = bytearray(encode(message))
    payload[draw(st.integers(0, len(payload) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(payload)


def accepted(payload: bytes) -> Any:
    """The message, as the coordinator would pass it to the hub; None where it is refused."""
    try:
        message = decode_from_worker(payload)
        check_message(message)
    except (*UNREADABLE, UsageError) as error:
        assert str(error), "a refusal says why"  # noqa: PT017
        return None
    return message


@given(st.binary(max_size=200) | bent())
def test_a_message_is_read_or_refused(payload: bytes) -> None:
    accepted(payload)


@given(payload=st.binary(max_size=200))
def test_a_worker_reads_or_refuses_what_a_coordinator_sends(payload: bytes) -> None:
    try:
        messages.decode_from_coordinator(payload)
    except UNREADABLE as error:
        assert str(error)  # noqa: PT017


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), bent() | st.sampled_from(SOUND).map(encode)), max_size=12)
)
def test_the_hub_goes_on_whatever_two_workers_say(said: list[tuple[int, bytes]]) -> None:
    now = 0.0
    hub = Hub(Settings(run="fuzz", expected_workers=2), events=NullWriter(), clock=lambda: now)
    for worker in (0, 1):
        hub.connect(_hello(worker))
    for worker, payload in said:
        now += 0.01
        message = accepted(payload)
        if message is None:
            continue
        try:
            hub.receive(worker, message)
        except (UsageError, KeyError) as error:
            assert str(error)  # noqa: PT017
        hub.tick()
    msgspec.json.encode(hub.status())


def _federation(clock: Any) -> Federation:
    """Three teams of one, held together by rounds in the background."""
    federation = Federation(
        Settings(run="fuzz", expected_workers=3), events=NullWriter(), clock=clock
    )
    ready = msgspec.structs.replace(SOUND[0], sync=parse_sync("percentage(0.5)"))
    for worker in range(3):
        federation.connect(_hello(worker))
    for worker in range(3):
        federation.receive(worker, ready)
    return federation


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), bent(OF_TEAMS) | st.sampled_from(OF_TEAMS).map(encode)),
        max_size=16,
    )
)
def test_teams_go_on_whatever_their_workers_say(said: list[tuple[int, bytes]]) -> None:
    now = 0.0
    federation = _federation(lambda: now)
    for worker, payload in said:
        now += 0.3
        message = accepted(payload)
        if message is None:
            continue
        try:
            federation.receive(worker, message)
        except (UsageError, KeyError) as error:
            assert str(error)  # noqa: PT017
        federation.tick()
    msgspec.json.encode(federation.status())
