# SPDX-License-Identifier: Apache-2.0
"""The coordinator's end of the line to the launcher that started it."""

from __future__ import annotations

import select
import socket

import msgspec

from gangline.protocol.lifeline import (
    AnyOrder,
    Depart,
    Dissolve,
    Line,
    ProcessEnded,
    Serve,
    Standing,
)

BEAT_S = 0.2
"""How often the launcher is told that the coordinator lives, where there is nothing new to tell."""


class Lifeline:
    """Takes the launcher's orders, and tells it how the job stands."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._line: Line[AnyOrder] = Line(self._socket, AnyOrder)  # type: ignore[arg-type]
        self._orders: list[AnyOrder] = []
        self._told: Standing | None = None
        self._told_s = 0.0

    def await_serve(self) -> int | None:
        """Waits until the coordinator is needed: the port to serve at; None: it never will be."""
        self._line.send(Standing(is_serving=False))
        while True:
            is_readable = bool(select.select([self._socket], [], [])[0])
            self._orders += self._line.receive()
            serve = next((one for one in self._orders if isinstance(one, Serve)), None)
            if serve is not None:
                self._orders.remove(serve)
                return serve.port
            if is_readable and self._has_ended():
                return None

    def take_orders(self) -> list[ProcessEnded | Dissolve | Depart]:
        """What the launcher has said since the last time."""
        orders, self._orders = self._orders + self._line.receive(), []
        return [one for one in orders if not isinstance(one, Serve)]

    def beat(self, standing: Standing, now: float) -> None:
        """Tells how the job stands: when that is new, or it is time for a sign of life."""
        known = standing if self._told is None else self._told
        is_new = self._told is None or standing != msgspec.structs.replace(
            known, silent_s=standing.silent_s
        )
        # To a launcher that does not read, nothing is told until it does.
        if (is_new or now - self._told_s >= BEAT_S) and self._line.is_clear:
            self._told, self._told_s = standing, now
            self._line.send(standing)
        elif not self._line.is_clear:
            self._line.flush()

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()

    def _has_ended(self) -> bool:
        try:
            return self._socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True


def warm_up() -> None:
    """Loads what the server would load when it begins to serve: a spare has it ready."""
    import asyncio  # noqa: F401

    import uvicorn.lifespan.on
    import uvicorn.protocols.http.h11_impl
    import uvicorn.protocols.websockets.websockets_sansio_impl  # noqa: F401
