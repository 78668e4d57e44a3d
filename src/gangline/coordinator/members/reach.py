# SPDX-License-Identifier: Apache-2.0
"""Who can reach whom: what is asked when the members do not get on and nobody of them is missing.

Members that can talk to the coordinator may still be cut from each other. Each is asked whom it
reaches; who is cut from most goes, so that those that are left all reach each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ANSWER_S = 2.0
"""How long an answer may take: a worker tries for half of that."""
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0


class Inquiry:
    """One question to all members, and their answers."""

    def __init__(self, number: int, members: tuple[int, ...], now: float, *, reason: str) -> None:
        self.number = number
        self.members = members
        self.reason = reason
        """Why it is asked."""
        self._asked_s = now
        self._reached: dict[int, frozenset[int]] = {}

    def answer(self, worker: int, reached: Iterable[int]) -> None:
        """A member says whom it reaches."""
        self._reached[worker] = frozenset(reached)

    def is_over(self, now: float) -> bool:
        """Whether all have answered, or will not."""
        return len(self._reached) == len(self.members) or now - self._asked_s > ANSWER_S

    def find_cut(self) -> tuple[int, ...]:
        """Who has to go, so that those that are left reach each other."""
        return find_cut(self.members, self._reached)

    def find_missing(self) -> dict[int, frozenset[int]]:
        """Whom each member does not reach, or is not reached by."""
        missing = _find_missing(self.members, self._reached)
        return {member: frozenset(others) for member, others in missing.items()}


def find_cut(members: tuple[int, ...], reached: Mapping[int, frozenset[int]]) -> tuple[int, ...]:
    """The members without which all the others reach each other, the most isolated first.

    Who gave no answer is taken to reach those that reach it.
    """
    missing = _find_missing(members, reached)
    cut: list[int] = []
    while any(missing.values()):
        # Of those that are cut from equally many, the last in rank goes.
        worst = max(missing, key=lambda member: (len(missing[member]), members.index(member)))
        cut.append(worst)
        for other in missing.pop(worst):
            missing[other].discard(worst)
    return tuple(cut)


def _find_missing(
    members: tuple[int, ...], reached: Mapping[int, frozenset[int]]
) -> dict[int, set[int]]:
    missing: dict[int, set[int]] = {member: set() for member in members}
    for member, peers in reached.items():
        for other in set(members) - peers - {member}:
            missing[member].add(other)
            missing[other].add(member)
    return missing


class _Pause(NamedTuple):
    length_s: float
    ends_s: float


class CutWorkers:
    """Workers that were put out because they did not reach the others, until they do again.

    Each is asked again and again, after ever longer pauses: also where it was taken in meanwhile
    and had to be put out once more.
    """

    def __init__(self) -> None:
        self._pauses: dict[int, _Pause] = {}
        self._out: set[int] = set()
        self.waiting: set[int] = set()
        """Who knows that it was put out, and wants to come back."""

    def add(self, worker: int, now: float) -> None:
        """A worker was put out."""
        last = self._pauses.get(worker)
        length_s = FIRST_PAUSE_S if last is None else min(2 * last.length_s, MAX_PAUSE_S)
        self._pauses[worker] = _Pause(length_s, now + length_s)
        self._out.add(worker)

    def __contains__(self, worker: int) -> bool:
        return worker in self._out

    def want_in(self, worker: int) -> None:
        """A worker wants to come back."""
        self.waiting.add(worker)

    def forget(self, worker: int) -> None:
        """It is another process now, or was never cut."""
        self._pauses.pop(worker, None)
        self.heal(worker)

    def heal(self, worker: int) -> None:
        """It reaches the others again; how often it did not is remembered."""
        self._out.discard(worker)
        self.waiting.discard(worker)

    def due(self, now: float) -> tuple[int, ...]:
        """Who is to be asked now."""
        due = tuple(worker for worker in sorted(self.waiting) if now >= self._pauses[worker].ends_s)
        for worker in due:
            length_s = min(2 * self._pauses[worker].length_s, MAX_PAUSE_S)
            self._pauses[worker] = _Pause(length_s, now + length_s)
        return due
