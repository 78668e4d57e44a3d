# SPDX-License-Identifier: Apache-2.0
"""Numbers for the page as typed arrays: packed together, deflated, and written in base64.

The JSON of the page names an array by where it lies: `{"$": [type, offset, length]}`.
"""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_ALIGNMENT = 8
TYPES = {"u1": np.uint8, "u2": np.uint16, "u4": np.uint32, "f4": np.float32, "f8": np.float64}
"""What JavaScript has arrays of, by the names that the page uses."""


class Columns:
    """Collects arrays."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, values: ArrayLike, kind: str = "f4") -> dict[str, Any]:
        """Where the array will lie."""
        packed = np.ascontiguousarray(values, dtype=np.dtype(TYPES[kind]).newbyteorder("<"))
        raw = packed.tobytes()
        reference = {"$": [kind, self._size, packed.size]}
        raw += bytes(-len(raw) % _ALIGNMENT)
        self._parts.append(raw)
        self._size += len(raw)
        return reference

    def packed(self) -> str:
        """All arrays as one text."""
        return base64.b64encode(zlib.compress(b"".join(self._parts), 6)).decode("ascii")
