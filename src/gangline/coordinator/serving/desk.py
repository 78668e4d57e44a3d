# SPDX-License-Identifier: Apache-2.0
"""What the coordinator does for teams that train by parameter servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gangline.control.sync.placing import (
    Candidate,
    capacities,
    found,
    lost,
    move_shards,
    place_shards,
)
from gangline.coordinator.kept.records import Serves
from gangline.coordinator.outgoing import Outgoing
from gangline.coordinator.serving.complaints import Complaints
from gangline.coordinator.serving.rooms import cramped
from gangline.coordinator.serving.sequence import UpdateSequence, gone_back
from gangline.protocol.messages import LAG, Holds, Pushed, Served, Turn, Unserved
from gangline.spec.errors import UsageError
from gangline.spec.serving import NOBODY, Host, Serving

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gangline.coordinator.kept.records import AnyRecord, Journal
    from gangline.coordinator.teams.chronicle import Chronicle
    from gangline.coordinator.teams.lending import Lending
    from gangline.coordinator.teams.team import Team
    from gangline.protocol.messages import Hello
    from gangline.spec.serving import Service, ShardPlace


class ServingDesk:
    """Knows who holds the shards, and gives teams their turns."""

    def __init__(
        self,
        service: Service,
        *,
        lending: Lending,
        journal: Journal,
        chronicle: Chronicle,
        hellos: Mapping[int, Hello],
        global_batch: int,
        teams: Iterable[int],
        number: int,
        compression: str = "none",
        rates: Sequence[float] = (),
    ) -> None:
        """`teams` are those that were founded; the first order of servers has this number.

        `rates` say how many bytes a second each worker can serve, as far as that was measured.
        """
        self.service = service
        self._compression = compression
        self._journal = journal
        self._chronicle = chronicle
        self._hellos = hellos
        self._sequence = UpdateSequence(service, lending, global_batch=global_batch)
        self._teams = tuple(teams)
        self._rates = rates
        self.number = number
        """Of the next order of servers."""
        self._serving: Serving | None = None
        self._known: dict[int, int] = {}
        """By team: the first entry that it has not pulled, as it said last."""
        self._unserved: dict[int, Unserved] = {}
        """By leader: what it says of servers that it does not reach, or that hold nothing any more."""
        self._rebuilt = -1
        """The order of servers with which shards were rebuilt last."""
        self._rebuilt_upto = 0
        """To before which entry all went back then."""
        self._pushed_to = -1
        """The newest order of servers that somebody has pushed to: its shards are whole."""
        self._idle: set[int] = set()
        """The workers that compute nothing."""
        self._cramped: frozenset[int] = frozenset()
        """Those that have no room for a shard, by what they said when they began."""
        self._copied: set[tuple[int, int]] = set()
        """Which shards have a whole copy, and on which workers."""
        self._complaints = Complaints()
        self._shunned: frozenset[int] = frozenset()
        """Workers that serve nothing, because most others do not reach them."""
        self._ends: dict[int, Turn] = {}
        """By team: what it was told at the end of the epoch."""

    @property
    def hosts(self) -> frozenset[int]:
        """The workers that others wait for, because they hold shards."""
        if self._serving is None:
            return frozenset()
        places = self._serving.shards
        return frozenset({one.primary for one in places} | {one.replica for one in places})

    def set_global_batch(self, samples: int) -> None:
        """A push counts as much as its samples are of these."""
        self._sequence.global_batch = samples

    def awaited(self) -> tuple[int, ...]:
        """The teams that others wait for."""
        return self._sequence.slowest()

    def awaits(self, team: Team) -> bool:
        """Whether a lost shard cannot be rebuilt before this team says what it has pulled."""
        serving = self._serving
        return serving is not None and serving.is_incomplete and team.leader not in self._unserved

    # --- who is there ------------------------------------------------------------------------------

    def follow(self, teams: Sequence[Team]) -> list[Outgoing]:
        """These teams train: shards of who is gone move, and who waited for it may go on."""
        self._sequence.follow(team.number for team in teams)
        return self._place(teams) + self._rebuild(teams) + self._tell_turns(teams)

    def _place(self, teams: Sequence[Team]) -> list[Outgoing]:
        workers = [worker for team in teams for worker in team.members]
        if not workers:
            return []
        self._idle = {worker for team in teams if team.only_serves for worker in team.members}
        self._cramped = cramped(teams, servers=self.service.servers)
        before = self._serving
        shards = self._shards_of(workers)
        source, upto = NOBODY, self._sequence.upto
        if before is not None and self._is_rebuilding:
            source, upto = before.source, before.applied
            if source not in workers:  # it is gone, and nobody knows what it has given to whom
                source, shards = NOBODY, lost(shards)
        hosts = tuple(Host(worker=one, address=self._hellos[one].address) for one in workers)
        if before is not None and (shards, hosts) == (before.shards, before.hosts):
            return []
        serving = Serving(
            number=self.number,
            shards=shards,
            hosts=hosts,
            teams=self._teams,
            compression=self._compression,
            applied=upto,
            source=source,
        )
        if source != NOBODY:
            self._rebuilt = serving.number  # all go back once more
        return self._publish(serving, teams)

    def _shards_of(self, workers: Sequence[int]) -> tuple[ShardPlace, ...]:
        """Who holds the shards where these workers are left."""
        self._shunned &= set(workers)
        left_out = self._shunned if self._serving is not None else self._shunned | self._cramped
        able = [one for one in workers if one not in left_out]
        if len(able) < (1 if self._serving is not None else self.service.servers):
            able = list(workers)
        known = capacities(workers, self._rates)
        candidates = [
            Candidate(
                worker=one,
                machine=self._hellos[one].host,
                capacity=known[one],
                only_serves=one in self._idle,
            )
            for one in able
        ]
        if self._serving is None:
            shards = place_shards(self.service, candidates)
            self._copied = {(number, one.replica) for number, one in enumerate(shards)}
            return shards
        present = set(able)
        self._copied = {one for one in self._copied if one[1] in present}
        return move_shards(
            self._serving.shards,
            candidates,
            replicas=self.service.replicas,
            copied=self._copied,
        )

    def _rebuild(self, teams: Sequence[Team]) -> list[Outgoing]:
        """A shard is lost with its copy: all go back to what one pulled, when all have said what."""
        serving, leaders = self._serving, [team.leader for team in teams]
        if serving is None or not serving.is_incomplete or not leaders:
            return []
        if any(leader not in self._unserved for leader in leaders):
            return []
        source = max(leaders, key=lambda leader: (self._unserved[leader].known, -leader))
        upto = max(0, self._unserved[source].known)
        count = self._sequence.rewind(upto)
        reason = (
            f"a shard was lost with its copy: all go back to what worker {source} pulled last, after "
            f"{upto} updates; {count} samples are free again"
        )
        self._chronicle.say("rebuild_shards", reason, worker=float(source), samples=float(count))
        self._rebuilt, self._rebuilt_upto, self._copied = self.number, upto, set()
        rebuilt = msgspec.structs.replace(
            serving, number=self.number, applied=upto, source=source, shards=found(serving.shards)
        )
        return self._publish(rebuilt, teams)

    @property
    def _is_rebuilding(self) -> bool:
        """Whether all shards are going back to what one worker pulled, as far as is known."""
        serving = self._serving
        return serving is not None and serving.source != NOBODY and self._rebuilt > self._pushed_to

    def _publish(self, serving: Serving, teams: Sequence[Team]) -> list[Outgoing]:
        self._journal.append(Serves(serving=serving))
        before, self._serving = self._serving, serving
        self.number = serving.number + 1
        self._unserved = {}
        if before is None or before.shards != serving.shards:
            shown = ", ".join(
                f"shard {number} worker {place.primary}"
                + (f" (copy: worker {place.replica})" if place.replica != NOBODY else "")
                for number, place in enumerate(serving.shards)
            )
            self._chronicle.say("place_shards", f"the parameters are held by: {shown}")
        return [out for team in teams for out in team.tell(Served(serving=serving))]

    # --- what teams say ----------------------------------------------------------------------------

    def receive(
        self,
        team: Team,
        worker: int,
        message: Pushed | Unserved | Holds,
        teams: Sequence[Team],
    ) -> list[Outgoing]:
        """A team has pushed, or says how its servers are. Raises UsageError for it to read."""
        if isinstance(message, Pushed):
            return self._on_pushed(msgspec.structs.replace(message, team=team.number), teams)
        if self._serving is None or message.number != self._serving.number:
            return []
        if isinstance(message, Holds):
            self._copied |= {(shard, worker) for shard in message.shards}
            return []
        if message.shard >= 0:
            place = self._place_of(message.shard)
            self._complaints.hear(worker, team=team.number, place=place)
            return []
        self._complaints.settle(worker)
        before = self._unserved.get(worker, message)
        self._unserved[worker] = max(before, message, key=lambda one: one.known)
        return self._rebuild(teams) + self._tell_turns(teams)

    def _place_of(self, shard: int) -> ShardPlace:
        assert self._serving is not None
        if shard >= len(self._serving.shards):
            raise UsageError(f"shard {shard} of {len(self._serving.shards)}: it is not served")
        return self._serving.shards[shard]

    def look(self, teams: Sequence[Team], now: float) -> tuple[list[Outgoing], Mapping[int, str]]:
        """Time has passed: shards leave who is not reached; and the teams to be given up, with why."""
        if self._serving is None:
            return [], {}
        workers = {worker for team in teams for worker in team.members}
        verdict = self._complaints.conclude(
            teams, places=self._serving.shards, spare=workers - self._shunned, now=now
        )
        if not verdict.shunned:
            return [], verdict.given_up
        self._shunned |= verdict.shunned
        for worker in sorted(verdict.shunned):
            reason = f"worker {worker} serves no more: most others do not reach it"
            self._chronicle.say("shun_server", reason, worker=float(worker))
        return self.follow(teams), verdict.given_up

    def _on_pushed(self, pushed: Pushed, teams: Sequence[Team]) -> list[Outgoing]:
        if pushed.serving < self._rebuilt:  # it has not heard that all have gone back
            pushed = gone_back(pushed, self._rebuilt_upto)
        self._known[pushed.team] = pushed.known
        self._ends.pop(pushed.team, None)
        if pushed.clock >= 0 and pushed.serving < self._rebuilt:
            self._sequence.forget(pushed)
        else:
            self._pushed_to = max(self._pushed_to, pushed.serving)
            self._sequence.push(pushed)
        return self._tell_turns(teams)

    def _tell_turns(self, teams: Sequence[Team]) -> list[Outgoing]:
        serving = self._serving
        if serving is None or serving.is_incomplete:
            return []
        turns = self._sequence.take_turns(serving.number)
        return [
            out for team in teams if team.number in turns for out in team.tell(turns[team.number])
        ]

    def finish(self, team: Team, teams: Sequence[Team]) -> list[Outgoing]:
        """A team has nothing left to do in this epoch."""
        self._sequence.finish(team.number)
        return self._tell_turns(teams)

    def end_epoch(self, teams: Iterable[Team], *, is_last: bool) -> list[Outgoing]:
        """All teams have pushed what they had: each pulls what has become of it.

        Where it `is_last` they are to be other teams, without these servers.
        """
        outgoing: list[Outgoing] = []
        for team in teams:
            number = -1 if self._serving is None else self._serving.number
            known = max(0, self._known.get(team.number, 0) - LAG)
            turn = self._sequence.last_turn(team.number, known, number, takes_state=is_last)
            self._ends[team.number] = turn
            outgoing += team.tell(turn)
        return outgoing

    def catch_up(self, worker: int, team: Team) -> list[Outgoing]:
        """What a worker must know that comes, or comes back."""
        told: list[Served | Turn] = []
        if self._serving is not None:
            told.append(Served(serving=self._serving))
        if team.number in self._ends:
            told.append(self._ends[team.number])
        return [Outgoing(worker, message) for message in told]

    # --- after a restart ---------------------------------------------------------------------------

    def replay(self, records: Sequence[AnyRecord]) -> None:
        """Goes on where the coordinator of before was killed."""
        self._sequence.replay(records, self._teams)
        for record in records:
            if isinstance(record, Serves):
                self.number = record.serving.number + 1
                is_own = bool(set(record.serving.teams).intersection(self._teams))
                self._serving = record.serving if is_own else None
                if record.serving.source != NOBODY:
                    self._rebuilt = record.serving.number
                    self._rebuilt_upto = record.serving.applied
