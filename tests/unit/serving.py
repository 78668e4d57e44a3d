# SPDX-License-Identifier: Apache-2.0
"""A real coordinator on loopback, as a thread of the test, and what tests say to it."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
from websockets.sync.client import ClientConnection, connect

from gangline.coordinator.server import CoordinatorServer, Driver, Keys
from gangline.coordinator.settings import Settings
from gangline.protocol.messages import PROTOCOL_VERSION, Hello, encode
from gangline.spec.exchange.address import WireAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEYS = Keys.of_worker("the-workers-token-of-a-test")
DEADLINE_S = 20.0


@contextlib.contextmanager
def serving(workers: int = 2, keys: Keys = KEYS, **options: Any) -> Iterator[CoordinatorServer]:
    """A coordinator that waits for so many workers."""
    driver = Driver(Settings(run="test", expected_workers=workers))
    server = CoordinatorServer(driver, keys=keys, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def ask(server: CoordinatorServer, path: str, token: str, **options: Any) -> httpx.Response:
    """One request; a body makes it a POST."""
    url = server.url.replace("ws", "http", 1) + path
    method = options.pop("method", "POST" if "content" in options else "GET")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(trust_env=False, verify=options.pop("verify", True)) as client:
        return client.request(method, url, headers=headers, timeout=DEADLINE_S, **options)


def open_line(
    server: CoordinatorServer, token: str = KEYS.worker, **options: Any
) -> ClientConnection:
    """A worker's WebSocket, before its hello."""
    headers = {"Authorization": f"Bearer {token}"}
    return connect(
        f"{server.url}/ws/worker",
        additional_headers=headers,
        proxy=None,
        compression=None,
        close_timeout=1,
        **options,
    )


def hello(worker: int = 0, **changes: Any) -> bytes:
    """What a worker says first."""
    address = WireAddress(host="127.0.0.1", port=1)
    fields: dict[str, Any] = {
        "protocol": PROTOCOL_VERSION, "run": "test", "worker": worker, "host": "here",
        "pid": os.getpid() + worker, "address": address,
    }  # fmt: skip
    return encode(Hello(**{**fields, **changes}))


def raw(server: CoordinatorServer, request: bytes = b"") -> socket.socket:
    """A bare TCP connection, on which something was sent."""
    parts = urlsplit(server.url)
    sock = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=DEADLINE_S)
    sock.sendall(request)
    return sock


def is_closed(sock: socket.socket) -> bool:
    """Waits for the other side to close the connection."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def until(condition: Callable[[], Any], what: str) -> Any:
    """Waits for something to be true; its value."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"waited in vain for {what}")
