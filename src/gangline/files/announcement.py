# SPDX-License-Identifier: Apache-2.0
"""Where a run's coordinator is found: a small file in the run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.files.plainfile import read_plain, replace_plain
from gangline.spec.errors import LaunchError

if TYPE_CHECKING:
    from pathlib import Path

_FILE_NAME = "coordinator.json"


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """A running coordinator."""

    run: str
    url: str
    pid: int

    @staticmethod
    def path_in(run_dir: Path) -> Path:
        return run_dir / _FILE_NAME

    def write(self, run_dir: Path) -> None:
        """Puts the file there in one piece, so that nobody reads half of it."""
        replace_plain(self.path_in(run_dir), msgspec.json.encode(self))


def read_announcement(run_dir: Path) -> Announcement:
    """Where the run's coordinator says it is; raises LaunchError where it has not said so (yet)."""
    path = Announcement.path_in(run_dir)
    try:
        return msgspec.json.decode(read_plain(path), type=Announcement)
    except OSError as error:
        raise LaunchError(
            f"no coordinator has announced itself in {path} ({error.strerror})"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LaunchError(f"{path} is not a coordinator's announcement: {error}") from error
