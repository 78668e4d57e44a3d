# SPDX-License-Identifier: Apache-2.0
"""How a machine that joins finds the job's coordinator: by a link, an address, or a run folder."""

from __future__ import annotations

import time
import urllib.error
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gangline.cli.output import warn
from gangline.cli.run.secret import find_secret, hide_argument
from gangline.files.announcement import Announcement, read_announcement
from gangline.files.tokens import WORKER_TOKEN
from gangline.launch.folder import make_run_dir
from gangline.launch.joining.contact import Contact
from gangline.launch.joining.entering import enter, settle, undone_on_error
from gangline.spec.errors import LaunchError, UsageError
from gangline.spec.machines.link import SCHEME, JoinLink

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_RUN_CHARS = 256
_RETRY_S = 0.5


class _RunningJob(msgspec.Struct):
    """What of a coordinator's status matters to who joins."""

    run: str


class Place(NamedTuple):
    """Where a job's coordinator is, and how it is found again."""

    url: str
    token_file: Path
    folder: Path | None
    """The run folder, if it can be reached from here: the coordinator announces itself there."""


@contextmanager
def arrived(
    link: JoinLink | None,
    place: Place | None,
    *,
    authority: Path | None,
    secret_file: Path | None,
    run_dir: Path | None,
    wait_s: float = 0.0,
) -> Iterator[tuple[Contact, Path]]:
    """How the coordinator is reached, and a new folder, of which nothing is left after an error.

    One that does not answer yet is tried again for `wait_s`.
    """
    contact = answer = None
    if place is not None:
        contact = Contact(url=place.url, token_file=place.token_file, authority=authority)
        _await_coordinator(contact, wait_s)  # before there is a folder
    elif link is not None:
        if wait_s:
            raise UsageError("--wait is for an address: a link is of a coordinator that is there")
        answer = enter(link, find_secret(link, secret_file))
    _, folder = make_run_dir(Path("join"), name=None, run_dir=run_dir)
    with undone_on_error(folder):
        if link is not None and answer is not None:
            contact = settle(link, answer, folder)
        assert contact is not None
        yield contact, folder


def link_of(
    text: str, *, authority: Path | None, token_file: Path | None, secret_file: Path | None
) -> JoinLink | None:
    """The link that was given in place of an address; its secret is taken out of the process list."""
    if not text.startswith(SCHEME):
        if secret_file is not None:
            raise UsageError("--secret-file is for a link, gl://…; this is an address or a folder")
        return None
    link = JoinLink.parse(text)
    if not hide_argument(link.secret):
        warn(
            "the secret in the link cannot be taken out of the process list here, where other "
            "users of this machine may read it: next time leave it out, and type it when asked"
        )
    if token_file is not None or authority is not None:
        raise UsageError("--token-file and --tls-ca are not for a link, which stands for both")
    return link


def find_place(address: str, token_file: Path | None, *, has_tls: bool) -> Place:
    """From an address and a token file, or a run folder, which has both."""
    folder = Path(address)
    if folder.is_dir():
        url = read_announcement(folder).url
        return Place(url, token_file or folder / WORKER_TOKEN, folder.resolve())
    token = token_file or Path(WORKER_TOKEN)
    url = coordinator_url(address, has_tls=has_tls)
    # A token that lies where a coordinator announces itself lies in its run folder.
    is_beside = Announcement.path_in(token.parent).is_file()
    return Place(url, token, token.parent.resolve() if is_beside else None)


def coordinator_url(address: str, *, has_tls: bool = False) -> str:
    """The address of a coordinator, from what people write."""
    bare = address.removeprefix("ws://").removeprefix("wss://")
    host, _, port = bare.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(
            f"{address!r} is not an address of a coordinator: write HOST:PORT, as `gangline up` "
            "prints it, such as 10.0.0.5:7700, or the job's run folder"
        )
    return f"{'wss' if has_tls or address.startswith('wss:') else 'ws'}://{host}:{port}"


def _await_coordinator(contact: Contact, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            find_run(contact)
        except LaunchError as error:
            # What answers, and refuses, will do so again.
            is_final = isinstance(error.__cause__, urllib.error.HTTPError | msgspec.DecodeError)
            if is_final or time.monotonic() >= deadline:
                raise
            time.sleep(_RETRY_S)
        else:
            return


def find_run(contact: Contact) -> str:
    """The name of the job; asking for it proves that address and token are right."""
    document = contact.ask("/api/status")
    try:
        run = msgspec.json.decode(document, type=_RunningJob).run
    except msgspec.DecodeError as error:
        raise LaunchError(f"what answers at {contact.url} is no coordinator: {error}") from error
    # It is shown beside what is to be agreed to: it must not be able to look like that.
    if not run.isprintable() or len(run) > _MAX_RUN_CHARS:
        raise LaunchError(f"the run at {contact.url} has a name that cannot be shown: {run[:80]!r}")
    return run
