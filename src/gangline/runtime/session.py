# SPDX-License-Identifier: Apache-2.0
"""The process's part in a job: who it is, whom it exchanges with, where its events go."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.collectives import Group, GroupKey, SoloGroup
from gangline.collectives.gloo import GlooGroup
from gangline.eventlog import EventSink, EventWriter, NullWriter, log_path
from gangline.runtime.communicator import Communicator
from gangline.runtime.environment import Place, find_place
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    import torch

    from gangline.spec.event import Event

TRANSPORTS = ("gloo",)


@dataclass(slots=True)
class Session:
    """Everything about this process that outlives a model."""

    place: Place
    communicator: Communicator
    events: EventSink

    @property
    def group(self) -> Group:
        return self.communicator.group

    def record(self, event: Event) -> None:
        """Writes an event to this worker's log."""
        self.events.write(event)

    def close(self) -> None:
        """Ends the communication thread and closes the log."""
        self.communicator.close()
        self.events.close()


def open_session(*, transport: str | None, run_dir: str | None, timeout_s: float) -> Session:
    """Finds this process's place, connects it with the others, and opens its event log."""
    place = find_place(os.environ, timeout_s=timeout_s)
    group = connect(place, transport or place.transport, timeout_s=timeout_s)
    folder = run_dir or place.run_dir
    events: EventSink = NullWriter()
    if folder is not None:
        source = f"worker {place.worker}"
        events = EventWriter(log_path(Path(folder), source), run=place.run, source=source)
    return Session(place, Communicator(group), events)


def connect(place: Place, transport: str | None, *, timeout_s: float) -> Group:
    """The group of all workers of the job."""
    if transport is not None and transport not in TRANSPORTS:
        raise UsageError(
            f"transport {transport!r} is not known; choose one of: {', '.join(TRANSPORTS)}"
        )
    if place.store is None:
        return SoloGroup()
    key = GroupKey(run=place.run, view=0, attempt=0)
    return GlooGroup(
        key, store=place.store, rank=place.worker, size=place.workers, timeout_s=timeout_s
    )


def now() -> float:
    """The time that events carry."""
    return time.time()


def device_of(parameter: torch.nn.Parameter | None) -> str:
    """Where the model lives, for people."""
    return "none" if parameter is None else str(parameter.device)
