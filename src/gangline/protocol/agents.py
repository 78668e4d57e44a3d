# SPDX-License-Identifier: Apache-2.0
"""What a launcher and its agent on a host say to each other: lines of JSON through ssh.

The agent says who it is before it is told anything: secrets go to an agent only. Each end says some
times per minute that it is there. An agent that hears nothing for long ends its workers; so does one
whose line is closed.
"""

from __future__ import annotations

import os
from typing import Generic, TypeVar

import msgspec

from gangline.protocol.launch import Launch
from gangline.protocol.reaching import Attempt

AGENT_VERSION = 1
"""Of what is said here; both ends must be of one version."""
BEAT_S = 2.0
"""How often each end says that it is there."""
SILENCE_S = 15.0
"""An end that was silent for so long is gone."""
CHUNK_BYTES = 1 << 18
MAX_BACKLOG_BYTES = 1 << 20
"""Nothing more is read to be sent while so much waits to be."""
_MAX_LINE_BYTES = 8 << 20
_BLOCK_BYTES = 1 << 16
_MAX_BLOCKS = 32
"""At most so many are read at once: others have their turn."""

T = TypeVar("T")


class _Said(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What all messages have: a kind."""


class Beat(_Said, frozen=True, kw_only=True, tag="beat"):
    """I am there."""


# --- what a launcher says --------------------------------------------------------------------------


class Brief(_Said, frozen=True, kw_only=True, tag="brief"):
    """What run it is, and what is to be run; nothing of it is secret."""

    run: str
    host: str
    """The host's name in the launcher's file."""
    folder: str | None
    """Where workers run; None: at home."""
    script: str | None
    """Relative to what is brought, if something is; else to the folder."""
    module: str | None
    arguments: tuple[str, ...]
    brings: bool
    """Whether files follow."""
    end_by: int
    """The signal that asks workers to end."""
    grace_s: float
    """How long they may take, before they are killed."""


class File(_Said, frozen=True, kw_only=True, tag="file"):
    """A file of the program, or a further piece of it."""

    name: str
    data: bytes
    is_first: bool = True
    is_executable: bool = False


class Briefed(_Said, frozen=True, kw_only=True, tag="briefed"):
    """Nothing more comes before workers are started."""


class Coordinator(_Said, frozen=True, kw_only=True, tag="coordinator"):
    """Where the host reaches the coordinator, from now on, and the secrets that this takes."""

    url: str
    token: str
    certificate: str
    key: str
    authority: str
    calls_out: bool | None
    """Whether the host's workers open all connections themselves; None: the agent finds out."""
    ports: tuple[int, int] | None
    """Those that workers may listen on; None: any."""
    reached_at: str | None
    """Where others reach the host's workers; None: where they find themselves."""


class Start(_Said, frozen=True, kw_only=True, tag="start"):
    """Start a worker."""

    launch: Launch
    """The agent puts its own paths into it."""
    environment: dict[str, str]
    neighbours: int
    """How many workers there are on the host, with this one."""


class End(_Said, frozen=True, kw_only=True, tag="end"):
    """End all workers, and then the agent itself."""


class Kill(_Said, frozen=True, kw_only=True, tag="kill"):
    """Kill one worker."""

    worker: int


class Examine(_Said, frozen=True, kw_only=True, tag="examine"):
    """Look what this host is, and listen at a port that others try; nothing is run."""

    folder: str | None
    packages: tuple[str, ...]
    coordinator: str
    """The address towards which workers would listen."""
    ports: tuple[int, int] | None
    """Those that workers may listen on; None: any."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A port that somebody listens on."""

    name: str
    """Whose it is."""
    host: str
    port: int


class Dial(_Said, frozen=True, kw_only=True, tag="dial"):
    """Try to reach these."""

    places: tuple[Place, ...]


# --- what an agent says ----------------------------------------------------------------------------


class Here(_Said, frozen=True, kw_only=True, tag="here"):
    """The agent is there: what it is, and what it can see at once."""

    version: int
    gangline: str
    python: str
    hostname: str
    clock_s: float
    """Its time of day."""
    torch: str | None = None
    """The installed version; None: there is none."""
    devices: int = 0
    """How many GPUs there are."""
    seen_from: str | None = None
    """The address that its ssh connection comes from."""
    seen_at: str | None = None
    """Its own address there."""


class Ready(_Said, frozen=True, kw_only=True, tag="ready"):
    """Everything that workers need is in its place, in this run folder of the host's."""

    run_dir: str


class Met(_Said, frozen=True, kw_only=True, tag="met"):
    """The agent knows the coordinator, and whether its workers must open all connections."""

    calls_out: bool


class Unfit(_Said, frozen=True, kw_only=True, tag="unfit"):
    """Workers cannot run here, and why; the agent ends."""

    reason: str


class Wrote(_Said, frozen=True, kw_only=True, tag="wrote"):
    """What a worker has written, to its output or to its event log."""

    worker: int
    data: bytes
    is_event: bool = False


class Ended(_Said, frozen=True, kw_only=True, tag="ended"):
    """A worker has ended; all that it wrote was sent before."""

    worker: int
    exit_code: int | None
    signal: str | None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a host."""

    name: str
    memory_mib: int


class Examined(_Said, frozen=True, kw_only=True, tag="examined"):
    """What a host is."""

    folder: str
    has_folder: bool
    free_bytes: int
    packages: dict[str, str | None]
    """The installed version of each that was asked for; None: there is none."""
    gpus: tuple[Gpu, ...]
    asked_at_s: float
    """The host's time of day when it was asked."""
    told_at_s: float
    """The same when it answered."""
    address: str = ""
    """Where it listens; empty where it cannot."""
    port: int = 0
    problem: str = ""
    """Why it cannot listen."""


class Dialled(_Said, frozen=True, kw_only=True, tag="dialled"):
    """What became of each attempt, by the name of whom it was to reach."""

    attempts: dict[str, Attempt]


FromLauncher = Brief | File | Briefed | Coordinator | Start | End | Kill | Examine | Dial | Beat
FromAgent = Here | Ready | Met | Unfit | Wrote | Ended | Examined | Dialled | Beat


class Channel(Generic[T]):
    """One end of the line, over two descriptors. Neither end ever waits for the other one."""

    def __init__(self, incoming: int, outgoing: int, kind: object) -> None:
        for descriptor in (incoming, outgoing):
            os.set_blocking(descriptor, False)
        self._in, self._out = incoming, outgoing
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)
        self._incoming = b""
        self._outgoing = bytearray()
        self.is_closed = False
        """Whether the other end is gone."""

    @property
    def backlog(self) -> int:
        """How many bytes wait to be taken."""
        return len(self._outgoing)

    def send(self, message: msgspec.Struct) -> None:
        """Says something; what does not fit now goes with the next."""
        self._outgoing += msgspec.json.encode(message) + b"\n"
        self.flush()

    def flush(self) -> None:
        """Hands over what did not fit before."""
        try:
            while self._outgoing:
                with memoryview(self._outgoing)[:_BLOCK_BYTES] as block:
                    taken = self._write(block)
                del self._outgoing[:taken]
        except BlockingIOError:
            return
        except OSError:
            self._outgoing.clear()
            self.is_closed = True

    def receive(self) -> list[T]:
        """What has come since the last time. What is no message is left out: a login may say things."""
        blocks = [self._incoming]
        for _ in range(_MAX_BLOCKS):
            try:
                blocks.append(self._read(_BLOCK_BYTES))
            except BlockingIOError:
                break
            except OSError:
                self.is_closed = True
                break
            if not blocks[-1]:
                self.is_closed = True
                break
        *lines, self._incoming = b"".join(blocks).split(b"\n")
        if len(self._incoming) > _MAX_LINE_BYTES:
            self.is_closed = True
        return [found for line in lines if (found := self._decoded(line)) is not None]

    def _read(self, limit: int) -> bytes:
        """Some bytes; none at the end. Raises BlockingIOError where there are none yet."""
        return os.read(self._in, limit)

    def _write(self, block: memoryview) -> int:
        """How many bytes were taken. Raises BlockingIOError where none can be."""
        return os.write(self._out, block)

    def _decoded(self, line: bytes) -> T | None:
        try:
            return self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
