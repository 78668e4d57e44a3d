# SPDX-License-Identifier: Apache-2.0
"""The worker's end: asks the actor beside which it runs."""

from __future__ import annotations

import os
import socket
import threading
from typing import IO, Any

from gangline.engines.ray.services.framing import SOCKET_VARIABLE, Answer, Request, receive, send
from gangline.spec.errors import LaunchError, UsageError

_ANSWER_S = 600.0
"""How long an answer may take: a data set may have to be computed first."""


class ActorClient:
    """One connection per process and thread: data loaders fork, and ask side by side."""

    def __init__(self) -> None:
        self._local = threading.local()

    def ask(self, service: str, what: str, data: Any = b"", **values: Any) -> tuple[Any, bytes]:
        """What the actor answers. Raises LaunchError where it is gone, or says what went wrong."""
        request = Request(service=service, what=what, values=values, num_bytes=len(data))
        try:
            file = self._file()
            send(file, request, data)
            answer, given = receive(file, Answer)
        except (EOFError, OSError) as error:
            self._local.file = None
            raise LaunchError(
                f"the Ray actor of this worker does not answer ({error or 'it is gone'})"
            ) from error
        if answer.error:
            raise LaunchError(f"{service}: {answer.error}")
        return answer.values, given

    def _file(self) -> IO[bytes]:
        known = getattr(self._local, "file", None)
        if known is not None and self._local.pid == os.getpid():
            return known  # type: ignore[no-any-return]
        path = os.environ.get(SOCKET_VARIABLE)
        if path is None:
            raise UsageError(
                "this process is no worker of a GanglineTrainer: rows of Ray data sets and reports are "
                "for the function that a GanglineTrainer runs"
            )
        with socket.socket(socket.AF_UNIX) as connection:  # the file holds it open
            connection.settimeout(_ANSWER_S)
            connection.connect(path)
            self._local.file, self._local.pid = connection.makefile("rwb"), os.getpid()
        return self._local.file  # type: ignore[no-any-return]


client = ActorClient()
"""That of this process."""
