# SPDX-License-Identifier: Apache-2.0
"""Parameter servers as the coordinator sees them: turns, the order of updates, and lost servers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from federations import LENGTH, TeamRoom, founded, lose_worker, restart

from gangline.control.sync.rounds import AWAY_S
from gangline.coordinator.server.journal import FileJournal
from gangline.protocol.messages import (
    END,
    EpochClosed,
    Holds,
    Ping,
    Pushed,
    Refused,
    RoundOpened,
    Served,
    Turn,
    Unserved,
)
from gangline.spec.errors import UsageError
from gangline.spec.event import UpdateApplied, UpdateVoided
from gangline.spec.profile import ClusterProfile, Link, NodeProfile, PairLink
from gangline.spec.serving import NOBODY
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path


class Pushing:
    """A team of one worker, as it trains by parameter servers."""

    def __init__(self, room: TeamRoom, worker: int) -> None:
        self.room, self.worker = room, worker
        self.epoch = self.leases = self.given = self.pushed = self.known = self.heard = 0
        self.clock = self.followed = -1
        self.asked: Pushed | None = None

    def begin(self) -> None:
        """Asks for a turn, having pushed nothing."""
        self._say(clock=-1, start=self.pushed, stop=self.pushed)

    def _say(self, *, clock: int, start: int, stop: int, **said: Any) -> None:
        self.heard = len(self._turns())
        number = self.room.last(self.worker, Served).serving.number
        self.asked = Pushed(
            clock=clock,
            epoch=self.epoch,
            start=start,
            stop=stop,
            known=self.known,
            read=self.known,
            serving=number,
            **said,
        )
        self.room.say(self.worker, self.asked)

    def _turns(self) -> list[Turn]:
        told = self.room.told.get(self.worker, [])
        return [one for one in told if isinstance(one, Turn) and one.pushed != END]

    @property
    def turn(self) -> Turn | None:
        """The answer to what it said last."""
        turns = self._turns()[self.heard :]
        return turns[-1] if turns else None

    def take_turn(self) -> None:
        """Goes on: pulls."""
        turn = self.turn
        assert turn is not None
        self.follow()
        serving = self.room.last(self.worker, Served).serving
        is_void = serving.source != NOBODY and turn.serving < serving.number
        if not is_void:  # all have gone back since it was given its turn
            numbers = [entry.number for entry in turn.entries if entry.number >= self.known]
            assert numbers == list(range(self.known, turn.upto)), "it is told all that is new to it"
            self.known = turn.upto
        self.clock, self.asked = turn.clock, None

    def is_waiting(self) -> bool:
        """Whether it can do nothing: takes its turn, where it has one."""
        if self.asked is not None and self.turn is not None:
            self.take_turn()
        return self.asked is not None

    def follow(self) -> None:
        """Does what the newest order of servers asks for."""
        serving = self.room.last(self.worker, Served).serving
        if serving.number == self.followed:
            return
        self.followed = serving.number
        if serving.source != NOBODY:
            self.known = min(self.known, serving.applied)
        if serving.is_incomplete:
            self.room.say(self.worker, Unserved(number=serving.number, known=self.known))
        else:
            shards = [n for n, one in enumerate(serving.shards) if one.replica == self.worker]
            self.room.say(self.worker, Holds(number=serving.number, shards=tuple(shards)))

    def has_samples(self) -> bool:
        """Whether it has something to compute; asks for more, where it has used all."""
        if self.pushed < self.given:
            return True
        start, stop = self.room.lease(self.worker, self.leases, epoch=self.epoch)
        if start == stop:
            return False
        self.leases, self.given = self.leases + 1, self.given + stop - start
        return True

    def push(self, **said: Any) -> None:
        """Pushes what it has computed of one step."""
        view = self.room.view_of(self.worker)
        start, self.pushed = self.pushed, min(self.given, self.pushed + view.shares[0])
        self._say(clock=self.clock, start=start, stop=self.pushed, **said)


def served(count: int, sync: str, **options: object) -> tuple[TeamRoom, list[Pushing]]:
    """Teams that have their first turn."""
    room = founded(count, sync=sync, **options)
    teams = [Pushing(room, worker) for worker in range(count)]
    for team in teams:
        team.begin()
        team.take_turn()
    return room, teams


def test_the_shards_and_their_copies_are_on_different_workers() -> None:
    room = founded(3, sync="asp(servers=2)")
    for worker in range(3):
        serving = room.last(worker, Served).serving
        assert [place.primary for place in serving.shards] == [0, 1]
        assert all(place.replica not in (-1, place.primary) for place in serving.shards)
        assert [host.worker for host in serving.hosts] == [0, 1, 2]


def test_shards_are_placed_by_the_measured_links() -> None:
    names = ["a", "b", "c"]
    slow, fast = Link(latency_s=0, bytes_per_s=1e6), Link(latency_s=0, bytes_per_s=1e8)
    profile = ClusterProfile(
        nodes=tuple(NodeProfile(name=name, per_sample_s=1e-3) for name in names),
        pairs=tuple(
            PairLink(source=one, target=other, there=slow if one == "a" else fast)
            for one, other in (("a", "b"), ("a", "c"), ("b", "c"))
        ),
    )
    room = founded(3, sync="asp(servers=2)", profile=profile)
    places = room.last(0, Served).serving.shards
    assert [one.primary for one in places] == [1, 2]
    assert [one.replica for one in places] == [2, 1]


@pytest.mark.parametrize(
    ("sync", "words"),
    [("asp(servers=3)", "give fewer servers"), ("backup(2)", "leaves nobody to wait for")],
)
def test_more_than_there_are_workers_is_refused(sync: str, words: str) -> None:
    room = TeamRoom(2, sync=sync)
    for worker in range(2):
        room.hello(worker)
    for worker in range(2):
        room.ready(worker)
    assert words in room.last(0, Refused).reason


def test_asp_never_waits() -> None:
    room, (fast, _) = served(2, "asp")
    for _ in range(4):
        assert fast.has_samples()
        fast.push()
        fast.take_turn()
    assert [one.staleness for one in room.events(UpdateApplied)] == [0, 0, 0, 0]
    assert [one.weights for one in room.events(UpdateApplied)] == [(0.5,)] * 4


def test_staleness_counts_the_updates_since_the_parameters_were_read() -> None:
    room, (one, other) = served(2, "asp")
    for _ in range(3):
        one.has_samples()
        one.push()
        one.take_turn()
    other.has_samples()
    other.push()
    other.take_turn()
    assert [event.staleness for event in room.events(UpdateApplied)] == [0, 0, 0, 3]


def test_staleness_is_of_the_parameters_that_were_read_not_of_when_a_turn_was_asked_for() -> None:
    room, (one, other) = served(2, "asp")
    _use_all(room, [one, other])
    one.begin()
    one.take_turn()
    for _ in range(2):
        one.has_samples()
        one.push()
        one.take_turn()
    other.begin()  # it computes with what all had at the end of the epoch before
    assert other.turn is not None
    other.clock = other.turn.clock
    other.has_samples()
    other.push()
    assert room.events(UpdateApplied)[-1].staleness == 2


def test_nobody_goes_on_alone_because_the_others_have_yet_to_begin_the_epoch() -> None:
    room, teams = served(3, "bsp")
    _use_all(room, teams)
    count = len(room.events(UpdateApplied))
    early, *others = teams
    early.begin()
    early.take_turn()
    early.has_samples()
    early.push()
    assert early.turn is None
    for team in others:
        team.begin()
        team.take_turn()
        team.has_samples()
        team.push()
    assert [len(one.teams) for one in room.events(UpdateApplied)[count:]] == [3]


def _use_all(room: TeamRoom, teams: list[Pushing]) -> None:
    """The first epoch comes to its end."""
    assert _to_the_end(room, teams, slow=set()) == LENGTH
    for team in teams:
        team.epoch, team.leases, team.given, team.pushed, team.clock = 1, 0, 0, 0, -1
        team.known = len(room.events(UpdateApplied))


def test_ssp_holds_who_is_too_far_ahead_until_the_slowest_has_pushed() -> None:
    _, (fast, slow) = served(2, "ssp(2)")
    for _ in range(2):
        fast.has_samples()
        fast.push()
        fast.take_turn()
    fast.has_samples()
    fast.push()
    assert fast.turn is None
    slow.has_samples()
    slow.push()
    slow.take_turn()
    fast.take_turn()


def test_bsp_makes_one_update_of_all_pushes_weighted_by_samples() -> None:
    room, teams = served(3, "bsp")
    for team in teams:
        assert team.has_samples()
        team.push()
    for team in teams:
        team.take_turn()
    (applied,) = room.events(UpdateApplied)
    assert sorted(applied.teams) == [0, 1, 2]
    assert sum(applied.weights) == pytest.approx(1)


@pytest.mark.parametrize("sync", ["bsp", "asp", "backup(1)"])
def test_sums_are_added_up_as_they_are(sync: str) -> None:
    room, teams = served(3, sync)
    for team in teams:
        assert team.has_samples()
        team.push(is_sum=True)
    assert {weight for one in room.events(UpdateApplied) for weight in one.weights} == {1.0}


def test_pushes_count_by_their_weights_where_these_are_told() -> None:
    room, teams = served(3, "bsp")
    for team, weight in zip(teams, (1.0, 4.0, 0.0), strict=True):
        assert team.has_samples()
        team.push(weight=weight)
    (applied,) = room.events(UpdateApplied)
    assert dict(zip(applied.teams, applied.weights, strict=True)) == {0: 0.2, 1: 0.8, 2: 0.0}


def test_a_weight_is_compared_with_what_a_global_batch_has_counted_so_far() -> None:
    room, (one, other) = served(2, "asp")
    for team, each in ((one, 2.0), (other, 6.0)):
        assert team.has_samples()
        samples = room.view_of(team.worker).shares[0]
        team.push(weight=each * samples)
    first, second = (event.weights[0] for event in room.events(UpdateApplied))
    assert (first, second) == pytest.approx((0.5, 0.5 * 6 / 4))


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_number_is_refused(weight: float) -> None:
    room, (team, _) = served(2, "asp")
    assert team.has_samples()
    sequence = room.teams._desk._sequence
    pushed = Pushed(clock=0, epoch=0, start=0, stop=1, known=0, read=0, weight=weight, team=0)
    with pytest.raises(UsageError, match="0 or more, and finite"):
        sequence.push(pushed)


def test_what_comes_too_late_is_void_and_only_who_is_in_time_gets_it_again() -> None:
    room, (one, other, late) = served(3, "backup(1)")
    for team in (one, other, late):
        assert team.has_samples()
    one.push()
    other.push()
    one.take_turn()
    other.take_turn()
    late.push()
    late.take_turn()
    (void,) = room.events(UpdateVoided)
    assert (void.team, void.start, void.clock) == (2, 0, 0)
    used = _to_the_end(room, [one, other, late], slow={2})
    assert used == LENGTH


def _lose(room: TeamRoom, dead: Pushing, alive: list[Pushing]) -> None:
    """A worker's line is gone, for so long that it is given up; the others are heard meanwhile."""
    room.hub.disconnect(dead.worker)
    for _ in range(int(AWAY_S / 0.5) + 2):
        room.tick(0.5)
        for team in alive:
            room.say(team.worker, Ping(sent_s=0.0))


def _to_the_end(room: TeamRoom, teams: list[Pushing], *, slow: set[int]) -> int:
    """All teams use what there is; those that are slow push last. How many samples count at the end."""
    ended: set[int] = set()
    for _ in range(200):
        for team in sorted(teams, key=lambda one: one.worker in slow):
            if team.worker in ended:
                continue
            team.follow()
            if team.is_waiting():
                continue
            if team.has_samples():
                team.push()
            else:
                ended.add(team.worker)
                room.reach(team.worker, team.given)
        if len(ended) == len(teams):
            for team in teams:
                room.done(team.worker, team.given)
            closed = room.last(teams[0].worker, EpochClosed)
            if closed.is_complete:
                return room.teams.lending.book.num_committed
            ended.clear()
            for team in teams:
                team.begin()
    raise AssertionError("the epoch does not end")


@pytest.mark.parametrize(
    "sync",
    [
        "bsp",
        "asp",
        "ssp(1)",
        "backup(1)",
        "backup(2)",
        "bsp(replicas=0)",
        "asp(servers=3, replicas=0)",
    ],
)
def test_every_sample_counts_once_whoever_dies_and_whenever(sync: str) -> None:
    for seed in range(12):
        draw = random.Random(seed)
        room, teams = served(4, sync)
        alive = list(teams)
        for _ in range(draw.randrange(40)):
            team = draw.choice(alive)
            if team.is_waiting():
                continue
            if not team.has_samples():
                break
            team.push()
            if draw.random() < 0.1 and len(alive) > 2:
                dead = draw.choice(alive)
                alive.remove(dead)
                _lose(room, dead, alive)
                for other in alive if draw.random() < 0.7 else []:
                    other.follow()
        assert _to_the_end(room, alive, slow=set()) == LENGTH, (sync, seed)


def test_a_push_that_is_said_twice_counts_once() -> None:
    room, (team, _) = served(2, "asp")
    team.has_samples()
    team.push()
    assert team.asked is not None
    room.say(0, team.asked)
    team.take_turn()
    assert len(room.events(UpdateApplied)) == 1


def test_the_copy_of_a_lost_server_serves_and_gets_a_copy_itself() -> None:
    room = founded(3, sync="asp")
    (before,) = room.last(1, Served).serving.shards
    lose_worker(room, before.primary)
    serving = room.last(1, Served).serving
    (place,) = serving.shards
    assert place.primary == before.replica
    assert place.replica not in (-1, place.primary, before.primary)
    assert before.primary not in [host.worker for host in serving.hosts]


def test_a_silent_server_is_missed_though_nobody_waits_for_its_steps() -> None:
    room = founded(3, sync="asp")
    host = room.last(0, Served).serving.shards[0].primary
    others = [worker for worker in range(3) if worker != host]
    for _ in range(30):
        for worker in others:
            room.step_of(worker, 1)
        room.tick(0.5)
    assert all(team.leader != host for team in room.teams.active)


def test_what_was_applied_is_known_after_a_restart(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    room, (one, other) = served(2, "ssp(1)", journal=FileJournal(journal))
    for team in (one, other):
        team.has_samples()
        team.push()
    serving = room.last(0, Served).serving
    used = room.teams.lending.book.num_committed
    restart(room, journal)
    for team in (one, other):
        room.hello(team.worker)
        assert room.last(team.worker, Served).serving == serving
    assert room.teams.lending.book.num_committed == used
    for team in (one, other):
        assert team.asked is not None
        team.heard = 0
        room.say(team.worker, team.asked)  # it has not heard the answer
        team.take_turn()
    assert room.teams.lending.book.num_committed == used
    assert _to_the_end(room, [one, other], slow=set()) == LENGTH


def test_the_end_of_an_epoch_tells_what_has_become_of_all_pushes() -> None:
    room, teams = served(2, "asp")
    used = _to_the_end(room, teams, slow=set())
    assert used == LENGTH
    for team in teams:
        told = room.told[team.worker]
        (end,) = [one for one in told if isinstance(one, Turn) and one.pushed == END]
        opened = [one for one in told if isinstance(one, RoundOpened)]
        assert told.index(end) < told.index(opened[-1])
        assert end.upto == len(room.events(UpdateApplied))


def test_a_worker_that_only_serves_holds_the_shard_and_is_lent_nothing() -> None:
    room = TeamRoom(3, sync="bsp")
    for worker in range(3):
        room.hello(worker)
    for worker in range(3):
        room.ready(worker, only_serves=worker == 2)
    assert [place.primary for place in room.last(0, Served).serving.shards] == [2]
    teams = [Pushing(room, worker) for worker in range(3)]
    assert [room.view_of(worker).shares for worker in (0, 1)] == [(6,), (6,)]
    for team in teams:
        team.begin()
    assert _to_the_end(room, teams, slow=set()) == LENGTH
    assert teams[2].given == 0
    assert {team for one in room.events(UpdateApplied) for team in one.teams} == {0, 1}


def test_somebody_must_train() -> None:
    room = TeamRoom(2, sync="asp")
    for worker in range(2):
        room.hello(worker)
    for worker in range(2):
        room.ready(worker, only_serves=True)
    assert "somebody must train" in room.last(0, Refused).reason


@pytest.mark.parametrize("mode", ["asp(servers=9)", "backup(2)"])
def test_a_job_is_not_switched_to_what_it_has_too_few_workers_for(mode: str) -> None:
    room, _ = served(2, "asp")
    with pytest.raises(UsageError, match="or more workers"):
        room.hub.set_sync(parse_sync(mode))


def test_a_restarted_coordinator_goes_on_with_fewer_teams_than_a_round_may_spare(
    tmp_path: Path,
) -> None:
    journal = tmp_path / "journal.jsonl"
    room, (one, other) = served(2, "backup(1)", journal=FileJournal(journal))
    for team in (one, other):
        team.has_samples()
    one.push()
    one.take_turn()
    _lose(room, other, [one])
    restart(room, journal)
    room.hello(0)
    one.begin()
    one.take_turn()
    assert _to_the_end(room, [one], slow=set()) == LENGTH


def test_a_restarted_coordinator_knows_the_updates_of_its_present_teams_alone(
    tmp_path: Path,
) -> None:
    """Clocks and entries are counted anew when workers are made other teams."""
    journal = tmp_path / "journal.jsonl"
    room, teams = served(2, "ssp(1)", journal=FileJournal(journal))
    for team in teams:
        team.has_samples()
    while any(team.pushed < team.given for team in teams):
        for team in teams:
            team.push()
        for team in teams:
            team.take_turn()
    room.deliver(room.hub.set_sync(parse_sync("bsp")))
    for team in teams:
        room.reach(team.worker, team.pushed)
    for team in teams:
        room.done(team.worker, team.pushed)
    again = [Pushing(room, team.worker) for team in teams]
    for team in again:
        team.begin()
        team.take_turn()
        team.has_samples()
    for team in again:
        team.push()
    restart(room, journal)
    for team in again:
        room.hello(team.worker)
    for team in again:
        assert team.asked is not None
        team.heard = 0
        room.say(team.worker, team.asked)
    for team in again:
        team.take_turn()
        assert team.known == 1, "of the teams before nothing is told"
    assert _to_the_end(room, again, slow=set()) == LENGTH
