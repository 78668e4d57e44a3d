# SPDX-License-Identifier: Apache-2.0
"""Gates out of an emulated network: an address inside it that leads to the coordinator outside.

The coordinator stays in this machine's own network, where commands find it. A gate listens at a node's
own address, so that its line to the coordinator does not use the emulated links.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gangline.emulation.namespaces import inside
from gangline.files.announcement import read_announcement
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PORT = 7000
"""Nobody else uses ports in a network that was just made."""
_PATIENCE_S = 60.0
_RETRY_S = 0.05
_BLOCK_BYTES = 1 << 16


class Gate:
    """Passes connections on from inside a namespace; the threads end with their connections."""

    def __init__(self, namespace: int, address: str, *, dial: Callable[[], socket.socket]) -> None:
        self._dial = dial
        self._listener = inside(namespace, lambda: socket.create_server((address, PORT)))
        threading.Thread(target=self._serve, name="gangline-gate", daemon=True).start()

    def close(self) -> None:
        """Takes no more connections; those that there are go on."""
        with contextlib.suppress(OSError):  # wakes up who waits in `accept`
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(caller,), daemon=True).start()

    def _pass_on(self, caller: socket.socket) -> None:
        try:
            called = self._dial()
        except OSError:
            caller.close()
            return
        back = threading.Thread(target=_copy, args=(called, caller), daemon=True)
        back.start()
        _copy(caller, called)
        back.join()
        caller.close()
        called.close()


def dial_coordinator(run_dir: Path) -> socket.socket:
    """A connection to where the run's coordinator says it is, which may still be starting."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            url = urlsplit(read_announcement(run_dir).url)
            return socket.create_connection((url.hostname or "127.0.0.1", url.port or 0))
        except (LaunchError, OSError) as error:
            if time.monotonic() > deadline:
                raise TimeoutError(str(error)) from error
            time.sleep(_RETRY_S)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while block := source.recv(_BLOCK_BYTES):
            target.sendall(block)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
