# SPDX-License-Identifier: Apache-2.0
"""The actor's end: answers what its worker, and the worker's data loaders, ask for."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, Protocol

from gangline.engines.ray.services.framing import SOCKET_VARIABLE, Answer, Request, receive, send

if TYPE_CHECKING:
    from collections.abc import Mapping


class Service(Protocol):
    """What an actor does for its worker; called by several threads."""

    def answer(self, request: Request, data: bytes) -> tuple[dict[str, Any], Any]:
        """Values and bytes. What it raises is told to the worker."""


class Desk:
    """A socket in a private folder, with a thread for each that comes to it."""

    def __init__(self, folder: str, services: Mapping[str, Service]) -> None:
        self._services = services
        self._path = os.path.join(folder, "actor")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self._path)
        self._socket.listen()
        threading.Thread(target=self._accept, name="gangline-desk", daemon=True).start()

    @property
    def variables(self) -> dict[str, str]:
        """What a worker must have in its environment to find it."""
        return {SOCKET_VARIABLE: self._path}

    def close(self) -> None:
        """Whoever comes now is not answered."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(
                target=self._serve, args=(connection,), name="gangline-desk", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        gone = contextlib.suppress(EOFError, OSError)
        with gone, connection, connection.makefile("rwb") as file:
            while True:
                self._answer(file)

    def _answer(self, file: Any) -> None:
        request, given = receive(file, Request)
        data: Any = b""
        try:
            service = self._services.get(request.service)
            if service is None:
                known = ", ".join(sorted(self._services)) or "none"
                raise LookupError(f"there is no {request.service!r} here (there is: {known})")
            values, data = service.answer(request, given)
            answer = Answer(values=values, num_bytes=len(data))
        except Exception as error:
            answer = Answer(error=f"{type(error).__name__}: {error}")
        send(file, answer, data)
