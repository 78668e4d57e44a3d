# SPDX-License-Identifier: Apache-2.0
"""What every exporter is: it is given points, and ends with the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a run at one moment."""

    t: float
    step: int
    epoch: int
    values: dict[str, float]
    """Finite numbers: what the script logs by its names, and our own as `gangline/…`."""


class Exporter(Protocol):
    """Gives points to another tool. Whatever it raises ends it, and nothing else."""

    def put(self, point: Point) -> None:
        """Takes one point."""

    def close(self, status: str) -> None:
        """The run has ended: `done`, `failed` or `interrupted`."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that somebody asked for."""

    name: str
    """As people call it."""
    open: Callable[[str], Exporter]
    """Begins to export the run of this name; may take its time, and raise anything."""
