# SPDX-License-Identifier: Apache-2.0
"""The coordinator of a simulated job, the real one, and the workers' lines to it.

What workers say is there after half of their round trip, and so is what they are told. But what workers
in step report of a step, and a view that follows from it, is there at once: how many steps pass before
the view holds is a number in the scenario. What is under way on a line that goes down is lost. The
coordinator may be killed; the next one is given what it kept.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gangline.coordinator.coordinator import Coordinator
from gangline.coordinator.inputs import Connected, Disconnected, Input, Said, StepsReported, Tick
from gangline.coordinator.kept.records import Published
from gangline.coordinator.outputs import Keep, Refusal, Send, Stumbled, Write
from gangline.coordinator.settings import Settings
from gangline.protocol.messages import Measured, Metrics, Pong, ViewPublished
from gangline.spec.errors import GanglineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.control import ControlOptions
    from gangline.coordinator.kept.records import AnyRecord
    from gangline.coordinator.outputs import Output
    from gangline.protocol.messages import FromCoordinator, FromWorker
    from gangline.simulation.engine.member import Member
    from gangline.simulation.world import World
    from gangline.spec.view import View

RUN = "simulated"
"""The name of every simulated job."""


class Switchboard:
    """Hands the coordinator what happens, and does what it wants done."""

    def __init__(
        self,
        world: World,
        *,
        workers: int,
        options: ControlOptions,
        lease_scheme: str,
        refuse: Callable[[str], None],
        on_group: Callable[[], None],
    ) -> None:
        """`refuse` is told why the coordinator will not have what it was told.

        `on_group` is called when it has the workers make another group.
        """
        self.members: dict[int, Member] = {}
        self.views: list[View] = []
        """All views of the job as one."""
        self._records: list[AnyRecord] = []
        self._world = world
        self._settings = Settings(
            run=RUN,
            expected_workers=workers,
            reserved=workers,
            detector=options.detector,
            lease_scheme=lease_scheme,
            defaults=options,
        )
        self._refuse = refuse
        self._on_group = on_group
        self._coordinator: Coordinator | None = None
        self._greeted_s = 0.0
        """When everybody who called it when it was started has said hello."""

    # --- the coordinator's own life --------------------------------------------------------------

    def begin(self) -> None:
        """The coordinator is started, with all that another one before it has kept."""
        self._coordinator = Coordinator(
            self._settings, now=self._world.now, records=tuple(self._records)
        )
        trips = [self._world.half_s(member.life) for member in self.members.values()]
        self._greeted_s = self._world.now + max(trips, default=0.0)
        for member in self.members.values():
            member.call()

    def kill(self) -> None:
        """The coordinator is gone, with everything that it has not kept; so are all lines."""
        self._coordinator = None
        for member in self.members.values():
            member.line = None

    @property
    def is_up(self) -> bool:
        """Whether there is a coordinator."""
        return self._coordinator is not None

    # --- inputs ----------------------------------------------------------------------------------

    def hand(self, given: Input) -> None:
        """Something happened, and is known to the coordinator now."""
        if self._coordinator is None:
            return
        told: list[Member] = []
        message: FromCoordinator | None = None
        for output in self._coordinator.handle(given, self._world.now):
            if not isinstance(output, Send):
                self._carry_out(output)
                continue
            if output.message is not message:
                self._tell(message, told)
                message, told = output.message, []
            told.append(self.members[output.worker])
        self._tell(message, told)

    def tick(self) -> None:
        """Time has passed."""
        self.hand(Tick())

    def connect(self, member: Member) -> None:
        """A worker says hello, and again what still holds of what it has said."""
        self.hand(Connected(hello=member.hello))
        for message in tuple(member.standing.values()):
            self.hand(Said(worker=member.worker, message=message))

    def hang_up(self, member: Member) -> None:
        """A worker's line is down, and the coordinator will see it."""
        gone = Disconnected(worker=member.worker)

        def arrive() -> None:
            if member.line is None:
                self.hand(gone)

        self._world.later(self._world.half_s(member.life), arrive)

    def carry(self, member: Member, message: FromWorker) -> None:
        """A worker says something; it is lost if the line is down before it is there."""
        line = member.line
        said = Said(worker=member.worker, message=message)
        is_at_once = isinstance(message, Measured | Metrics) and member.is_in_step
        is_at_once = is_at_once and member.has_said_hello

        def arrive() -> None:
            if line is not None and member.line == line:
                self.hand(said)

        self._world.later(0.0 if is_at_once else self._world.half_s(member.life), arrive)

    def carry_many(self, report: StepsReported) -> None:
        """Many workers in step report one; their lines go down only with the coordinator."""
        listener = self._coordinator

        def arrive() -> None:
            if listener is not None and self._coordinator is listener:
                self.hand(report)

        self._world.later(max(0.0, self._greeted_s - self._world.now), arrive)

    # --- outputs ---------------------------------------------------------------------------------

    def _tell(self, message: FromCoordinator | None, members: list[Member]) -> None:
        """Those that have a line are told the same, after half of their round trips."""
        if message is None or isinstance(message, Pong):
            return
        by_trip: dict[float, list[tuple[Member, int]]] = {}
        is_view = isinstance(message, ViewPublished) and not message.is_recovery
        for member in members:
            if member.line is not None:
                is_at_once = is_view and member.is_in_step
                half_s = 0.0 if is_at_once else self._world.half_s(member.life)
                by_trip.setdefault(half_s, []).append((member, member.line))
        for half_s, lines in by_trip.items():
            self._world.later(half_s, partial(_arrive, message, lines))

    def _carry_out(self, output: Output) -> None:
        match output:
            case Keep(record=record):
                self._records.append(record)
                if isinstance(record, Published):
                    self._note_view(record.view)
            case Write(event=event):
                self._world.sink(event)
            case Refusal(reason=reason):
                self._refuse(reason)
            case Stumbled(trace=trace):
                raise GanglineError(f"the coordinator has an error:\n{trace}")

    def _note_view(self, view: View) -> None:
        is_other = bool(self.views) and view.group != self.views[-1].group
        self.views.append(view)
        if is_other:
            self._on_group()


def _arrive(message: FromCoordinator, lines: list[tuple[Member, int]]) -> None:
    for member, line in lines:
        member.receive(message, line)
