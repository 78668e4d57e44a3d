# SPDX-License-Identifier: Apache-2.0
"""Reads the files that people write: TOML, into a struct that checks itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T", bound=msgspec.Struct)


def read_toml(path: Path, kind: type[T], *, what: str) -> T:
    """The `kind` that a file holds; every mistake in it is named. `what` is what people call it."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise UsageError(f"cannot read the {what} {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the {what} {path} is not usable: {error}") from error
