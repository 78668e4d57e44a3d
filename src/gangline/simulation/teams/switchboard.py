# SPDX-License-Identifier: Apache-2.0
"""The coordinator of a simulated job, the real one, and the workers' lines to it.

What workers say is there after half of their round trip, and so is what they are told. What is under
way on a line that goes down is lost. The coordinator may be killed; the next one is given what it kept.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gangline.coordinator.coordinator import Coordinator
from gangline.coordinator.inputs import Connected, Disconnected, Input, Said, Tick
from gangline.coordinator.outputs import Keep, Refusal, Send, Stumbled, Write
from gangline.coordinator.settings import Settings
from gangline.spec.errors import GanglineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gangline.control.detection import Detector
    from gangline.coordinator.outputs import Output
    from gangline.coordinator.records import AnyRecord
    from gangline.protocol.messages import FromWorker
    from gangline.simulation.teams.member import Member
    from gangline.simulation.world import World

RUN = "simulated"
"""The name of every simulated job."""


class Switchboard:
    """Hands the coordinator what happens, and does what it wants done."""

    def __init__(
        self,
        world: World,
        *,
        workers: int,
        detector: Detector,
        refuse: Callable[[str], None],
    ) -> None:
        """`refuse` is told why the coordinator will not have what it was told."""
        self.members: dict[int, Member] = {}
        self._records: list[AnyRecord] = []
        self._world = world
        self._settings = Settings(
            run=RUN, expected_workers=workers, reserved=workers, detector=detector
        )
        self._refuse = refuse
        self._coordinator: Coordinator | None = None

    # --- the coordinator's own life --------------------------------------------------------------

    def begin(self) -> None:
        """The coordinator is started, with all that another one before it has kept."""
        self._coordinator = Coordinator(
            self._settings, now=self._world.now, records=tuple(self._records)
        )
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
        if self._coordinator is not None:
            for output in self._coordinator.handle(given, self._world.now):
                self._carry_out(output)

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
        half_s = self._world.latency_s(member.life) / 2
        gone = Disconnected(worker=member.worker)

        def arrive() -> None:
            if member.line is None:
                self.hand(gone)

        self._world.later(half_s, arrive)

    def carry(self, member: Member, message: FromWorker) -> None:
        """A worker says something; it is lost if the line is down before it is there."""
        line = member.line
        said = Said(worker=member.worker, message=message)

        def arrive() -> None:
            if line is not None and member.line == line:
                self.hand(said)

        self._world.later(self._world.latency_s(member.life) / 2, arrive)

    # --- outputs ---------------------------------------------------------------------------------

    def _carry_out(self, output: Output) -> None:
        match output:
            case Send(worker=worker, message=message):
                member = self.members[worker]
                if member.line is not None:
                    half_s = self._world.latency_s(member.life) / 2
                    self._world.later(half_s, partial(member.receive, message, member.line))
            case Keep(record=record):
                self._records.append(record)
            case Write(event=event):
                self._world.sink(event)
            case Refusal(reason=reason):
                self._refuse(reason)
            case Stumbled(trace=trace):
                raise GanglineError(f"the coordinator has an error:\n{trace}")
