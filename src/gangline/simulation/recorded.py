# SPDX-License-Identifier: Apache-2.0
"""Puts a recorded run through `Coordinator.handle` once more, and compares what comes of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gangline.coordinator.kept.recording import digest, read_recording, restored
from gangline.coordinator.outputs import Stumbled, Write
from gangline.spec.event import Decision

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangline.coordinator.inputs import Input
    from gangline.coordinator.outputs import Output


@dataclass
class Difference:
    """An input whose outputs are not those that were recorded."""

    path: str
    number: int
    """Which input of the file it is, from 0."""
    t: float
    given: Input
    outputs: list[Output]
    """What came of it now."""


@dataclass
class Replayed:
    """What came of a recording."""

    files: int = 0
    inputs: Counter[str] = field(default_factory=Counter)
    """How many inputs there were, by kind."""
    outputs: Counter[str] = field(default_factory=Counter)
    decisions: list[Decision] = field(default_factory=list)
    stumbles: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    begin_s: float | None = None
    end_s: float | None = None


def replay(recordings: Iterable[tuple[str, bytes]]) -> Replayed:
    """Replays files, each from the snapshot that it begins with. Raises LogError for a bad one.

    Of each file only the first difference is told: what follows it follows from it.
    """
    found = Replayed()
    for path, data in recordings:
        opening, entries = read_recording(data, path=path)
        coordinator = restored(opening, path=path)
        found.files += 1
        for number, entry in enumerate(entries):
            outputs = coordinator.handle(entry.given, entry.t)
            _count(found, entry.given, outputs, entry.t)
            if digest(outputs) != entry.digest:
                found.differences.append(Difference(path, number, entry.t, entry.given, outputs))
                break
    return found


def _count(found: Replayed, given: Input, outputs: list[Output], t: float) -> None:
    found.begin_s = t if found.begin_s is None else found.begin_s
    found.end_s = t
    found.inputs[type(given).__name__] += 1
    for output in outputs:
        found.outputs[type(output).__name__] += 1
        if isinstance(output, Write) and isinstance(output.event, Decision):
            found.decisions.append(output.event)
        if isinstance(output, Stumbled):
            found.stumbles.append(output.error)
