# SPDX-License-Identifier: Apache-2.0
"""Files in folders where somebody may have put something else: no link is followed, no pipe waited for.

All of these raise OSError, whose `strerror` says what was found instead of a plain file.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_plain(path: Path, flags: int = os.O_RDONLY, *, mode: int = 0o644) -> int:
    """A descriptor of a plain file."""
    try:
        descriptor = os.open(path, flags | _SAFE, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", str(path)) from error
        raise
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return descriptor


def read_plain(path: Path) -> bytes:
    """What is in a plain file."""
    with os.fdopen(open_plain(path), "rb") as file:
        return file.read()


def replace_plain(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Puts a file in its place in one piece, so that nobody reads half of it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)  # of an earlier process with this number
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(open_plain(partial, flags, mode=mode), "wb") as file:
            file.write(content)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
