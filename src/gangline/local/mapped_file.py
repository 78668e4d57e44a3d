# SPDX-License-Identifier: Apache-2.0
"""An object in a file that several processes map, so that its arrays are in memory once.

Torch tensors are copied. Only for files that this program has written itself: they are unpickled.
"""

from __future__ import annotations

import mmap
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

_ALIGNED = 64


def write_mapped(value: Any, *, name: str) -> Path:
    """A file that has the object, with its arrays as they lie in memory.

    Raises whatever pickling it raises.
    """
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    places, end = [], 0
    for view in views:
        start = -(-end // _ALIGNED) * _ALIGNED
        places.append((start, start + view.nbytes))
        end = start + view.nbytes
    descriptor, path = tempfile.mkstemp(prefix=f"gangline-{name}-")
    with os.fdopen(descriptor, "wb") as file:
        for (start, _), view in zip(places, views, strict=True):
            file.seek(start)
            file.write(view)
        file.seek(end)
        file.write(tail := pickle.dumps((head, places), protocol=5))
        file.write(len(tail).to_bytes(8, "little"))
    return Path(path)


def read_mapped(path: str) -> Any:
    """The object, whose arrays are the file's pages: changing them changes a copy."""
    with Path(path).open("rb") as file:
        pages = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    length = int.from_bytes(pages[-8:], "little")
    head, places = pickle.loads(pages[-8 - length : -8])
    return pickle.loads(head, buffers=[pages[start:end] for start, end in places])
