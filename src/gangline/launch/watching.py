# SPDX-License-Identifier: Apache-2.0
"""Follows a running job from anywhere: by its run folder, its address and a token, or a link."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

import msgspec

from gangline.files.announcement import read_announcement
from gangline.files.tls import authority_of, client_context, explain
from gangline.files.tokens import OBSERVER_TOKEN
from gangline.launch.joining.contact import Contact
from gangline.protocol.live import Snapshot
from gangline.spec.errors import LaunchError, UsageError
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from collections.abc import Iterator

STREAM = "/api/events/stream?steps=no"
_TIMEOUT_S = 5.0
_MAX_LINE_BYTES = 16 << 20
_MAX_ANSWER_BYTES = 64 << 10

Told = Snapshot | Decision
"""What of a stream people are shown in a terminal."""
Opener: TypeAlias = Callable[[], contextlib.AbstractContextManager[IO[bytes]]]
"""Begins to follow; again, after the coordinator was started again."""


class _Peek(msgspec.Struct):
    kind: str


def find_stream(place: str, *, token_file: Path | None, authority: Path | None) -> Opener:
    """How to follow what is at a place: a run folder, HOST:PORT, or a link of the dashboard."""
    if place.startswith(("http://", "https://")):
        return _by_link(place, authority)
    folder = Path(place)
    if folder.is_dir():
        return _by_folder(folder, token_file)
    host, colon, port = place.rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise UsageError(
            f"{place} is neither a run folder, nor HOST:PORT, nor a link of `gangline dashboard`"
        )
    if token_file is None:
        raise UsageError(f"to follow {place}, name an observer's token with --token-file")
    scheme = "ws" if authority is None else "wss"
    contact = Contact(url=f"{scheme}://{place}", token_file=token_file, authority=authority)
    return lambda: contact.opened(STREAM)


def read_told(stream: IO[bytes]) -> Iterator[Told]:
    """What a stream says, as it comes; raises LaunchError where it cannot be read."""
    while line := stream.readline(_MAX_LINE_BYTES):
        text = line.removeprefix(b"data: ").strip()
        if not text:
            continue
        try:
            kind = msgspec.json.decode(text, type=_Peek).kind
            if kind == "snapshot":
                yield msgspec.json.decode(text, type=Snapshot)
            elif kind == "decision":
                yield msgspec.json.decode(text, type=Decision)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LaunchError(f"this is not the stream of a job: {error}") from error


def _by_folder(folder: Path, token_file: Path | None) -> Opener:
    @contextlib.contextmanager
    def opened() -> Iterator[IO[bytes]]:
        contact = Contact(
            url=read_announcement(folder).url,
            token_file=token_file or folder / OBSERVER_TOKEN,
            authority=authority_of(folder),
        )
        with contact.opened(STREAM) as response:
            yield response

    return opened


def _by_link(link: str, authority: Path | None) -> Opener:
    """Logs in as a browser would; the code is spent then, and the cookie is good for longer."""
    parts = urlsplit(link)
    origin = f"{parts.scheme}://{parts.netloc}"
    if not parts.fragment or parts.path != "/dashboard":
        raise UsageError("a link of `gangline dashboard` ends with /dashboard#CODE")
    cookies: list[str] = []

    @contextlib.contextmanager
    def opened() -> Iterator[IO[bytes]]:
        if not cookies:
            body = msgspec.json.encode({"code": parts.fragment})
            with _asked(f"{origin}/dashboard/login", authority, body=body, origin=origin) as answer:
                answer.read(_MAX_ANSWER_BYTES)
                cookies.append(str(answer.headers["Set-Cookie"]).partition(";")[0])
        with _asked(f"{origin}/dashboard/stream", authority, cookie=cookies[0]) as stream:
            yield stream

    return opened


@contextlib.contextmanager
def _asked(
    url: str,
    authority: Path | None,
    *,
    body: bytes | None = None,
    origin: str = "",
    cookie: str = "",
) -> Iterator[http.client.HTTPResponse]:
    headers = {"Origin": origin} if origin else {"Cookie": cookie}
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if url.startswith("https"):
        handlers.append(urllib.request.HTTPSHandler(context=client_context(authority)))
    opener = urllib.request.build_opener(*handlers)
    request = urllib.request.Request(url, data=body, headers=headers)
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as response:
            yield response
    except urllib.error.HTTPError as error:
        with error:
            text = error.read(_MAX_ANSWER_BYTES).decode(errors="replace").strip()
        raise UsageError(text or f"{url} answered {error.code}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None)
        if isinstance(reason, ssl.SSLError):
            raise LaunchError(explain(reason, url=url, authority=authority)) from error
        raise LaunchError(f"nobody answers at {url} ({error}): the run is over, or the address is "
                          "another") from error  # fmt: skip
