# SPDX-License-Identifier: Apache-2.0
"""Asks a running coordinator something over HTTP, with one of the run's tokens."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gangline.files.announcement import Announcement, read_announcement
from gangline.files.tls import authority_of, client_context, explain
from gangline.files.tokens import read_token
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

_TIMEOUT_S = 5.0
_MAX_ANSWER_BYTES = 64 << 20
_UNAUTHORISED = 401
_EXPLAINED = (400, 403, 409, 410, 413, 429, 507)
"""The coordinator's answer says what is wrong, in words."""


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    """How a coordinator is reached, and as whom."""

    url: str
    """`ws://HOST:PORT`, or `wss://HOST:PORT` with TLS."""
    token_file: Path
    authority: Path | None = None
    """Who must vouch for the coordinator; None leaves it to the system's authorities."""

    def ask(self, path: str, *, body: bytes | None = None) -> bytes:
        """What the coordinator answers; a body makes it a request to act."""
        with self.opened(path, body=body) as response:
            answer: bytes = response.read(_MAX_ANSWER_BYTES)
            return answer

    @contextlib.contextmanager
    def opened(self, path: str, *, body: bytes | None = None) -> Iterator[http.client.HTTPResponse]:
        """The same, to be read as it comes; a read that takes too long is an error."""
        request = urllib.request.Request(
            self.url.replace("ws", "http", 1) + path,
            data=body,
            headers={
                "Authorization": f"Bearer {read_token(self.token_file)}",
                "Content-Type": "application/json",
            },
        )
        try:
            with self._opener().open(request, timeout=_TIMEOUT_S) as response:
                yield response
        except urllib.error.HTTPError as error:
            with error:
                raise self._explained(error) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None)
            if isinstance(reason, ssl.SSLError):
                told = explain(reason, url=self.url, authority=self.authority)
                raise LaunchError(told) from reason
            raise LaunchError(
                f"no coordinator answers at {self.url} ({error}): the run is over, its coordinator "
                "died, or the address is another; one with TLS needs --tls-ca"
            ) from error

    def _opener(self) -> urllib.request.OpenerDirector:
        # No proxy sees the token, and no redirection takes it elsewhere.
        handlers: list[urllib.request.BaseHandler] = [
            urllib.request.ProxyHandler({}),
            _NoRedirection(),
        ]
        if self.url.startswith("wss"):
            context = client_context(self.authority)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        return urllib.request.build_opener(*handlers)

    def _explained(self, error: urllib.error.HTTPError) -> LaunchError:
        if error.code in _EXPLAINED:
            text = error.read(_MAX_ANSWER_BYTES).decode(errors="replace").strip()
            return LaunchError(text)
        if error.code == _UNAUTHORISED:
            return LaunchError(
                f"the coordinator at {self.url} does not know the token in {self.token_file}: it "
                f"answered {error.code}; is it the token of this run?"
            )
        return LaunchError(f"the coordinator at {self.url} answered {error.code}: {error.reason}")


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any,
        newurl: str,
    ) -> None:  # fmt: skip
        return None


class RunContact:
    """The coordinator of a run whose folder is at hand."""

    def __init__(self, run_dir: Path, *, token_file: Path) -> None:
        self.announcement: Announcement = read_announcement(run_dir)
        self._contact = Contact(
            url=self.announcement.url,
            token_file=token_file,
            authority=authority_of(run_dir),
        )

    def ask(self, path: str, *, body: bytes | None = None) -> bytes:
        """What the coordinator answers."""
        try:
            return self._contact.ask(path, body=body)
        except LaunchError as error:
            if isinstance(error.__cause__, urllib.error.HTTPError | ssl.SSLError):
                raise
            announced = self.announcement
            raise LaunchError(
                f"the coordinator of this run, process {announced.pid} at {announced.url}, does "
                "not answer: the run is over, or its coordinator died"
            ) from error
