# SPDX-License-Identifier: Apache-2.0
"""How many bytes went between whom, and how fast.

A worker counts what it moved since its group was made; the counts of its groups are added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gangline.spec.event import LinkMeasured, ViewAdopted


class Link(msgspec.Struct, kw_only=True):
    """What one worker told about the way to another one."""

    worker: int
    peer: int
    bytes: int = 0
    bytes_per_s: float = 0.0
    latency_s: float = 0.0
    corrupt: int = 0


class Links:
    """Adds up what was measured."""

    def __init__(self) -> None:
        self._links: dict[tuple[int, int], Link] = {}
        self._counted: dict[tuple[int, int], tuple[int, int]] = {}
        """What is in `_links` already of the present group: bytes, and corrupt segments."""
        self._members: dict[int, list[int]] = {}

    def adopt(self, view: ViewAdopted) -> None:
        """Whose ranks these are."""
        for worker in view.members:
            self._members[worker] = view.members

    def regroup(self, worker: int) -> None:
        """This worker counts anew."""
        for key in [key for key in self._counted if key[0] == worker]:
            del self._counted[key]

    def add(self, event: LinkMeasured) -> None:
        """The newest count of one worker."""
        members = self._members.get(event.worker, [])
        peer = members[event.peer] if 0 <= event.peer < len(members) else event.peer
        key = (event.worker, peer)
        link = self._links.setdefault(key, Link(worker=event.worker, peer=peer))
        num_bytes, corrupt = self._counted.get(key, (0, 0))
        if event.bytes < num_bytes:  # a process that was started again counts from 0
            num_bytes = corrupt = 0
        link.bytes += event.bytes - num_bytes
        link.corrupt += max(0, event.corrupt - corrupt)
        link.bytes_per_s = event.bytes_per_s or link.bytes_per_s
        link.latency_s = event.latency_s or link.latency_s
        self._counted[key] = (event.bytes, event.corrupt)

    def ranked(self, most: int) -> list[Link]:
        """The links with the most bytes first."""
        return sorted(self._links.values(), key=lambda link: -link.bytes)[:most]
