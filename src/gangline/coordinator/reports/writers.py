# SPDX-License-Identifier: Apache-2.0
"""Who writes which file by `torch.save`: several workers that write one file spoil it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from gangline.protocol.messages import SavedBy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangline.protocol.messages import Hello, Saved

_KEPT = 4096
"""So many writes are remembered."""


class Written(NamedTuple):
    """One worker has written a file."""

    worker: int
    path: str
    inode: int
    is_main: bool


class Writers:
    """The last writes. Hosts may have different files of one name; one host has not."""

    def __init__(self, hellos: Mapping[int, Hello]) -> None:
        self._hellos = hellos
        self._written: deque[Written] = deque(maxlen=_KEPT)

    def note(self, worker: int, saved: Saved) -> list[tuple[int, SavedBy]]:
        """A worker has written a file: whom to tell by whom it was written."""
        own = Written(worker, saved.path, saved.inode, saved.is_main)
        if own not in self._written:
            self._written.append(own)
        same = [one for one in self._written if self._is_same(own, one)]
        writers = tuple(sorted({one.worker for one in same}))
        # If all were the main worker when they wrote, another took the place of one that was lost.
        if len(writers) < 2 or all(one.is_main for one in same):
            return [(worker, SavedBy(path=saved.path, workers=()))]
        return [(one, SavedBy(path=saved.path, workers=writers)) for one in writers]

    def _is_same(self, one: Written, other: Written) -> bool:
        if one.path != other.path:
            return False
        return one.inode == other.inode or self._host(one.worker) == self._host(other.worker)

    def _host(self, worker: int) -> str:
        hello = self._hellos.get(worker)
        return "" if hello is None else hello.host
