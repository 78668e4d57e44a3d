# SPDX-License-Identifier: Apache-2.0
"""The frames of the wire transport refuse whatever a member did not write."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.collectives import GroupKey
from gangline.collectives.wire.joining import frames
from gangline.collectives.wire.joining.frames import (
    INITIATOR,
    RESPONDER,
    Body,
    Challenge,
    FrameError,
    Hello,
    Proof,
    Refusal,
    Shake,
    Welcome,
)
from gangline.collectives.wire.operation import FRAME_BYTES, Kind, Operation, check_same
from gangline.spec.errors import ExchangeError

NAMES = st.text(max_size=30)
NONCES = st.binary(min_size=32, max_size=32)
HELLOS = st.builds(
    Hello,
    run=NAMES,
    view=st.integers(0, 1 << 40),
    attempt=st.integers(0, 1000),
    level=NAMES,
    source=st.integers(0, 65535),
    target=st.integers(0, 65535),
    link=NAMES,
    options=NAMES,
    tls=st.booleans(),
    nonce=NONCES,
)
BODIES = st.one_of(
    HELLOS,
    st.builds(Challenge, nonce=NONCES, mac=NONCES),
    st.builds(Proof, mac=NONCES),
    st.just(Welcome()),
    st.builds(Refusal, reason=NAMES),
)
OPERATIONS = st.builds(
    Operation,
    kind=st.sampled_from(Kind),
    sequence=st.integers(0, 2**63),
    dtype=st.integers(0, 255),
    length=st.integers(0, 1 << 48),
    header_words=st.integers(0, 8192),
    root=st.integers(0, 65535),
    checksum=st.booleans(),
)


def hello(**changes: object) -> Hello:
    fields = {
        "run": "r", "view": 1, "attempt": 2, "level": "flat", "source": 3, "target": 4,
        "link": "ring 0", "options": "", "tls": False, "nonce": b"n" * 32,
    }  # fmt: skip
    return Hello(**{**fields, **changes})


def decode(frame: bytes) -> Body:
    kind, length = frames.decode_prefix(frame[: frames.PREFIX_BYTES])
    body = frame[frames.PREFIX_BYTES :]
    assert len(body) == length
    return frames.decode_body(kind, body)


@settings(deadline=None)
@given(BODIES)
def test_frames_come_back_as_they_were(body: Body) -> None:
    assert decode(frames.encode(body)) == body


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_junk_is_refused_as_a_prefix(junk: bytes) -> None:
    try:
        _, length = frames.decode_prefix(junk)
    except FrameError:
        return
    assert junk.startswith(b"GLhs\x01")
    assert length <= frames.MAX_BODY_BYTES


@settings(deadline=None)
@given(st.sampled_from([Hello, Challenge, Proof, Welcome, Refusal]), st.binary(max_size=200))
def test_junk_is_refused_or_well_formed_as_a_body(kind: type[Body], junk: bytes) -> None:
    try:
        body = frames.decode_body(kind, junk)
    except FrameError:
        return
    assert isinstance(body, kind)


@settings(deadline=None)
@given(BODIES, st.data())
def test_a_damaged_frame_never_raises_anything_else(body: Body, data: st.DataObject) -> None:
    frame = bytearray(frames.encode(body))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= data.draw(st.integers(1, 255))
    try:
        kind, length = frames.decode_prefix(bytes(frame[:8]))
        frames.decode_body(kind, bytes(frame[8 : 8 + length]))
    except FrameError:
        pass


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (b"", "begins with 8 bytes, not 0"),
        (b"HTTP\x01\x01\x00\x00", "not a gangline hand-shake"),
        (b"GLhs\x09\x01\x00\x00", "hand-shake version 9; this member speaks 1"),
        (b"GLhs\x01\x63\x00\x00", "unknown kind 99"),
        (b"GLhs\x01\x01\xff\xff", "65535 bytes; at most 1024"),
    ],
)
def test_a_bad_prefix_is_named(prefix: bytes, message: str) -> None:
    with pytest.raises(FrameError, match=message):
        frames.decode_prefix(prefix)


@pytest.mark.parametrize(
    "fields",
    [
        ["r" * 129, 1, 2, "flat", 3, 4, "ring 0", "", False, b"n" * 32],
        ["r", -1, 2, "flat", 3, 4, "ring 0", "", False, b"n" * 32],
        ["r", 1, 2, "flat", 70_000, 4, "ring 0", "", False, b"n" * 32],
        ["r", 1, 2, "flat", 3, 4, "ring 0", "", False, b"short"],
        ["r", 1, 2, "flat", 3, 4],
    ],
)
def test_fields_out_of_bounds_are_refused(fields: list[object]) -> None:
    with pytest.raises(FrameError, match="malformed Hello"):
        frames.decode_body(Hello, msgspec.msgpack.encode(fields))


def test_a_frame_that_is_too_long_is_not_sent() -> None:
    too_long = hello(run="ü" * 600)
    with pytest.raises(FrameError, match="at most 1024"):
        frames.encode(too_long)


def test_a_proof_holds_for_its_hand_shake_only() -> None:
    shake = Shake(b"token", hello(), b"m" * 32)
    mac = shake.proof(INITIATOR)
    assert shake.is_proven(mac, INITIATOR)
    assert not shake.is_proven(mac, RESPONDER)
    assert not shake._replace(token=b"other").is_proven(mac, INITIATOR)
    assert not shake._replace(nonce=b"o" * 32).is_proven(mac, INITIATOR)
    changes = [{"nonce": b"x" * 32}, {"view": 2}, {"source": 5}, {"link": "direct"}, {"tls": True}]
    for change in changes:
        assert not shake._replace(hello=hello(**change)).is_proven(mac, INITIATOR)
    assert b"token" not in frames.encode(shake.hello) + frames.encode(Proof(mac=mac))


def test_a_hello_names_its_group() -> None:
    assert hello().key == GroupKey("r", 1, 2, "flat")


@settings(deadline=None)
@given(OPERATIONS)
def test_operations_come_back_as_they_were(operation: Operation) -> None:
    frame = operation.encode()
    assert len(frame) == FRAME_BYTES
    assert Operation.decode(frame) == operation


@settings(deadline=None)
@given(st.binary(min_size=FRAME_BYTES, max_size=FRAME_BYTES))
def test_junk_is_refused_as_an_operation(junk: bytes) -> None:
    with pytest.raises(ExchangeError):
        Operation.decode(junk)


@settings(deadline=None)
@given(OPERATIONS, st.integers(0, FRAME_BYTES * 8 - 1))
def test_a_flipped_bit_is_refused_or_differs(operation: Operation, bit: int) -> None:
    frame = bytearray(operation.encode())
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ExchangeError):
        check_same(operation, bytes(frame), peer=1, type_names={})


def test_every_difference_is_named_when_operations_differ() -> None:
    mine = Operation(Kind.BROADCAST, 4, 1, 10, root=0)
    theirs = Operation(Kind.ALL_REDUCE, 5, 2, 10, root=1)
    with pytest.raises(ExchangeError) as caught:
        check_same(mine, theirs.encode(), peer=3, type_names={1: "float32"})
    assert str(caught.value) == (
        "this member and member 3 do not make the same call: kind broadcast here, all_reduce "
        "there; sequence 4 here, 5 there; dtype float32 here, type 2 there; root 0 here, 1 there. "
        "All members must make the same calls in the same order"
    )
    check_same(mine, mine.encode(), peer=3, type_names={})
