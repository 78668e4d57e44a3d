# SPDX-License-Identifier: Apache-2.0
"""What a coordinator puts up with: sizes, rates, numbers of connections, and rubbish."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from serving import DEADLINE_S, KEYS, ask, hello, is_closed, open_line, raw, serving, until
from websockets.exceptions import ConnectionClosed, WebSocketException

from gangline.coordinator import Federation
from gangline.coordinator.sanity import check_message
from gangline.coordinator.server.limits import Allowance, Bucket, Limits
from gangline.protocol.messages import (
    Failed,
    Hello,
    Measured,
    Metrics,
    Ping,
    Pong,
    Ready,
    Refused,
    decode_from_coordinator,
    decode_from_worker,
    encode,
)
from gangline.spec.errors import UsageError
from gangline.worker.line.client import ControlClient

GET = b"GET /api/status HTTP/1.1\r\nHost: x\r\n"


def authorised(token: str = KEYS.observer) -> bytes:
    return GET + f"Authorization: Bearer {token}\r\n".encode()


# --- rates -------------------------------------------------------------------------------------------


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = Bucket(2.0, burst=3, now=0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert bucket.missing_s(0.0) == 0.5
    assert [bucket.take(0.5), bucket.take(0.5)] == [True, False]
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]
    assert not bucket.take(0.0), "a clock that goes back fills nothing"


def test_callers_have_buckets_of_their_own() -> None:
    now = 0.0
    allowance = Allowance(1.0, burst=1, clock=lambda: now)
    assert allowance.take("a")
    assert not allowance.take("a")
    assert allowance.is_spent("a")
    assert not allowance.is_spent("b")
    assert allowance.take("b")
    now = 1.0
    assert allowance.take("a")


def test_the_number_of_remembered_callers_is_bounded() -> None:
    allowance = Allowance(1.0, burst=1, clock=lambda: 0.0)
    assert all(allowance.take(number) for number in range(20000))
    assert len(allowance._buckets) <= 4096


def test_too_many_requests_are_refused_for_a_while() -> None:
    with serving(limits=Limits(requests_per_s=0.01, request_burst=3)) as server:
        codes = [ask(server, "/api/status", KEYS.observer).status_code for _ in range(4)]
        assert codes == [200, 200, 200, 429]
        answer = ask(server, "/api/status", KEYS.observer)
        assert answer.headers["retry-after"] == "1"
        assert ask(server, "/api/status", KEYS.operator).status_code == 200, "another role"


# --- sizes and times ---------------------------------------------------------------------------------


def test_a_large_request_is_refused() -> None:
    with serving(limits=Limits(body_bytes=100)) as server:
        answer = ask(server, "/api/leave", KEYS.operator, content=b"x" * 101)
        assert (answer.status_code, "at most 100 bytes" in answer.text) == (413, True)
        chunks = (b"x" * 30 for _ in range(5))
        answer = ask(server, "/api/leave", KEYS.operator, content=chunks)
        assert (answer.status_code, "at most 100 bytes" in answer.text) == (413, True)


def test_large_headers_end_the_connection() -> None:
    with serving() as server, raw(server, GET + b"X: " + b"x" * 40000) as sock:
        assert is_closed(sock)


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET", GET, b"\x16\x03\x01", authorised()],
    ids=["nothing", "a word", "no end", "tls", "a token"],
)
def test_who_does_not_finish_its_request_is_dropped(sent: bytes) -> None:
    with serving(limits=Limits(handshake_s=0.2)) as server, raw(server, sent) as sock:
        assert is_closed(sock)
        until(lambda: server.entrance.num_strangers == 0, "the stranger's end")


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    request = GET.replace(b"GET /api/status", b"POST /api/leave")
    request += f"Authorization: Bearer {KEYS.operator}\r\nContent-Length: 9\r\n\r\n".encode()
    with serving(limits=Limits(body_s=0.2, idle_s=0.5)) as server, raw(server, request) as sock:
        assert b" 408 " in sock.recv(65536)
        assert is_closed(sock)


def test_a_known_connection_is_not_kept_for_ever() -> None:
    with serving(limits=Limits(idle_s=0.2)) as server, raw(server, authorised() + b"\r\n") as sock:
        assert b" 200 " in sock.recv(65536)
        sock.sendall(GET)  # and never the rest
        assert is_closed(sock)


# --- numbers of connections --------------------------------------------------------------------------


def test_the_oldest_stranger_makes_room() -> None:
    limits = Limits(strangers_per_address=5, handshake_s=DEADLINE_S)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(limits=limits))
        crowd = [stack.enter_context(raw(server)) for _ in range(30)]
        assert all(is_closed(sock) for sock in crowd[:25])
        assert ask(server, "/api/status", KEYS.observer).status_code == 200
        assert server.entrance.num_strangers <= 5


def test_strangers_do_not_push_workers_out() -> None:
    limits = Limits(strangers_per_address=3, handshake_s=DEADLINE_S)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(limits=limits))
        line = stack.enter_context(open_line(server))
        line.send(hello())
        for _ in range(30):
            stack.enter_context(raw(server))
        line.send(encode(Ping(sent_s=1.0)))
        assert decode_from_coordinator(_received(line)).sent_s == 1.0  # type: ignore[union-attr]


def test_who_is_refused_too_often_is_not_read_any_more() -> None:
    limits = Limits(failures_per_s=0.01, failure_burst=5)
    with serving(limits=limits) as server:

        def is_cut() -> bool:
            with contextlib.suppress(Exception):
                ask(server, "/api/status", "guess")
                return False
            return True

        until(is_cut, "the address to be cut off")


# --- rubbish -----------------------------------------------------------------------------------------


def _received(line: Any) -> bytes:
    payload = line.recv(timeout=DEADLINE_S)
    assert isinstance(payload, bytes)
    return payload


READY = Ready(
    global_batch=8, minimum=1, allocation="balanced", shares=None, max_samples=None, seed=0
)


@pytest.mark.parametrize(
    ("rubbish", "text"),
    [
        (b"\x00rubbish", "nobody can read"),
        (msgspec.msgpack.encode({"kind": "no such thing"}), "Invalid value"),
        (hello(1).replace(b"test", b"te\xfft"), "nobody can read"),
        (hello(), "said hello twice"),
        (encode(Measured(step=-1, view=0, samples=1, compute_s=1.0)), "step = -1"),
        (encode(Measured(step=1, view=0, samples=1, compute_s=float("nan"))), "compute_s = nan"),
        (encode(msgspec.structs.replace(READY, global_batch=-5)), "global_batch = -5"),
        (encode(Failed(group=1, step=0, error="x" * 100_000)), "Failed with error"),
    ],
)
def test_rubbish_costs_its_sender_the_line_and_nobody_else(rubbish: bytes, text: str) -> None:
    with serving(workers=3) as server, open_line(server) as good, open_line(server) as bad:
        good.send(hello(0))
        bad.send(hello(1))
        bad.send(rubbish)
        refusal = decode_from_coordinator(_received(bad))
        assert isinstance(refusal, Refused)
        assert "worker 1" in refusal.reason
        assert text in refusal.reason
        with pytest.raises(ConnectionClosed):
            bad.recv(timeout=DEADLINE_S)
        good.send(encode(Ping(sent_s=2.0)))
        decode_from_coordinator(_received(good))


@pytest.mark.parametrize("error", [RuntimeError("changed size"), KeyError(3), AssertionError()])
def test_a_message_over_which_the_coordinator_stumbles_is_logged_and_costs_nobody_anything(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    receive = Federation.receive

    def stumble(self: Federation, worker: int, message: Any) -> Any:
        if isinstance(message, Metrics):
            raise error
        return receive(self, worker, message)

    monkeypatch.setattr(Federation, "receive", stumble)
    with serving(workers=3) as server, open_line(server) as line:
        line.send(hello(0))
        for _ in range(2):
            line.send(encode(Metrics(operations_per_s=3.5, memory_bytes=1.0, latency_s=0.1)))
        line.send(encode(Ping(sent_s=2.0)))
        assert isinstance(decode_from_coordinator(_received(line)), Pong)
    stumbled = [one for one in caplog.records if "could not deal with" in one.getMessage()]
    assert len(stumbled) == 1, "once is enough"
    assert "operations_per_s=3.5" in stumbled[0].getMessage()


def test_a_worker_listens_on_when_it_stumbles_over_what_it_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    take, stumbled = ControlClient._take, []

    def stumble(self: ControlClient, message: Any) -> None:
        if not stumbled:
            stumbled.append(message)
            raise RuntimeError("can't start new thread")
        take(self, message)

    monkeypatch.setattr(ControlClient, "_take", stumble)
    with serving(workers=1) as server:
        said_hello = decode_from_worker(hello(0))
        assert isinstance(said_hello, Hello)
        client = ControlClient(
            lambda: server.url, token=KEYS.worker, hello=said_hello, break_off=lambda *_: None
        )
        try:
            assert client.wait_gathered(DEADLINE_S).members == (0,)
        finally:
            client.close()
    assert "could not be heard" in caplog.text


def test_an_oversized_message_costs_its_sender_the_line() -> None:
    with serving() as server, open_line(server) as line:
        line.send(hello())
        with contextlib.suppress(WebSocketException):  # it may notice while it still sends
            line.send(b"x" * (2 << 20))
        with pytest.raises(WebSocketException):
            line.recv(timeout=DEADLINE_S)
        assert ask(server, "/api/status", KEYS.observer).status_code == 200


def test_a_worker_that_sends_much_is_read_at_its_rate() -> None:
    with serving(limits=Limits(messages_per_s=100, message_burst=5)) as server:
        with open_line(server) as line:
            line.send(hello())
            for number in range(30):
                line.send(encode(Ping(sent_s=float(number))))
            pongs = [decode_from_coordinator(_received(line)) for _ in range(30)]
        assert [pong.sent_s for pong in pongs] == [float(number) for number in range(30)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "message",
    [
        Metrics(operations_per_s=float("inf"), memory_bytes=1.0, latency_s=1.0),
        Metrics(operations_per_s=1.0, memory_bytes=-1.0, latency_s=1.0),
        msgspec.structs.replace(READY, shares=(1.0, float("nan"))),
        msgspec.structs.replace(READY, max_samples=-1),
        Ping(sent_s=float("nan")),
    ],
)
def test_what_no_worker_can_mean_is_named(message: Any) -> None:
    with pytest.raises(UsageError, match=f"{type(message).__name__} with .* no worker can mean"):
        check_message(message)
