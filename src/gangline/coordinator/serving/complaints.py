# SPDX-License-Identifier: Apache-2.0
"""Which teams do not reach which parameter servers, though the coordinator hears both."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gangline.spec.serving import NOBODY, ShardPlace

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gangline.coordinator.teams.team import Team

CUT_S = 3.0
"""A server that somebody has not reached for so long is cut off from it."""


class Verdict(NamedTuple):
    """What follows from the complaints."""

    shunned: frozenset[int]
    """Workers that most others do not reach: they are to serve nothing."""
    given_up: Mapping[int, str]
    """By team: why it is given up, which most others do not join in complaining."""


class _Complaint(msgspec.Struct):
    team: int
    place: ShardPlace
    since_s: float | None = None

    @property
    def host(self) -> int:
        return self.place.primary


class Complaints:
    """Remembers who complains of whom, until it says that all is well."""

    def __init__(self) -> None:
        self._standing: dict[int, _Complaint] = {}

    def hear(self, worker: int, *, team: int, place: ShardPlace) -> None:
        """A worker gets no answer about a shard; the time counts from the next `conclude`."""
        before = self._standing.get(worker)
        if before is None or (before.team, before.place) != (team, place):
            self._standing[worker] = _Complaint(team, place)

    def settle(self, worker: int) -> None:
        """A worker reaches its servers."""
        self._standing.pop(worker, None)

    def conclude(
        self,
        teams: Sequence[Team],
        *,
        places: Collection[ShardPlace],
        spare: Collection[int],
        now: float,
    ) -> Verdict:
        """Whom to blame: a server, if most others complain of it and somebody else can serve.

        `places` are the shards now, and `spare` who could serve. While who holds a shard, or its copy,
        is not connected, nobody is blamed: it may be gone, which is found by its absence.
        """
        present = {team.number for team in teams}
        self._standing = {
            worker: one
            for worker, one in self._standing.items()
            if one.team in present and one.place in places
        }
        away = {one for team in teams for one in team.members if not team.mind.has_line(one)}
        for one in self._standing.values():
            is_away = not away.isdisjoint((one.place.primary, one.place.replica))
            one.since_s = now if one.since_s is None or is_away else one.since_s
        shunned, given_up = set(), {}
        for host in {one.host for one in self._standing.values()}:
            about = [one for one in self._standing.values() if one.host == host]
            if now - min(one.since_s for one in about if one.since_s is not None) <= CUT_S:
                continue
            others = {team.number for team in teams if host not in team.members}
            sayers = {one.team for one in about}
            copies = {one.place.replica for one in about} - {NOBODY}
            if 2 * len(sayers & others) > len(others) and set(spare) - {host}:
                shunned.add(host)
            elif (
                not sayers & others and copies
            ):  # its own team reaches it: it is the copy that fails
                shunned |= copies
            else:
                reason = f"it does not reach worker {host}, which others reach and which serves"
                given_up.update(dict.fromkeys(sayers & others or sayers, reason))
        return Verdict(frozenset(shunned), given_up)
