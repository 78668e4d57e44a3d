# SPDX-License-Identifier: Apache-2.0
"""Who is lost, by what was seen: the watch by itself, and in the hub, without sockets or waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gangline.control.members.watch import (
    BUSY_FACTOR,
    GRACE_S,
    MAX_PATIENCE_S,
    MIN_PATIENCE_S,
    PATIENCE_STEPS,
    STALL_EXCHANGES,
    STALL_S,
    Watch,
)
from gangline.coordinator.hub import Hub
from gangline.coordinator.settings import Settings
from gangline.eventlog import NullWriter
from gangline.protocol.messages import (
    PROTOCOL_VERSION,
    Failed,
    Hello,
    Measured,
    Ping,
    Ready,
    ViewPublished,
)
from gangline.spec.exchange.address import WireAddress

if TYPE_CHECKING:
    from gangline.coordinator.outgoing import Outgoing

SOON = GRACE_S + 0.01


def lost(watch: Watch, now: float) -> tuple[int, ...] | None:
    found = watch.find_lost(now)
    return None if found is None else found[0]


# --- the watch ------------------------------------------------------------------------------------


def test_nobody_is_lost_while_all_is_well() -> None:
    watch = Watch((0, 1), 0.0)
    watch.report_step(1.0, step=0)
    assert watch.find_lost(1.5) is None


def test_a_lost_connection_alone_is_nobodys_business_while_steps_are_made() -> None:
    watch = Watch((0, 1), 0.0)
    watch.report_step(0.1, step=0)
    watch.lose_connection(1, 0.2)
    for tenth in range(1, 100):
        watch.report_step(tenth / 10, step=tenth)
        watch.hear(0, tenth / 10)
        assert watch.find_lost(tenth / 10) is None


def test_who_is_away_is_lost_at_once_when_an_exchange_failed() -> None:
    watch = Watch((0, 1, 2), 0.0)
    watch.report_step(0.1, step=0)
    watch.report_failure(0, "peer 1 closed", 0.2)
    assert watch.find_lost(0.2) is None, "its connection may end a moment later"
    watch.lose_connection(1, 0.21)
    found = watch.find_lost(0.21)
    assert found == ((1,), "worker 1 is gone: its connection ended and an exchange failed")


def test_who_is_away_but_said_that_an_exchange_failed_is_not_blamed() -> None:
    watch = Watch((0, 1, 2), 0.0)
    watch.report_failure(0, "broken", 0.1)
    watch.lose_connection(0, 0.2)
    assert lost(watch, 0.2) is None
    assert lost(watch, 0.1 + SOON) == ()


def test_the_group_is_made_anew_when_nobody_is_missing() -> None:
    watch = Watch((0, 1), 0.0)
    watch.report_failure(1, "the link broke", 1.0)
    assert watch.find_lost(1.0 + GRACE_S / 2) is None
    found = watch.find_lost(1.0 + SOON)
    assert found == ((), "worker 1 reports a failed exchange, nobody is missing (the link broke)")


def test_the_group_is_made_anew_at_once_when_everybody_reports_a_failure() -> None:
    watch = Watch((0, 1), 0.0)
    watch.report_failure(1, "x", 1.0)
    watch.report_failure(0, "y", 1.0)
    assert lost(watch, 1.0) == ()


def test_who_comes_back_is_not_away() -> None:
    watch = Watch((0, 1), 0.0)
    watch.lose_connection(1, 0.1)
    watch.hear(1, 0.2)
    watch.report_failure(0, "x", 0.3)
    assert lost(watch, 0.3 + SOON) == ()


def test_who_is_away_is_lost_soon_when_the_group_has_not_begun() -> None:
    """The others wait for it to come: nobody can say that an exchange failed."""
    watch = Watch((0, 1), 0.0)
    watch.lose_connection(1, 0.0)
    assert watch.find_lost(GRACE_S / 2) is None
    found = watch.find_lost(SOON)
    assert found == ((1,), "worker 1 is gone: its connection ended before the group's first step")


def test_nobody_is_lost_when_all_are_away() -> None:
    watch = Watch((0, 1), 0.0)
    watch.lose_connection(0, 0.0)
    watch.lose_connection(1, 0.0)
    assert watch.find_lost(1.0) is None
    assert watch.find_lost(100.0) is None


def test_a_group_that_has_trained_before_is_not_taken_for_a_new_one() -> None:
    watch = Watch((0, 1), 0.0, has_stepped=True)
    watch.lose_connection(1, 0.0)
    assert watch.find_lost(1.0) is None


def test_who_is_silent_is_lost_when_the_others_wait() -> None:
    watch = Watch((0, 1), 0.0)
    watch.report_step(0.1, step=0)
    watch.hear(0, 2.0)
    assert watch.find_lost(0.1 + MIN_PATIENCE_S - 0.01) is None
    found = watch.find_lost(0.2 + MIN_PATIENCE_S)
    assert found is not None
    assert found[0] == (1,)
    assert found[1].startswith("worker 1 silent for more than 2.0 s while the others wait (no step")


def test_who_is_silent_but_busy_is_waited_for_much_longer_and_not_for_ever() -> None:
    watch = Watch((0, 1), 0.0)
    watch.report_step(0.1, step=0)
    limit_s = BUSY_FACTOR * MIN_PATIENCE_S
    for tenth in range(1, int(limit_s * 10)):
        watch.hear(1, tenth / 10)
        watch.see_busy(0, tenth / 10)
        assert watch.find_lost(tenth / 10) is None
    watch.hear(1, limit_s + 0.2)
    watch.see_busy(0, limit_s + 0.2)
    assert watch.find_lost(limit_s + 0.2) is not None


def test_who_was_busy_and_is_so_no_more_is_lost() -> None:
    watch = Watch((0, 1), 0.0)
    watch.report_step(0.1, step=0)
    watch.see_busy(0, 5.0)
    watch.hear(1, 6.0)
    assert watch.find_lost(6.0) is None
    watch.hear(1, 7.5)
    found = watch.find_lost(7.5)
    assert found is not None
    assert found[0] == (0,)


def test_the_patience_can_be_given_and_goes_over_to_the_next_group() -> None:
    watch = Watch((0, 1, 2), 0.0, patience_s=8.0).succeed((0, 1), 0.0)
    watch.report_step(0.1, step=0)
    watch.hear(1, 7.9)
    assert watch.find_lost(7.9) is None
    watch.hear(1, 8.5)
    assert watch.find_lost(8.5) is not None


def test_nobody_is_lost_for_silence_while_steps_are_made() -> None:
    watch = Watch((0, 1), 0.0)
    watch.hear(0, 60.0)
    watch.report_step(60.0, step=0)
    assert watch.find_lost(60.5) is None


def test_the_patience_follows_the_usual_step() -> None:
    watch = Watch((0, 1), 0.0)
    assert watch.patience_s == 5 * MIN_PATIENCE_S, "nothing is known of the first step"
    for number in range(1, 20):
        watch.report_step(number * 3.0, step=number)
    assert watch.patience_s == 15.0
    for number in range(1, 20):
        watch.report_step(57.0 + number * 40.0, step=19 + number)
    assert watch.patience_s == MAX_PATIENCE_S


def test_strangers_are_not_watched() -> None:
    watch = Watch((0, 1), 0.0)
    watch.hear(7, 1.0)
    watch.lose_connection(7, 1.0)
    watch.report_failure(7, "x", 1.0)
    assert watch.find_lost(1.9) is None


# --- in the hub -----------------------------------------------------------------------------------


class Job:
    """A hub with workers that are only names, and a clock that stands still."""

    def __init__(self, workers: int) -> None:
        self.now = 100.0
        self.hub = Hub(
            Settings(run="r", expected_workers=workers),
            events=NullWriter(),
            clock=lambda: self.now,
        )
        for worker in range(workers):
            self.hub.connect(hello(worker))
        for worker in range(workers):
            published = self.hub.receive(worker, READY)
        self.views = views_in(published)
        for worker in range(workers):
            self.step(worker, 0)

    def step(self, worker: int, number: int) -> None:
        report = Measured(step=number, view=self.views[-1].view.number, samples=2, compute_s=0.1)
        self.take(self.hub.receive(worker, report))

    def fail(self, worker: int, *, group: int | None = None) -> None:
        number = self.views[-1].view.group if group is None else group
        self.take(self.hub.receive(worker, Failed(group=number, step=1, error="peer closed")))

    def take(self, outgoing: list[Outgoing]) -> None:
        for view in views_in(outgoing):
            if view.view.number > self.views[-1].view.number:
                self.views.append(view)

    def wait(self, duration_s: float, *, alive: tuple[int, ...] = ()) -> None:
        self.now += duration_s
        for worker in alive:
            self.hub.receive(worker, Ping(sent_s=0.0))
        self.take(self.hub.tick())

    @property
    def members(self) -> tuple[int, ...]:
        return self.views[-1].view.members


READY = Ready(global_batch=8, minimum=1, allocation="equal", shares=None, max_samples=None, seed=1)


def hello(worker: int) -> Hello:
    return Hello(
        protocol=PROTOCOL_VERSION,
        run="r",
        worker=worker,
        host="h",
        pid=1000 + worker,
        address=WireAddress(host="127.0.0.1", port=2000 + worker),
    )


def views_in(outgoing: list[Outgoing]) -> list[ViewPublished]:
    return [one.message for one in outgoing if isinstance(one.message, ViewPublished)][:1]


def test_the_survivors_get_a_view_when_a_worker_is_gone() -> None:
    job = Job(3)
    job.hub.disconnect(1)
    job.fail(0)
    assert job.members == (0, 2)
    assert job.views[-1].is_recovery
    assert sum(job.views[-1].view.shares) == 8
    assert job.views[-1].view.group == 1


def test_a_second_report_of_the_same_failure_changes_nothing() -> None:
    job = Job(3)
    job.hub.disconnect(1)
    job.fail(0)
    before = len(job.views)
    job.fail(2, group=0)
    assert len(job.views) == before


def test_both_are_put_out_in_a_moment_when_two_are_gone() -> None:
    """The second one's end is seen before the new group is made; the new watch must know of it."""
    job = Job(4)
    job.hub.disconnect(1)
    job.fail(0)
    job.hub.disconnect(2)
    job.wait(SOON)
    assert job.members == (0, 3)


def test_who_was_away_before_the_new_view_is_put_out_soon() -> None:
    job = Job(3)
    job.fail(0)
    job.fail(1)
    job.fail(2)  # nobody is missing: the group is made anew
    assert job.members == (0, 1, 2)
    job.hub.disconnect(2)
    job.wait(SOON)
    assert job.members == (0, 1)


def test_a_hung_worker_is_put_out_and_taken_in_again() -> None:
    job = Job(3)
    job.wait(5 * MIN_PATIENCE_S + 1, alive=(0, 2))
    assert job.members == (0, 2)
    for worker in (0, 2):
        job.step(worker, 1)
    job.fail(1, group=0)
    job.wait(0.1)
    assert set(job.members) == {0, 1, 2}
    assert not job.views[-1].is_recovery, "the others go on until the agreed step"


def test_the_patience_follows_the_steps_and_not_how_many_report_them() -> None:
    watch = Watch((0, 1, 2), 0.0)
    for step in range(16):
        for worker in range(3):
            watch.report_step(4.0 * (step + 1) + 0.001 * worker, step=step)
    assert watch.patience_s == pytest.approx(min(PATIENCE_STEPS * 4.0, MAX_PATIENCE_S), rel=0.01)


# --- all wait for each other ------------------------------------------------------------------------


def stalled(*, step_s: float, exchange_s: float) -> Watch:
    """A group that has trained, and whose members are in an exchange since second 0."""
    watch = Watch((0, 1), -20 * step_s)
    for step in range(20):
        for worker in (0, 1):
            # The first one waits for the second, which computes for longer.
            waited_s = exchange_s + (step_s / 2 if worker == 0 else 0.0)
            watch.report_step(-(20 - step) * step_s, step=step, exchange_s=waited_s)
    for worker in (0, 1):
        watch.report_waiting(worker, 0.25, 0.25)
    return watch


def test_members_that_all_wait_are_asked_soon_however_long_their_steps_take() -> None:
    watch = stalled(step_s=3.0, exchange_s=0.1)
    assert watch.patience_s > 10.0
    assert watch.find_stall(STALL_S - 0.1) is None
    assert watch.find_stall(STALL_S + 0.1) is not None
    assert watch.find_stall(STALL_S + 0.2) is None, "again only after twice the time"
    assert watch.find_stall(2 * STALL_S + 0.3) is not None


def test_members_that_usually_exchange_for_long_are_asked_later() -> None:
    watch = stalled(step_s=3.0, exchange_s=2.0)
    assert watch.find_stall(STALL_S + 0.1) is None
    assert watch.find_stall(STALL_EXCHANGES * 2.0 + 0.1) is not None


def test_an_exchange_that_took_long_once_is_forgotten_when_steps_are_made_again() -> None:
    watch = stalled(step_s=0.1, exchange_s=0.01)
    asked = [second for second in range(1, 40) if watch.find_stall(float(second))]
    assert len(asked) > 3
    for step in range(20, 30):
        watch.report_step(40.0 + step, step=step)
    for worker in (0, 1):
        watch.report_waiting(worker, STALL_S + 0.1, 100.0)
    assert watch.find_stall(100.0) is not None
