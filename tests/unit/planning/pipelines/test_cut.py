# SPDX-License-Identifier: Apache-2.0
"""The cut is the best there is: compared with every cut over every order of some of the machines."""

from __future__ import annotations

from itertools import combinations, pairwise, permutations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.planning.pipelines.cut import best_cut
from gangline.planning.pipelines.memory import Way, in_flight, stage_bytes
from gangline.spec.errors import UsageError
from gangline.spec.pipelines import Layer, Links, Machine, Pace
from gangline.spec.profile import Link

if TYPE_CHECKING:
    from collections.abc import Sequence

sizes = st.integers(0, 8).map(float)
links = st.builds(Link, latency_s=sizes, bytes_per_s=st.integers(1, 50).map(float))


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Layer], list[Machine], Way, Links]:
    count = draw(st.integers(1, 5))
    layers = [
        Layer(
            name=f"l{index}",
            parameter_bytes=draw(sizes),
            state_bytes=draw(sizes),
            saved_bytes=draw(sizes),
            input_bytes=draw(sizes),
            output_bytes=draw(sizes),
        )
        for index in range(count)
    ]
    paces = st.builds(Pace, fixed_s=sizes, sample_s=st.integers(1, 9).map(float))
    machines = [
        Machine(
            name=f"m{index}",
            forward=tuple(draw(paces) for _ in layers),
            backward=tuple(draw(paces) for _ in layers),
            memory_bytes=draw(st.one_of(st.none(), st.integers(0, 120).map(float))),
        )
        for index in range(draw(st.integers(1, 3)))
    ]
    way = Way(
        schedule=draw(st.sampled_from(["1f1b", "gpipe", "pipedream"])),
        micro_batches=draw(st.integers(1, 4)),
        samples=draw(st.integers(1, 3)),
        recompute=draw(st.booleans()),
    )
    pairs = {f"{a.name} {b.name}": draw(links) for a, b in combinations(machines, 2)}
    return layers, machines, way, Links(pairs=pairs)


def cost_s(
    layers: Sequence[Layer],
    machines: Sequence[Machine],
    bounds: Sequence[int],
    way: Way,
    links: Links,
) -> float | None:
    """By the definition at the top of `cut.py`; None where a stage does not fit."""
    total, slowest = 0.0, 0.0
    for number, (start, stop) in enumerate(pairwise(bounds)):
        machine, behind = machines[number], len(machines) - 1 - number
        needed = stage_bytes(layers[start:stop], way, behind=behind)
        if machine.memory_bytes is not None and needed > machine.memory_bytes:
            return None
        forward = sum(machine.forward[i].time_s(way.samples) for i in range(start, stop))
        backward = sum(machine.backward[i].time_s(way.samples) for i in range(start, stop))
        stage = forward * (2 if way.recompute else 1) + backward
        total, slowest = total + stage, max(slowest, stage)
        if behind:
            link = links.between(machine.name, machines[number + 1].name)
            message = link.time_s(way.samples * layers[stop - 1].output_bytes)
            total, slowest = total + 2 * message, max(slowest, message)
    return total + (way.micro_batches - 1) * slowest


def cheapest(
    layers: list[Layer], machines: list[Machine], way: Way, links: Links, stages: int | None
) -> float | None:
    costs = []
    for size in range(1, min(len(machines), len(layers)) + 1):
        if stages not in (None, size):
            continue
        for some in permutations(machines, size):
            for inner in combinations(range(1, len(layers)), size - 1):
                one = cost_s(layers, some, [0, *inner, len(layers)], way, links)
                costs += [] if one is None else [one]
    return min(costs, default=None)


@given(problems(), st.sampled_from([None, None, 1, 2]))
def test_no_cut_is_cheaper(
    problem: tuple[list[Layer], list[Machine], Way, Links], stages: int | None
) -> None:
    layers, machines, way, between = problem
    expected = cheapest(layers, machines, way, between, stages)
    found = best_cut(layers, machines, way, links=between, stages=stages)
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert found.time_s(way.micro_batches) == pytest.approx(expected)
    by_name = {machine.name: machine for machine in machines}
    bounds = [0, *(stage.stop for stage in found.stages)]
    assert [stage.start for stage in found.stages] == bounds[:-1]
    used = [by_name[stage.machine] for stage in found.stages]
    assert cost_s(layers, used, bounds, way, between) == pytest.approx(expected)


def even(count: int, seconds: float, memory: float | None = None, name: str = "m") -> Machine:
    pace = Pace(sample_s=seconds)
    return Machine(
        name=name, forward=(pace,) * count, backward=(pace,) * count, memory_bytes=memory
    )


def test_many_machines_are_taken_in_their_order() -> None:
    layers = [Layer(name=f"l{index}") for index in range(18)]
    machines = [even(18, 1.0 if index else 0.5, name=f"m{index}") for index in range(8)]
    found = best_cut(layers, machines, Way(micro_batches=64))
    assert found is not None
    assert [stage.machine for stage in found.stages] == [f"m{index}" for index in range(8)]
    assert found.stages[0].stop == 4  # twice as fast, and up to twice as many layers
    assert found.bottleneck_s == 4.0


def test_a_fast_machine_with_little_memory_gets_the_layers_that_fit() -> None:
    layers = [Layer(name=f"l{index}", state_bytes=1.0) for index in range(6)]
    machines = [even(6, 0.1, memory=2.0, name="fast"), even(6, 1.0, memory=6.0, name="large")]
    found = best_cut(layers, machines, Way(micro_batches=8))
    assert found is not None
    by_machine = {stage.machine: stage.stop - stage.start for stage in found.stages}
    assert by_machine == {"fast": 2, "large": 4}


def test_activations_are_counted_as_often_as_they_are_in_flight() -> None:
    layers = [Layer(name="l", saved_bytes=3.0, input_bytes=1.0, state_bytes=5.0)]
    for schedule, number in (("gpipe", 4), ("1f1b", 2)):
        way = Way(schedule=schedule, micro_batches=4, samples=2)
        assert in_flight(way, behind=1) == number
        assert stage_bytes(layers, way, behind=1) == 5 + 2 * (number * 3 + 2)
    again = Way(schedule="gpipe", micro_batches=4, samples=2, recompute=True)
    assert stage_bytes(layers, again, behind=1) == 5 + 2 * (4 * 1 + 3 + 2)


def test_nothing_cannot_be_cut() -> None:
    with pytest.raises(UsageError, match="at least one layer"):
        best_cut([], [even(0, 1.0)], Way())
