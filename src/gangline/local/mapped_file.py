# SPDX-License-Identifier: Apache-2.0
"""An object in a file that several processes map, so that its arrays are in memory once.

The file has no name: it is gone when nobody has it open or mapped, however these processes end.
Torch tensors are copied.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import tempfile
from multiprocessing.reduction import DupFd
from typing import IO, Any

_ALIGNED = 64


class MappedFile:
    """An open file, which can be given to processes as they are spawned, and to nobody else."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self._file.fileno()),)

    def read(self) -> Any:
        """The object, whose arrays are the file's pages: changing them changes a copy."""
        pages = memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY))
        length = int.from_bytes(pages[-8:], "little")
        head, places = pickle.loads(pages[-8 - length : -8])
        return pickle.loads(head, buffers=[pages[start:end] for start, end in places])

    def close(self) -> None:
        """This process gives it to nobody any more. Who has read it keeps it."""
        self._file.close()


def write_mapped(value: Any) -> MappedFile:
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
    with contextlib.ExitStack() as stack:  # it is closed unless all went well
        file = stack.enter_context(tempfile.TemporaryFile())
        for (start, _), view in zip(places, views, strict=True):
            file.seek(start)
            file.write(view)
        file.seek(end)
        file.write(tail := pickle.dumps((head, places), protocol=5))
        file.write(len(tail).to_bytes(8, "little"))
        file.flush()
        stack.pop_all()
    return MappedFile(file)


def _received(duplicate: Any) -> MappedFile:
    return MappedFile(os.fdopen(duplicate.detach(), "rb"))
