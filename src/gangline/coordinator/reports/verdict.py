# SPDX-License-Identifier: Apache-2.0
"""Whether the workers' loops differ: one has ended its script while others go on, or they call
different things at the same time. Then the job ends for everybody, by an error that names them.

That a worker was killed, put out or asked to leave is no such case: the others go on without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.coordinator.teams.sums import Part
from gangline.protocol.messages import LeaseAsked, Reached, Stopped, Told
from gangline.spec.position import Position

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gangline.coordinator.teams.sums import Sums
    from gangline.protocol.messages import Failed, FromTeam, Goodbye

GATHER_S = 0.3
"""After the first report of calls that differ, how long to wait for the other members'."""

AGREE = (
    "All workers must go through the same loop, and make the same gangline calls. Agree on when to "
    "stop: `if gangline.any(flag): break` (or gangline.all), instead of a local value or rank(); and "
    "take calls such as gangline.evaluate out of `if gangline.is_main():`"
)
CALL_ALIKE = (
    "All workers must make the same calls in the same order: take gangline calls and backward() out "
    "of `if gangline.is_main():` and of what depends on the local batch"
)
OWN_VARIABLES = (
    "came back or joined while the others trained: the model and what is in `stateful` were copied, "
    "variables of the loop were not. If the loop decides by some (the best loss, a counter), keep them "
    "in an object with state_dict and load_state_dict, and give it to gangline.prepare(stateful=[...])"
)


class Verdict:
    """What was heard of the members' places in their loops, and what follows from it."""

    def __init__(self, finished: Mapping[int, tuple[int, ...]] | None = None) -> None:
        known = finished or {}
        self.ended = {worker: Position(*position) for worker, position in known.items()}
        """Whose script has ended, though nobody had asked it to, and where."""
        self.late: Collection[int] = ()
        """The members that were not there from the beginning, or not all the time."""
        self._failed: dict[int, Failed] = {}
        self._differ_s: float | None = None

    def hear_goodbye(self, worker: int, goodbye: Goodbye) -> bool:
        """A member ends. Whether its script came to its end by itself."""
        if len(goodbye.position) != len(Position._fields):
            return False
        self.ended[worker] = Position(*goodbye.position)
        return True

    def hear_failure(self, worker: int, failed: Failed, now: float) -> None:
        """A member's exchange failed."""
        if len(failed.position) != len(Position._fields):
            return
        self._failed[worker] = failed
        if failed.is_mismatch and self._differ_s is None:
            self._differ_s = now

    def begin_group(self) -> None:
        """There is another group: failures of the last one are mended."""
        self._failed = {}
        self._differ_s = None

    def judge(self, members: Collection[int], now: float) -> Stopped | None:
        """Why the job must end; None where it need not."""
        for worker, failed in self._failed.items():
            position = Position(*failed.position)
            # Who is behind did not get the result of the last exchange, because somebody died in it.
            early = [one for one, end in self.ended.items() if end <= position]
            if early:
                return self._ended_early(early, f"worker {worker} is in {_where(failed)}")
        if self._differ_s is None:
            return None
        is_everybody = {*self._failed} >= {*members} - {*self.ended}
        return self._differ() if is_everybody or now - self._differ_s > GATHER_S else None

    def judge_waiting(self, lost: Collection[int], waiting: Collection[int]) -> Stopped | None:
        """As `judge`, where these are lost to those that wait for them."""
        early = [worker for worker in lost if worker in self.ended]
        going_on = sorted({*waiting} - {*self.ended})
        if not early or not going_on:
            return None
        return self._ended_early(early, f"{_named(going_on)} still there, and waiting")

    def _ended_early(self, early: Collection[int], others: str) -> Stopped:
        stopped = _describe_early({worker: self.ended[worker] for worker in early}, others)
        return self._hinted(stopped)

    def _differ(self) -> Stopped:
        by_call: dict[str, list[int]] = {}
        for worker, failed in sorted(self._failed.items()):
            by_call.setdefault(_where(failed), []).append(worker)
        calls = ", ".join(f"{_named(workers)} in {where}" for where, workers in by_call.items())
        stopped = Stopped(
            reason=f"the workers' loops differ: at the same time {calls}. {CALL_ALIKE}",
            places=calls if len(by_call) > 1 else "",
        )
        return self._hinted(stopped)

    def _hinted(self, stopped: Stopped) -> Stopped:
        """With what is likely, where members have come late."""
        if not self.late:
            return stopped
        names = ", ".join(str(worker) for worker in sorted(self.late))
        hint = f"Worker {names} {OWN_VARIABLES}"
        return msgspec.structs.replace(stopped, reason=f"{stopped.reason}. {hint}", hint=hint)


def judge_team(
    worker: int, team: int, message: FromTeam, *, ended: Mapping[int, Position], sums: Sums
) -> Stopped | None:
    """Why a job of several teams must end, by what a worker of one says; None where it need not."""
    if not isinstance(message, LeaseAsked | Reached | Told):
        return None
    if isinstance(message, Told) and sums.find(message) is not None:
        return None
    early = {one: end for one, end in ended.items() if end.epoch <= message.epoch}
    if early:
        return _describe_early(early, f"worker {worker} goes on in epoch {message.epoch}")
    if isinstance(message, Told):
        passed_by = sums.passed(team, message)
        if passed_by is not None:
            return _describe_missed(Part(worker, message), passed_by, _begun(message.epoch))
    if isinstance(message, LeaseAsked):
        sums.begin(team, worker, message.epoch)
        missed = sums.lacking(team, message.epoch)
        own = _begun(message.epoch)
    elif isinstance(message, Told):
        missed = sums.other(message)
        own = f"is in {message.name} before epoch {message.epoch}"
    else:
        return None
    return None if missed is None else _describe_missed(missed, worker, own)


def judge_ends(ended: Mapping[int, Position], sums: Sums) -> Stopped | None:
    """Why a job of several teams must end, when scripts have ended; None where it need not."""
    for part in sums.waiting():
        early = {one: end for one, end in ended.items() if end.epoch <= part.told.epoch}
        if early and part.worker not in ended:
            where = f"worker {part.worker} is in {part.told.name} before epoch {part.told.epoch}"
            return _describe_early(early, where)
    return None


def _begun(epoch: int) -> str:
    return f"has begun epoch {epoch}"


def _describe_missed(missed: Part, worker: int, does: str) -> Stopped:
    other = f"worker {missed.worker} is in {missed.told.name} before epoch {missed.told.epoch}"
    places = f"{other}, worker {worker} {does}"
    return Stopped(reason=f"the workers' loops differ: {places}. {CALL_ALIKE}", places=places)


def _describe_early(early: Mapping[int, Position], others: str) -> Stopped:
    ends = "; ".join(
        f"worker {worker} ended its script {early[worker].describe()}" for worker in sorted(early)
    )
    places = f"{ends}, while {others}"
    return Stopped(reason=f"the workers' loops differ: {places}. {AGREE}", places=places)


def _where(failed: Failed) -> str:
    return f"{failed.call} {Position(*failed.position).describe()}"


def _named(workers: Collection[int]) -> str:
    names = ", ".join(str(worker) for worker in workers)
    return f"worker {names} is" if len(workers) == 1 else f"workers {names} are"
