# SPDX-License-Identifier: Apache-2.0
"""Simulated teams train at their own pace: who waits for whom, and how often they are merged."""

from __future__ import annotations

from itertools import pairwise

import pytest
from team_scenarios import MODES, run_teams, two_sites

from gangline.control import ControlOptions
from gangline.simulation import Course, simulate
from gangline.simulation.links import Spell
from gangline.spec.errors import UsageError
from gangline.spec.event import EpochDone, RoundEnded, StepDone


def rounds(events, *, is_whole=False):
    found = [event for event in events if isinstance(event, RoundEnded) and event.is_committed]
    return [event for event in found if event.is_whole is is_whole]


def pauses_of(events, worker):
    """The times between a worker's steps, within each epoch."""
    steps = [event for event in events if isinstance(event, StepDone) and event.worker == worker]
    return [
        late.t - early.t - late.compute_s - late.exchange_s
        for early, late in pairwise(steps)
        if late.epoch == early.epoch
    ]


@pytest.mark.parametrize("mode", ["none", "percentage(0.2)", "flexible"])
def test_nobody_waits_for_a_slower_team_within_an_epoch(mode):
    scenario = two_sites(speed=0.1, bytes_per_s=1e5)
    result, events = run_teams(scenario, mode, samples=20000, epochs=2)
    ends = {event.t for event in events if isinstance(event, EpochDone)}
    assert len(ends) >= 2
    if mode != "none":
        assert rounds(events)
        assert max(event.exchange_s for event in rounds(events)) > 1.0
    # A merge keeps a team from computing for as long as it copies, not for as long as bytes travel.
    assert max(pauses_of(events, 0)) < 0.05
    assert result.waited_s > 0


def test_teams_wait_for_each_other_when_they_stop_to_be_merged():
    _, events = run_teams(
        two_sites(speed=0.1, bytes_per_s=1e5), "local(4, strict)", samples=4000, epochs=1
    )
    assert not rounds(events)
    assert max(pauses_of(events, 0)) > 1.0


def test_teams_go_on_beside_a_merge_of_every_so_many_steps():
    _, strict = run_teams(two_sites(bytes_per_s=1e6), "local(8, strict)", samples=8000, epochs=1)
    _, beside = run_teams(two_sites(bytes_per_s=1e6), "local(8)", samples=8000, epochs=1)
    merged, stopped = rounds(beside), rounds(strict, is_whole=True)
    assert len(merged) >= len(stopped) - 2, "as many merges"
    assert beside[-1].t < 0.95 * strict[-1].t, "nobody waits for them"
    steps = [e for e in beside if isinstance(e, StepDone) and e.team == 0 and e.worker == 0]
    ends = {step.stop: number for number, step in enumerate(steps, 1)}
    copied = [ends[one.offsets["0"]] for one in merged]
    assert copied[:4] == [8, 16, 24, 32], "each after eight steps"


def test_all_teams_begin_an_epoch_together():
    _, events = run_teams(two_sites(speed=0.2), "none", samples=8000, epochs=3)
    assert len(rounds(events, is_whole=True)) == 3
    ends = [max(e.t for e in events if isinstance(e, EpochDone) and e.epoch == i) for i in range(3)]
    for epoch, end in enumerate(ends[:2]):
        later = [e for e in events if isinstance(e, StepDone) and e.epoch == epoch + 1]
        assert min(event.t - event.compute_s for event in later) > end - 0.01


def test_merges_follow_the_percentage():
    _, often = run_teams(two_sites(bytes_per_s=None), "percentage(0.1)", samples=25600, epochs=1)
    _, seldom = run_teams(two_sites(bytes_per_s=None), "percentage(0.02)", samples=25600, epochs=1)
    assert 15 <= len(rounds(often)) <= 20  # of 200 global batches, without those at the end
    assert 3 <= len(rounds(seldom)) <= 4


def test_flexible_follows_a_link_that_becomes_slower_and_recovers():
    spell = Spell(from_s=10.0, to_s=40.0, factor=10.0)
    scenario = two_sites(
        spells=(spell,), bytes_per_s=1e6, per_sample_s=0.002, update_s=0.0, merge_s=0.002
    )
    _, events = run_teams(scenario, "flexible", samples=120_000, epochs=1)
    found = rounds(events)
    before = [e.interval_s for e in found if e.t < 10][-1]
    during = [e.interval_s for e in found if 10 < e.t < 40]
    after = [e.interval_s for e in found if e.t > 40]
    assert during[-1] > 4 * before
    assert next(i for i, seconds in enumerate(during) if seconds > 4 * before) <= 3
    assert next(i for i, seconds in enumerate(after) if seconds < 2 * before) <= 4


def test_full_waits_for_a_slow_link_and_flexible_does_not():
    scenario = two_sites(bytes_per_s=2e6)
    options = ControlOptions(global_batch=128, may_exclude=False)
    full = simulate(scenario, options=options, steps=189, course=Course(samples=8000))
    relaxed, _ = run_teams(scenario, "flexible", samples=8000, epochs=3)
    fast, _ = run_teams(two_sites(bytes_per_s=None), "flexible", samples=8000, epochs=3)
    assert full.wall_s > 5 * relaxed.wall_s
    assert relaxed.wall_s < 1.5 * fast.wall_s
    assert full.link_bytes > 5 * relaxed.link_bytes > 0


def test_modes_are_alike_when_nothing_is_slow():
    times = [run_teams(two_sites(bytes_per_s=None), mode)[0].wall_s for mode in MODES]
    assert max(times) < 1.6 * min(times)


def test_a_slower_team_is_given_less():
    _, events = run_teams(two_sites(speed=0.25), "percentage(0.2)", samples=40000, epochs=2)
    steps = [event for event in events if isinstance(event, StepDone) and event.epoch == 1]
    used = [sum(event.samples for event in steps if event.team == team) for team in (0, 1)]
    # Each has 16 samples per step at least, half of an equal part: (0.002 + 0.0002·16)·4 is a slow
    # worker's step, 0.002 + 0.0002·48 a fast one's, and 32 samples of 128 are the slow team's.
    assert {event.samples for event in steps if event.team == 1 and event.step > 500} == {16}
    assert used[0] / used[1] == pytest.approx((96 / 0.0116) / (32 / 0.0208), rel=0.1)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("full", "with sync full there are no teams"),
        ("full/flexible", "the groups of this scenario have 2: name groups of groups"),
        ("none/none", "or write none"),
    ],
)
def test_what_is_not_simulated_is_refused(mode, message):
    with pytest.raises(UsageError, match=message):
        run_teams(two_sites(), mode)
