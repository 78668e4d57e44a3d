# SPDX-License-Identifier: Apache-2.0
"""Drives a coordinator in a real job: tells it the time, carries out what it wants, records it."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import msgspec

from gangline.coordinator.coordinator import Coordinator
from gangline.coordinator.kept.records import NoJournal
from gangline.coordinator.outputs import Keep, KeepPlan, Stumbled, Write
from gangline.coordinator.server.input_log import InputLog
from gangline.coordinator.server.journal import open_journal
from gangline.eventlog import EventWriter, NullWriter, log_path
from gangline.files.plainfile import replace_plain

if TYPE_CHECKING:
    from pathlib import Path

    from gangline.coordinator.inputs import Input
    from gangline.coordinator.outputs import Output
    from gangline.coordinator.settings import Settings
    from gangline.eventlog import EventSink
    from gangline.protocol.lifeline import Standing
    from gangline.spec.event import Event
    from gangline.spec.plan import Plan

PLAN_NAME = "plan.json"

_log = logging.getLogger("gangline.coordinator")


class Driver:
    """A coordinator with a run folder, or without one: then nothing outlives this process."""

    def __init__(self, settings: Settings, run_dir: Path | None = None) -> None:
        """Goes on where the run folder's journal ends."""
        self.run = run = settings.run
        self.run_dir = run_dir
        self._events: EventSink = NullWriter()
        if run_dir is not None:
            source = "coordinator"
            self._events = EventWriter(log_path(run_dir, source), run=run, source=source)
        self._journal = NoJournal() if run_dir is None else open_journal(run_dir, self._events)
        self.coordinator = Coordinator(settings, now=time.time(), records=self._journal.records)
        self._inputs = None if run_dir is None else InputLog(run_dir, self.coordinator, run=run)
        self._stumbled: set[tuple[str, str]] = set()
        """Which errors are in the log already."""

    def handle(self, given: Input) -> list[Output]:
        """Tells the coordinator what happened; what is left to do: to send, and to answer."""
        now = time.time()
        outputs = self.coordinator.handle(given, now)
        if self._inputs is not None:
            self._inputs.note(given, outputs, now)
        return [output for output in outputs if not self._carry_out(output, given)]

    def standing(self) -> Standing:
        """How the job stands, for whoever started it."""
        return self.coordinator.standing(time.time())

    def write(self, event: Event) -> None:
        """Writes to the coordinator's event log what no decision of the job is."""
        self._events.write(event)

    def close(self) -> None:
        """Closes what is recorded."""
        if self._inputs is not None:
            self._inputs.close()
        self._events.close()

    def _carry_out(self, output: Output, given: Input) -> bool:
        """Does what needs no connection; whether it was that."""
        match output:
            case Keep(record=record):
                self._journal.append(record)
            case Write(event=event):
                self._events.write(event)
            case KeepPlan(plan=plan):
                self._keep_plan(plan)
            case Stumbled(error=error, trace=trace):
                told = (type(given).__name__, error)
                if told not in self._stumbled:
                    self._stumbled.add(told)
                    _log.error("could not deal with %r:\n%s", given, trace)
                return False
            case _:
                return False
        return True

    def _keep_plan(self, plan: Plan) -> None:
        if self.run_dir is None:
            return
        path = self.run_dir / PLAN_NAME
        try:
            replace_plain(path, msgspec.json.format(msgspec.json.encode(plan), indent=2))
        except OSError as error:  # training must not end because of this
            _log.warning("the plan %s could not be written: %s", path, error)
