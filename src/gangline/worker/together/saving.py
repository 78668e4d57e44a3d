# SPDX-License-Identifier: Apache-2.0
"""Files that are written once for all workers, and a warning where several write one."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gangline.protocol.messages import Saved
from gangline.spec.errors import UsageError
from gangline.worker.job import job
from gangline.worker.together.turns import turn

if TYPE_CHECKING:
    from collections.abc import Callable

_ANSWER_S = 0.5
"""How long to wait at the end for an answer to the question who else has written a file."""


def save(obj: Any, path: str | os.PathLike[str]) -> None:
    """As `torch.save`, for all workers at once: the main worker writes the file, the others wait.

    All workers must call it, and their `obj` must be alike. The file appears under its name when it
    is complete and on the disk, so that nobody ever sees a half of it; it is there when this returns.
    If it cannot be written the main worker raises what went wrong, and the others a MainWorkerError.
    """
    target = Path(os.path.realpath(path))
    with turn(f"gangline.save({target.name!r})") as is_main:
        if is_main:
            _check(target)
            _write(obj, target)


def _check(target: Path) -> None:
    """Refuses what cannot be replaced by a file in one piece."""
    if not target.parent.is_dir():
        raise UsageError(
            f"gangline.save cannot write {target}: there is no folder {target.parent}. Make it first, "
            "on the main worker: with gangline.main_first(): os.makedirs(folder, exist_ok=True)"
        )
    if target.exists() and not target.is_file():
        raise UsageError(
            f"gangline.save cannot write {target}: it is no regular file. Give the path of a file"
        )


def _write(obj: Any, target: Path) -> None:
    """Writes beside the file, and gives it its name when it is on the disk."""
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("wb") as file:
            _guard.save(obj, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    with contextlib.suppress(OSError):  # some file systems cannot
        descriptor = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class _Guard:
    """`torch.save`, and which files this worker has written by it."""

    def __init__(self) -> None:
        self.save: Callable[..., None] = torch.save
        self._wrapped: Callable[..., None] | None = None
        self._paths: dict[str, tuple[str, int]] = {}
        """Each file, and the line of the script that wrote it first."""
        self._has_warned = False
        self._pid = os.getpid()
        """A process that was forked from the worker has no line to ask by."""

    def open(self) -> None:
        """From here on, notes what is written by `torch.save`."""
        if self._wrapped is not None:
            return
        self._pid = os.getpid()
        self.save = original = torch.save

        @functools.wraps(original)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            original(obj, f, *args, **kwargs)
            if isinstance(f, str | os.PathLike):
                self._note(f)

        self._wrapped = torch.save = save

    def close(self) -> None:
        """Leaves torch as it was. Warns of what only now is known."""
        if self._wrapped is not None and torch.save is self._wrapped:
            torch.save = self.save
        paths, self._wrapped = list(self._paths), None
        deadline = time.monotonic() + _ANSWER_S
        try:
            for path in paths:
                self._warn(path, max(0.0, deadline - time.monotonic()))
        finally:
            self._has_warned, self._paths = False, {}

    def _note(self, file: str | os.PathLike[str]) -> None:
        client = None if job.session is None else job.session.client
        if client is None or self._has_warned or os.getpid() != self._pid:
            return
        path = os.path.realpath(os.fsdecode(file))
        try:
            inode = os.stat(path).st_ino
        except OSError:
            return
        caller = sys._getframe(2)  # who called torch.save
        self._paths.setdefault(path, (caller.f_code.co_filename, caller.f_lineno))
        client.ask_writers(Saved(path=path, inode=inode, is_main=job.rank == 0))
        self._warn(path, 0.0)

    def _warn(self, path: str, timeout_s: float) -> None:
        session = job.session
        if session is None or session.client is None or self._has_warned:
            return
        writers = session.client.writers(path, timeout_s)
        if len(writers) < 2:
            return
        self._has_warned = True
        names = ", ".join(str(worker) for worker in writers)
        filename, line = self._paths[path]
        warnings.warn_explicit(
            f"workers {names} write one file by torch.save, {path}: all workers run the same script, "
            "and files that several write at once are spoilt. Write it by gangline.save(obj, path), "
            "or on one worker: `if gangline.is_main(): torch.save(obj, path)`",
            UserWarning,
            filename,
            line,
        )


_guard = _Guard()


def watch_saves() -> None:
    """Notes which files this worker writes by `torch.save`, until `stop_watching_saves`."""
    _guard.open()


def stop_watching_saves() -> None:
    """Leaves `torch.save` as it was before."""
    _guard.close()
