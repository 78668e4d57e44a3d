# SPDX-License-Identifier: Apache-2.0
"""The run's tokens on disk: generated, one file each, readable by their owner only."""

from __future__ import annotations

import os
import secrets
import stat
from typing import TYPE_CHECKING

from gangline.files.plainfile import open_plain
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

WORKER_TOKEN = "token"
OBSERVER_TOKEN = "observer-token"
OPERATOR_TOKEN = "operator-token"
"""The names of the three files in a run folder."""

MIN_TOKEN_CHARS = 16
_MAX_TOKEN_CHARS = 4096


def make_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(32)


def write_token(path: Path) -> str:
    """Makes a token in a new file that only its owner can read."""
    token = make_token()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"cannot make the token file {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    return token


def read_token(path: Path) -> str:
    """The token in a file; raises UsageError where there is none, or others could read it, too."""
    try:
        with os.fdopen(open_plain(path.resolve()), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            is_mounted = bool(os.fstatvfs(file.fileno()).f_flag & os.ST_RDONLY)
            token = file.read(_MAX_TOKEN_CHARS + 1).decode("ascii").strip()
    except OSError as error:
        raise UsageError(
            f"cannot read the run's token file {path}: {error.strerror}; name it with --token-file"
        ) from error
    except UnicodeDecodeError:
        raise UsageError(f"{path} holds no token: a token is letters, digits, - and _") from None
    # A Secret that is mounted for a pod's group, read-only, is that pod's alone.
    if stat.S_IMODE(mode) & (0o037 if is_mounted else 0o077):
        raise UsageError(
            f"the token file {path} can be read by others (mode {stat.S_IMODE(mode):o}): make it "
            f"yours alone with `chmod 600 {path}`"
        )
    if not MIN_TOKEN_CHARS <= len(token) <= _MAX_TOKEN_CHARS or not token.isprintable():
        raise UsageError(
            f"the token in {path} is no token: it must have {MIN_TOKEN_CHARS} to "
            f"{_MAX_TOKEN_CHARS} printable characters; delete the file to have one made"
        )
    return token


def find_token(path: Path) -> str:
    """The token in a file, which is made if it is not there."""
    return read_token(path) if os.path.lexists(path) else write_token(path)
