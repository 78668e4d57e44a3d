# SPDX-License-Identifier: Apache-2.0
"""Clusters whose groups train at their own pace, for the tests of the simulator."""

from __future__ import annotations

from gangline.control import ControlOptions
from gangline.observe.ledger import read_ledger
from gangline.simulation import Course, Scenario, simulate_teams
from gangline.simulation.links import SimulatedLink
from gangline.simulation.scenario import SimulatedNode
from gangline.spec.faults import FaultPlan
from gangline.spec.sync import parse_sync

MODES = ("none", "percentage(0.5)", "percentage(0.1)", "local(8)", "local(8, strict)", "flexible")


def two_sites(*, speed=1.0, noise=0.02, bytes_per_s=5e6, spells=(), **fields):
    """Two groups of two workers with a link between them; the second group is of another speed."""
    nodes = (
        SimulatedNode(name="a", workers=2, group="a", place="a"),
        SimulatedNode(name="b", workers=2, group="b", place="b", speed=speed),
    )
    link = SimulatedLink(
        between=("a", "b"), bytes_per_s=bytes_per_s, delay_s=0.005, jitter_s=0.002, spells=spells
    )
    return Scenario(nodes=nodes, links=(link,), model_bytes=250e3, noise=noise, **fields)


def four_racks(**fields):
    """Two sites of two racks of two workers each, with a link between the sites."""
    groups = ("s/a", "s/b", "t/c", "t/d")
    nodes = tuple(
        SimulatedNode(name=group[-1], workers=2, group=group, place=group) for group in groups
    )
    link = SimulatedLink(between=("s", "t"), bytes_per_s=5e6, delay_s=0.005)
    return Scenario(nodes=nodes, links=(link,), model_bytes=250e3, **fields)


def run_teams(
    scenario, sync, *, samples=8000, epochs=2, global_batch=128, faults=(), seed=0, **course
):
    """The result of a run, and its events."""
    events = []
    result = simulate_teams(
        scenario,
        parse_sync(sync),
        options=ControlOptions(global_batch=global_batch, seed=seed),
        course=Course(samples=samples, faults=FaultPlan(faults=tuple(faults)), **course),
        epochs=epochs,
        sink=events.append,
    )
    return result, events


def check_samples(events, *, length, epochs):
    """Every sample of every epoch was used exactly once."""
    read_ledger(events).check(length=length, epochs=epochs)
