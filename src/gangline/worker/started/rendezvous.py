# SPDX-License-Identifier: Apache-2.0
"""How the first worker tells the others where the coordinator is: by a file that is its user's alone.

The folder is on a disk that all of them see: a private folder of this machine where all run here, else
one in the user's home, which clusters share.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from gangline.files.plainfile import read_plain, replace_plain
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_S = 0.05
_OLD_S = 60.0
"""A file that is older than the launcher by more than this is of an earlier job of the same name."""


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """Where the coordinator is, and the secret that lets workers in."""

    url: str
    token: str


class FileRendezvous:
    """The file of one job, which `key` names."""

    def __init__(self, key: str, *, is_here: bool) -> None:
        """`is_here` says whether all workers are on this machine."""
        name = re.sub(r"[^A-Za-z0-9._@-]", "_", key)[:200]
        self._path = _private_folder(is_here=is_here) / f"{name}.json"

    def tell(self, meeting: Meeting) -> None:
        """What the first worker says."""
        try:
            replace_plain(self._path, msgspec.json.encode(meeting), mode=0o600)
        except OSError as error:
            raise LaunchError(
                f"cannot tell other workers where the coordinator is, in {self._path}: {error.strerror}"
            ) from error

    def hear(self, *, timeout_s: float) -> Meeting:
        """What it has said. Raises LaunchError if it says nothing for so long."""
        begun_s = psutil.Process(os.getppid()).create_time()
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if self._path.stat().st_mtime > begun_s - _OLD_S:
                    return msgspec.json.decode(read_plain(self._path), type=Meeting)
            except (OSError, msgspec.DecodeError):
                pass  # it has not been written yet
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"the first worker has not said within {timeout_s:.0f} s where the coordinator is "
                    f"(looked for {self._path}): all workers must see that folder; else start them by "
                    "`gangline run --on`, or install mpi4py"
                )
            time.sleep(_POLL_S)

    def forget(self) -> None:
        """The job is over: nobody comes any more."""
        self._path.unlink(missing_ok=True)


def agree(
    rendezvous: FileRendezvous, *, is_first: bool, serve: Callable[[], Meeting], timeout_s: float
) -> Meeting:
    """What all workers go by: the first one serves, and tells; the others hear."""
    if not is_first:
        return rendezvous.hear(timeout_s=timeout_s)
    meeting = serve()
    rendezvous.tell(meeting)
    return meeting


def _private_folder(*, is_here: bool) -> Path:
    """A folder that nobody else can look into, or put something into."""
    if is_here:
        folder = Path(tempfile.gettempdir()) / f"gangline-{os.getuid()}"
    else:
        folder = Path.home() / ".cache" / "gangline" / "meetings"
    try:
        folder.mkdir(mode=0o700, parents=not is_here, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise LaunchError(f"the folder {folder} cannot be made: {error.strerror}") from error
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_ours or found.st_mode & 0o077:
        raise LaunchError(
            f"the folder {folder} is not a folder of yours alone, and the job's secret would be in it: "
            "remove it, or set TMPDIR to a folder of your own"
        )
    return folder
