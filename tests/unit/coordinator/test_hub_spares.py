# SPDX-License-Identifier: Apache-2.0
"""Workers that were put out for being slow: what the coordinator asks of them and tells them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

sys.path.append(str(Path(__file__).parent))

from test_hub import Room

from gangline.collectives.wire.measuring import Meter
from gangline.control.stragglers.manager import GOOD_SHOWINGS
from gangline.coordinator.reports.tally import Tally
from gangline.coordinator.sanity import check_message
from gangline.protocol.messages import (
    Dismissed,
    Failed,
    FetchState,
    Goodbye,
    Measured,
    Ready,
    Refused,
    Shown,
    StateOffered,
    ViewPublished,
    Weighed,
)
from gangline.spec.errors import UsageError
from gangline.spec.faults import Fault
from gangline.worker.faults import Faults
from gangline.worker.groups.probation import Probation

ILL = 2


class Ward(Room):
    """Three workers, the last of which gets slow."""

    def __init__(self, *, is_elastic: bool = True) -> None:
        super().__init__(3)
        self.slowdown = np.ones(3)
        self.num_steps = 0
        for worker in range(3):
            self.hello(worker, is_elastic=is_elastic)
        for worker in range(3):
            self.say(
                worker,
                Ready(
                    global_batch=12,
                    minimum=1,
                    allocation="balanced",
                    shares=None,
                    max_samples=None,
                    seed=5,
                ),
            )

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.now += 1.0
            view = self.view
            for worker, share in zip(view.members, view.shares, strict=True):
                compute_s = 0.1 * share * float(self.slowdown[worker])
                self.say(
                    worker,
                    Measured(
                        step=self.num_steps, view=view.number, samples=share, compute_s=compute_s
                    ),
                )
            self.num_steps += 1
            self.tick()

    def show(self, slowdown: float, times: int = 1) -> None:
        for _ in range(times):
            self.now += 1.0
            self.say(ILL, Shown(slowdown=slowdown))
            self.tick()


def excluded() -> Ward:
    ward = Ward()
    ward.train(20)
    ward.slowdown[ILL] = 50
    ward.train(30)
    assert ward.view.members == (0, 1)
    return ward


def test_who_is_put_out_is_told_at_once_and_not_taken_in_when_its_exchange_fails() -> None:
    ward = excluded()
    told = ward.last(ILL, ViewPublished)
    assert told.is_recovery
    assert told.view.members == (0, 1)
    ward.say(ILL, Failed(group=0, step=40, error="broken off"))
    ward.tick()
    ward.train(5)
    assert ward.view.members == (0, 1)


def test_who_is_left_out_before_the_first_exchange_ends_with_the_final_state() -> None:
    ward = Ward()
    for _ in range(2):
        view = ward.view
        for worker in view.members:
            expected = Measured(
                step=0, view=view.number, samples=4, compute_s=0.1 + worker / 100, exchange_s=9.0
            )
            ward.say(worker, Weighed(expected=expected))
    assert ward.view.members == (0,)
    assert ward.last(2, ViewPublished).view.members == (0,)
    late = Measured(step=0, view=0, samples=4, compute_s=0.1, exchange_s=9.0)
    ward.say(1, Weighed(expected=late))
    assert ward.view.members == (0,), "that was of another group"
    assert all(ward.hub.mind.roster.has_trained(spare) for spare in (1, 2))


def test_a_spare_joins_again_when_it_has_shown_that_it_is_fast() -> None:
    ward = excluded()
    ward.say(ILL, Failed(group=0, step=40, error="broken off"))
    ward.show(50.0, times=4)
    assert ward.view.members == (0, 1)
    ward.slowdown[ILL] = 1
    ward.show(1.0, times=GOOD_SHOWINGS)
    assert ward.view.members == (0, 1, ILL)
    assert not ward.last(ILL, ViewPublished).is_recovery
    ward.train(40)
    assert ward.view.members == (0, 1, ILL)


def test_a_spare_is_dismissed_and_not_refused_when_the_job_ends() -> None:
    ward = excluded()
    ward.say(ILL, Failed(group=0, step=40, error="broken off"))
    for worker in (0, 1):
        ward.say(worker, Goodbye(reason="done"))
    assert ward.has(ILL, Dismissed)
    assert not ward.has(ILL, Refused)
    ward.show(1.0)
    ward.say(ILL, Failed(group=0, step=40, error="again"))
    assert not ward.has(ILL, Refused)


def test_nobody_is_put_out_when_a_transport_does_not_let_workers_go() -> None:
    ward = Ward(is_elastic=False)
    ward.train(20)
    ward.slowdown[ILL] = 50
    ward.train(60)
    assert ward.view.members == (0, 1, ILL)


def test_what_is_shown_before_there_is_a_view_means_nothing() -> None:
    room = Room(1)
    room.hello(0)
    room.say(0, Shown(slowdown=2.0))


@pytest.mark.parametrize(
    "message",
    [
        Shown(slowdown=0.0),
        Shown(slowdown=float("nan")),
        Measured(step=0, view=0, samples=1, compute_s=1.0, hops=((-1, 1.0),)),
        Measured(step=0, view=0, samples=1, compute_s=1.0, hops=((1, float("inf")),)),
        Weighed(expected=Measured(step=0, view=0, samples=1, compute_s=1.0, exchange_s=-1.0)),
    ],
)
def test_what_no_worker_can_mean_is_refused(message: Any) -> None:
    with pytest.raises(UsageError, match="no worker can mean that"):
        check_message(message)


# --- what is measured --------------------------------------------------------------------------------


def measured(worker: int, *hops: tuple[int, float]) -> Measured:
    return Measured(step=0, view=0, samples=1, compute_s=float(worker), hops=hops)


def test_only_who_has_no_fast_hop_has_a_slow_one() -> None:
    tally = Tally((5, 6, 7, 8))
    # A ring: each sends to the next; the links to and from rank 2 are slow.
    told = [
        *tally.add(5, measured(5, (1, 0.01)), 10.0),
        *tally.add(6, measured(6, (2, 0.9)), 10.1),
        *tally.add(7, measured(7, (3, 0.8)), 12.0),
        *tally.add(8, measured(8, (0, 0.02)), 10.2),
    ]
    (step,) = told
    assert step.hop_s is not None
    assert step.hop_s.tolist() == [0.01, 0.01, 0.8, 0.02]
    assert step.delay_s is not None
    assert step.delay_s.tolist() == pytest.approx([0.0, 0.1, 2.0, 0.2])


def test_hops_of_nobody_and_to_nobody_are_left_out() -> None:
    for hops in ([(3, 0.5)], []):
        (step,) = Tally((5,)).add(5, measured(5, *hops), 0.0)
        assert step.hop_s is None


def test_a_meter_says_what_a_way_carries_while_it_is_busy() -> None:
    meter = Meter()
    meter.flowed(1000, 1.0)
    assert meter.stats(0).flow_bytes_per_s == 0, "too little to tell"
    meter.flowed(1_000_000, 0.1)
    assert meter.stats(0).flow_bytes_per_s == pytest.approx(1e7)
    meter.flowed(2_000_000, 1.1)
    assert meter.stats(0).flow_bytes_per_s == pytest.approx(0.7e7), "the best fades"
    meter.flowed(2_000_000, 1.1)
    meter.flowed(9_000_000_000, 1.2)
    assert meter.stats(0).flow_bytes_per_s == 1.25e9, "memory is no link"


def test_a_worker_that_is_slow_on_purpose_shows_it_for_as_many_times_as_it_has_steps_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Probation(Faults(), []).measure() > 0
    monkeypatch.setattr(Probation, "_time_once", lambda probation: 0.5)
    faults = Faults([Fault(worker=0, kind="slow", step=3, to=0.01, for_steps=4)])
    probation = Probation(faults, [nn.Linear(2, 2)])
    assert probation.measure() == 1.0
    faults.reach("forward", 3)
    assert [probation.measure() for _ in range(5)] == [100.0] * 4 + [1.0]
    faults.close()


def test_the_status_says_who_is_a_spare() -> None:
    ward = excluded()
    assert [worker.state for worker in ward.hub.status().workers][ILL] == "spare"
    ward.slowdown[ILL] = 1
    ward.show(1.0, times=GOOD_SHOWINGS)
    ward.train(3)
    assert [worker.state for worker in ward.hub.status().workers][ILL] == "training"


def test_members_learn_where_the_spares_are_and_spares_who_has_the_state() -> None:
    ward = excluded()
    published = ward.last(0, ViewPublished)
    assert set(published.spares) == {ILL}
    offer = StateOffered(step=60, spares=(ILL, 77))
    check_message(offer)
    ward.say(0, offer)
    fetch = ward.last(ILL, FetchState)
    assert (fetch.source, fetch.step) == (0, 60)
    assert not ward.has(1, FetchState)
    ward.say(ILL, offer)
    assert ward.last(ILL, FetchState) is fetch, "who is no member has nothing to offer"


def test_nobody_is_asked_to_fetch_a_state_who_is_gone() -> None:
    ward = excluded()
    ward.hub.disconnect(ILL)
    ward.say(0, StateOffered(step=60, spares=(ILL,)))
    assert not ward.has(ILL, FetchState)


def test_a_member_cannot_offer_to_more_workers_than_there_can_be() -> None:
    with pytest.raises(UsageError, match="step"):
        check_message(StateOffered(step=-1, spares=()))
