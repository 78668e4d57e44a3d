# SPDX-License-Identifier: Apache-2.0
"""Teams as the coordinator holds them together, without sockets: messages in, messages out."""

from __future__ import annotations

import msgspec
import pytest
from federations import LENGTH, PAIRS, TeamRoom, founded, lose_worker, through_epoch

from gangline.protocol.messages import (
    EpochClosed,
    Heard,
    LeaseAsked,
    LeaseGranted,
    Measured,
    Reached,
    Refused,
    RoundClosed,
    RoundFailed,
    RoundOpened,
    Told,
)
from gangline.protocol.status import ReplanRequest
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision, RoundEnded, SamplesLeased
from gangline.spec.exchange.structure import RING, Structure
from gangline.spec.sync import parse_sync
from gangline.spec.view import Whole

# --- founding ----------------------------------------------------------------------------------------


def test_without_a_structure_every_worker_is_a_team() -> None:
    room = founded(3)
    assert [team.members for team in room.teams.active] == [(0,), (1,), (2,)]
    assert [room.view_of(worker).whole for worker in range(3)] == [
        Whole(team=number, first_rank=number, workers=3, first_sample=4 * number, samples=12)
        for number in range(3)
    ]
    assert [room.view_of(worker).shares for worker in range(3)] == [(4,)] * 3


def test_the_groups_of_a_structure_are_teams() -> None:
    room = founded(4, structure=PAIRS)
    assert [team.members for team in room.teams.active] == [(0, 1), (2, 3)]
    assert room.view_of(3).whole == Whole(
        team=1, first_rank=2, workers=4, first_sample=6, samples=12
    )
    assert room.view_of(3).shares == (3, 3)


def test_two_synchronous_levels_make_larger_teams() -> None:
    four = Structure(
        topology=RING,
        leader=0,
        groups=(PAIRS, Structure(topology=RING, leader=4, members=(4, 5))),
    )
    room = founded(6, structure=four, sync="full/none")
    assert [team.members for team in room.teams.active] == [(0, 1, 2, 3), (4, 5)]
    assert room.view_of(0).structure == PAIRS
    assert room.view_of(4).structure is None


def test_given_shares_are_the_teams_first_parts() -> None:
    room = TeamRoom(2)
    for worker in (0, 1):
        room.hello(worker)
    for worker in (0, 1):
        room.ready(worker, shares=(1.0, 3.0))
    assert [room.view_of(worker).shares for worker in (0, 1)] == [(3,), (9,)]


def test_a_batch_that_is_too_small_for_the_teams_is_refused() -> None:
    room = TeamRoom(2)
    for worker in (0, 1):
        room.hello(worker)
    for worker in (0, 1):
        room.ready(worker, global_batch=3, minimum=2)
    for worker in (0, 1):
        assert (
            "a global batch of 3 cannot be divided among 2 teams"
            in room.last(worker, Refused).reason
        )


def test_a_job_that_is_full_has_no_teams() -> None:
    room = TeamRoom(2, sync="full")
    for worker in (0, 1):
        room.hello(worker)
    for worker in (0, 1):
        room.ready(worker)
    assert room.view.members == (0, 1)
    assert room.view.whole is None
    with pytest.raises(UsageError, match="speaks for a team, and this job has none"):
        room.say(0, LeaseAsked(epoch=0, number=0, length=LENGTH))


def test_people_see_one_view_of_all_teams() -> None:
    room = founded(4, structure=PAIRS)
    status = room.hub.status()
    assert status.view.members == (0, 1, 2, 3)
    assert status.view.shares == (3, 3, 3, 3)
    assert status.view.reason == "2 teams, held together by none"
    assert [one.worker for one in status.workers] == [0, 1, 2, 3]


# --- samples -----------------------------------------------------------------------------------------


def test_teams_lease_different_samples_and_members_the_same() -> None:
    room = founded(4, structure=PAIRS)
    first = room.lease(0, 0)
    assert room.last(1, LeaseGranted) == room.last(0, LeaseGranted)
    assert room.lease(1, 0) == first
    second = room.lease(2, 0)
    assert first == (0, 24)
    assert second[0] == 24
    assert [(one.team, one.start, one.stop) for one in room.events(SamplesLeased)] == [
        (0, *first),
        (1, *second),
    ]


def test_the_next_epochs_samples_are_there_when_all_of_this_one_are_merged() -> None:
    room = founded()
    through_epoch(room, 0)
    assert room.lease(0, 0, epoch=1)[0] == 0
    room.told.clear()
    room.say(1, LeaseAsked(epoch=0, number=0, length=LENGTH))
    assert not room.told, "what is asked of an epoch that is over is nobody's"


# --- rounds ------------------------------------------------------------------------------------------


def test_a_member_that_has_not_heard_of_the_end_of_an_epoch_does_not_end_the_next_one() -> None:
    """It says anew that it waits, because its wait was broken off."""
    room = founded()
    through_epoch(room, 0)
    number = room.last(0, RoundOpened).number
    room.say(0, Reached(epoch=0, offset=48, step=4, is_end=True, after=number, closing=-1))
    room.lease(0, 0, epoch=1)
    room.told.clear()
    room.reach(1, 0, epoch=1)
    assert not room.has(1, RoundOpened)


def test_an_epoch_ends_when_all_teams_have_met_and_are_merged() -> None:
    room = founded()
    used = through_epoch(room, 0)
    assert sum(used.values()) == LENGTH
    closed = room.last(1, EpochClosed)
    assert closed.is_complete
    assert closed.step == 11, "the furthest team's: steps are numbered alike again"
    assert room.last(0, RoundClosed).is_committed
    (ended,) = room.events(RoundEnded)
    assert ended.is_whole
    assert ended.offsets == {str(worker): offset for worker, offset in used.items()}


def test_a_round_in_the_background_is_opened_by_samples_and_closed_when_all_hold_it() -> None:
    room = founded(sync="percentage(0.5)")
    for worker in (0, 1):
        room.lease(worker, 0)
    assert not room.has(0, RoundOpened)
    room.step_of(0, 1)
    room.step_of(1, 1)
    opened = room.last(0, RoundOpened)
    assert opened == room.last(1, RoundOpened)
    assert (opened.number, opened.leaders, opened.is_whole) == (0, (0, 1), False)
    room.done(0, 12)
    assert not room.has(0, RoundClosed)
    room.done(1, 6)
    assert room.last(0, RoundClosed) == room.last(1, RoundClosed)
    assert room.last(0, RoundClosed).is_committed
    for number in (2, 3):
        room.step_of(0, number)
        room.step_of(1, number)
    again = room.last(0, RoundOpened)
    assert (again.number, again.group) == (1, opened.group), "the leaders keep their connections"


def test_a_round_that_failed_counts_nothing_and_its_leaders_connect_anew() -> None:
    room = founded(sync="percentage(0.5)")
    for worker in (0, 1):
        room.lease(worker, 0)
        room.step_of(worker, 1)
    first = room.last(0, RoundOpened)
    room.done(0, 12)
    room.say(1, RoundFailed(number=first.number, error="the line broke"))
    assert not room.last(0, RoundClosed).is_committed
    (ended,) = room.events(RoundEnded)
    assert ended.reason == "team 1: the line broke"
    assert room.teams.lending.book.num_committed == 0
    for number in (2, 3):
        room.step_of(0, number)
        room.step_of(1, number)
    second = room.last(0, RoundOpened)
    assert second.number == first.number + 1
    assert second.group != first.group
    room.say(0, RoundFailed(number=first.number, error="late"))
    assert not room.last(0, RoundClosed).is_committed
    assert len(room.events(RoundEnded)) == 1, "what is said of a round that is over is not heard"


def test_a_round_of_teams_in_different_epochs_counts_nothing() -> None:
    room = founded(sync="percentage(0.5)")
    for worker in (0, 1):
        room.lease(worker, 0)
        room.step_of(worker, 1)
    room.done(0, 12)
    room.done(1, 12, epoch=3)
    assert not room.last(0, RoundClosed).is_committed
    (ended,) = room.events(RoundEnded)
    assert ended.reason == "team 1 is in epoch 3, not 0"


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (LeaseAsked(epoch=1, number=0, length=LENGTH), "72 samples of epoch 0 are not merged yet"),
        (LeaseAsked(epoch=0, number=0, length=LENGTH + 1), "epoch 0 has 96 samples"),
    ],
)
def test_what_no_team_can_ask_for_is_refused(lie: LeaseAsked, reason: str) -> None:
    room = founded()
    room.lease(0, 0)
    room.teams.lending.book.commit(0, 24)
    with pytest.raises(UsageError, match=reason):
        room.say(1, lie)
    room.told.clear()
    room.say(1, LeaseAsked(epoch=0, number=5, length=LENGTH))
    assert not room.told, "leases are given in order"


def test_a_team_cannot_make_the_steps_jump() -> None:
    room = founded()
    through_epoch(room, 0)
    with pytest.raises(UsageError, match="the epoch began with step 11 and has 96 samples"):
        room.reach(0, 0, epoch=1, step=10**9)


def test_teams_that_stop_are_merged_and_go_on_in_the_same_epoch() -> None:
    room = founded(sync="local(2, strict)")
    for worker in (0, 1):
        room.lease(worker, 0)
    room.reach(0, 12, step=2, is_end=False)
    assert not room.has(0, RoundOpened)
    room.reach(1, 12, step=2, is_end=False)
    assert room.last(0, RoundOpened).is_whole
    for worker in (0, 1):
        room.done(worker, 12)
    assert room.last(0, RoundClosed).is_committed
    assert not room.has(0, EpochClosed)
    assert all(team.reached is None for team in room.teams.active)


def test_a_team_at_its_end_waits_while_another_goes_on() -> None:
    room = founded(sync="local(2, strict)")
    for worker in (0, 1):
        room.lease(worker, 0)
    room.reach(0, 24, step=9)
    room.reach(1, 12, step=2, is_end=False)
    for worker, offset in ((0, 24), (1, 12)):
        room.done(worker, offset)
    ended, going_on = room.teams.active
    assert ended.reached is not None
    assert going_on.reached is None
    assert not room.has(0, EpochClosed)


def test_a_team_that_goes_on_beside_its_merge_is_not_waited_for() -> None:
    room = founded(sync="local(2)")
    for worker in (0, 1):
        room.lease(worker, 0)
    before = Reached(epoch=0, offset=12, step=2, is_end=False, after=-1)
    room.say(0, before)
    opened = room.last(1, RoundOpened)
    assert (opened.number, opened.is_whole) == (0, False)
    assert all(team.reached is None for team in room.teams.active)
    room.say(1, before)
    assert room.last(1, RoundOpened) == opened, "it is in the round that is open"
    for worker in (0, 1):
        room.done(worker, 12)
    assert room.last(0, RoundClosed).is_committed
    assert all(team.reached is None for team in room.teams.active)


def test_a_team_at_its_end_is_merged_with_others_that_wait_for_it() -> None:
    room = founded(sync="local(50)")
    for worker in (0, 1):
        room.lease(worker, 0)
    room.reach(0, 24, step=9)
    room.reach(1, 12, step=2, is_end=False)
    assert room.last(1, RoundOpened).is_whole, "nothing can be opened beside the end of an epoch"
    for worker, offset in ((0, 24), (1, 12)):
        room.done(worker, offset)
    ended, going_on = room.teams.active
    assert ended.reached is not None
    assert going_on.reached is None


def test_who_reports_a_step_waits_for_nobody() -> None:
    room = founded(sync="local(2, strict)")
    for worker in (0, 1):
        room.lease(worker, 0)
    room.reach(0, 12, step=2, is_end=False)
    team = room.teams.team_of(0)
    assert team is not None
    report = Measured(step=1, view=0, samples=6, compute_s=0.1)
    room.teams.note(team, report)
    assert team.reached is not None, "that was the step before"
    room.teams.note(team, msgspec.structs.replace(report, step=2))
    assert team.reached is None


def test_another_mode_is_told_with_the_next_round() -> None:
    room = founded()
    for worker in (0, 1):
        room.lease(worker, 0)
    room.deliver(room.hub.set_sync(parse_sync("percentage(0.5)")))
    assert room.has(0, RoundOpened), "a round is opened to tell it"
    for worker in (0, 1):
        room.done(worker, 6)
    assert room.last(1, RoundClosed).sync == parse_sync("percentage(0.5)")
    (said,) = [one for one in room.events(Decision) if one.what == "set_sync"]
    assert said.reason == "held together by none, from here on by percentage(0.5)"


def test_the_structure_stays_while_teams_train() -> None:
    room = founded(4, structure=PAIRS)
    with pytest.raises(UsageError, match="its structure stays as it is while it runs"):
        room.hub.ask_structure(ReplanRequest())


def test_who_says_again_that_it_waited_is_not_waited_for() -> None:
    room = founded(sync="local(2, strict)")
    for worker in (0, 1):
        room.lease(worker, 0)
    waited = [Reached(epoch=0, offset=12, step=2, is_end=False) for _ in (0, 1)]
    for worker in (0, 1):
        room.say(worker, waited[worker])
    for worker in (0, 1):
        room.done(worker, 12)
    room.say(1, waited[1])
    assert all(team.reached is None for team in room.teams.active)
    room.reach(1, 24, step=4, is_end=False)
    assert room.teams.active[1].reached is not None


# --- sums --------------------------------------------------------------------------------------------


def test_what_all_teams_tell_is_added_up_once() -> None:
    room = founded(4, structure=PAIRS)
    room.say(0, Told(epoch=1, call=0, values=(1.0, 2.0)))
    room.say(1, Told(epoch=1, call=0, values=(1.0, 2.0)))
    assert not room.has(0, Heard)
    room.say(2, Told(epoch=1, call=0, values=(3.0, 4.0)))
    assert [room.last(worker, Heard).values for worker in range(4)] == [(4.0, 6.0)] * 4
    room.say(3, Told(epoch=1, call=0, values=(3.0, 4.0)))
    assert room.count(0, Heard) == 1
    assert room.last(3, Heard).values == (4.0, 6.0)


def test_a_sum_does_not_wait_for_a_team_that_is_lost() -> None:
    room = founded(3)
    for worker in (0, 1):
        room.say(worker, Told(epoch=1, call=0, values=(1.0,)))
    lose_worker(room, 2)
    assert room.last(0, Heard).values == (2.0,)
