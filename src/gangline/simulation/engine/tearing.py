# SPDX-License-Identifier: Apache-2.0
"""Exchanges that only some finish, because one of them is struck as soon as it has the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangline.simulation.engine.crew import Crew
    from gangline.simulation.engine.field import Field
    from gangline.simulation.engine.member import Member
    from gangline.simulation.engine.rounds import Round

TORN = 0.5
"""How likely an exchange is torn when a worker is struck as soon as it has the result: whether each of
the others has it too is then a matter of chance."""
_WITH_RESULT = ("update", "between")


class Tearing:
    """One group's exchanges."""

    def __init__(self, crew: Crew, field: Field) -> None:
        self._crew = crew
        self._field = field

    def tear(self, done: Round, stage: str) -> bool:
        """Whether the exchange is torn; then some have the result, and the others wait for it."""
        victim = self._find(done)
        if victim is None:
            return False
        crew, step = self._crew, done.position.step
        fault = victim.life.next_fault(_WITH_RESULT, step)
        is_kill = fault is not None and fault.kind == "kill"
        # Of the others, some have the result too where it dies, none where it only hangs.
        others = [one for one in crew.members if one is not victim]
        lucky = [one for one in others if is_kill and self._field.chance.random() < TORN]
        done.ahead = {member.worker for member in (victim, *lucky)}
        self._field.note_step(crew, done)
        if lucky:
            crew.report(done, lucky)
        self._field.strikes.come_to(victim.life, "update", step=step)
        if victim.life.is_alive:
            crew.report(done, [victim])
            crew.end_later(done, stage, after_s=0.0)
        return True

    def _find(self, done: Round) -> Member | None:
        """Who is about to be struck with the result in hand, before the others all have it."""
        if not done.is_step or done.ahead:
            return None
        for member in self._crew.odd.values():
            fault = member.life.next_fault(_WITH_RESULT, done.position.step)
            if fault is not None and fault.kind in ("kill", "hang"):
                is_torn = len(self._crew.members) > 1 and self._field.chance.random() < TORN
                return member if is_torn else None
        return None
