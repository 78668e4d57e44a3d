# SPDX-License-Identifier: Apache-2.0
"""Enters a job by a link: what answers is checked, and the secret is changed for the workers' token.

Nothing is sent before the certificate is the one that the link names. Then the run's authority comes
over the same connection, so that everything that follows is checked against that.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import ssl
from typing import TYPE_CHECKING

import msgspec

from gangline.files.tls import fingerprint_of
from gangline.files.tokens import WORKER_TOKEN
from gangline.launch.joining.contact import Contact
from gangline.protocol.joining import EnterAnswer
from gangline.spec.errors import LaunchError, UsageError
from gangline.spec.machines.link import bracketed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gangline.spec.machines.link import JoinLink

AUTHORITY_FILE = "authority.pem"
_TIMEOUT_S = 10.0
_MAX_ANSWER_BYTES = 1 << 20
_DONE = 200


def enter(link: JoinLink, secret: str) -> EnterAnswer:
    """Gives the secret of a link for what workers of the job need."""
    answer = _exchange(link, secret)
    if answer.run != link.run:
        raise UsageError(
            f"the link is of run {link.run!r}, and run {answer.run!r} answers at {link.url}: paste "
            "the line that `gangline up` printed"
        )
    return answer


def settle(link: JoinLink, answer: EnterAnswer, folder: Path) -> Contact:
    """Keeps the token and the authority in the folder; how the coordinator is reached from now on."""
    token_file, authority = folder / WORKER_TOKEN, folder / AUTHORITY_FILE
    _write(token_file, answer.token)
    if link.fingerprint:
        _write(authority, answer.authority)
    return Contact(
        url=link.url,
        token_file=token_file,
        authority=authority if link.fingerprint else None,
    )


@contextlib.contextmanager
def undone_on_error(folder: Path) -> Iterator[None]:
    """What was put into a folder to join is taken out again where nothing comes of it."""
    before = {path.name for path in folder.iterdir()}
    try:
        yield
    except BaseException:
        for path in folder.iterdir():
            if path.name in before:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if not before:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _exchange(link: JoinLink, secret: str) -> EnterAnswer:
    connection = _connect(link)
    try:
        connection.request("POST", "/api/enter", headers={"Authorization": f"Bearer {secret}"})
        response = connection.getresponse()
        document = response.read(_MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(link, error) from error
    finally:
        connection.close()
    if response.status != _DONE:
        raise LaunchError(document.decode(errors="replace").strip() or f"got {response.status}")
    try:
        return msgspec.json.decode(document, type=EnterAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LaunchError(f"what answers at {link.url} is no coordinator: {error}") from error


def _connect(link: JoinLink) -> http.client.HTTPConnection:
    """A connection over which the secret may be sent."""
    if not link.fingerprint:
        return http.client.HTTPConnection(link.host, link.port, timeout=_TIMEOUT_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Whose certificate it is says the fingerprint: the hand-shake proves that the other has its key.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection(
        link.host, link.port, timeout=_TIMEOUT_S, context=context
    )
    try:
        connection.connect()
        shown = connection.sock.getpeercert(binary_form=True)
    except (OSError, ValueError) as error:
        connection.close()
        raise _unreachable(link, error) from error
    found = fingerprint_of(shown or b"")
    if found != link.fingerprint:
        connection.close()
        raise LaunchError(
            f"what answers at {bracketed(link.host)}:{link.port} is not the coordinator of this "
            f"link: its certificate has the fingerprint {found}, the link says "
            f"{link.fingerprint}. Somebody may stand between, or another job runs there; nothing "
            "was sent to it. Have a new link made there with `gangline token make RUN_DIR`"
        )
    return connection


def _unreachable(link: JoinLink, error: Exception) -> LaunchError:
    return LaunchError(
        f"no coordinator answers at {bracketed(link.host)}:{link.port} ({error}): the run is over, "
        "a firewall keeps that port closed, or that address is not reached from here; `gangline "
        "up` prints the others that the machine has"
    )


def _write(path: Path, text: str) -> None:
    """A new file that only its owner can read."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(text.rstrip("\n") + "\n")
