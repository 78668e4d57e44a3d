# SPDX-License-Identifier: Apache-2.0
"""A log that has grown long goes on in another file: `worker-0.jsonl`, `worker-0.1.jsonl`, …

A file that has a successor is not written to any more. Whoever counts in bytes counts them through all
parts, one after the other.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from gangline.eventlog.paths import part_of, part_path

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def parts_of(path: Path) -> list[Path]:
    """The files of a log that there are, in their order; `path` is the first."""
    found = []
    for part in count():
        one = part_path(path, part)
        if not one.exists():
            break
        found.append(one)
    return found


def last_number(path: Path) -> int:
    """The number of the last file of a log, also where some were taken away; 0 where there is none."""
    found = (part_of(one) for one in path.parent.glob(f"{path.stem}*{path.suffix}"))
    return max((part for stem, part in found if stem == path.stem), default=0)


def newest_part(path: Path) -> Path:
    """The file that is written to now, or will be."""
    return (parts_of(path) or [path])[-1]


def locate(path: Path, offset: int) -> tuple[Path, int, bool]:
    """Where the byte at `offset` of a log is: the file, the place in it, and whether it is the last."""
    parts = parts_of(path) or [path]
    for part in parts[:-1]:
        size = _size(part)
        if offset < size:
            return part, offset, False
        offset -= size
    return parts[-1], offset, True


def total_size(path: Path) -> int:
    """How long a log is, in all its files."""
    return sum(_size(part) for part in parts_of(path))


def grouped(paths: Iterable[Path]) -> list[list[Path]]:
    """The files of each log, in their order."""
    logs: dict[tuple[Path, str], list[tuple[int, Path]]] = {}
    for path in paths:
        stem, part = part_of(path)
        logs.setdefault((path.parent, stem), []).append((part, path))
    return [[path for _, path in sorted(parts)] for _, parts in sorted(logs.items())]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
