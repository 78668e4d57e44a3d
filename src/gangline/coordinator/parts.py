# SPDX-License-Identifier: Apache-2.0
"""Answers workers that pull parts of a global batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.control.shares.parts_desk import PartsDesk, Pool, UnknownPool
from gangline.control.shares.pulling import parse_pulling
from gangline.protocol.messages import PartGiven
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from gangline.coordinator.mind import Mind
    from gangline.protocol.messages import PartAsked


class Parts:
    """The desk that hands out parts, once the job has one."""

    def __init__(self, mind: Mind) -> None:
        self._mind = mind
        self._first_group = mind.group + 1  # of older ones another coordinator has handed out
        self._desk: PartsDesk | None = None
        self._members: dict[int, tuple[int, ...]] = {}
        """Who is in the newest group, and who was in the one that it follows."""

    def give(self, worker: int, asked: PartAsked) -> PartGiven:
        """The answer. Raises UsageError, for the worker to read, where nothing is pulled."""
        try:
            part = self._find(worker, asked)
        except UnknownPool as error:
            return _answer(asked, (asked.start, asked.start), void=str(error))
        return _answer(asked, (asked.start, asked.start) if part is None else part)

    def _find(self, worker: int, asked: PartAsked) -> tuple[int, int] | None:
        mind, desk = self._mind, self._open()
        members = self._members_of(asked.group)
        if worker not in members:
            raise UnknownPool(f"worker {worker} is not in the group that pulls them")
        desk.learn(worker, asked.samples, asked.compute_s)
        (ceiling,) = mind.roster.ceilings((worker,))
        return desk.give(
            worker,
            Pool(asked.group, asked.epoch, asked.step, asked.start, asked.stop),
            asked.number,
            members=members,
            minimum=mind.roster.options.minimum,
            ceiling=ceiling,
        )

    def _members_of(self, group: int) -> tuple[int, ...]:
        """Who pulls in a group: the newest one, or the one before until its members have left it."""
        mind = self._mind
        if mind.group not in self._members:
            self._members = {**dict([*self._members.items()][-1:]), mind.group: mind.members}
        if group < mind.group and mind.is_recovered:
            raise UnknownPool("the members have made another group")
        return self._members.get(group, ())

    def _open(self) -> PartsDesk:
        roster = self._mind.roster
        if self._desk is None:
            pulling = parse_pulling(roster.pulled) if self._mind.control is not None else None
            if pulling is None:
                raise UsageError("PartAsked: no parts are pulled in this job, each has its share")
            self._desk = PartsDesk(pulling, first_group=self._first_group)
        return self._desk


def _answer(asked: PartAsked, part: tuple[int, int], *, void: str = "") -> PartGiven:
    return PartGiven(
        group=asked.group,
        epoch=asked.epoch,
        step=asked.step,
        number=asked.number,
        start=part[0],
        stop=part[1],
        void=void,
    )
