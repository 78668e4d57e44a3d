# SPDX-License-Identifier: Apache-2.0
"""The coordinator of a job, without sockets, threads, clocks or files.

`handle` is its only entry: it is told what happened and what time it is, and returns what is to be
done. The server, the simulator and the replay of a recorded run are three drivers of the same code.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from gangline.coordinator.federation import Federation
from gangline.coordinator.inputs import (
    CheckpointAsked,
    Connected,
    Disconnected,
    EndAsked,
    ExclusionAsked,
    Input,
    LeaveAsked,
    Ordered,
    PauseAsked,
    ReplanAsked,
    Said,
    SeenBusy,
    StepsReported,
    SurveyAsked,
    SyncAsked,
    Tick,
)
from gangline.coordinator.outbox import Outbox
from gangline.coordinator.outputs import Admitted, Output, Refusal, Send, Stumbled
from gangline.coordinator.reports.bunch import Bunch
from gangline.coordinator.structure.survey import Survey
from gangline.protocol.lifeline import Depart, Dissolve, ProcessEnded
from gangline.protocol.messages import FromSurveyor
from gangline.spec.errors import UsageError
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gangline.coordinator.kept.records import AnyRecord
    from gangline.coordinator.outgoing import Outgoing
    from gangline.coordinator.settings import Settings
    from gangline.protocol.lifeline import Standing
    from gangline.protocol.status import Status, SurveyStatus
    from gangline.spec.exchange.address import WireAddress


class Coordinator:
    """Everything that a job's coordinator knows and decides."""

    def __init__(
        self, settings: Settings, *, now: float, records: Sequence[AnyRecord] = ()
    ) -> None:
        """Goes on where `records` end.

        `defaults` says how the job is controlled where its workers do not.
        What is to be done because of that comes with the outputs of the first input.
        """
        self._outbox = Outbox(records, now)
        self._job = Federation(
            settings,
            events=self._outbox,
            clock=self._outbox.clock,
            journal=self._outbox,
            plans=self._outbox,
        )
        self._survey: Survey | None = None
        self._addresses: dict[int, WireAddress] = {}
        """Where those are reached by their peers that are connected."""
        self._bunched = b""
        """The workers that last reported together, while nobody has come or gone since."""

    def handle(self, given: Input, now: float) -> list[Output]:
        """What follows from something that happened at this time. Never raises.

        An input that makes no sense gets a `Refusal`, one that lays open an error of ours `Stumbled`.
        """
        self._outbox.begin(now)
        try:
            if isinstance(given, StepsReported):
                bunch = Bunch.of(given)
                if not self._takes(bunch):
                    return [out for said in bunch.singles() for out in self.handle(said, now)]
                answers = _sent(self._job.report_steps(bunch))
            else:
                answers = self._answers_to(given, now)
        except UsageError as error:
            return [*self._outbox.take(), Refusal(reason=str(error))]
        except Exception as error:  # the job must go on, whatever one worker has said
            trace = traceback.format_exc()
            return [*self._outbox.take(), Stumbled(error=repr(error), trace=trace)]
        return [*self._outbox.take(), *answers]

    # --- looking, which changes nothing ----------------------------------------------------------

    def status(self) -> Status:
        """A snapshot for people."""
        return self._job.status()

    @property
    def has_workers(self) -> bool:
        """Whether somebody is connected who has not said goodbye."""
        return self._job.has_workers

    def standing(self, now: float) -> Standing:
        """How the job stands, for whoever started it."""
        self._outbox.begin(now)
        return self._job.standing()

    def machine_of(self, worker: int) -> str:
        """The machine whose launcher may speak for a worker; empty: none."""
        return self._job.machine_of(worker)

    def survey_status(self) -> SurveyStatus:
        """How far the measuring of links is. Raises UsageError where nobody has asked for it."""
        if self._survey is None:
            raise UsageError("nobody has had the links measured; `gangline probe RUN_DIR` does")
        return self._survey.status()

    # --- one input -------------------------------------------------------------------------------

    def _answers_to(self, given: Input, now: float) -> list[Output]:
        match given:
            case Connected(hello=hello):
                self._bunched = b""
                worker, outgoing = self._job.connect(hello)
                self._addresses[worker] = hello.address
                return [Admitted(worker=worker), *_sent(outgoing)]
            case Disconnected(worker=worker):
                self._bunched = b""
                self._addresses.pop(worker, None)
                self._job.disconnect(worker)
                return _sent(self._job.tick())
        return _sent(self._messages_after(given, now))

    def _messages_after(self, given: Input, now: float) -> list[Outgoing]:
        match given:
            case Tick():
                asked = [] if self._survey is None else self._survey.tick(now)
                return self._job.tick() + asked
            case Said(worker=worker) if worker not in self._addresses:
                raise UsageError(f"worker {worker} has not said hello")
            case Said(worker=worker, message=message) if isinstance(message, FromSurveyor):
                return [] if self._survey is None else self._survey.receive(worker, message, now)
            case Said(worker=worker, message=message):
                return self._job.receive(worker, message)
            case SeenBusy(worker=worker, pid=pid):
                self._job.see_busy(worker, pid)
                return []
            case Ordered(order=ProcessEnded() as ended):
                return self._job.note_ended(ended)
            case Ordered(order=Dissolve() as order):
                return self._job.dissolve(order.reason, own=order.own)
            case Ordered(order=Depart()):
                return self._job.ask_all_to_leave()
            case LeaveAsked(worker=worker):
                return self._job.ask_to_leave(worker)
            case ReplanAsked(request=request):
                return self._job.ask_structure(request)
            case SyncAsked(sync=sync):
                return self._job.set_sync(parse_sync(sync))
            case ExclusionAsked(worker=worker, is_out=True):
                return self._job.exclude(worker)
            case ExclusionAsked(worker=worker):
                return self._job.take_back(worker)
            case PauseAsked(is_paused=is_paused):
                return self._job.pause(is_paused=is_paused)
            case CheckpointAsked():
                return self._job.ask_checkpoint()
            case EndAsked():
                return self._job.end()
            case SurveyAsked():
                return self._begin_survey(now)
        raise UsageError(f"no coordinator can be told {given!r}")

    def _takes(self, bunch: Bunch) -> bool:
        """Whether the reports of many come to the same at once as one after the other."""
        if bunch.given.workers != self._bunched:
            if not all(worker in self._addresses for worker in bunch.workers.tolist()):
                return False
            self._bunched = bunch.given.workers
        return self._job.takes(bunch)

    def _begin_survey(self, now: float) -> list[Outgoing]:
        if self._survey is not None and not self._survey.is_over:
            raise UsageError("the links are being measured already; ask how far that is")
        self._survey = Survey(self._addresses, now)
        return self._survey.begin()


def _sent(outgoing: list[Outgoing]) -> list[Output]:
    return [Send(worker=worker, message=message) for worker, message in outgoing]
