# SPDX-License-Identifier: Apache-2.0
"""A job is switched between in step and apart: as its coordinator sees it, and when that one dies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from federations import LENGTH, TeamRoom, founded, restart

from gangline.control.sync.autosync import STAY_S
from gangline.coordinator import federation
from gangline.coordinator.server.journal import FileJournal
from gangline.protocol.messages import EpochClosed, Failed, Measured, Ping, RoundOpened
from gangline.spec.errors import UsageError
from gangline.spec.event import Decision, SamplesLeased
from gangline.spec.sync import parse_sync

if TYPE_CHECKING:
    from pathlib import Path


def in_step(*, journal: Any = None, **ready: Any) -> TeamRoom:
    """Two workers that train in step."""
    room = TeamRoom(2, sync="full", journal=journal)
    for worker in (0, 1):
        room.hello(worker)
    for worker in (0, 1):
        room.ready(worker, **ready)
    for worker in (0, 1):
        room.step_of(worker, 0)
    return room


def meet_in_step(room: TeamRoom, offset: int) -> None:
    """Workers that were in step have come to the place at which they part."""
    for worker in (0, 1):
        room.reach(worker, offset, length=LENGTH)
    room.done(0, offset)


def test_a_job_is_not_switched_before_it_trains() -> None:
    room = TeamRoom(2, sync="full")
    room.hello(0)
    with pytest.raises(UsageError, match="cannot be switched to none now: it does not train"):
        room.hub.set_sync(parse_sync("none"))


def test_a_single_worker_cannot_part() -> None:
    room = TeamRoom(1, sync="full")
    room.hello(0)
    room.ready(0)
    with pytest.raises(UsageError, match="its workers are one group"):
        room.hub.set_sync(parse_sync("none"))


def test_what_cannot_train_apart_is_not_switched() -> None:
    room = in_step(must_stay="the order of the samples cannot be drawn")
    with pytest.raises(UsageError, match="to flexible: the order of the samples cannot be drawn"):
        room.hub.set_sync(parse_sync("flexible"))
    assert room.hub.set_sync(parse_sync("auto")) == [], "full, which it is"


def test_workers_in_step_stop_are_merged_and_part() -> None:
    room = in_step()
    room.deliver(room.hub.set_sync(parse_sync("percentage(0.5)")))
    whole = room.view_of(0).whole
    assert whole is not None, "they are a team now"
    assert room.view_of(0).members == room.view_of(1).members == (0, 1)
    for worker in (0, 1):
        room.reach(worker, 24, length=LENGTH)
    assert room.last(0, RoundOpened).leaders == (0,)
    room.done(0, 24)
    closed = room.last(1, EpochClosed)
    assert (closed.regroup, closed.is_complete) == (parse_sync("percentage(0.5)"), False)
    assert closed.teams == (whole.team,)
    assert [team.members for team in room.teams.active] == [(0,), (1,)]
    assert whole.team not in room.teams.teams
    assert room.view_of(0).members == (0,)
    assert room.lease(0, 0)[0] == 24, "what was used before is not lent again"


def test_a_worker_that_hangs_while_the_others_part_enters_a_team_when_it_speaks() -> None:
    room = TeamRoom(3, sync="full")
    for worker in range(3):
        room.hello(worker)
    for worker in range(3):
        room.ready(worker)
    for worker in range(3):
        room.step_of(worker, 0)
    room.deliver(room.hub.set_sync(parse_sync("none")))
    for _ in range(24):
        room.tick(0.5)
        for worker in (0, 2):
            room.say(worker, Ping(sent_s=0.0))
    assert room.view_of(0).members == (0, 2), "it is put out"
    for worker in (0, 2):
        room.reach(worker, 24, length=LENGTH)
    room.done(0, 24)
    assert [team.members for team in room.teams.active] == [(0,), (2,)]
    for worker in (0, 2):
        room.step_of(worker, 5)
    room.tick()
    assert [team.members for team in room.teams.active] == [(0,), (2,)], "nobody waits for it"
    room.say(1, Failed(group=0, step=1, error="aborted"))
    room.tick()
    assert room.view_of(1).members == (0, 1)


def test_teams_that_are_to_be_one_get_no_more_samples_until_they_are() -> None:
    room = founded()
    used = {worker: room.lease(worker, 0) for worker in (0, 1)}
    room.deliver(room.hub.set_sync(parse_sync("full")))
    for worker in (0, 1):
        start, stop = room.lease(worker, 1)
        assert start == stop
    for worker in (0, 1):
        start, stop = used[worker]
        room.reach(worker, stop - start)
    for worker in (0, 1):
        start, stop = used[worker]
        room.done(worker, stop - start)
    assert [team.members for team in room.teams.active] == [(0, 1)]
    assert room.view_of(1).members == (0, 1)
    (start, stop) = room.lease(0, 0)
    assert start == max(stop for _, stop in used.values())
    assert start < stop


def test_what_was_used_in_step_is_in_the_log_as_a_lease() -> None:
    room = in_step()
    room.deliver(room.hub.set_sync(parse_sync("none")))
    meet_in_step(room, 24)
    (leased,) = room.events(SamplesLeased)
    assert (leased.number, leased.start, leased.stop) == (0, 0, 24)


def test_a_switch_is_taken_back_before_it_is_made() -> None:
    room = in_step()
    room.deliver(room.hub.set_sync(parse_sync("none")))
    room.deliver(room.hub.set_sync(parse_sync("full")))
    meet_in_step(room, 24)
    assert room.last(0, EpochClosed).regroup == parse_sync("full")
    assert [team.members for team in room.teams.active] == [(0, 1)]


def test_the_other_way_of_holding_the_same_teams_stops_nobody() -> None:
    room = founded()
    room.lease(0, 0)
    room.deliver(room.hub.set_sync(parse_sync("local(3)")))
    start, stop = room.lease(0, 1)
    assert start < stop


def test_more_samples_than_the_epoch_has_are_not_believed() -> None:
    room = in_step()
    room.deliver(room.hub.set_sync(parse_sync("none")))
    with pytest.raises(UsageError, match="offset = 1000: the epoch has 10 samples"):
        room.reach(0, 1000, length=10)


@pytest.mark.parametrize("when", ["asked", "reached", "merged"])
def test_workers_part_though_the_coordinator_is_killed(tmp_path: Path, when: str) -> None:
    path = tmp_path / "journal.jsonl"
    room = in_step(journal=FileJournal(path))
    room.deliver(room.hub.set_sync(parse_sync("percentage(0.5)")))
    if when == "reached":
        for worker in (0, 1):
            room.reach(worker, 24, length=LENGTH)
    if when == "merged":
        meet_in_step(room, 24)
        views = [room.view_of(worker) for worker in (0, 1)]
    restart(room, path)
    for worker in (0, 1):
        room.hello(worker)
    if when == "merged":
        assert [room.view_of(worker) for worker in (0, 1)] == views
        assert room.last(0, EpochClosed).regroup is not None
    else:
        assert room.view_of(0).whole is not None
        meet_in_step(room, 24)
    assert [team.members for team in room.teams.active] == [(0,), (1,)]
    assert room.teams.sync == parse_sync("percentage(0.5)")
    assert room.lease(0, 0)[0] == 24


def test_teams_that_were_not_all_founded_are_founded_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    room = in_step(journal=FileJournal(path))
    room.deliver(room.hub.set_sync(parse_sync("none")))
    meet_in_step(room, 24)
    lines = path.read_bytes().splitlines(keepends=True)
    kinds = [b'"team_founded"' in line for line in lines]
    second = [i for i, is_founded in enumerate(kinds) if is_founded][-1]
    path.write_bytes(b"".join(lines[: second + 1]))
    restart(room, path)
    room.tick()
    for worker in (0, 1):
        room.hello(worker)
    assert [team.members for team in room.teams.active] == [(0,), (1,)]
    assert min(team.number for team in room.teams.active) > 2, "no number is given twice"
    assert room.lease(1, 0)[0] == 24


# --- auto --------------------------------------------------------------------------------------------


def slow_steps(room: TeamRoom, first: int, *, exchange_s: float) -> None:
    """Both workers make steps whose exchanges take so long."""
    for number in range(first, first + 24):
        for worker in (0, 1):
            view = room.view_of(worker)
            samples = view.shares[view.members.index(worker)]
            room.say(
                worker,
                Measured(
                    step=number,
                    view=view.number,
                    samples=samples,
                    compute_s=0.02,
                    exchange_s=exchange_s,
                ),
            )


def test_auto_parts_the_workers_when_exchanges_become_slow() -> None:
    room = in_step()
    assert room.hub.set_sync(parse_sync("auto")) == [], "no link is known to be slow"
    slow_steps(room, 1, exchange_s=0.002)
    room.tick(STAY_S + 1)
    assert room.view_of(0).whole is None
    slow_steps(room, 25, exchange_s=0.3)
    room.tick()
    assert room.view_of(0).whole is not None
    meet_in_step(room, 24)
    assert room.teams.sync == parse_sync("flexible")
    chosen = [one for one in room.events(Decision) if one.what == "choose_sync"]
    assert "exchange for 0.3 s" in chosen[-1].reason


def test_who_was_told_a_mode_keeps_it() -> None:
    room = in_step()
    room.hub.set_sync(parse_sync("auto"))
    room.hub.set_sync(parse_sync("full"))
    slow_steps(room, 1, exchange_s=0.3)
    room.tick(STAY_S + 1)
    assert room.view_of(0).whole is None


def test_auto_leaves_in_step_what_cannot_train_apart() -> None:
    room = in_step(must_stay="the order of the samples cannot be drawn")
    room.hub.set_sync(parse_sync("auto"))
    slow_steps(room, 1, exchange_s=0.3)
    room.tick(STAY_S + 1)
    (said,) = [one for one in room.events(Decision) if one.what == "keep_sync"]
    assert said.reason.endswith("the order of the samples cannot be drawn")
    assert room.view_of(0).whole is None


def test_auto_parts_the_workers_later_where_it_could_not_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = federation.check_can_part

    def refuse(*args: Any) -> None:
        raise UsageError("its workers are one group")

    monkeypatch.setattr(federation, "check_can_part", refuse)
    room = in_step()
    room.hub.set_sync(parse_sync("auto"))
    for attempt in range(3):
        slow_steps(room, 1 + 24 * attempt, exchange_s=0.3)
        room.tick(STAY_S + 1)
    (said,) = [one for one in room.events(Decision) if one.what == "keep_sync"]
    assert said.reason.endswith("its workers are one group"), "once, not at every try"
    assert room.view_of(0).whole is None
    monkeypatch.setattr(federation, "check_can_part", check)
    slow_steps(room, 73, exchange_s=0.3)
    room.tick(STAY_S + 1)
    assert room.view_of(0).whole is not None
