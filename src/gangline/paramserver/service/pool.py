# SPDX-License-Identifier: Apache-2.0
"""Memory that pulled values land in, used again: new memory costs more than what is copied into it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


class Pool:
    """Buffers by their size. Several threads may take some; one takes back all that are not needed."""

    def __init__(self, max_bytes: int) -> None:
        """No more than `max_bytes` are kept while nobody uses them."""
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._free: dict[int, list[Tensor]] = {}
        self._lent: list[Tensor] = []

    def take(self, num_bytes: int) -> Tensor:
        """So many bytes, with anything in them."""
        with self._lock:
            free = self._free.get(num_bytes)
            raw = free.pop() if free else torch.empty(num_bytes, dtype=torch.uint8)
            self._lent.append(raw)
        return raw

    def reclaim(self, but: Iterable[Tensor]) -> None:
        """All that was taken is free again, but for what these tensors lie in."""
        needed = {tensor.data_ptr() for tensor in but}
        with self._lock:
            unused = [raw for raw in self._lent if raw.data_ptr() not in needed]
            self._lent = [raw for raw in self._lent if raw.data_ptr() in needed]
            unused += [raw for free in self._free.values() for raw in free]
            self._free, left = {}, self._max_bytes
            for raw in unused:  # those that were used last come first
                left -= raw.numel()
                if left >= 0:
                    self._free.setdefault(raw.numel(), []).append(raw)
