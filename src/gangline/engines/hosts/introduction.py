# SPDX-License-Identifier: Apache-2.0
"""Tells each host where the coordinator is, as seen from there, with what it takes to be let in."""

from __future__ import annotations

import ipaddress
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gangline.files.announcement import read_announcement
from gangline.files.tokens import read_token
from gangline.protocol.agents import Coordinator
from gangline.spec.errors import LaunchError
from gangline.spec.machines.hosts import split_place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangline.engines.hosts.seat import Seat
    from gangline.engines.job import Job
    from gangline.protocol.agents import Here
    from gangline.spec.machines.hosts import Host

_LOOK_S = 0.2
_START_S = 60.0
"""How long the coordinator may take to be there."""


class Introduction:
    """Follows where the coordinator of a job is: it may be started again elsewhere."""

    def __init__(self, job: Job, seats: Iterable[Seat]) -> None:
        self._job = job
        self._seats = list(seats)
        self._port = 0
        self._looked_s = 0.0
        self._begun_s = time.monotonic()
        self._told: dict[str, str] = {}

    def add(self, seat: Seat) -> None:
        """A host has come that was not known."""
        self._seats.append(seat)

    def look(self) -> None:
        """Looks up the coordinator's port. Raises LaunchError if there is none for long."""
        now = time.monotonic()
        if now - self._looked_s < _LOOK_S:
            return
        self._looked_s = now
        try:
            self._port = urlsplit(read_announcement(self._job.run_dir).url).port or 0
        except LaunchError as error:
            if not self._port and now - self._begun_s > _START_S:
                raise LaunchError(
                    f"the coordinator does not come up: {error}; see coordinator.log in "
                    f"{self._job.run_dir}"
                ) from error

    def introduce(self, seat: Seat) -> None:
        """Tells a host that is ready what it does not know yet."""
        name = seat.host.name
        if not seat.is_ready or not self._port:
            if not seat.is_ready:
                self._told.pop(name, None)
            return
        url = self._url(seat)
        if self._told.get(name) == url:
            return
        self._told[name] = url
        authority, certificate, key = self._certify()
        seat.say(
            Coordinator(
                url=url,
                token=read_token(self._job.token_file),
                certificate=certificate.decode(),
                key=key.decode(),
                authority=authority.decode(),
                calls_out=seat.host.calls_out,
                ports=self._job.config.wire.ports,
                reached_at=seat.host.reached_at,
            )
        )

    def _url(self, seat: Seat) -> str:
        assert seat.here is not None
        place = coordinator_from(seat.host, seat.here, listen=self._job.config.hosts.listen_at[0])
        assert place is not None
        host, port = place
        if _is_loopback(host):
            # A worker listens where it sees the coordinator: others must reach it there.
            host = next(iter(outer_addresses(self._seats)), host)
        return f"wss://{f'[{host}]' if ':' in host else host}:{port or self._port}"

    def _certify(self) -> tuple[bytes, bytes, bytes]:
        """The run's authority, and a worker's certificate and key of a host."""
        from gangline.files.certificates import Authority, request_certificate

        files = self._job.tls
        assert files is not None
        assert files.authority_key is not None
        authority = Authority.read(Path(files.authority), Path(files.authority_key))
        request, key = request_certificate()
        return authority.pem, authority.sign(request.decode()), key


def coordinator_from(host: Host, here: Here, *, listen: str) -> tuple[str, int] | None:
    """Where a host reaches the coordinator, and a port if it is another there; None: nobody knows."""
    if host.coordinator is not None:
        return split_place(host.coordinator, name="coordinator")
    if not _is_any(listen):
        return listen, 0
    return None if here.seen_from is None else (here.seen_from, 0)


def outer_addresses(seats: Iterable[Seat]) -> list[str]:
    """The addresses of this machine that its hosts see, without those that are seen here only."""
    seen = [seat.here.seen_from for seat in seats if seat.here is not None]
    return [one for one in seen if one is not None and not _is_loopback(one)]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
