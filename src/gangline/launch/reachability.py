# SPDX-License-Identifier: Apache-2.0
"""What `gangline doctor HOST:PORT` finds: whether a coordinator is reached, and reaches us."""

from __future__ import annotations

import hashlib
import http.client
import socket
import ssl
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import msgspec

from gangline.profiling.advice import Finding, Status
from gangline.protocol.reaching import (
    Attempt,
    Reach,
    call_back,
    interface_towards,
    try_port,
)
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gangline.protocol.status import CalledBack

TIMEOUT_S = 5.0
_UNAUTHORISED = 401


class Answer(NamedTuple):
    """What listens at a port."""

    has_tls: bool
    fingerprint: str = ""
    """SHA-256 of its certificate."""
    is_coordinator: bool = False


def examine(
    host: str,
    port: int,
    *,
    ports: tuple[int, int] | None,
    ask: Callable[[str], bytes] | None,
) -> Iterator[Finding]:
    """The findings, one by one; `ask` asks the coordinator with a token, None: there is none."""
    attempt = try_port(host, port, timeout_s=TIMEOUT_S)
    yield _port(host, port, attempt)
    if attempt.reach is not Reach.OPEN:
        return
    answer = identify(host, port)
    yield _encrypted(answer)
    if not answer.is_coordinator:
        advice = (
            "look for another port: `gangline up` and `coordinator.json` in the run folder say it"
        )
        found = "something else answers there"
        yield Finding(what="coordinator", found=found, status=Status.BROKEN, advice=advice)
        return
    yield Finding(what="coordinator", found="one of gangline's", status=Status.OK)
    if ask is None:
        advice = "give the run's token, by --token-file, to have the coordinator call back"
        found = "not tried"
        yield Finding(what="reached back", found=found, status=Status.MISSING, advice=advice)
        return
    yield from _called_back(attempt.own_address, ports, ask)


def identify(host: str, port: int) -> Answer:
    """Whether what listens speaks TLS, and whether it is a coordinator; nothing is proven to it."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # it is only looked at: nothing that matters is sent
    try:
        with (
            socket.create_connection((host, port), timeout=TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as sock,
        ):
            certificate = sock.getpeercert(binary_form=True) or b""
    except (OSError, ValueError):
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        return Answer(has_tls=False, is_coordinator=_asks_for_token(connection))
    secure = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
    return Answer(
        has_tls=True,
        fingerprint=hashlib.sha256(certificate).hexdigest(),
        is_coordinator=_asks_for_token(secure),
    )


def _asks_for_token(connection: http.client.HTTPConnection) -> bool:
    try:
        connection.request("GET", "/api/status")
        response = connection.getresponse()
        return response.status == _UNAUTHORISED and b"run's token" in response.read(200)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _port(host: str, port: int, attempt: Attempt) -> Finding:
    what = f"{host}:{port}"
    if attempt.reach is Reach.OPEN:
        found = f"reachable, from {attempt.own_address}"
        return Finding(what=what, found=found, status=Status.OK)
    advice = {
        Reach.REFUSED: (
            "the machine is there, and nobody listens: is the coordinator running, and does it listen "
            "at this address (`gangline up --host`, `gangline run --listen`)?"
        ),
        Reach.FILTERED: f"a firewall drops it, or {host} is off: let TCP port {port} in there",
        Reach.UNREACHABLE: f"there is no way to {host} from here: look at routes and networks",
        Reach.UNKNOWN: "nobody knows that name: use an address, or put it into /etc/hosts",
    }[attempt.reach]
    found = f"{attempt.reach} ({attempt.detail})"
    return Finding(what=what, found=found, status=Status.BROKEN, advice=advice)


def _encrypted(answer: Answer) -> Finding:
    if answer.has_tls:
        found = f"certificate sha256:{answer.fingerprint}"
        return Finding(what="TLS", found=found, status=Status.OK)
    advice = "others on the way can read everything, with the token: use --tls"
    return Finding(what="TLS", found="none", status=Status.LIMITED, advice=advice)


def _ask_back(own: str, ports: tuple[int, int] | None, ask: Callable[[str], bytes]) -> CalledBack:
    try:
        return call_back(own, ports, ask)
    except msgspec.DecodeError as error:
        raise LaunchError(f"the coordinator's answer cannot be read: {error}") from error


def must_call_out(
    url: str, ports: tuple[int, int] | None, ask: Callable[[str], bytes]
) -> str | None:
    """Why workers of this machine must open all connections themselves; None: they need not.

    Not known is not: then they are called, and say what is wrong if that fails.
    """
    parts = urlsplit(url)
    try:
        own = interface_towards(parts.hostname or "", parts.port or 0)
        told = _ask_back(own, ports, ask)
    except (OSError, LaunchError):
        return None
    if told.is_known:
        return None
    seen = "" if told.seen_from == own else f", which is seen as {told.seen_from}"
    return f"the coordinator does not get through to {own}{seen} ({told.reach})"


def _called_back(
    own: str, ports: tuple[int, int] | None, ask: Callable[[str], bytes]
) -> Iterator[Finding]:
    span = "all ports" if ports is None else f"ports {ports[0]}-{ports[1]}"
    try:
        told = _ask_back(own, ports, ask)
    except OSError as error:
        found = f"cannot listen at {own}, {span}: {error.strerror}"
        advice = "free one, or give another range by --wire-ports"
        yield Finding(what="reached back", found=found, status=Status.BROKEN, advice=advice)
        return
    yield _seen(own, told)
    if told.is_known:
        found = f"open, at {told.seen_from}"
        yield Finding(what="reached back", found=found, status=Status.OK)
        return
    found = f"{told.reach} ({told.detail or 'something else answers'})"
    fewer = " (--wire-ports A-B needs fewer)" if ports is None else ""
    advice = (
        f"other workers cannot call this machine: let TCP {span} in here{fewer}, to {own}, or have its "
        "workers open all connections themselves (wire.calls_out), as far as they reach the others"
    )
    yield Finding(what="reached back", found=found, status=Status.LIMITED, advice=advice)


def _seen(own: str, told: CalledBack) -> Finding:
    if told.seen_from == own:
        return Finding(what="seen as", found=own, status=Status.OK)
    found = f"{told.seen_from}, and is {own} here"
    advice = "addresses are translated on the way (NAT): others cannot call this machine by its own"
    return Finding(what="seen as", found=found, status=Status.LIMITED, advice=advice)
