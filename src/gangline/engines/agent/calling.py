# SPDX-License-Identifier: Apache-2.0
"""Whether workers of this host can be called: the coordinator is asked to try."""

from __future__ import annotations

import contextlib
import http.client
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from gangline.files.tls import client_context
from gangline.protocol.reaching import call_back, interface_towards

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

    def ask(path: str) -> bytes:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().read()

    with contextlib.closing(connection):
        try:
            return call_back(interface_towards(host, port), ports, ask).is_known
        except (OSError, http.client.HTTPException, msgspec.DecodeError):
            return None
