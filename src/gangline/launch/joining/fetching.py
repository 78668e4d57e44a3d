# SPDX-License-Identifier: Apache-2.0
"""Brings a job's code to a machine that joins: all of it, as it was announced, or nothing.

The first machine is not trusted: nothing is written outside of one new folder, nor more than was
announced, and what does not have the announced hash is not kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import time
from typing import TYPE_CHECKING

import msgspec

from gangline.spec.errors import LaunchError, UsageError
from gangline.spec.machines.code import CodeFile, CodeManifest, in_mib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gangline.launch.joining.contact import Contact

CODE_FOLDER = "code"
_PIECE = 1 << 16
_LEAST_S = 60.0
_LEAST_BYTES_PER_S = 50e3
"""A first machine that sends less than this is not waited for."""


def offered_code(contact: Contact) -> CodeManifest | None:
    """What the job's first machine offers, not checked yet; None where it offers nothing."""
    try:
        return msgspec.json.decode(contact.ask("/api/code"), type=CodeManifest | None)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LaunchError(f"what {contact.url} offers is no list of files: {error}") from error


def fetch_code(contact: Contact, manifest: CodeManifest, run_dir: Path) -> Path:
    """Brings the files into a new folder of the run folder, which is there when all are."""
    folder, partial = run_dir / CODE_FOLDER, run_dir / f".{CODE_FOLDER}.partial"
    deadline_s = time.monotonic() + _LEAST_S + manifest.num_bytes / _LEAST_BYTES_PER_S
    try:
        with _naming_disk(run_dir, manifest):
            partial.mkdir(mode=0o700)
        with contact.opened("/api/code/files") as response, _naming_disk(run_dir, manifest):
            for one in manifest.files:
                _fetch(response.read1, one, partial, deadline_s=deadline_s)
            if _read(response.read1, 1):
                raise LaunchError("the first machine sends more than it announced: refused")
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


@contextlib.contextmanager
def _naming_disk(run_dir: Path, manifest: CodeManifest) -> Iterator[None]:
    """What fails in here is this machine's disk: the network's errors are told by `_read`."""
    try:
        yield
    except OSError as error:
        raise LaunchError(
            f"the code cannot be written to {run_dir} ({error.strerror or error}): it has "
            f"{in_mib(manifest.num_bytes)}; make room, or choose another --run-dir"
        ) from error


def _fetch(read: Callable[[int], bytes], one: CodeFile, folder: Path, *, deadline_s: float) -> None:
    path = folder / one.name
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    digest, left = hashlib.sha256(), one.size
    with os.fdopen(os.open(path, flags, 0o755 if one.is_executable else 0o644), "wb") as file:
        while left:
            if time.monotonic() > deadline_s:
                raise LaunchError(f"the code comes too slowly (at {one.name!r}): given up")
            piece = _read(read, min(left, _PIECE))
            if not piece:
                raise LaunchError(f"the code ended within {one.name!r}, {left} bytes too early")
            file.write(piece)
            digest.update(piece)
            left -= len(piece)
    if digest.hexdigest() != one.digest:
        raise UsageError(f"the code's file {one.name!r} is not what was announced: refused")


def _read(read: Callable[[int], bytes], num_bytes: int) -> bytes:
    """What comes next; an error of the network is told apart from one of this machine's disk."""
    try:
        return read(num_bytes)
    except (OSError, http.client.HTTPException) as error:
        raise LaunchError(
            f"the first machine was lost while it sent its code ({error}); nothing was kept"
        ) from error
