# SPDX-License-Identifier: Apache-2.0
"""Whether workers of this host can be called: the coordinator is asked to try."""

from __future__ import annotations

import contextlib
import http.client
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from gangline.files.tls import client_context
from gangline.protocol.reaching import greet_all, hang_up, interface_towards, listen_within
from gangline.protocol.status import CalledBack

if TYPE_CHECKING:
    from gangline.files.tls import TlsFiles

ASK_S = 6.0
"""How long the coordinator may take: it tries for half of that."""


def is_called(url: str, *, token: str, tls: TlsFiles, ports: tuple[int, int] | None) -> bool | None:
    """Whether the coordinator gets through to a port of this host; None: that is not known."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 0
    connection = http.client.HTTPSConnection(
        host, port, timeout=ASK_S, context=client_context(tls.authority)
    )
    with contextlib.ExitStack() as stack:
        stack.callback(connection.close)
        try:
            listener = listen_within(interface_towards(host, port), ports)
            stack.callback(hang_up, listener)
            greet_all(listener)
            path = f"/api/reach?port={listener.getsockname()[1]}"
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse().read()
            return msgspec.json.decode(answer, type=CalledBack).is_known
        except (OSError, http.client.HTTPException, msgspec.DecodeError):
            return None
