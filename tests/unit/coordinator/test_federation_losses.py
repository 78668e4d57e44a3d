# SPDX-License-Identifier: Apache-2.0
"""Teams that are lost, leave, come back or come anew: who has their samples, and their work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from federations import LENGTH, PAIRS, TeamRoom, founded, lose_worker, through_epoch

from gangline.control.sync.rounds import AWAY_S
from gangline.coordinator.hub import Hub
from gangline.protocol.lifeline import ProcessEnded, Standing
from gangline.protocol.messages import (
    BROKEN,
    FINISHED,
    LEFT,
    Dismissed,
    Goodbye,
    Heard,
    LeaseAsked,
    LeaseGranted,
    Leaving,
    Measured,
    Ping,
    Probe,
    Probed,
    Reached,
    Refused,
    RoundClosed,
    RoundFailed,
    RoundOpened,
    Told,
)
from gangline.spec.event import Decision, LeaseReturned, RoundEnded
from gangline.spec.exchange.structure import RING, Structure
from gangline.spec.view import Whole

if TYPE_CHECKING:
    import pytest


def test_the_samples_of_a_lost_team_are_leased_again_and_the_rest_divides_its_work() -> None:
    room = founded(3, sync="percentage(0.5)")
    leases = [room.lease(worker, 0) for worker in range(3)]
    room.step_of(0, 1)
    room.step_of(1, 1)
    room.step_of(2, 1)
    assert room.has(2, RoundOpened)
    lose_worker(room, 2)
    assert [team.number for team in room.teams.active] == [0, 1]
    (returned,) = room.events(LeaseReturned)
    assert (returned.team, returned.start, returned.stop) == (2, *leases[2])
    assert not room.last(0, RoundClosed).is_committed, "a round without one of its teams is void"
    (said,) = [one for one in room.events(Decision) if one.what == "lose_team"]
    assert "team 2 is lost: none of its workers has been connected for" in said.reason
    assert [room.view_of(worker).shares for worker in (0, 1)] == [(6,), (6,)]
    assert room.view_of(1).whole == Whole(
        team=1, first_rank=1, workers=2, first_sample=6, samples=12
    )
    given = []
    for worker in (0, 1):
        number = 1
        while (lease := room.lease(worker, number)) != (0, 0):
            given += list(range(*lease))
            number += 1
    assert set(range(*leases[2])) <= set(given)
    assert len(given) == len(set(given))


def test_a_team_is_not_lost_by_a_line_that_comes_back() -> None:
    room = founded()
    room.hub.disconnect(1)
    room.tick()
    room.tick(AWAY_S / 2)
    room.hello(1)
    room.tick(AWAY_S)
    assert len(room.teams.active) == 2


def test_a_silent_team_is_missed_only_where_others_wait_for_it() -> None:
    room = founded()
    room.tick(60.0)
    assert len(room.teams.active) == 2
    room.say(0, Ping(sent_s=0.0))
    room.say(1, Ping(sent_s=0.0))
    room.reach(0, 0)
    room.tick(10.0)
    assert [team.number for team in room.teams.active] == [0]
    (said,) = [one for one in room.events(Decision) if one.what == "lose_team"]
    assert "silent for 10.0 s while other teams wait for it" in said.reason
    assert room.last(0, RoundOpened).leaders == (0,), "who is left goes on alone"


def test_a_silent_team_that_computes_is_waited_for() -> None:
    room = founded()
    room.lease(0, 0)
    room.reach(0, 24)
    for _ in range(20):
        room.tick(0.5)
        room.say(0, Ping(sent_s=0.0))
        room.hub.see_busy(1, 101)
    assert len(room.teams.active) == 2
    room.hub.see_busy(1, 999)  # another process, which had the number before
    for _ in range(20):
        room.tick(0.5)
        room.say(0, Ping(sent_s=0.0))
    assert [team.number for team in room.teams.active] == [0]


def test_the_last_team_is_never_given_up() -> None:
    room = founded()
    lose_worker(room, 1)
    lose_worker(room, 0)
    assert [team.number for team in room.teams.active] == [0]


def test_a_worker_whose_team_was_given_up_enters_another() -> None:
    room = founded()
    lose_worker(room, 1)
    room.step_of(0, 1)
    room.lease(0, 0)
    room.say(1, Ping(sent_s=0.0))
    room.tick()
    assert room.view_of(1).members == (0, 1)
    for worker in (0, 1):
        room.step_of(worker, 2)
    room.tick()
    assert room.view_of(1).whole == Whole(
        team=0, first_rank=0, workers=2, first_sample=0, samples=12
    )
    room.lease(1, 0)
    assert room.last(1, LeaseGranted) == room.last(0, LeaseGranted), "it may ask for its new team's"


def test_what_a_worker_says_of_the_team_that_it_was_in_before_is_dropped() -> None:
    """It was moved, and has not heard of it: its numbers mean nothing in the new team."""
    room = founded()
    lose_worker(room, 1)
    room.say(1, Ping(sent_s=0.0))
    assert room.teams.team_of(1) is room.teams.team_of(0)
    old = room.view_of(1).team
    room.say(1, Measured(step=40, view=7, samples=6, compute_s=0.1, team=old))
    room.say(1, Reached(epoch=0, offset=90, step=40, is_end=True, team=old))
    room.say(1, LeaseAsked(epoch=0, number=9, length=LENGTH, team=old))
    room.say(1, RoundFailed(number=0, error="lost", team=old))
    assert room.teams.active[0].reached is None
    assert room.count(1, LeaseGranted) == 0
    dropped = [one.reason for one in room.events(Decision) if one.what == "drop_late"]
    assert dropped == ["worker 1 speaks for team 1, and is in team 0 now: that counts no more"]
    room.tick()
    room.step_of(0, 1)
    room.tick()
    assert room.view_of(1).members == (0, 1), "it is taken in all the same"


def test_a_worker_that_is_back_when_the_job_is_over_is_told_that_it_was_left_behind() -> None:
    room = founded()
    lose_worker(room, 1)
    room.say(0, Goodbye(reason="done"))
    room.say(1, Ping(sent_s=0.0))
    assert room.last(1, Refused).is_left_behind
    room.told.clear()
    room.hello(1)
    assert room.last(1, Refused).is_left_behind


def test_a_newcomer_whose_team_is_given_up_before_it_is_in_enters_another() -> None:
    room = founded(2, reserved=2)
    newcomer = room.hello(pid=7)
    team = room.teams.team_of(newcomer)
    assert team is not None
    lost, kept = (0, 1) if team.members == (0,) else (1, 0)
    lose_worker(room, lost)
    assert room.teams.team_of(newcomer) is None
    room.ready(newcomer)
    room.step_of(kept, 1)
    room.tick()
    assert room.view_of(newcomer).members == (kept, newcomer)


def test_a_team_whose_processes_have_ended_is_not_awaited() -> None:
    room = founded()
    room.deliver(room.hub.note_ended(ProcessEnded(worker=1, has_failed=True)))
    room.tick()
    assert [team.number for team in room.teams.active] == [0]
    (said,) = [one for one in room.events(Decision) if one.what == "lose_team"]
    assert "the processes of all its workers have ended" in said.reason


def test_the_standing_says_how_many_have_come_before_they_train() -> None:
    room = TeamRoom(3)
    for worker, come in ((0, 1), (2, 2)):
        room.hello(worker)
        assert room.hub.standing() == Standing(come=come)


def test_the_standing_says_who_trains_and_whether_the_job_is_finished() -> None:
    room = founded(3)
    room.tick(4.0)
    room.say(2, Ping(sent_s=0.0))
    room.tick(2.0)
    assert room.hub.standing() == Standing(present=(0, 1, 2), silent_s=2.0, main=0)
    room.say(0, Leaving())
    room.tick()
    room.say(0, Goodbye(reason=LEFT))
    assert room.hub.standing() == Standing(present=(1, 2), silent_s=2.0, main=1)
    room.say(1, Goodbye(reason=BROKEN))
    assert not room.hub.standing().finished
    room.say(2, Goodbye(reason=FINISHED))
    assert room.hub.standing() == Standing(present=(), finished=(2,))


def test_all_but_the_launchers_own_are_told_that_it_ends_the_job() -> None:
    room = founded(2, reserved=2)
    newcomer = room.hello(pid=7)
    room.deliver(room.hub.dissolve("worker 0: ValueError", own=(0, 1)))
    assert not room.has(0, Refused)
    assert room.last(newcomer, Refused).reason == (
        "the job was ended where it had been started: worker 0: ValueError"
    )


def test_a_newcomer_enters_the_smallest_team_or_that_of_whom_it_replaces() -> None:
    room = founded(
        3,
        structure=Structure(
            topology=RING,
            leader=0,
            groups=(Structure(topology=RING, leader=0, members=(0, 1)), Structure.flat((2,))),
        ),
    )
    assert [team.members for team in room.teams.active] == [(0, 1), (2,)]
    worker = room.hello(pid=77)
    room.ready(worker)
    room.tick()
    assert room.view_of(worker).members == (2, worker)
    whole = room.view_of(worker).whole
    assert whole is not None
    assert whole.team == 1


def test_a_round_fails_when_a_team_has_another_leader() -> None:
    room = founded(4, structure=PAIRS, sync="percentage(0.25)")
    for worker in (0, 2):
        room.lease(worker, 0)
    for number in (1, 2, 3):
        for worker in range(4):
            room.step_of(worker, number)
    assert room.last(3, RoundOpened).leaders == (0, 2)
    room.say(0, Leaving())
    room.tick()
    assert room.view_of(1).members == (1,)
    assert not room.last(3, RoundClosed).is_committed
    (ended,) = room.events(RoundEnded)
    assert ended.reason == "team 0 has another leader"


def test_a_team_that_leaves_gives_its_samples_back() -> None:
    room = founded()
    leases = [room.lease(worker, 0) for worker in (0, 1)]
    room.say(1, Leaving())
    room.tick()
    assert room.has(1, Dismissed)
    room.say(1, Goodbye(reason="asked to leave"))
    room.tick()
    (returned,) = room.events(LeaseReturned)
    assert (returned.start, returned.stop) == leases[1]
    assert room.view_of(0).shares == (12,)


def test_nobody_is_missed_when_the_teams_end_one_after_the_other() -> None:
    room = founded()
    through_epoch(room, 0)
    for worker in (0, 1):
        room.say(worker, Goodbye(reason="done"))
        room.tick(AWAY_S)
    assert not room.events(LeaseReturned)
    assert not [one for one in room.events(Decision) if one.what == "lose_team"]


# --- leaders that do not reach each other ---------------------------------------------------------


def answer(room: TeamRoom, worker: int, *reached: int) -> None:
    room.say(worker, Probed(number=room.last(worker, Probe).number, reached=reached))


def in_a_round() -> TeamRoom:
    """Three teams of one, all of which have used their samples and are to be merged."""
    room = founded(3)
    for worker in range(3):
        room.reach(worker, 0)
    assert room.has(0, RoundOpened)
    return room


def wait(room: TeamRoom, seconds: float) -> None:
    for worker in range(3):
        room.say(worker, Ping(sent_s=0.0))
    room.tick(seconds)


def test_a_team_whose_leader_does_not_reach_another_is_given_up_and_its_worker_enters_a_third() -> (
    None
):
    room = in_a_round()
    wait(room, 1.0)
    assert not room.has(0, Probe), "a round takes a while"
    wait(room, 1.2)
    probe = room.last(0, Probe)
    assert probe.workers == (0, 1, 2)
    for worker, reached in enumerate(((0, 2), (1, 2), (0, 1, 2))):
        assert len(room.teams.active) == 3
        answer(room, worker, *reached)
    room.tick(0.01)
    assert [team.number for team in room.teams.active] == [0, 2]
    (said,) = [one for one in room.events(Decision) if one.what == "lose_team"]
    assert "team 1 is lost: its leader does not reach worker 0" in said.reason
    assert not room.last(0, RoundClosed).is_committed
    room.say(1, Ping(sent_s=0.0))
    room.tick(0.01)
    home = room.teams.team_of(1)
    assert home is not None
    assert home.number == 2, "the one whose worker it reaches"


def test_nothing_happens_to_leaders_that_reach_each_other_and_they_are_asked_ever_more_rarely() -> (
    None
):
    room = in_a_round()
    asked = []
    for tenth in range(200):
        wait(room, 0.1)
        if room.count(0, Probe) > len(asked):
            asked.append(tenth / 10)
            for worker in range(3):
                answer(room, worker, 0, 1, 2)
    assert len(room.teams.active) == 3
    assert 3 <= len(asked) <= 4
    assert not room.has(0, RoundClosed)


def test_a_sum_that_nobody_remembers_is_answered_with_what_was_brought() -> None:
    """Its worker comes back to a call that the others made long ago; it must not wait for them."""
    room = founded()
    room.lease(0, 0)
    room.lease(1, 0)
    room.say(1, Told(epoch=0, call=3, values=(2.0, 1.0)))
    assert room.last(1, Heard).values == (2.0, 1.0)
    room.say(1, Told(epoch=1, call=1, values=(2.0, 1.0)))
    assert room.count(1, Heard) == 1, "of the next epoch it is a sum over both teams"
    room.say(0, Told(epoch=1, call=1, values=(3.0, 1.0)))
    assert room.last(1, Heard).values == (5.0, 2.0)


def test_looking_around_makes_no_snapshots_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    room = founded(3)
    asked: list[Hub] = []
    status = Hub.status
    monkeypatch.setattr(Hub, "status", lambda hub: (asked.append(hub), status(hub))[1])
    room.tick()
    assert not asked, "it is done twenty times per second, for every team"
