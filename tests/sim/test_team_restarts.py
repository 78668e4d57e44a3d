# SPDX-License-Identifier: Apache-2.0
"""The coordinator of a simulated job is killed and started again, whatever else happens."""

from __future__ import annotations

import random

import pytest
from team_scenarios import MODES, check_samples, four_racks, run_teams, two_sites
from test_team_samples import random_faults, random_scenario

from gangline.simulation.course import Outage, Switch
from gangline.spec.event import Decision

SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 100))]


def random_outages(rng):
    """One to three times in which there is no coordinator; they do not overlap."""
    starts = sorted(rng.uniform(0.0, 4.0) for _ in range(rng.randint(1, 3)))
    gaps = [late - early for early, late in zip(starts, [*starts[1:], 1e9], strict=True)]
    lasts = [min(rng.uniform(0.01, 1.5), 0.9 * gap) for gap in gaps]
    return tuple(Outage(*one) for one in zip(starts, lasts, strict=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_each_sample_is_used_once_when_the_coordinator_dies(seed):
    rng = random.Random(seed)
    scenario = random_scenario(rng)
    faults = random_faults(rng, scenario) if seed % 3 == 0 else ()
    result, events = run_teams(
        scenario,
        MODES[seed % len(MODES)],
        samples=3001,
        epochs=2,
        faults=faults,
        seed=seed,
        outages=random_outages(rng),
    )
    assert result.problem is None
    assert len(result.epoch_s) == 2
    check_samples(events, length=3001, epochs=2)


def test_teams_train_on_while_the_coordinator_is_away():
    result, events = run_teams(
        two_sites(), "percentage(0.2)", samples=20000, outages=(Outage(at_s=1.0, for_s=0.5),)
    )
    calm, _ = run_teams(two_sites(), "percentage(0.2)", samples=20000)
    resumed = [e.t for e in events if isinstance(e, Decision) and e.what == "resume"]
    assert set(resumed) == {1.5}
    assert result.wall_s < calm.wall_s + 1.0
    check_samples(events, length=20000, epochs=2)


@pytest.mark.parametrize("at_s", [0.99, 1.01, 1.05, 1.12])
def test_workers_that_are_being_parted_find_each_other_after_a_restart(at_s):
    result, events = run_teams(
        four_racks(),
        "flexible",
        samples=16000,
        switches=(Switch(at_s=1.0, sync="full/flexible"),) if at_s > 1 else (),
        outages=(Outage(at_s=at_s, for_s=0.3),),
    )
    assert result.problem is None
    check_samples(events, length=16000, epochs=2)
