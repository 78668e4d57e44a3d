# SPDX-License-Identifier: Apache-2.0
"""The code of a run in its folder: what the first machine began with, whatever is edited later.

`code.json` lists the files, `code.bin` has what is in them, one after the other.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from gangline.files.plainfile import open_plain, read_plain, replace_plain
from gangline.spec.errors import UsageError
from gangline.spec.machines.code import CodeManifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MANIFEST_FILE = "code.json"
CONTENT_FILE = "code.bin"
_PIECE = 1 << 16


def write_code(run_dir: Path, manifest: CodeManifest, contents: Iterable[bytes]) -> None:
    """Keeps the code: what is in its files first, so that whoever sees a list can have them."""
    partial = run_dir / f"{CONTENT_FILE}.{os.getpid()}"
    partial.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    # The files may be readable by their owner only.
    with os.fdopen(open_plain(partial, flags, mode=0o600), "wb") as file:
        for content in contents:
            file.write(content)
    partial.replace(run_dir / CONTENT_FILE)
    replace_plain(run_dir / MANIFEST_FILE, msgspec.json.encode(manifest))


def read_manifest(run_dir: Path) -> CodeManifest | None:
    """The list; None where the run offers no code."""
    path = run_dir / MANIFEST_FILE
    try:
        return msgspec.json.decode(read_plain(path), type=CodeManifest)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} does not list a run's code: {error}") from error


def read_contents(run_dir: Path) -> Iterator[bytes]:
    """What is in the files, in pieces. Raises OSError."""
    with os.fdopen(open_plain(run_dir / CONTENT_FILE), "rb") as file:
        while piece := file.read(_PIECE):
            yield piece
