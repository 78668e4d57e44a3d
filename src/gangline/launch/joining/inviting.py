# SPDX-License-Identifier: Apache-2.0
"""How a job is made known to other machines: where it listens, and the links by which they join."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from gangline.files.addresses import all_interfaces, own_addresses
from gangline.files.announcement import read_announcement
from gangline.files.config import read_config
from gangline.files.tls import own_fingerprint, read_tls_files
from gangline.files.tokens import OPERATOR_TOKEN
from gangline.launch.joining.contact import RunContact
from gangline.protocol.joining import InvitationAnswer, InvitationStatus
from gangline.spec.config import ListenConfig
from gangline.spec.errors import LaunchError, UsageError
from gangline.spec.machines.link import JoinLink, is_host, is_loopback, is_wildcard

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

DEFAULT_PORT = 7700


def listening(host: str | None, port: int | None, names: Iterable[str]) -> ListenConfig:
    """Where a job that others join listens: on all interfaces, unless told otherwise."""
    chosen = all_interfaces() if host is None else host
    return ListenConfig(
        host=chosen,
        port=_usual_port(chosen) if port is None else port,
        names=tuple(names),
    )


def needs_tls(host: str) -> bool:
    """Whether others can read what travels."""
    return not is_loopback(host)


def _usual_port(host: str) -> int:
    """The port that a firewall may know, where it is free; else any free one."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, DEFAULT_PORT))
    except OSError:
        return 0
    return DEFAULT_PORT


def links(run_dir: Path, *, secret: str = "", names: Iterable[str] | None = None) -> list[JoinLink]:
    """The links to the job of a run folder, whose coordinator runs: the most likely one first."""
    announced = read_announcement(run_dir)
    parts = urlsplit(announced.url)
    given = _names_of(run_dir) if names is None else tuple(names)
    return links_to(
        run=announced.run,
        host=parts.hostname or "",
        port=parts.port or 0,
        fingerprint=own_fingerprint(read_tls_files(run_dir)),
        secret=secret,
        names=given,
    )


def links_to(
    *, run: str, host: str, port: int, fingerprint: str, secret: str, names: Iterable[str] = ()
) -> list[JoinLink]:
    """One link for each way to this machine: names that were given, addresses, its own name."""
    ways = [*names]
    if is_loopback(host):
        ways.append(host)
    else:
        found = own_addresses()
        # Another machine's run folder may be at hand: then its own address is all that is known.
        ways += [*([] if is_wildcard(host) else [host]), *(found if host in found else [])]
        ways += [socket.gethostname()] if host in found else []
    return [
        JoinLink(host=way, port=port, run=run, fingerprint=fingerprint, secret=secret)
        for way in dict.fromkeys(ways)
        if is_host(way)
    ]


def _names_of(run_dir: Path) -> tuple[str, ...]:
    try:
        return read_config(run_dir).listen.names
    except LaunchError:  # a coordinator that was started without a script
        return ()


def make_invitation(
    run_dir: Path, *, lasts_s: float, uses: int, token_file: Path | None = None
) -> tuple[InvitationAnswer, list[JoinLink]]:
    """Has a running coordinator make an invitation; its secret is kept nowhere else."""
    if any(not is_loopback(way.host) and not way.fingerprint for way in links(run_dir)):
        raise UsageError(
            "this job listens to other machines without TLS, and a secret could be read on its "
            "way: start it with --tls, or give the others the token as a file"
        )
    body = msgspec.json.encode({"lasts_s": lasts_s, "uses": uses})
    document = _operator(run_dir, token_file).ask("/api/invitations", body=body)
    made = msgspec.json.decode(document, type=InvitationAnswer)
    return made, links(run_dir, secret=made.secret)


def list_invitations(run_dir: Path, *, token_file: Path | None = None) -> list[InvitationStatus]:
    """All invitations of a running job, oldest first."""
    document = _operator(run_dir, token_file).ask("/api/invitations")
    return msgspec.json.decode(document, type=list[InvitationStatus])


def withdraw_invitation(
    run_dir: Path, name: str, *, token_file: Path | None = None
) -> InvitationStatus:
    """From here on this invitation lets nobody in."""
    body = msgspec.json.encode({"name": name})
    document = _operator(run_dir, token_file).ask("/api/invitations/withdraw", body=body)
    return msgspec.json.decode(document, type=InvitationStatus)


def _operator(run_dir: Path, token_file: Path | None) -> RunContact:
    return RunContact(run_dir, token_file=token_file or run_dir / OPERATOR_TOKEN)
