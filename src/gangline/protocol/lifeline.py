# SPDX-License-Identifier: Apache-2.0
"""What a launcher and the coordinator that it started say to each other: lines of JSON over a pair
of sockets.

The launcher gives orders; the coordinator tells, some times per second, that it lives and how the job
stands. No token is needed: only these two processes hold the ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    import socket

T = TypeVar("T")
_BLOCK_BYTES = 1 << 16


class Order(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What all orders have: a kind."""


class Serve(Order, frozen=True, kw_only=True, tag="serve"):
    """Begin to serve, at this port; 0: any. Until then the coordinator is a spare, and waits."""

    port: int


class ProcessEnded(Order, frozen=True, kw_only=True, tag="process_ended"):
    """A worker's process is no more."""

    worker: int
    has_failed: bool
    is_replaced: bool = False
    """Whether another one, with another number, is expected in its place."""


class Dissolve(Order, frozen=True, kw_only=True, tag="dissolve"):
    """The launcher ends the job: whoever still takes part, wherever it was started, is told why."""

    reason: str
    own: tuple[int, ...] = ()
    """The launcher's own workers, which it ends itself."""


class Depart(Order, frozen=True, kw_only=True, tag="depart"):
    """The coordinator's machine is about to end: all members shall leave."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a job stands, as its coordinator knows it."""

    is_serving: bool = True
    """False: this is a spare, which has loaded everything and waits."""
    present: tuple[int, ...] = ()
    """Who takes part in the training, and has not said goodbye."""
    silent_s: float = 0.0
    """For how long none of them has been heard."""
    finished: tuple[int, ...] = ()
    """The members that have come to the end of their scripts: all epochs are trained."""
    is_dissolved: bool = False
    """Whether those that joined have been told that the job is ended."""
    main: int = -1
    """The worker that prints and saves; -1: nobody yet."""
    come: int = 0
    """Before there is a view: how many workers are here."""
    num_sending: int = 0
    """How many machines still send their event logs."""
    is_ending: bool = False
    """Whether an operator has ordered the end of the job."""


AnyOrder = Serve | ProcessEnded | Dissolve | Depart


class Line(Generic[T]):
    """One end of the pair; `kind` is what comes in. Neither end ever waits for the other one."""

    def __init__(self, end: socket.socket, kind: type[T]) -> None:
        end.setblocking(False)
        self._end = end
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)
        self._incoming = b""
        self._outgoing = b""

    @property
    def is_clear(self) -> bool:
        """Whether everything that was said has been taken by the system."""
        return not self._outgoing

    def send(self, message: msgspec.Struct) -> None:
        """Says something; what does not fit now goes with the next."""
        self._outgoing += msgspec.json.encode(message) + b"\n"
        self.flush()

    def flush(self) -> None:
        """Hands over what did not fit before."""
        try:
            self._outgoing = self._outgoing[self._end.send(self._outgoing) :]
        except BlockingIOError:
            pass  # the other end does not read
        except OSError:
            self._outgoing = b""  # it is gone

    def receive(self) -> list[T]:
        """What has come since the last time."""
        while True:
            try:
                block = self._end.recv(_BLOCK_BYTES)
            except OSError:  # nothing more, or the other end is gone
                break
            if not block:
                break
            self._incoming += block
        *lines, self._incoming = self._incoming.split(b"\n")
        return [self._decoder.decode(line) for line in lines]

    def close(self) -> None:
        """Closes this end."""
        self._end.close()
