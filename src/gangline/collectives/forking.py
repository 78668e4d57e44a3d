# SPDX-License-Identifier: Apache-2.0
"""Forked children (data loader workers) must not hold a group's connections.

A connection ends when its last holder closes it: a child that lives on would hide the death of its
parent from all peers.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from socket import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_held: weakref.WeakKeyDictionary[object, Sequence[socket | int]] = weakref.WeakKeyDictionary()


def close_in_children(owner: object, descriptors: Sequence[socket | int]) -> None:
    """A forked child closes what is in the sequence then, as long as the owner lives.

    The owner keeps the sequence up to date: a number that it has closed must not stay in it.
    """
    _held[owner] = descriptors


def _close_all() -> None:
    for descriptors in list(_held.values()):
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                # Only the number is closed: to take an encrypted connection down needs locks that
                # another thread may have held when the process was forked.
                os.close(descriptor.detach() if isinstance(descriptor, socket) else descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_all)
