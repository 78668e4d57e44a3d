# SPDX-License-Identifier: Apache-2.0
"""Asks a running coordinator something over HTTP, with the run's token."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from gangline.spec.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.spec.announcement import Announcement

_TIMEOUT_S = 5.0
_UNAUTHORISED = 401
_REFUSED = 409


def read_token(token_file: Path) -> str:
    """The run's token, from its file."""
    try:
        return token_file.read_text().strip()
    except OSError as error:
        raise UsageError(
            f"cannot read the run's token file {token_file}: {error.strerror}; name it with "
            "--token-file"
        ) from error


def ask(url: str, path: str, *, token_file: Path, body: bytes | None = None) -> bytes:
    """What the coordinator at `url` (`ws://HOST:PORT`) answers; a body makes it a request to act."""
    request = urllib.request.Request(
        url.replace("ws", "http", 1) + path,
        data=body,
        headers={"Authorization": f"Bearer {read_token(token_file)}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            answer: bytes = response.read()
            return answer
    except urllib.error.HTTPError as error:
        with error:
            raise _explained(error, url, token_file) from error
    except OSError as error:
        raise LaunchError(
            f"no coordinator answers at {url} ({error}): the run is over, its coordinator died, or "
            "the address is another"
        ) from error


def ask_run(announced: Announcement, path: str, *, token_file: Path) -> bytes:
    """The same for a run whose announcement is at hand."""
    try:
        return ask(announced.url, path, token_file=token_file)
    except LaunchError as error:
        if isinstance(error.__cause__, urllib.error.HTTPError):
            raise
        raise LaunchError(
            f"the coordinator of this run, process {announced.pid} at {announced.url}, does "
            "not answer: the run is over, or its coordinator died"
        ) from error


def _explained(error: urllib.error.HTTPError, url: str, token_file: Path) -> LaunchError:
    if error.code == _REFUSED:
        return LaunchError(error.read().decode(errors="replace").strip())
    if error.code == _UNAUTHORISED:
        return LaunchError(
            f"the coordinator at {url} does not know the token in {token_file}: it answered "
            f"{error.code}; is it the token of this run?"
        )
    return LaunchError(f"the coordinator at {url} answered {error.code}: {error.reason}")
